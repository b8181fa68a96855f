"""Processes that tests start, and those that their clusters start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil


def start_script(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Python runs it in a session of its own; all three of its streams are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_of(directory: Path) -> list[psutil.Process]:
    """Every process that has the directory on its command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(directory) in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def is_gone(pid: int) -> bool:
    """Whether it has ended; nobody need have waited for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
