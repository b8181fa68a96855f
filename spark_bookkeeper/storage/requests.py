"""Concurrent requests to an object store, and the meaning of their errors.

Batch calls share the connections. Each call acquires one connection at a time, and calls take
turns. So a call waits only for requests that other calls have under way, however many files those
calls have.

fsspec's file systems raise an error of their SDK, or an error of their own with that as its cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

_NO_SPACE: Final = {28, 122}  # ENOSPC, EDQUOT

_NO_SPACE_CODES: Final = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
"""Codes of Ceph and MinIO, with HTTP status 507, 403 or 400. Amazon's service has no limit."""

_OTHER_REFUSALS: Final = {"RequestTimeTooSkewed", "InvalidObjectState"}
"""S3 codes with HTTP status 403 that are no denial: a wrong clock, or an archived object."""

_NO_BUCKET_CODES: Final = ("NoSuchBucket", "ContainerNotFound")
"""Codes of S3 and Azure. Google's store reports only that the file does not exist."""


def _chain(error: BaseException) -> Iterator[tuple[BaseException, dict[str, Any]]]:
    """Yield an error and its causes, each with the service's answer (empty if the SDK has none)."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        yield seen, response if isinstance(response, dict) else {}
        seen = seen.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an SDK's error, from anywhere in its chain of causes."""
    for seen, response in _chain(error):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status is not None:
            return int(status)
        for name in ("status", "status_code", "code"):
            value = getattr(seen, name, None)
            if isinstance(value, int):
                return value
    return None


def _codes(error: BaseException) -> set[str | None]:
    """Return the S3 codes of an error, from anywhere in its chain of causes."""
    return {response.get("Error", {}).get("Code") for _, response in _chain(error)}


def is_full(error: BaseException) -> bool:
    """Whether the store answered that it has no space. The bookie still serves its entries."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return True
    return _status(error) == 507 or bool(_codes(error) & _NO_SPACE_CODES)


def is_denied(error: BaseException) -> bool:
    """Whether credentials are missing (three SDKs have own errors for it) or not sufficient."""
    if _codes(error) & _OTHER_REFUSALS:
        return False
    names = " ".join(type(seen).__name__ for seen, _ in _chain(error))
    # A ``PermissionError`` with a number is from an operating system, about a file's mode.
    is_refused = isinstance(error, PermissionError) and error.errno is None
    is_refused = is_refused or _status(error) in (401, 403)
    return is_refused or "Credential" in names or "Authentication" in names


def _is_taken(error: BaseException) -> bool:
    """Whether the name exists. An SDK's own retry of a put that succeeded gets this answer, too."""
    return isinstance(error, FileExistsError) or _status(error) == 412


def _is_conflict(error: BaseException) -> bool:
    return _status(error) == 409 or "ConditionalRequestConflict" in str(error)


def found_taken(error: Exception, *, is_last: bool) -> bool:
    """Return whether a put failed because the name is taken; False: try again.

    Raises:
        Exception: the error, if it has neither meaning or this was the last attempt.
    """
    if _is_taken(error):
        return True
    if not _is_conflict(error) or is_last:
        raise error
    return False


def require_bucket(error: FileNotFoundError) -> None:
    """Raise the error if the bucket is missing: that does not prove a file absent (rule R5)."""
    if any(code in f"{error} {error.__cause__}" for code in _NO_BUCKET_CODES):
        raise error


def is_beyond_end(error: BaseException) -> bool:
    return _status(error) == 416 or "InvalidRange" in str(error)


T = TypeVar("T")

OF_ONE_CALL: Final = 64
"""The most concurrent requests of a call. Each holds a connection, and its content in memory."""


class Requests:
    """The requests of one storage, all in one event loop.

    Args:
        most: the most concurrent requests of all calls.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = asyncio.Semaphore(most)

    async def ask(
        self, requests: Sequence[Callable[[], Awaitable[T]]], progress: Callable[[], None]
    ) -> list[T]:
        """Send the requests of one call, and return their answers in order. After an error no more
        requests are sent; it is raised when all requests under way have ended.

        Args:
            progress: called before each request, so that its wait for a connection is no silence,
                and after each answer. It raises when the caller no longer waits.
        """
        free_of_call = asyncio.Semaphore(OF_ONE_CALL)
        has_failed = asyncio.Event()

        async def one(request: Callable[[], Awaitable[T]]) -> T:
            try:
                progress()  # the request may have waited long for a connection
                answer = await request()
                progress()
            except BaseException:
                has_failed.set()
                raise
            finally:
                self._free.release()
                free_of_call.release()
            return answer

        sent: list[asyncio.Task[T]] = []
        for request in requests:
            await free_of_call.acquire()
            await self._free.acquire()
            if has_failed.is_set():
                self._free.release()
                break
            sent.append(asyncio.create_task(one(request)))
        await asyncio.gather(*sent, return_exceptions=True)
        return [task.result() for task in sent]
