"""A storage whose errors say which bookie it is: the back ends know only their root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
from typing_extensions import Buffer, ParamSpec, override

from spark_bookkeeper.bookie.storage.storage import FileSink, Storage
from spark_bookkeeper.errors import BookieError

P = ParamSpec("P")
T = TypeVar("T")


class NamedStorage(Storage):
    """Passes everything on; adds the bookie's id to what goes wrong."""

    def __init__(self, storage: Storage, bookie_id: str) -> None:
        self._storage = storage
        self._bookie_id = bookie_id

    @property
    @override
    def uri(self) -> str:
        return self._storage.uri

    @property
    @override
    def has_directories(self) -> bool:
        return self._storage.has_directories

    @override
    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self._call(self._storage.put_if_absent, path, data)

    @override
    def create(self, path: str) -> FileSink:
        return _NamedSink(self, self._call(self._storage.create, path))

    @override
    def read(self, path: str) -> bytes | None:
        return self._call(self._storage.read, path)

    @override
    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        return self._call(self._storage.read_range, path, offset, length)

    @override
    def map(self, path: str) -> Buffer | None:
        return self._call(self._storage.map, path)

    @override
    def size(self, path: str) -> int | None:
        return self._call(self._storage.size, path)

    @override
    def modified_ms(self, path: str) -> int | None:
        return self._call(self._storage.modified_ms, path)

    @override
    def list(self, directory: str) -> Sequence[str]:
        return self._call(self._storage.list, directory)

    @override
    def make_directory(self, path: str) -> None:
        self._call(self._storage.make_directory, path)

    @override
    def sync(self, *paths: str) -> None:
        self._call(self._storage.sync, *paths)

    @override
    def delete(self, path: str) -> None:
        self._call(self._storage.delete, path)

    @override
    def delete_directory(self, path: str) -> None:
        self._call(self._storage.delete_directory, path)

    @override
    def space(self) -> tuple[int, int] | None:
        return self._call(self._storage.space)

    @override
    def close(self) -> None:
        self._storage.close()

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BookieError as error:
            if "bookie_id" in error.facts:
                raise
            facts = {**error.facts, "bookie_id": self._bookie_id}
            raise type(error)(f"bookie {self._bookie_id}: {error.message}", **facts) from error


class _NamedSink(FileSink):
    def __init__(self, storage: NamedStorage, sink: FileSink) -> None:
        self._storage = storage
        self._sink = sink

    @override
    def write(self, data: Buffer) -> None:
        self._storage._call(self._sink.write, data)  # noqa: SLF001  (the same module)

    @override
    def finish(self) -> None:
        self._storage._call(self._sink.finish)  # noqa: SLF001  (the same module)

    @override
    def abandon(self) -> None:
        self._sink.abandon()
