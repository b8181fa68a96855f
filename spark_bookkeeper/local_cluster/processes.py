"""The identity of processes that outlive their maker, and whether they still run.

A process id alone is not enough: after a restart of the machine, or a long time, another process
may have it. The id and the start time of the process identify it for ever.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


def birth_of(pid: int) -> str | None:
    """Return a text that no other process with this id has; ``None`` if no such process runs.

    A process that has ended and was not yet waited for counts as ended.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            # The second field is the program's name in parentheses, which may hold anything.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, began = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else began.strip()
