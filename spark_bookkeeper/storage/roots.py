"""Open the storage at a root URI: the one place that chooses a back end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.storage.storage import Storage

_HDFS: Final = "HDFS shows a file while it is still written. Use a disk, or Ozone by s3://"
_WEB: Final = "a web server creates no files. Write s3://bucket/root, with endpoint_url as option"
_NO_BOOKIES: Final = {"hdfs": _HDFS, "webhdfs": _HDFS, "http": _WEB, "https": _WEB}
"""File systems of fsspec that cannot hold a bookie, and why. A table can be read from them."""


def open_storage(
    uri: str,
    options: Mapping[str, Any] | None = None,
    bookie_id: str | None = None,
    *,
    is_table: bool = False,
) -> Storage:
    """Make the storage partition at a URI. This opens no file, and does not check that it exists.

    Args:
        uri: ``file:///...`` or an absolute path for a local or mounted file system; else any
            fsspec URI (``s3://...``, ``gs://...``, ``abfs://...``).
        options: options of the fsspec file system.
        bookie_id: the bookie of this partition, for errors; ``None`` if it is not known yet.
        is_table: whether it is a table, which is only read.

    Raises:
        InvalidArgumentError: ``memory://`` (pass the object itself, it has no address), a relative
            path, a ``file`` URI with a host, a chain of file systems (``::``), a file system that
            cannot hold a bookie, or any other URI without a file system.
        MissingRequirementError: the file system's package is not installed.
    """
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if scheme in _NO_BOOKIES and not is_table:
        raise InvalidArgumentError(f"{uri}: no bookie can be there: {_NO_BOOKIES[scheme]}")
    try:
        return _opened(uri, scheme, bookie_id, dict(options or {}))
    except (InvalidArgumentError, MissingRequirementError):
        raise
    except Exception as error:  # the URI may be any text, and fsspec uses many libraries
        raise InvalidArgumentError(
            f"{uri!r} leads to no storage ({type(error).__name__}: {error}); write file:///path, "
            "s3://bucket/prefix, gs://..., abfs://..., or another URI, with its storage_options"
        ) from error


def _opened(uri: str, scheme: str, bookie_id: str | None, options: dict[str, Any]) -> Storage:
    if "\0" in unquote(uri):
        raise InvalidArgumentError(f"{uri!r} holds a NUL, which no path does")
    if scheme == "memory":
        raise InvalidArgumentError(
            f"{uri}: an in-memory partition belongs to the process that made it; hand it in"
        )
    if scheme in ("", "file"):
        path = uri
        if scheme == "file":
            # urlsplit would cut at "?" and "#", which are letters of a name.
            host, slash, path = uri.removeprefix("file://").partition("/")
            if host not in ("", "localhost"):
                raise InvalidArgumentError(
                    f"{uri} names the host {host!r}; write file:///path with three slashes"
                )
            path = unquote(slash + path)
        if not path.startswith("/"):
            raise InvalidArgumentError(f"{uri!r} is not absolute; write file:///path or /path")
        return LocalStorage(path, bookie_id)
    if "::" in uri:
        raise InvalidArgumentError(
            f"{uri!r} chains file systems with '::', so that one asks another wherever that is; a "
            "root is one place: write s3://bucket/prefix or another URI without '::'"
        )
    # Imported late: fsspec imports asyncio, TLS and compressors, which mounted disks do not need.
    from spark_bookkeeper.storage.remote import RemoteStorage

    return RemoteStorage(uri, bookie_id, **options)
