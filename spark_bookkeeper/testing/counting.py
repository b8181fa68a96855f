"""A storage that counts the operations on it, so that tests can assert exact costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.storage.storage import Content, FileSink, Request, Storage, nothing

_NOTED_AS: Final = {"exists": "size"}
"""Operations that are counted as another, because a disk does the same for both."""


class Call(NamedTuple):
    """One requested operation."""

    operation: str
    path: str


class CountingStorage(Storage):
    """Records and passes on every operation. Several storages may share ``calls``."""

    def __init__(self, storage: Storage, calls: list[Call] | None = None) -> None:
        self.inner = storage
        self.calls: list[Call] = [] if calls is None else calls

    def count(self) -> Counter[str]:
        """Return how often each operation was requested."""
        return Counter(call.operation for call in self.calls)

    @property
    @override
    def bookie_id(self) -> str:
        return self.inner.bookie_id

    @property
    @override
    def uri(self) -> str:
        return self.inner.uri

    @property
    @override
    def has_directories(self) -> bool:
        return self.inner.has_directories

    @property
    @override
    def syncs_as_one(self) -> bool:
        return self.inner.syncs_as_one

    @property
    @override
    def requests_at_once(self) -> int:
        return self.inner.requests_at_once

    @override
    def ask_all(
        self, requests: Sequence[Request], progress: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        if self.requests_at_once == 1:
            return super().ask_all(requests, progress)
        for request in requests:
            self._note(_NOTED_AS.get(request.operation, request.operation), request.path)
        return self.inner.ask_all(requests, progress)

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        self._note("put_if_absent", path)
        return self.inner.put_if_absent(path, data)

    @override
    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        for path in directories:
            self._note("make_directory", path)
        for path in relied_on:
            self._note("sync", path)
        for path, _ in files:
            self._note("put_if_absent", path)
        return self.inner.put_all(files, progress, relied_on, directories)

    @override
    def make_directories(
        self, paths: Sequence[str], progress: Callable[[], None] = nothing
    ) -> None:
        for path in paths:
            self._note("make_directory", path)
        self.inner.make_directories(paths, progress)

    @override
    def sync_all(self, paths: Sequence[str], progress: Callable[[], None] = nothing) -> None:
        for path in paths:
            self._note("sync", path)
        self.inner.sync_all(paths, progress)

    @override
    def keep(self, directory: str) -> object:
        return self.inner.keep(directory)

    @override
    def create(self, path: str) -> FileSink:
        self._note("create", path)
        return self.inner.create(path)

    @override
    def read(self, path: str) -> bytes | None:
        self._note("read", path)
        return self.inner.read(path)

    @override
    def read_again(self, path: str) -> bytes | None:
        self._note("read", path)
        return self.inner.read_again(path)

    @override
    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        self._note("read_range", path)
        return self.inner.read_range(path, offset, length)

    @override
    def size(self, path: str) -> int | None:
        self._note("size", path)
        return self.inner.size(path)

    @override
    def exists(self, path: str) -> bool:
        self._note("size", path)
        return self.inner.exists(path)

    @override
    def modified_ms(self, path: str) -> int | None:
        self._note("modified_ms", path)
        return self.inner.modified_ms(path)

    @override
    def list(self, directory: str) -> Sequence[str]:
        self._note("list", directory)
        return self.inner.list(directory)

    @override
    def make_directory(self, path: str) -> None:
        self._note("make_directory", path)
        self.inner.make_directory(path)

    @override
    def sync(self, *paths: str) -> None:
        for path in paths:
            self._note("sync", path)
        self.inner.sync(*paths)

    @override
    def delete(self, *paths: str) -> None:
        for path in paths:
            self._note("delete", path)
            self.inner.delete(path)

    @override
    def delete_directory(self, path: str) -> None:
        self._note("delete_directory", path)
        self.inner.delete_directory(path)

    @override
    def temporary_files(self, directory: str) -> Sequence[str]:
        self._note("list", directory)
        return self.inner.temporary_files(directory)

    @override
    def space(self) -> tuple[int, int] | None:
        self._note("space", "")
        return self.inner.space()

    @override
    def inodes(self) -> tuple[int, int] | None:
        self._note("inodes", "")
        return self.inner.inodes()

    @override
    def close(self) -> None:
        self.inner.close()

    def _note(self, operation: str, path: str) -> None:
        self.calls.append(Call(operation, path))
