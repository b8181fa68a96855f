"""Make a whole file system durable by one call, where that is as safe as many syncs.

``syncfs`` writes out a whole file system: contents, names, directories. It is faster than many
syncs if much was written here and little elsewhere. It is safe if it reports all errors since a
descriptor was opened (Linux 5.17), and if the file system keeps its promises by itself. A file
system on a network or in user space depends on another program.

Source: Linux ``syncfs(2)``, "RETURN VALUE" and "NOTES"; ``fs/sync.c``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

FEWEST: Final = 4
"""The fewest syncs that one ``syncfs`` replaces; fewer are made one by one."""

DIRTY_BYTES_MAX: Final = 64 << 20
"""``syncfs`` is used only while the machine has at most this many unwritten bytes. With more, it
would wait long for the data of other processes."""

_FILE_SYSTEMS: Final = frozenset({"ext4", "xfs"})
_ERRORS_ARE_TOLD_SINCE: Final = (5, 17)


class FileSystem:
    """A file system that can be synced as a whole, while ``descriptor`` is open.

    Args:
        descriptor: a directory in it, opened before the files to sync were written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._device = os.fstat(descriptor).st_dev

    def has_all(self, devices: Iterable[int]) -> bool:
        """Whether all these devices are this file system, not one mounted below it."""
        return all(device == self._device for device in devices)

    def check_has(self, descriptor: int) -> None:
        """Raise ``OSError`` for an open file in another file system."""
        if os.fstat(descriptor).st_dev != self._device:
            raise OSError("it is in another file system than the partition's root")

    def sync(self) -> None:
        """Make all earlier changes in it durable. ``OSError``: they may not be durable."""
        if _LIBRARY.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # Only this call reports that the journal failed before, for example at an earlier commit.
        os.fsync(self._descriptor)


@contextmanager
def file_system(root: str) -> Iterator[FileSystem | None]:
    """Open the file system of a directory; ``None`` if single syncs are better or safer now."""
    if not is_fit(root) or _dirty_bytes() > DIRTY_BYTES_MAX:
        yield None
        return
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield FileSystem(descriptor)
    finally:
        os.close(descriptor)


def is_fit(root: str) -> bool:
    """Whether ``syncfs`` is reliable on the file system of a directory."""
    try:
        return _is_fit(os.stat(root).st_dev)
    except OSError:
        return False


@lru_cache(maxsize=64)
def _is_fit(device: int) -> bool:
    """Whether ``syncfs`` is reliable on the file system of a device."""
    if not sys.platform.startswith("linux") or _release() < _ERRORS_ARE_TOLD_SINCE:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            found = [line.split() for line in mounts]
    except OSError:
        return False
    kinds = {words[words.index("-") + 1] for words in found if words[2] == wanted}
    return bool(kinds) and kinds <= _FILE_SYSTEMS


def _release() -> tuple[int, ...]:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def _dirty_bytes() -> float:
    """Return about how many bytes the machine has not written yet; infinity if unknown."""
    try:
        with open("/proc/meminfo", "rb") as told:
            lines = dict(line.split(b":", 1) for line in told)
        kilobytes = (int(lines[name].split()[0]) for name in (b"Dirty", b"Writeback"))
        return float(sum(kilobytes) << 10)
    except (OSError, KeyError, ValueError, IndexError):
        return float("inf")


_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
