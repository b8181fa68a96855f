"""Requests to a file system of fsspec, as coroutines: one for each thing that a bookie asks.

A file system that is not asynchronous answers before it returns; then nothing waits in them.

What fsspec sends for one call is not always one request. Here it is, wherever a file system offers
that: a whole file is a range from 0 on (without an end nothing asks for the size first), whether a
file is there is told by its first byte (a HEAD that finds nothing is followed by a listing), and
S3's own listing does not look at the parent of what is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import fsspec.asyn

from spark_bookkeeper.storage.requests import found_taken, is_beyond_end, require_bucket

_CONFLICT_ATTEMPTS: Final = 8
"""S3 may answer 409 while another conditional put of the name is going on."""

_STORES: Final = {"s3", "gs", "abfs", "az"}

T = TypeVar("T")


class Objects:
    """Files of an fsspec file system, by their full paths. Errors are those of its SDK."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    @property
    def is_asynchronous(self) -> bool:
        """Whether many requests can be on their way from one thread."""
        return bool(self._fs.async_impl) and not self._fs.asynchronous

    @property
    def is_store(self) -> bool:
        """Whether it is one of the object stores, which have no directories."""
        return bool(_STORES & self._protocols)

    @property
    def _protocols(self) -> set[str]:
        names = self._fs.protocol
        return {names} if isinstance(names, str) else set(names)

    def run(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a coroutine returns.

        Raises:
            CancelledError: its event loop ended. It may have taken effect.
        """
        if not self.is_asynchronous:
            return _run_at_once(request())
        answer: tuple[T] | None = fsspec.asyn.sync(self._fs.loop, _boxed, request)
        if answer is None:  # so fsspec says that it was cancelled
            raise asyncio.CancelledError
        return answer[0]

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if self.is_asynchronous:
            return await getattr(self._fs, f"_{method}")(*arguments, **options)
        return getattr(self._fs, method)(*arguments, **options)

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """Whether this call created the file."""
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                await self._call("pipe_file", path, data, mode="create")
            except Exception as error:  # noqa: BLE001  (raised again there)
                if found_taken(error, is_last=attempt == _CONFLICT_ATTEMPTS - 1):
                    return False
            else:
                return True
        raise AssertionError("the last attempt returns or raises")

    async def read(self, path: str) -> bytes | None:
        """The whole content, ``None`` where no file is there."""
        return await self._read(path, start=0)

    async def read_range(self, path: str, offset: int, length: int) -> bytes | None:
        """At most so many bytes, ``None`` where no file is there."""
        if length <= 0:
            return b"" if await self.exists(path) else None
        return await self._read(path, start=offset, end=offset + length)

    async def _read(self, path: str, **bounds: int) -> bytes | None:
        try:
            data: bytes = await self._call("cat_file", path, **bounds)
        except FileNotFoundError as error:
            require_bucket(error)
            return None
        except Exception as error:
            if is_beyond_end(error):  # as in a file without content
                return b""
            raise
        return data

    async def exists(self, path: str) -> bool:
        """Whether a file is there."""
        return await self.read_range(path, 0, 1) is not None

    async def size(self, path: str) -> int | None:
        """In bytes, ``None`` where no file is there."""
        info = await self.info(path)
        return None if info is None or info.get("type") == "directory" else int(info["size"])

    async def info(self, path: str) -> Mapping[str, Any] | None:
        """What the file system tells of a file, ``None`` where none is there."""
        try:
            info: Mapping[str, Any] = await self._call("info", path)
        except FileNotFoundError as error:
            require_bucket(error)
            return None
        return info

    async def list(self, directory: str) -> Sequence[str]:
        """Names directly in a directory, sorted; never cached."""
        found = await self._entries(directory)
        return sorted({entry["name"].rstrip("/").rpartition("/")[2] for entry in found})

    async def below(self, directory: str) -> Sequence[Mapping[str, Any]]:
        """All that goes with a directory, ascending, and where there are directories each behind
        what is in it. Everything has its exact name: ``rm`` of fsspec takes names for patterns.
        """
        if self._lists_all:
            return await self._entries(directory, delimiter="")
        found: list[Mapping[str, Any]] = []
        for entry in await self._entries(directory):
            found += await self.below(entry["name"]) if _is_directory(entry) else [entry]
        return found if self.is_store else [*found, {"name": directory, "type": "directory"}]

    async def remove(self, entry: Mapping[str, Any]) -> None:
        """Remove what ``below`` has found, by its exact name; it may be gone."""
        try:
            await self._call("rmdir" if _is_directory(entry) else "rm_file", entry["name"])
        except FileNotFoundError as error:
            require_bucket(error)

    @property
    def _lists_all(self) -> bool:
        """Whether one listing can tell of all that is below a directory."""
        return "s3" in self._protocols and self.is_asynchronous

    async def _entries(self, directory: str, **options: Any) -> Sequence[Mapping[str, Any]]:
        """What a file system tells of all that is in a directory, by name.

        Args:
            options: with ``delimiter=""``, of all that is below it.
        """
        try:
            if self._lists_all:
                found = await self._call("lsdir", directory, refresh=True, **options)
            else:
                found = await self._call("ls", directory, detail=True, refresh=True)
        except FileNotFoundError as error:
            require_bucket(error)
            return []
        except NotADirectoryError:
            return []
        if not options:  # some list it with what is in it
            found = [each for each in found if each["name"].strip("/") != directory.strip("/")]
        return sorted(found, key=lambda entry: str(entry["name"]))


def _is_directory(entry: Mapping[str, Any]) -> bool:
    return bool(entry["type"] == "directory")


async def _boxed(request: Callable[[], Awaitable[T]]) -> tuple[T]:
    """An answer that is ``None`` is told from none."""
    return (await request(),)


def _run_at_once(request: Coroutine[Any, Any, T]) -> T:
    """Of a coroutine in which nothing waits."""
    try:
        request.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("a file system that is not asynchronous made a coroutine wait")
