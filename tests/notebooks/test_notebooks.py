"""Every notebook runs from a clean state, is stored with its pictures, and leaves nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SVG = "image/svg+xml"
STORE = "SPARK_BOOKKEEPER_STORE"
WITH_DELTA = [path for path in NOTEBOOKS if "delta=True" in path.read_text(encoding="utf-8")]
PLAIN = [path for path in NOTEBOOKS if path not in WITH_DELTA]


def images(cell: dict[str, Any]) -> list[str]:
    """What of its output every viewer shows."""
    outputs = [output.get("data", {}) for output in cell.get("outputs", ())]
    return ["".join(data[SVG]) for data in outputs if SVG in data]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01-first-ledger",
        "02-fencing-and-recovery",
        "03-losing-a-bookie",
        "04-logs-and-streams",
        "05-operating-and-health",
        "06-delta",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_begins_with_a_cluster_and_tells_a_story_with_pictures(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]

    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")
    assert "sbk.local(" in code[0], "one cell gives session, cluster and data"
    assert [cell for cell in code[1:] if "sbk.local(" in cell] == []
    assert [cell for cell in code if "pictures." in cell or ".plot" in cell]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_with_the_images_of_its_pictures_and_nothing_else(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))

    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        last = "".join(cell["source"]).rpartition("\n\n")[2]
        draws = re.search(r"^sbk\.pictures\.(?!keep)|\.plot\.", last, re.MULTILINE)
        draws = draws if cell["cell_type"] == "code" else None
        assert len(images(cell)) == bool(draws), f"{last}\nrun the notebook with {STORE}=1"
        assert all([*output["data"]] == [SVG] for output in cell.get("outputs", ())), last
        assert cell.get("execution_count") is None, last


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
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: tuple[str, str] = ("", "")
) -> None:
    """Args: ``instead`` is a text in its cells, and what stands in its place."""
    import nbformat

    stored = json.loads(path.read_text(encoding="utf-8"))
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        cell.source = cell.source.replace(*instead) if instead[0] else cell.source
    execute(notebook, tmp_path, monkeypatch)
    for cell, ran in zip(stored["cells"], notebook.cells, strict=True):
        if STORE in os.environ and ran.cell_type == "code":
            data = [{SVG: image} for image in images(ran)]
            kind = {"metadata": {}, "output_type": "display_data"}
            cell["outputs"] = [{"data": each, **kind} for each in data]
        assert len(images(cell)) == len(images(ran))
    if STORE in os.environ:
        text = json.dumps(stored, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


def execute(
    notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, allow_errors: bool = False
) -> None:
    """Run all cells in a kernel that is this very environment, whatever others are installed."""
    # Here, for it takes seconds, which the collection of all tests would spend each time.
    from nbclient import NotebookClient

    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    folder = tmp_path / "kernels" / "this-python"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "this Python", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="this-python",
        allow_errors=allow_errors,
        resources={"metadata": {"path": tmp_path}},
    ).execute()


CELLS = (
    """
import os, pathlib, threading, time
import spark_bookkeeper as sbk

bk = sbk.local(bookies=3)
tracker = bk.spark.sparkContext.statusTracker()
bk.spark.range(1).count()
""",
    """
def slowly(batches):
    for batch in batches:
        time.sleep(600)
        yield batch


def tell():
    while not any(tracker.getStageInfo(n).numActiveTasks for n in tracker.getActiveStageIds()):
        time.sleep(0.05)
    pathlib.Path("running.new").write_text(str(os.getpid()))
    os.rename("running.new", "running")


writer = bk.create_ledger(schema=bk.spark.range(1).schema)
threading.Thread(target=tell).start()
writer.append(bk.spark.range(10).mapInArrow(slowly, "id long"))
""",
    """
while tracker.getActiveJobsIds():
    time.sleep(0.05)
writer.append(bk.spark.range(3))
writer.close()
rows = bk.open_ledger(writer.ledger_id).read().count()
bk.close()
assert rows == 3, rows
""",
)


@pytest.mark.slow
def test_a_cell_that_is_interrupted_cancels_its_job_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the button of a notebook, which sends this signal to its kernel."""
    import nbformat

    cells = [nbformat.v4.new_code_cell(text.strip()) for text in CELLS]

    def press() -> None:
        while not (running := tmp_path / "running").exists():
            time.sleep(0.05)
        os.kill(int(running.read_text()), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    notebook = nbformat.v4.new_notebook(cells=cells)
    execute(notebook, tmp_path, monkeypatch, allow_errors=True)

    errors = [[o.ename for o in cell.outputs if o.output_type == "error"] for cell in cells]
    assert errors == [[], ["KeyboardInterrupt"], []], cells
