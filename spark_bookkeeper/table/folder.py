"""The storage that a table needs; every storage of bookies offers it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
from typing_extensions import Buffer, override

from spark_bookkeeper.errors import BookieUnavailableError


class Folder(Protocol):
    """Files below one URI. Each call may raise ``BookieUnavailableError``."""

    @property
    def uri(self) -> str:
        """The URI of the folder."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file, durably, unless the name is taken; return whether this call did."""

    def read(self, path: str) -> bytes | None:
        """Return the whole content; ``None``: the file does not exist."""

    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        """Return some bytes, fewer at the end of the file."""

    def size(self, path: str) -> int | None:
        """Return the size in bytes; ``None``: the file does not exist."""

    def list(self, directory: str) -> Sequence[str]:
        """Return the names directly in a directory, sorted; empty if it does not exist."""

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents, except for the folder itself."""

    def close(self) -> None:
        """Release handles."""


class MissingFileError(BookieUnavailableError):
    """A file of a table does not exist: the table was rewritten and vacuumed, or lost it."""


class OpenFile(io.RawIOBase):
    """A file of a folder, in the form in which Arrow reads files."""

    def __init__(self, folder: Folder, path: str, bookie_id: str) -> None:
        size = folder.size(path)
        if size is None:
            raise MissingFileError(f"{folder.uri}/{path} is not there", bookie_id=bookie_id)
        self._folder = folder
        self._path = path
        self._bookie_id = bookie_id
        self._size = size
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    @override
    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        data = self._folder.read_range(self._path, self._at, length)
        if data is None or len(memoryview(data)) < length:
            raise MissingFileError(
                f"{self._folder.uri}/{self._path} went while it was read", bookie_id=self._bookie_id
            )
        self._at += length
        return bytes(data)

    @override
    def readinto(self, buffer: Buffer) -> int:
        data = self.read(len(memoryview(buffer)))
        memoryview(buffer)[: len(data)] = data
        return len(data)
