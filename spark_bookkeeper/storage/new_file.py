"""A file in the making on a local file system, and the directory that it gets its name in.

Its content is made durable first, then its name (SLOT-LOG rules R1, R9). The directory may be kept
open between two puts while its path names it (rule R11).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from typing_extensions import Buffer, override

TEMPORARY_SUFFIX = ".tmp"

SHARED_MODE = 0o666
"""Of a file without secrets; the process's umask says whose it is."""


O_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)


sync_content = getattr(os, "fdatasync", os.fsync)


_temporary_numbers = itertools.count()


PIECE_BYTES = 256 << 10
"""Written in one call; it fits into a processor's own cache. For more, the system takes larger
pages, which at times are slow: three threads wrote 1 MiB each in 0.3 ms mostly and in 2.7 at times,
and in pieces always in 0.3."""


_SYNC_FILE_RANGE_WRITE = 2

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:  # Linux
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def is_temporary(name: str) -> bool:
    """Whether a file name is that of a write that has not been finished."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


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


class NewFile:
    """Content without a final name yet."""

    def __init__(self, directory: int, name: str) -> None:
        self.directory = directory
        self.name = name
        self.descriptor = -1

    def publish(self) -> bool:
        """Sync the content, give it its name and sync the name; False if the name is taken."""
        sync_content(self.descriptor)
        try:
            self._link()
        except FileExistsError:
            return False
        self._forget()
        os.fsync(self.directory)
        return True

    def discard(self) -> None:
        """Release what is left; never raises."""
        if self.descriptor >= 0:
            with suppress(OSError):
                self._forget()
            with suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1

    def _link(self) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        """Remove the temporary name, once."""


class UnnamedFile(NewFile):
    """A file without a name: a killed process leaves nothing behind."""

    def __init__(self, directory: int, name: str, mode: int) -> None:
        super().__init__(directory, name)
        assert O_TMPFILE is not None
        self.descriptor = os.open(".", O_TMPFILE | os.O_WRONLY, mode, dir_fd=directory)

    @override
    def _link(self) -> None:
        # With a directory descriptor os.link follows the symbolic link to the open file.
        os.link(
            f"/proc/self/fd/{self.descriptor}",
            self.name,
            src_dir_fd=self.directory,
            dst_dir_fd=self.directory,
            follow_symlinks=True,
        )


def open_unnamed(directory: str) -> int:
    assert O_TMPFILE is not None
    return os.open(directory, O_TMPFILE | os.O_WRONLY, SHARED_MODE)


def link_unnamed(descriptor: int, target: str) -> bool:
    """Give an open file its name, of the directory that is there now; False if it is taken."""
    try:
        # Any descriptor will do, since both paths are absolute: see ``UnnamedFile``.
        source = f"/proc/self/fd/{descriptor}"
        os.link(source, target, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


class NamedFile(NewFile):
    """A hidden name in the same directory, where files without one are not supported."""

    def __init__(self, directory: int, name: str, mode: int) -> None:
        super().__init__(directory, name)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        while self.descriptor < 0:
            number = next(_temporary_numbers)
            self._temporary: str | None = f".{name}.{os.getpid()}-{number}{TEMPORARY_SUFFIX}"
            # Another machine that mounts the same file system may use the same process id.
            with suppress(FileExistsError):
                self.descriptor = os.open(self._temporary, flags, mode, dir_fd=directory)

    @override
    def _link(self) -> None:
        assert self._temporary is not None
        os.link(self._temporary, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)

    @override
    def _forget(self) -> None:
        if self._temporary is not None:
            os.unlink(self._temporary, dir_fd=self.directory)
            self._temporary = None


@contextmanager
def open_directory(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    with open_directory(path) as descriptor:
        os.fsync(descriptor)


def write(descriptor: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view[:PIECE_BYTES]) :]


def begin_writing_out(descriptor: int, offset: int, length: int) -> None:
    """Have the system begin to write a range of a file to the disk, and do not wait for that.

    It promises nothing: what becomes durable, and what went wrong, the sync of the content says.

    Args:
        offset, length: in bytes.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)
