"""A directory kept open between two puts, while its path names it (SLOT-LOG rule R11)."""

from __future__ import annotations

import errno
import os
import sys


class _Directory:
    """A descriptor of a directory, closed with the last reference."""

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        status = os.fstat(self.descriptor)
        self._inode, self._device = status.st_ino, status.st_dev
        self.may_be_kept = shows_changes_at_once(status.st_dev)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def is_named(self, path: str) -> bool:
        """Whether a path names this directory now. While it is open, no other has its number."""
        status = os.stat(path)
        return status.st_ino == self._inode and status.st_dev == self._device


class KeptDirectory:
    """Where the descriptor of a directory is between two puts, while somebody holds this."""

    __slots__ = ("__weakref__", "_directory")

    def __init__(self) -> None:
        self._directory: _Directory | None = None

    def take(self, path: str) -> _Directory:
        """The directory to put a file into. Whoever fails there does not give it back."""
        directory, self._directory = self._directory, None
        return _Directory(path) if directory is None else directory

    def give_back(self, directory: _Directory, path: str) -> None:
        """After a put; raises ``OSError`` if the path names another directory now."""
        if not directory.is_named(path):
            raise OSError(errno.ESTALE, "the directory was replaced by another one")
        if directory.may_be_kept:
            self._directory = directory


def shows_changes_at_once(device: int) -> bool:
    """Whether one ``stat`` on this device shows what anybody did before.

    So it is where a disk of this machine lies under the file system. Those without one have a
    major number of 0: among them NFS and FUSE, which answer from a cache of some seconds, where
    opening a file asks the server.
    """
    return sys.platform == "linux" and os.major(device) != 0
