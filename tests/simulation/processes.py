"""What another process says, in which strings have other hashes than here."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

HERE: Final = os.environ.get("PYTHONHASHSEED", "random")
THERE: Final = "2" if HERE == "1" else "1"
HASHES: Final = f"PYTHONHASHSEED is {HERE} here, and {THERE} in the other process"
"""For whoever repeats a failure."""


def printed_there(*arguments: str) -> str:
    """What Python prints with these arguments, in the other process."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONHASHSEED": THERE, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
