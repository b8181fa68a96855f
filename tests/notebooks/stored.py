"""Run the notebooks, and store them with the images of their pictures: all else differs each time.

python -m tests.notebooks.stored
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import DELTA, DELTA_ARTIFACTS
from tests.notebooks.test_notebooks import NOTEBOOKS, SVG, execute, images


def main() -> None:
    """Names of notebooks may be given."""
    import nbformat

    home = Path.home() / ".m2" / "repository" / "io" / "delta"
    jars = ",".join(str(home / n / DELTA / f"{n}-{DELTA}.jar") for n in DELTA_ARTIFACTS)
    for path in (path for path in NOTEBOOKS if path.stem in sys.argv[1:] or not sys.argv[1:]):
        run = nbformat.read(path, as_version=4)
        for cell in run.cells:
            cell.source = cell.source.replace("delta=True", f"delta=True, spark_jars={jars!r}")
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            execute(run, Path(folder), patch)
        stored = json.loads(path.read_text(encoding="utf-8"))
        for cell, ran in zip(stored["cells"], run.cells, strict=True):
            if cell["cell_type"] == "code":
                cell["outputs"] = [
                    {"data": {SVG: image}, "metadata": {}, "output_type": "display_data"}
                    for image in images(ran)
                ]
        text = json.dumps(stored, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
