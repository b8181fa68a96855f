"""Programs that check the whole project: run by the tests here, or begun before and asked there.

In a run of all tests the slow ones are begun first, as nice as can be: most tests wait for a disk,
a server or a Spark that leaves a processor to them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLACES: Final = [
    place for place in ("spark_bookkeeper", "tests", "jobs") if any((ROOT / place).rglob("*.py"))
]

TYPES: Final = ("-m", "mypy", *PLACES)
LAYERS: Final = (
    "-c",
    # Without its cache: that one misses an import whose module came into being later.
    "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])",
)

SLOW: Final = {"test_types_are_strict": TYPES}
"""By the name of the test that asks."""

_running: dict[tuple[str, ...], tuple[subprocess.Popen[str], IO[str]]] = {}


def begin(arguments: tuple[str, ...]) -> None:
    """Run Python with these arguments, beside whatever else is done."""
    said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed when it is asked)
    process = subprocess.Popen(
        ["nice", "-n", "19", sys.executable, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _running[arguments] = process, said


def outcome(arguments: tuple[str, ...]) -> tuple[int, str]:
    """Its exit code and what it said; runs it now unless it was begun before."""
    if arguments not in _running:
        begin(arguments)
    process, said = _running.pop(arguments)
    with said:
        code = process.wait()
        said.seek(0)
        return code, said.read()


def end_all() -> None:
    """End those for which nobody has asked."""
    for process, said in _running.values():
        process.kill()
        process.wait()
        said.close()
    _running.clear()
