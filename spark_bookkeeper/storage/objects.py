"""Requests to a file system of fsspec, as coroutines: one for each operation of a bookie.

A file system that is not asynchronous blocks until it has the answer; then no coroutine waits.

fsspec may send several requests for one call. This module sends one wherever a file system allows
it. It reads a whole file as a range from 0 without an end, so fsspec does not request the size
first. It reads the first byte to see whether a file exists, as fsspec follows a failed HEAD by a
listing. On S3 it uses ``lsdir``, which does not check the parent of an empty directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import fsspec.asyn

from spark_bookkeeper.storage.requests import found_taken, is_beyond_end, require_bucket

_CONFLICT_ATTEMPTS: Final = 8
"""The most attempts of a put: S3 may answer 409 during another conditional put of the name."""

_STORES: Final = {"s3", "gs", "abfs", "az"}

T = TypeVar("T")


class Objects:
    """Files of an fsspec file system, by their full paths. Raises the errors of its SDK."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem

    @property
    def is_asynchronous(self) -> bool:
        """Whether one thread can send many requests concurrently."""
        return bool(self._fs.async_impl) and not self._fs.asynchronous

    @property
    def is_store(self) -> bool:
        """Whether it is an object store, which has no directories."""
        return bool(_STORES & self._protocols)

    @property
    def _protocols(self) -> set[str]:
        names = self._fs.protocol
        return {names} if isinstance(names, str) else set(names)

    def run(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine, and return its result.

        Raises:
            CancelledError: its event loop ended. The request may have taken effect.
        """
        if not self.is_asynchronous:
            return _run_at_once(request())
        answer: tuple[T] | None = fsspec.asyn.sync(self._fs.loop, _boxed, request)
        if answer is None:  # fsspec returns this for a cancelled coroutine
            raise asyncio.CancelledError
        return answer[0]

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if self.is_asynchronous:
            return await getattr(self._fs, f"_{method}")(*arguments, **options)
        return getattr(self._fs, method)(*arguments, **options)

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file. Return False if its name is taken."""
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
        """Return the whole content, or ``None`` if the file does not exist."""
        return await self._read(path, start=0)

    async def read_range(self, path: str, offset: int, length: int) -> bytes | None:
        """Return at most ``length`` bytes, or ``None`` if the file does not exist."""
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
            if is_beyond_end(error):  # for an empty file, every range is
                return b""
            raise
        return data

    async def exists(self, path: str) -> bool:
        """Whether a file exists."""
        return await self.read_range(path, 0, 1) is not None

    async def size(self, path: str) -> int | None:
        """Return the size in bytes, or ``None`` if the file does not exist."""
        info = await self.info(path)
        return None if info is None or info.get("type") == "directory" else int(info["size"])

    async def info(self, path: str) -> Mapping[str, Any] | None:
        """Return the file system's facts about a file, or ``None`` if it does not exist."""
        try:
            info: Mapping[str, Any] = await self._call("info", path)
        except FileNotFoundError as error:
            require_bucket(error)
            return None
        return info

    async def list(self, directory: str) -> Sequence[str]:
        """Return the names directly in a directory, sorted; never cached."""
        found = await self._entries(directory)
        return sorted({entry["name"].rstrip("/").rpartition("/")[2] for entry in found})

    async def below(self, directory: str) -> Sequence[Mapping[str, Any]]:
        """Return everything to remove with a directory, ascending; where directories exist, each
        follows its content. All names are exact: fsspec's ``rm`` would expand patterns.
        """
        if self._lists_all:
            return await self._entries(directory, delimiter="")
        found: list[Mapping[str, Any]] = []
        for entry in await self._entries(directory):
            found += await self.below(entry["name"]) if _is_directory(entry) else [entry]
        return found if self.is_store else [*found, {"name": directory, "type": "directory"}]

    async def remove(self, entry: Mapping[str, Any]) -> None:
        """Remove an entry that ``below`` returned, by its exact name, if it still exists."""
        try:
            await self._call("rmdir" if _is_directory(entry) else "rm_file", entry["name"])
        except FileNotFoundError as error:
            require_bucket(error)

    @property
    def _lists_all(self) -> bool:
        """Whether one listing can return everything below a directory."""
        return "s3" in self._protocols and self.is_asynchronous

    async def _entries(self, directory: str, **options: Any) -> Sequence[Mapping[str, Any]]:
        """Return the file system's facts about the entries of a directory, sorted by name.

        Args:
            options: ``delimiter=""`` returns everything below the directory.
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
        if not options:  # some file systems list the directory itself, too
            found = [each for each in found if each["name"].strip("/") != directory.strip("/")]
        return sorted(found, key=lambda entry: str(entry["name"]))


def _is_directory(entry: Mapping[str, Any]) -> bool:
    return bool(entry["type"] == "directory")


async def _boxed(request: Callable[[], Awaitable[T]]) -> tuple[T]:
    """Wrap the answer, so that an answer ``None`` differs from no answer."""
    return (await request(),)


def _run_at_once(request: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        request.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("a file system that is not asynchronous made a coroutine wait")
