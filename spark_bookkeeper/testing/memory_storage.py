"""A bookie's partition in memory, with faults.

``MemoryDisk`` is the part that outlives a process: visible names, and those of them that would
survive a power cut. ``MemoryStorage`` is one client's handle on it. Every operation calls a hook
before its effect and after it; a put also in between (visible, not yet durable). The hook may let
other clients run, or raise. There are no locks, so that a simulator controls all order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from typing_extensions import Buffer, override

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.storage.storage import (
    Content,
    FileSink,
    Storage,
    check_below,
    nothing,
    top_is_gone,
    unavailable,
)

Moment = Literal["before", "visible", "after"]
"""``before`` the effect; ``visible`` to others, not durable (puts only); ``after`` it, when the
answer can still be lost."""

Faults = Callable[[str, str, Moment], None]
"""``faults(operation, path, moment)``: returns, lets others run, or raises
``BookieUnavailableError`` (or ``LateEffect`` before a put)."""


class LateEffect(BookieUnavailableError):
    """Raised by a hook before a put: the caller stops waiting, and the put takes effect later."""


@dataclass(frozen=True, slots=True)
class PendingPut:
    """A put whose caller waits no longer (SLOT-LOG rule R3). ``MemoryDisk.land`` carries it out."""

    path: str
    data: bytes


class MemoryDisk:
    """Content of one partition. Paths are relative to its root.

    Args:
        name: for messages.
        has_directories: without them it is like a bucket: no operation fails for lack of a
            directory, and everything visible is durable.
    """

    def __init__(self, name: str = "disk", *, has_directories: bool = True) -> None:
        self.name = name
        self.has_directories = has_directories
        self.files: dict[str, bytes] = {}
        """The files that every client sees."""
        self.durable: set[str] = set()
        """Names that survive a power cut."""
        self.directories: set[str] = {""}
        self.pending: list[PendingPut] = []
        """Puts that may still take effect."""
        self.free_bytes = 1 << 40
        self.total_bytes = 1 << 41

    def land(self, put: PendingPut) -> bool:
        """Carry out a pending put; return False if its name existed, or its directory did not."""
        self.pending.remove(put)
        if put.path in self.files or not self.takes(put.path):
            return False
        self.files[put.path] = put.data
        self.durable.add(put.path)
        return True

    def takes(self, path: str) -> bool:
        """Return whether a file can be created there: its directory exists, or none is needed."""
        return not self.has_directories or _parent(path) in self.directories

    def power_cut(self, survives: Callable[[str], bool] = lambda path: False) -> None:
        """Forget every name that was visible and never synced, unless it ``survives``.

        Directories are kept: they are synced when they are made.
        """
        for path in sorted(self.files.keys() - self.durable):
            if survives(path):
                self.durable.add(path)
            else:
                del self.files[path]
        self.pending.clear()

    def wipe(self) -> None:
        """Lose everything, as a replaced disk does."""
        self.files.clear()
        self.durable.clear()
        self.directories = {""}

    def corrupt(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Damage a file in place, as bad media do."""
        self.files[path] = change(self.files[path])


def _no_faults(operation: str, path: str, moment: Moment) -> None:
    pass


class MemoryStorage(Storage):
    """One client's handle on a ``MemoryDisk``."""

    def __init__(self, disk: MemoryDisk, faults: Faults = _no_faults) -> None:
        self.disk = disk
        self.faults = faults

    def __repr__(self) -> str:
        return f"MemoryStorage({self.disk.name!r})"

    @property
    @override
    def bookie_id(self) -> str:
        return self.disk.name

    @property
    @override
    def uri(self) -> str:
        return f"memory://{self.disk.name}"

    @property
    @override
    def has_directories(self) -> bool:
        return self.disk.has_directories

    @property
    @override
    def syncs_as_one(self) -> bool:
        return self.disk.has_directories

    @property
    @override
    def requests_at_once(self) -> int:
        """1 for a disk, 64 for a bucket; here requests run one after the other, in their order."""
        return 1 if self.disk.has_directories else 64

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        data = bytes(data)
        try:
            self._begin("put", path)
        except LateEffect:
            self.disk.pending.append(PendingPut(path, data))
            raise
        created = self._link("put", path, data)
        self.faults("put", path, "after")
        return created

    @override
    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        """Put files as a disk does: all are visible before any is durable."""
        if not self.disk.has_directories:
            return super().put_all(files, progress, relied_on, directories)
        self.make_directories(directories, progress)
        if relied_on:
            self.sync_all(relied_on, progress)
        for path, data in files:
            try:
                self._begin("put", path)
            except LateEffect:
                self.disk.pending.append(PendingPut(path, data))
                raise
        contents = [_Content(data) for _, data in files]
        created: list[bool] = []
        for (path, _), content in zip(files, contents, strict=True):
            self._require_directory(path)
            created.append(self.disk.files.setdefault(path, content) is content)
        made = [(p, c) for (p, _), c, new in zip(files, contents, created, strict=True) if new]
        for path, content in made:
            self.faults("put", path, "visible")
            self._require_same(path, content)
        for path, content in made:
            self._require_same(path, content)
            self.disk.durable.add(path)
        for path, _ in files:
            self.faults("put", path, "after")
            progress()
        return created

    def _require_same(self, path: str, content: bytes) -> None:
        if self.disk.files.get(path) is not content:  # a power cut or a wipe came in between
            raise unavailable(self, f"{self.uri}/{path}: gone before it was durable", path)

    @override
    def create(self, path: str) -> FileSink:
        self._begin("create", path)
        self._require_directory(path)
        if path in self.disk.files:
            raise unavailable(self, f"{self.uri}/{path}: the name is taken", path)
        return _MemorySink(self, path)

    @override
    def read(self, path: str) -> bytes | None:
        self._begin("read", path)
        data = self.disk.files.get(path)
        self.faults("read", path, "after")
        return data

    @override
    def read_range(self, path: str, offset: int, length: int) -> bytes | None:
        data = self.read(path)
        return None if data is None else data[offset : offset + length]

    @override
    def size(self, path: str) -> int | None:
        self._begin("size", path)
        data = self.disk.files.get(path)
        self.faults("size", path, "after")
        return None if data is None else len(data)

    @override
    def modified_ms(self, path: str) -> int | None:
        self._begin("modified_ms", path)
        return None  # there is no clock here

    @override
    def list(self, directory: str) -> Sequence[str]:
        if directory:
            check_below(self, directory)
        self.faults("list", directory, "before")
        names = self._names(directory)
        self.faults("list", directory, "after")
        return names

    @override
    def make_directory(self, path: str) -> None:
        self._begin("make_directory", path)
        pieces = path.split("/") if self.disk.has_directories else []
        if len(pieces) > 1 and pieces[0] not in self.disk.directories:
            raise top_is_gone(self, path)
        for count in range(1, len(pieces) + 1):
            self.disk.directories.add("/".join(pieces[:count]))
        self.faults("make_directory", path, "after")

    @override
    def sync(self, *paths: str) -> None:
        for path in paths:
            self._begin("sync", path)
            if path not in self.disk.files:
                raise unavailable(self, f"{self.uri}/{path}: gone before it was synced", path)
            self.disk.durable.add(path)
            self.faults("sync", path, "after")

    @override
    def delete(self, *paths: str) -> None:
        for path in paths:
            self._begin("delete", path)
            self.disk.files.pop(path, None)
            self.disk.durable.discard(path)
            self.faults("delete", path, "after")

    @override
    def delete_directory(self, path: str) -> None:
        self._begin("delete_directory", path)
        disk = self.disk
        for file in [name for name in disk.files if name.startswith(f"{path}/")]:
            del disk.files[file]
            disk.durable.discard(file)
        disk.directories = {
            name for name in disk.directories if name != path and not name.startswith(f"{path}/")
        }
        self.faults("delete_directory", path, "after")

    @override
    def temporary_files(self, directory: str) -> Sequence[str]:
        if directory:
            check_below(self, directory)
        return []

    @override
    def space(self) -> tuple[int, int] | None:
        self.faults("space", "", "before")
        return self.disk.free_bytes, self.disk.total_bytes

    @override
    def close(self) -> None:
        pass

    def _begin(self, operation: str, path: str) -> None:
        check_below(self, path)
        self.faults(operation, path, "before")

    def _link(self, operation: str, path: str, data: bytes) -> bool:
        self._require_directory(path)
        # setdefault is one step also for threads, so a real race has one winner. Each put makes a
        # new object, so that a second put of the same bytes does not look like the winner.
        content = _Content(data)
        created = self.disk.files.setdefault(path, content) is content
        if created and self.disk.has_directories:
            self.faults(operation, path, "visible")
            self._require_same(path, content)
        if created:
            self.disk.durable.add(path)
        return created

    def _require_directory(self, path: str) -> None:
        if not self.disk.takes(path):
            raise unavailable(self, f"{self.uri}/{path}: no such directory", path)

    def _names(self, directory: str) -> Sequence[str]:
        prefix = f"{directory}/" if directory else ""
        names = {
            path[len(prefix) :].split("/", 1)[0]
            for path in (*tuple(self.disk.files), *tuple(self.disk.directories))
            if path.startswith(prefix) and path != directory
        }
        return sorted(names - {""})


class _Content(bytes):
    """The bytes of one put, as an object of its own, even if another put has equal bytes."""


class _MemorySink(FileSink):
    def __init__(self, storage: MemoryStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._pieces: list[bytes] = []

    @override
    def write(self, data: Buffer) -> None:
        self._storage.faults("write", self._path, "before")
        self._pieces.append(bytes(data))

    @override
    def finish(self) -> None:
        self._storage.faults("finish", self._path, "before")
        if not self._storage._link("finish", self._path, b"".join(self._pieces)):  # noqa: SLF001
            raise unavailable(self._storage, f"{self._path}: the name is taken", self._path)
        self._storage.faults("finish", self._path, "after")

    @override
    def abandon(self) -> None:
        self._pieces.clear()


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
