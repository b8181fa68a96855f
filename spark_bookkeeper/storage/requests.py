"""Requests to an object store: which are on their way together, and what an error of one says.

Calls for many files share the connections. Each call asks for one more at a time, and calls take
turns: none of them waits for more than what the others have on their way, however many files they
are for.

fsspec's file systems raise what their SDKs do, as it is or as the cause of an error of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

_NO_SPACE: Final = {28, 122}  # ENOSPC, EDQUOT

_NO_SPACE_CODES: Final = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
"""Of Ceph and MinIO, with HTTP status 507, 403 or 400; Amazon's own service has no limit."""

_OTHER_REFUSALS: Final = {"RequestTimeTooSkewed", "InvalidObjectState"}
"""Of S3, with HTTP status 403: a clock is wrong, or an object is archived."""

_NO_BUCKET_CODES: Final = ("NoSuchBucket", "ContainerNotFound")
"""Of S3 and Azure; Google's says no more than that a file is not there."""


def _chain(error: BaseException) -> Iterator[tuple[BaseException, dict[str, Any]]]:
    """An error and its causes, each with the answer of the service as the SDK keeps it, if any."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        yield seen, response if isinstance(response, dict) else {}
        seen = seen.__cause__


def _status(error: BaseException) -> int | None:
    """HTTP status of an SDK's error, wherever in the chain it stands."""
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
    """What S3 calls an error, wherever in the chain it stands."""
    return {response.get("Error", {}).get("Code") for _, response in _chain(error)}


def is_full(error: BaseException) -> bool:
    """There is no space, and an answer said so: the bookie still serves what it has."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return True
    return _status(error) == 507 or bool(_codes(error) & _NO_SPACE_CODES)


def is_denied(error: BaseException) -> bool:
    """There are no credentials, as three SDKs name their errors, or they do not allow it."""
    if _codes(error) & _OTHER_REFUSALS:
        return False
    names = " ".join(type(seen).__name__ for seen, _ in _chain(error))
    # One with a number is of a file's mode, by an operating system.
    is_refused = isinstance(error, PermissionError) and error.errno is None
    is_refused = is_refused or _status(error) in (401, 403)
    return is_refused or "Credential" in names or "Authentication" in names


def _is_taken(error: BaseException) -> bool:
    """The name exists; also the answer to an SDK's own retry of a put that had succeeded."""
    return isinstance(error, FileExistsError) or _status(error) == 412


def _is_conflict(error: BaseException) -> bool:
    return _status(error) == 409 or "ConditionalRequestConflict" in str(error)


def found_taken(error: Exception, *, is_last: bool) -> bool:
    """What became of an attempt to put that failed: whether the name is taken, or try again.

    Raises:
        Exception: the error, which says neither, or it was the last attempt.
    """
    if _is_taken(error):
        return True
    if not _is_conflict(error) or is_last:
        raise error
    return False


def require_bucket(error: FileNotFoundError) -> None:
    """A bucket that is not there is no answer about a file that may be in it (rule R5)."""
    if any(code in f"{error} {error.__cause__}" for code in _NO_BUCKET_CODES):
        raise error


def is_beyond_end(error: BaseException) -> bool:
    return _status(error) == 416 or "InvalidRange" in str(error)


T = TypeVar("T")

OF_ONE_CALL: Final = 64
"""Requests on their way. Each of them holds a connection, and its content in memory."""


class Requests:
    """Those of one storage, all of them in one event loop.

    Args:
        most: on their way together, of all calls.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = asyncio.Semaphore(most)

    async def ask(
        self, requests: Sequence[Callable[[], Awaitable[T]]], progress: Callable[[], None]
    ) -> list[T]:
        """One call: answers in order. An error is the call's: nothing more is sent after it, and it
        is raised when what was on its way has ended.

        Args:
            progress: called before each request is sent, which has not been silent before that,
                and after each answer. It raises when nobody waits for the call any more.
        """
        free_of_call = asyncio.Semaphore(OF_ONE_CALL)
        has_failed = asyncio.Event()

        async def one(request: Callable[[], Awaitable[T]]) -> T:
            try:
                progress()  # the call may have waited long for this place
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
