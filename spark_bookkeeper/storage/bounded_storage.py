"""A bookie's storage whose calls always return: with an answer, or with an error after a time-out.

Every file bookie that a client opens uses it (``connection.py``), so no caller waits for ever for a
bookie that hangs. Within ``BookieClient.ask`` a storage call is a step of that call; elsewhere it
is a call of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import pyarrow as pa
from typing_extensions import Buffer, TypeVarTuple, Unpack, override

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage.bookie_client import BookieClient, step
from spark_bookkeeper.storage.call import current_call
from spark_bookkeeper.storage.retry_policy import Patience
from spark_bookkeeper.storage.storage import Content, FileSink, Request, Storage, nothing

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
S = TypeVar("S")

_DELETED_AT_ONCE: Final = 1_000
"""The most names that one call removes from a disk."""


class BoundedStorage(Storage):
    """Passes every call to a storage, with a time-out.

    Args:
        storage: the bookie's storage.
        bookie_client: the client of that bookie.
    """

    def __init__(self, storage: Storage, bookie_client: BookieClient) -> None:
        self._storage = storage
        self.bookie_client = bookie_client

    def __repr__(self) -> str:
        return f"BoundedStorage({self._storage!r})"

    @property
    @override
    def bookie_id(self) -> str:
        return self._storage.bookie_id

    @property
    @override
    def uri(self) -> str:
        return self._storage.uri

    @property
    @override
    def has_directories(self) -> bool:
        return self._storage.has_directories

    @property
    @override
    def syncs_as_one(self) -> bool:
        return self._storage.syncs_as_one

    @property
    @override
    def requests_at_once(self) -> int:
        return self._storage.requests_at_once

    @override
    def ask_all(
        self, requests: Sequence[Request], progress: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        if not requests or self.requests_at_once == 1:
            return super().ask_all(requests, progress)
        size = sum(request.moved_bytes for request in requests)
        listed = [request.path for request in requests if request.operation == "list"]
        seconds = max(map(self._more_seconds, listed), default=0.0)
        operation, path, _ = requests[0]
        subject = f"{path} and {len(requests) - 1} more" if len(requests) > 1 else path
        ask = self._storage.ask_all
        return self._together(operation, subject, size, ask, requests, more_seconds=seconds)

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        return self.call("put", path, len(data), self._storage.put_if_absent, path, data)

    @override
    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        def put(files: Sequence[tuple[str, bytes]], progress: Callable[[], None]) -> Sequence[bool]:
            return self._storage.put_all(files, progress, relied_on, directories)

        size = sum(len(data) for _, data in files)
        return self._together("put", files[0][0], size, put, files)

    @override
    def make_directories(
        self, paths: Sequence[str], progress: Callable[[], None] = nothing
    ) -> None:
        self._together("make directory", paths[0], 0, self._storage.make_directories, paths)

    @override
    def sync_all(self, paths: Sequence[str], progress: Callable[[], None] = nothing) -> None:
        self._together("sync", paths[0], 0, self._storage.sync_all, paths)

    def _together(
        self,
        operation: str,
        path: str,
        size_bytes: int,
        function: Callable[[S, Callable[[], None]], T],
        many: S,
        more_seconds: float = 0.0,
    ) -> T:
        """Make one call for many files. Each file that is done counts as progress."""

        def step() -> T:
            call = current_call(self.bookie_client)
            assert call is not None, "a step is one of a call"
            return function(many, call.goes_on)

        return self.call(operation, path, size_bytes, step, more_seconds=more_seconds)

    @override
    def keep(self, directory: str) -> object:
        return self._storage.keep(directory)

    @override
    def create(self, path: str) -> FileSink:
        return _BoundedSink(self, path, self.call("create", path, 0, self._create, path))

    def _create(self, path: str) -> FileSink:
        sink = self._storage.create(path)
        call = current_call(self.bookie_client)
        if call is not None and call.is_given_up:
            sink.abandon()  # the caller timed out and does not get it
        return sink

    @override
    def read(self, path: str) -> bytes | None:
        return self.call("read", path, 0, self._storage.read, path)

    @override
    def read_again(self, path: str) -> bytes | None:
        return self.call("read", path, 0, self._storage.read_again, path)

    @override
    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        return self.call("read", path, length, self._storage.read_range, path, offset, length)

    @override
    def read_through(
        self, path: str, offset: int, length: int, take: Callable[[Buffer], None]
    ) -> bool:
        read = self._storage.read_through
        return self.call("read", path, length, read, path, offset, length, take)

    @override
    def size(self, path: str) -> int | None:
        return self.call("size of", path, 0, self._storage.size, path)

    @override
    def exists(self, path: str) -> bool:
        return self.call("size of", path, 0, self._storage.exists, path)

    @override
    def modified_ms(self, path: str) -> int | None:
        return self.call("time of", path, 0, self._storage.modified_ms, path)

    @override
    def list(self, directory: str) -> Sequence[str]:
        seconds = self._more_seconds(directory)
        return self.call("list", directory, 0, self._storage.list, directory, more_seconds=seconds)

    @override
    def make_directory(self, path: str) -> None:
        self.call("make directory", path, 0, self._storage.make_directory, path)

    @override
    def sync(self, *paths: str) -> None:
        if self.has_directories:  # one or two system calls for any number of names
            self.call("sync", " ".join(paths[:1]), 0, self._storage.sync, *paths)
        elif current_call(self.bookie_client) is None:
            self.bookie_client.ask("looking whether files are there", lambda: self.sync(*paths))
        else:
            for path in paths:  # each is a request, and counts as progress
                self.call("sync", path, 0, self._storage.sync, path)

    @override
    def delete(self, *paths: str) -> None:
        for path in paths if not self.has_directories else ():  # a request each, which is progress
            self.call("delete", path, 0, self._storage.delete, path)
        for at in range(0, len(paths) if self.has_directories else 0, _DELETED_AT_ONCE):
            some = paths[at : at + _DELETED_AT_ONCE]
            self.call("delete", some[0], 0, self._storage.delete, *some)

    @override
    def delete_directory(self, path: str) -> None:
        delete, seconds = self._storage.delete_directory, self._more_seconds(path)
        self.call("delete directory", path, 0, delete, path, more_seconds=seconds)

    @override
    def temporary_files(self, directory: str) -> Sequence[str]:
        return self.call("list", directory, 0, self._storage.temporary_files, directory)

    def _more_seconds(self, directory: str) -> float:
        """Return the extra seconds for a call that sends many requests without showing progress."""
        is_one = self.has_directories or not directory
        return 0.0 if is_one else self.bookie_client.patience.pages

    @override
    def space(self) -> tuple[int, int] | None:
        return self.call("space of", "", 0, self._storage.space)

    @override
    def inodes(self) -> tuple[int, int] | None:
        return self.call("inodes of", "", 0, self._storage.inodes)

    @override
    def close(self) -> None:
        self._storage.close()

    def call(
        self,
        operation: str,
        path: str,
        size_bytes: int,
        function: Callable[[Unpack[Ts]], T],
        *args: Unpack[Ts],
        more_seconds: float = 0.0,
    ) -> T:
        """Make one storage call that may move ``size_bytes``; see ``Call.step``."""
        return step(
            self.bookie_client,
            operation,
            path,
            size_bytes,
            function,
            *args,
            more_seconds=more_seconds,
        )


def bounded(storage: Storage, runtime: Runtime, patience: Patience) -> Storage:
    """Add time-outs to a partition known only by its root, for formatting or maintenance."""
    return BoundedStorage(storage, BookieClient(storage.uri, storage.uri, runtime, patience))


class _BoundedSink(FileSink):
    """A file in pieces. If a call on it hangs, the task of that call abandons it on return."""

    def __init__(self, storage: BoundedStorage, path: str, sink: FileSink) -> None:
        self._storage = storage
        self._path = path
        self._left = [sink]
        """The sink until it is finished or abandoned. The one task that pops it abandons it."""
        self._write = sink.write
        self._finish = sink.finish
        self._size = 0
        self._is_busy = False
        self._is_abandoned = False

    @override
    def write(self, data: Buffer) -> None:
        size = memoryview(data).nbytes
        self._size += size
        self._call("write", size, self._write, data)

    @override
    def finish(self) -> None:
        self._call("finish", self._size, self._finish)  # this may sync or send the whole file
        self._left.clear()

    @override
    def abandon(self) -> None:
        self._is_abandoned = True
        if self._is_busy or (sink := self._taken()) is None:
            return
        call = current_call(self._storage.bookie_client)
        if call is None:  # it may hang, so it runs in the background
            with suppress(RuntimeError):  # no more threads: its handle lives as long as the process
                self._storage.bookie_client.employ("abandon", sink.abandon)
            return
        try:
            call.step("abandon", self._path, 0, sink.abandon)
        except BookieUnavailableError:  # the call was given up: no caller waits for this task
            sink.abandon()

    def _taken(self) -> FileSink | None:
        try:
            return self._left.pop()
        except IndexError:
            return None

    def _call(
        self, operation: str, size: int, function: Callable[[Unpack[Ts]], T], *args: Unpack[Ts]
    ) -> T:
        def guarded() -> T:
            self._is_busy = True
            try:
                if self._is_abandoned:
                    raise BookieUnavailableError(
                        f"{self._path}: the file was given up",
                        bookie_id=self._storage.bookie_id,
                        path=self._path,
                    )
                return function(*args)
            finally:
                self._is_busy = False
                if self._is_abandoned and (sink := self._taken()) is not None:
                    sink.abandon()

        return self._storage.call(operation, self._path, size, guarded)
