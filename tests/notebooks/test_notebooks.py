"""Every notebook runs from a clean state, is stored without output, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WITH_DELTA = [path for path in NOTEBOOKS if "delta=True" in path.read_text(encoding="utf-8")]
PLAIN = [path for path in NOTEBOOKS if path not in WITH_DELTA]


def test_there_are_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [
        f"{n:02d}" for n in range(1, len(NOTEBOOKS) + 1)
    ]
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_output(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))

    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), cell["source"]
        assert cell.get("execution_count") is None, cell["source"]


@pytest.mark.slow
@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.delta
@pytest.mark.parametrize("path", WITH_DELTA, ids=lambda path: path.stem)
def test_it_runs_with_delta(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delta_jars: list[Path]
) -> None:
    jars = ",".join(str(jar) for jar in delta_jars)
    run(path, tmp_path, monkeypatch, ("delta=True", f"delta=True, spark_jars={jars!r}"))


def run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    instead: tuple[str, str] = ("", ""),
) -> None:
    """Args: ``instead`` is a text in its cells, and what stands in its place."""
    # Here, for they take seconds, which the collection of all tests would spend each time.
    import nbformat
    from nbclient import NotebookClient

    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("JUPYTER_PATH", str(kernel_of_this_python(tmp_path)))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        cell.source = cell.source.replace(*instead) if instead[0] else cell.source
    client = NotebookClient(
        notebook, timeout=600, kernel_name="this-python", resources={"metadata": {"path": tmp_path}}
    )

    client.execute()


def kernel_of_this_python(place: Path) -> Path:
    """A kernel that is this very environment, whatever others are installed."""
    folder = place / "kernels" / "this-python"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "this Python", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return place
