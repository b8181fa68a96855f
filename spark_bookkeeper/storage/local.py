"""A bookie's partition on a local (or mounted) file system.

A file is written without a name where the system can (``O_TMPFILE``), else under a hidden name.
Then it is synced and linked to its final name, which fails if the name exists, and the directory
is synced (SLOT-LOG rules R1 and R9). A descriptor of a directory accepts files even after the
partition was moved away. So each put opens the directory; or the descriptor is kept open, and each
put checks afterwards that the path still names the same directory (rule R11).

Syncs are the main cost of many small files. Where one call makes a whole file system durable
(``file_system.py``), a batch of puts shares its syncs: one for the contents of all files, and one
for the names, when all are linked. The order for each file is the same.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251  (within one call of a storage)
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from typing_extensions import Buffer, override

from spark_bookkeeper.errors import BookieFullError, BookieUnavailableError
from spark_bookkeeper.runtime.private_files import PRIVATE_MODE
from spark_bookkeeper.storage import new_file
from spark_bookkeeper.storage.file_system import FEWEST, file_system, is_fit
from spark_bookkeeper.storage.new_file import (
    O_TMPFILE,
    SHARED_MODE,
    KeptDirectory,
    NamedFile,
    NewFile,
    UnnamedFile,
    begin_writing_out,
    is_temporary,
    link_unnamed,
    open_directory,
    open_unnamed,
    sync_directory,
    write,
)
from spark_bookkeeper.storage.storage import (
    Content,
    FileSink,
    Storage,
    check_below,
    check_limit,
    nothing,
    top_is_gone,
    whose,
)

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NO_UNNAMED_FILES = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}
_DURABLE_KEPT = 4096
_FILES_TOGETHER = 128
"""The most files that a batch of puts has open. A ``delete`` of as many uses threads."""

_REMOVALS_AT_ONCE = 8
"""Threads that remove many files. On a mount with ``discard`` each removal waits for the disk, and
the disk does several in the time of one."""

_BEGUN_BYTES = 8 << 20
"""A file that is written piece by piece begins its way to the disk in steps of this size."""

_THROUGH_BYTES = 1 << 20
"""The size of a piece of ``read_through``: small enough for the processor's cache, and large enough
that the calls cost little."""

_LITTLE_BYTES = 64 << 10
"""Up to this size, plain bytes are faster to read than Arrow's memory."""


class LocalStorage(Storage):
    """Files under a directory that exists. Safe for many threads and processes at once."""

    def __init__(self, root: str | os.PathLike[str], bookie_id: str | None = None) -> None:
        self._root = os.path.abspath(root)
        self._bookie_id = bookie_id
        self._unnamed_files = O_TMPFILE is not None and os.path.isdir("/proc/self/fd")
        self._durable: dict[str, int] = {}
        """Directories whose names this object synced, each with its inode at that time."""
        self._kept: weakref.WeakValueDictionary[str, KeptDirectory] = weakref.WeakValueDictionary()
        self._read: dict[str, tuple[_Stamp, bytes]] = {}
        """For each path, the content that ``read_again`` read last, and the file's stamp then."""

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

    @property
    @override
    def bookie_id(self) -> str:
        return self._bookie_id or self.uri

    @property
    @override
    def uri(self) -> str:
        return Path(self._root).as_uri()

    @property
    @override
    def has_directories(self) -> bool:
        return True

    @property
    @override
    def syncs_as_one(self) -> bool:
        return self._unnamed_files and is_fit(self._root)

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        target = self._at(path)
        parent, _, name = target.rpartition("/")
        kept = self._kept.get(parent)
        with self._translated(target):
            if kept is None:
                with open_directory(parent) as descriptor:
                    return self._put(descriptor, name, data)
            directory = kept.take(parent)
            is_new = self._put(directory.descriptor, name, data)
            kept.give_back(directory, parent)
            return is_new

    def _put(self, directory: int, name: str, data: bytes | Content) -> bool:
        is_private = isinstance(data, Content) and data.is_private
        file = self._begin(directory, name, PRIVATE_MODE if is_private else SHARED_MODE)
        try:
            for piece in [data] if isinstance(data, bytes) else data:
                write(file.descriptor, piece)
            return file.publish()
        finally:
            file.discard()

    @override
    def keep(self, directory: str) -> object:
        target = self._at(directory)
        kept = self._kept.get(target)
        if kept is None:
            kept = self._kept[target] = KeptDirectory()
        return kept

    @override
    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        created: list[bool] = []
        for start in range(0, len(files), _FILES_TOGETHER):
            some = files[start : start + _FILES_TOGETHER]
            if start:  # the first batch made all of these durable
                relied_on = directories = ()
            created += self._put_together(some, progress, relied_on, directories)
        return created

    def _put_together(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None],
        relied_on: Sequence[str],
        directories: Sequence[str],
    ) -> Sequence[bool]:
        if len(files) < FEWEST or not self._unnamed_files:
            return super().put_all(files, progress, relied_on, directories)
        with self._translated(self._root), file_system(self._root) as whole:
            if whole is None or not whole.has_all(self._parents(relied_on).values()):
                return super().put_all(files, progress, relied_on, directories)
            doubtful = self._made(directories)
            if not whole.has_all(status.st_dev for status in doubtful.values()):
                return super().put_all(files, progress, relied_on, directories)
            written: list[tuple[str, int]] = []
            try:
                for path, data in files:
                    target = self._at(path)
                    descriptor = open_unnamed(target.rpartition("/")[0])
                    written.append((target, descriptor))
                    whole.check_has(descriptor)
                    write(descriptor, data)
                progress()
                whole.sync()  # covers ``relied_on`` and ``directories`` as well
                self._note_durable(doubtful)
                progress()
                created = [link_unnamed(descriptor, target) for target, descriptor in written]
                progress()
                if any(created):
                    whole.sync()
                return created
            finally:
                for _, descriptor in written:
                    os.close(descriptor)

    @override
    def create(self, path: str) -> FileSink:
        target = self._at(path)
        parent, _, name = target.rpartition("/")
        with self._translated(target):
            directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                file = self._begin(directory, name)
            except BaseException:
                os.close(directory)
                raise
        return _LocalSink(self, target, directory, file)

    @override
    def read(self, path: str) -> bytes | None:
        found = self._content(self._at(path))
        return None if found is None else found[1]

    @override
    def read_again(self, path: str) -> bytes | None:
        target = self._at(path)
        before = self._read.get(path)
        if before is not None:
            with self._reading(target):
                try:
                    status = os.stat(target)
                except FileNotFoundError:
                    return None
            if _stamp(status) == before[0]:
                return before[1]
        found = self._content(target)
        if found is None or not new_file.shows_changes_at_once(found[0].st_dev):
            self._read.pop(path, None)
        else:
            self._read[path] = (_stamp(found[0]), found[1])
        return None if found is None else found[1]

    def _content(self, target: str) -> tuple[os.stat_result, bytes] | None:
        """Return the status of a file just before the read, and its whole content."""
        with self._reading(target):
            try:
                descriptor = os.open(target, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                status = os.fstat(descriptor)
                size = status.st_size
                data = os.read(descriptor, size + 1)  # fewer calls than a file object makes
                while len(data) < size and (piece := os.read(descriptor, size + 1 - len(data))):
                    data += piece
                return status, data
            finally:
                os.close(descriptor)

    @override
    def read_range(self, path: str, offset: int, length: int) -> pa.Buffer | None:
        target = self._at(path)
        with self._reading(target):
            try:
                descriptor = os.open(target, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:  # fewer calls than a file object makes
                if length <= _LITTLE_BYTES:
                    return _read_little(descriptor, offset, length)
                if offset:
                    os.lseek(descriptor, offset, os.SEEK_SET)
                return _read_fully(descriptor, length)
            finally:
                os.close(descriptor)

    @override
    def read_through(
        self, path: str, offset: int, length: int, take: Callable[[Buffer], None]
    ) -> bool:
        target = self._at(path)
        with self._reading(target):
            try:
                descriptor = os.open(target, os.O_RDONLY)
            except FileNotFoundError:
                return False
            try:
                if offset:
                    os.lseek(descriptor, offset, os.SEEK_SET)
                piece = memoryview(bytearray(min(length, _THROUGH_BYTES)))
                while length and (count := os.readv(descriptor, [piece[:length]])):
                    take(piece[:count])
                    length -= count
                return True
            finally:
                os.close(descriptor)

    @override
    def size(self, path: str) -> int | None:
        target = self._at(path)
        with self._reading(target):
            try:
                return os.stat(target).st_size
            except FileNotFoundError:
                return None

    @override
    def modified_ms(self, path: str) -> int | None:
        target = self._at(path)
        with self._reading(target):
            try:
                return os.stat(target).st_mtime_ns // 1_000_000
            except FileNotFoundError:
                return None

    @override
    def list(self, directory: str) -> Sequence[str]:
        target = self._at(directory) if directory else self._root  # "" lists the root
        with self._reading(target):
            try:
                names = os.listdir(target)
            except FileNotFoundError:
                return []
        return sorted(name for name in names if not is_temporary(name))

    @override
    def make_directory(self, path: str) -> None:
        self.make_directories([path])

    @override
    def make_directories(
        self, paths: Sequence[str], progress: Callable[[], None] = nothing
    ) -> None:
        # An existing directory may not be durable yet (rule R9b). So its parent is synced as
        # well, unless this object made the same directory durable before. All directories are
        # made first: one commit of the file system's journal then serves every sync.
        doubtful = self._made(paths)
        parents = {made.rpartition("/")[0]: status.st_dev for made, status in doubtful.items()}
        self._sync_directories(parents, progress)
        self._note_durable(doubtful)

    def _made(self, paths: Sequence[str]) -> dict[str, os.stat_result]:
        """Make directories. Return those on their paths that may not be durable, with status."""
        doubtful: dict[str, os.stat_result] = {}
        tops: dict[str, os.stat_result] = {}
        for path in paths:
            with self._translated(self._at(path)):
                self._make(path, doubtful, tops)
        return doubtful

    def _note_durable(self, doubtful: Mapping[str, os.stat_result]) -> None:
        if len(self._durable) > _DURABLE_KEPT:
            self._durable = {}
        self._durable |= {made: status.st_ino for made, status in doubtful.items()}

    def _make(
        self, path: str, doubtful: dict[str, os.stat_result], tops: dict[str, os.stat_result]
    ) -> None:
        """Make a directory and its parents.

        Args:
            doubtful: receives each of them that may not be durable, with its status.
            tops: caches the status of directories directly below the root.
        """
        directory = self._root
        top, *below = path.split("/")
        if below:
            directory = f"{directory}/{top}"
            try:
                status = tops.get(top) or tops.setdefault(top, os.stat(directory))
            except FileNotFoundError:
                raise top_is_gone(self, path) from None
            if self._durable.get(directory) != status.st_ino:
                doubtful[directory] = status
        for name in below or [top]:
            directory = f"{directory}/{name}"
            with suppress(FileExistsError):
                os.mkdir(directory)
                self._durable.pop(directory, None)
            status = os.stat(directory)
            if self._durable.get(directory) != status.st_ino:
                doubtful[directory] = status

    @override
    def sync(self, *paths: str) -> None:
        self.sync_all(paths)

    @override
    def sync_all(self, paths: Sequence[str], progress: Callable[[], None] = nothing) -> None:
        # A file's content was durable before it got its name (rule R1). Only the names may not
        # be durable, and one sync of a directory makes all names in it durable.
        self._sync_directories(self._parents(paths), progress)

    def _parents(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the directories of files, each with the files' device. All files must exist."""
        directories: dict[str, int] = {}
        for path in paths:
            target = self._at(path)
            with self._translated(target):
                directories[target.rpartition("/")[0]] = os.stat(target).st_dev
        return directories

    def _sync_directories(
        self, directories: Mapping[str, int], progress: Callable[[], None] = nothing
    ) -> None:
        """Sync directories. Each has the device of its content as value."""
        if len(directories) >= FEWEST:
            with self._translated(self._root), file_system(self._root) as whole:
                if whole is not None and whole.has_all(directories.values()):
                    whole.sync()
                    return
        for directory in directories:
            with self._translated(directory):
                sync_directory(directory)
            progress()

    @override
    def delete(self, *paths: str) -> None:
        targets = list(map(self._at, paths))
        directories: set[str] = set()
        unlink = partial(self._unlink, directories)
        if len(targets) < _FILES_TOGETHER:
            unlink(targets)
        else:
            some = [targets[n::_REMOVALS_AT_ONCE] for n in range(_REMOVALS_AT_ONCE)]
            try:
                with ThreadPoolExecutor(_REMOVALS_AT_ONCE) as threads:
                    list(threads.map(unlink, some))
            except RuntimeError:  # no more threads; the first ones may have removed some files
                unlink(targets)
        for directory in directories:
            with self._translated(directory):
                sync_directory(directory)

    def _unlink(self, directories: set[str], targets: Sequence[str]) -> None:
        """Remove files, and add the directories of those that existed to ``directories``."""
        for target in targets:
            with self._translated(target), suppress(FileNotFoundError):
                os.unlink(target)
                directories.add(target.rpartition("/")[0])

    @override
    def delete_directory(self, path: str) -> None:
        target = self._at(path)
        with self._translated(target):
            try:
                _remove_tree(target)
            except FileNotFoundError:
                return
            sync_directory(os.path.dirname(target))

    @override
    def space(self) -> tuple[int, int] | None:
        with self._reading(self._root):
            usage = os.statvfs(self._root)
        return usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize

    @override
    def inodes(self) -> tuple[int, int] | None:
        with self._reading(self._root):
            usage = os.statvfs(self._root)
        free, total = usage.f_favail, usage.f_files
        # Without a limit, btrfs reports 0 free of 0, and CephFS -1 free of all that exist.
        return (free, total) if total > 0 and 0 <= free <= total else None

    @override
    def close(self) -> None:
        pass

    @override
    def temporary_files(self, directory: str) -> Sequence[str]:
        target = self._at(directory) if directory else self._root
        with self._reading(target):
            try:
                return sorted(name for name in os.listdir(target) if is_temporary(name))
            except FileNotFoundError:
                return []

    def _at(self, path: str) -> str:
        check_below(self, path)
        return f"{self._root}/{path}"

    def _begin(self, directory: int, name: str, mode: int = SHARED_MODE) -> NewFile:
        if self._unnamed_files:
            try:
                return UnnamedFile(directory, name, mode)
            except OSError as error:
                if error.errno not in _NO_UNNAMED_FILES:
                    raise
                self._unnamed_files = False
        return NamedFile(directory, name, mode)

    def _translated(self, target: str) -> _Translated:
        return _Translated(self, target, "; the operation may or may not have taken effect")

    def _reading(self, target: str) -> _Translated:
        """Translate errors of a call that changes nothing."""
        return _Translated(self, target, "")


class _Translated:
    """Translate the system's errors about a file into ours. A class is cheap to enter."""

    __slots__ = ("_doubt", "_storage", "_target")

    def __init__(self, storage: LocalStorage, target: str, doubt: str) -> None:
        self._storage = storage
        self._target = target
        self._doubt = doubt

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError):
            return
        storage, target = self._storage, self._target
        check_limit(storage, error, target)
        reason = f"{whose(storage)}{target}: {error.strerror or error}"
        if error.errno in _NO_SPACE:
            with suppress(BookieUnavailableError):
                if (inodes := storage.inodes()) is not None and not inodes[0]:
                    reason += " (no inode is free; each small append that is waited for takes one)"
            raise BookieFullError(
                f"full: {reason}; nothing was acknowledged; free space or add a bookie",
                bookie_id=storage.bookie_id,
                path=target,
            ) from error
        if error.errno == errno.EROFS and error.filename is not None:
            self._doubt = ""  # the name was refused; a sync, without a name, fails after the write
        raise BookieUnavailableError(
            f"{reason}{self._doubt}", bookie_id=storage.bookie_id, path=target
        ) from error


_Stamp: TypeAlias = tuple[int, int, int, int]


def _stamp(status: os.stat_result) -> _Stamp:
    """Return a value that differs when the file was changed or replaced."""
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


class _LocalSink(FileSink):
    def __init__(self, storage: LocalStorage, target: str, directory: int, file: NewFile) -> None:
        self._storage = storage
        self._target = target
        self._directory = directory
        self._file = file
        self._size = 0
        self._begun = 0
        """Bytes that the system has begun to write to the disk. Otherwise that would begin with
        ``finish``, while the caller only waits."""

    @override
    def write(self, data: Buffer) -> None:
        with self._storage._translated(self._target):  # noqa: SLF001  (the same module)
            write(self._file.descriptor, data)
            self._size += memoryview(data).nbytes
            if self._size - self._begun >= _BEGUN_BYTES:
                begin_writing_out(self._file.descriptor, self._begun, self._size - self._begun)
                self._begun = self._size

    @override
    def finish(self) -> None:
        try:
            with self._storage._translated(self._target):  # noqa: SLF001  (the same module)
                if not self._file.publish():
                    raise FileExistsError(errno.EEXIST, "the name is taken")
        finally:
            self.abandon()

    @override
    def abandon(self) -> None:
        self._file.discard()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1


def _remove_tree(path: str) -> None:
    """Remove a directory: first its content, ascending by name, then itself."""
    with os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _remove_tree(entry.path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
    os.rmdir(path)


def _read_little(descriptor: int, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while len(data) < length and (
        piece := os.pread(descriptor, length - len(data), offset + len(data))
    ):
        data += piece
    return data


def _read_fully(descriptor: int, length: int) -> pa.Buffer:
    # Arrow's pool reuses pages that were touched before; new memory costs more than copying.
    buffer = pa.allocate_buffer(length)
    view = memoryview(buffer).cast("B")
    count = 0
    while count < length and (read := os.readv(descriptor, [view[count:]])):
        count += read
    return buffer.slice(0, count)
