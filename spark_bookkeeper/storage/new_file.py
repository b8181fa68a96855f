"""A new file on a local file system, and the directory in which it gets its name.

Its content is made durable first, then its name (SLOT-LOG rules R1, R9). The directory may be kept
open between two puts while its path still names it (rule R11).
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
"""The mode of a file without secrets, before the process's umask."""


O_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)


sync_content = getattr(os, "fdatasync", os.fsync)


_temporary_numbers = itertools.count()


PIECE_BYTES = 256 << 10
"""The most bytes of one write call; they fit into the cache of one processor core. For more, the
system uses larger pages, which are sometimes slow: three threads wrote 1 MiB each in 0.3 ms mostly
and in 2.7 ms at times, and in pieces always in 0.3 ms."""


_SYNC_FILE_RANGE_WRITE = 2

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:  # Linux
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def is_temporary(name: str) -> bool:
    """Whether a file name belongs to an unfinished write."""
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
        """Whether a path names this directory now. While it is open, its inode is not reused."""
        status = os.stat(path)
        return status.st_ino == self._inode and status.st_dev == self._device


class KeptDirectory:
    """Keeps the descriptor of a directory between two puts, as long as a caller holds this."""

    __slots__ = ("__weakref__", "_directory")

    def __init__(self) -> None:
        self._directory: _Directory | None = None

    def take(self, path: str) -> _Directory:
        """Take the directory to put a file into. After an error it is not given back."""
        directory, self._directory = self._directory, None
        return _Directory(path) if directory is None else directory

    def give_back(self, directory: _Directory, path: str) -> None:
        """Return it after a put. Raise ``OSError`` if the path names another directory now."""
        if not directory.is_named(path):
            raise OSError(errno.ESTALE, "the directory was replaced by another one")
        if directory.may_be_kept:
            self._directory = directory


def shows_changes_at_once(device: int) -> bool:
    """Whether one ``stat`` on this device shows every earlier change, by any process.

    That holds for a file system on a disk of this machine. File systems without a disk have major
    number 0. Among them are NFS and FUSE: they answer ``stat`` from a cache of some seconds, and
    query the server only when a file is opened.
    """
    return sys.platform == "linux" and os.major(device) != 0


class NewFile:
    """A file that has no final name yet."""

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
        """Close the file, and remove its temporary name. Never raises."""
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
        # Only with a directory descriptor does os.link follow the symbolic link to the open file.
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
    """Link an open file to a name in the directory that exists now; False if the name is taken."""
    try:
        # Both paths are absolute, so any descriptor will do. See ``UnnamedFile`` for the reason.
        source = f"/proc/self/fd/{descriptor}"
        os.link(source, target, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


class NamedFile(NewFile):
    """A file with a hidden name in the same directory, where unnamed files are not supported."""

    def __init__(self, directory: int, name: str, mode: int) -> None:
        super().__init__(directory, name)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        while self.descriptor < 0:
            number = next(_temporary_numbers)
            self._temporary: str | None = f".{name}.{os.getpid()}-{number}{TEMPORARY_SUFFIX}"
            # Another machine with the same file system mounted may have the same process id.
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
    """Make the system begin to write a range of a file to the disk, without waiting for it.

    This promises nothing. Only the sync of the content makes it durable and reports errors.

    Args:
        offset, length: in bytes.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)
