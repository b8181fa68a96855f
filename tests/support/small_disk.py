"""A file system of a few MiB of its own, to be filled to the last byte; needs root."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import Final

_MIB: Final = 1 << 20


class MountRefusedError(Exception):
    """This machine does not let us mount one."""


class SmallDisk:
    """Mounted where a bookie's storage partition will be, in memory.

    Raises:
        MountRefusedError: mounting needs root, and is not allowed in every container.
    """

    def __init__(self, root: Path, size: str) -> None:
        self.root = root
        root.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "spark-bookkeeper-test", str(root)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            raise MountRefusedError(
                "mounting a small file system needs root, and mount to be allowed"
            )

    def remount(self, options: str) -> None:
        """Change what it is mounted with."""
        subprocess.run(["mount", "-o", f"remount,{options}", self.root], check=True)

    def shrink(self) -> None:
        """Leave 2 MiB of it."""
        self.remount("size=2m")

    def fill(self) -> None:
        """Take every byte that is left."""
        with open(self._filler, "ab", buffering=0) as filler:
            size = _MIB
            while size:
                try:
                    filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def clear(self) -> None:
        """Give back what ``fill`` took."""
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Take it away, with all that is in it."""
        subprocess.run(["umount", "-l", self.root], check=True)

    @property
    def _filler(self) -> Path:
        return self.root / ".filler"
