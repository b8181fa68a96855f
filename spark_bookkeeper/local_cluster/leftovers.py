"""Temporary clusters whose process was killed: nobody is left to remove their directories.

The next temporary cluster does. A directory is one of them only when it says so itself, and
when nobody holds the lock of its ZooKeeper any more, which the operating system releases with the
last process that had it.
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
    """A new directory for a temporary cluster; what killed ones left beside it is removed."""
    parent = Path(tempfile.gettempdir())
    for found in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else is at it, or it is not ours
            _remove_leftover(found)
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def mark(directory: Path, *, is_temporary: bool) -> None:
    """Say in a cluster's directory whether it ends with its process. Somebody who starts a
    temporary one again by its name keeps it.
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
        if lock.read():  # else its process has made the lock this moment, and not taken it yet
            shutil.rmtree(directory, ignore_errors=True)
