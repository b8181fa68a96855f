"""What an error of a file system's SDK says, whichever of them raised it.

fsspec's file systems raise what their SDKs do, as it is or as the cause of an error of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

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
