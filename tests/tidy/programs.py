"""Programs that check the whole project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PLACES: Final = [
    place
    for place in ("spark_bookkeeper", "tests", "jobs", ".ci")
    if any((ROOT / place).rglob("*.py"))
]

TYPES: Final = ("-m", "mypy", *PLACES)
LAYERS: Final = (
    "-c",
    # Without its cache: that one misses an import whose module came into being later.
    "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])",
)


def outcome(arguments: tuple[str, ...]) -> tuple[int, str]:
    """Run Python with these arguments; return its exit code and its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout
