"""Leftovers: directories of temporary clusters whose process was killed and cannot remove them.

The next temporary cluster removes them. It takes a directory for a leftover only if the directory
contains the file ``temporary`` and no process holds the lock of its ZooKeeper any more. The
operating system releases the lock with the last process that had it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "spark-bookkeeper-"
_SIGN: Final = "temporary"


def temporary_directory() -> Path:
    """Return a new directory for a temporary cluster; remove the leftovers of killed ones."""
    parent = Path(tempfile.gettempdir())
    for found in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process removes it, or it is not ours
            _remove_leftover(found)
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def mark(directory: Path, *, is_temporary: bool) -> None:
    """Mark a cluster's directory as temporary, or remove the mark. A temporary cluster that is
    started again by its directory's name is permanent from then on.
    """
    sign = directory / _SIGN
    if is_temporary:
        sign.write_text(
            "This cluster ends with its process. When that was killed, the next temporary cluster "
            "removes this directory; remove this file to keep it.\n",
            encoding="utf-8",
        )
    else:
        sign.unlink(missing_ok=True)


def _remove_leftover(directory: Path) -> None:
    import fcntl  # not on Windows, where there is no embedded ZooKeeper either

    there = directory.lstat()
    is_ours = stat.S_ISDIR(there.st_mode) and there.st_uid == os.getuid()
    if not is_ours or not (directory / _SIGN).is_file():
        return
    with open(directory / "zookeeper" / "lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock.read():  # else its process has just made the lock, and not taken it yet
            shutil.rmtree(directory, ignore_errors=True)
