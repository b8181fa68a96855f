"""A bookie's partition on any fsspec file system that can create a file conditionally.

Object stores make a put complete, durable and atomic by themselves. fsspec must add
``pipe_file(mode="create")``, which fails when the name exists. The probe checks when a bookie is
formatted whether the file system keeps that promise (SLOT-LOG rule R18).

An object store answers slowly, but accepts many requests at once. So one thread sends the requests
of a batch concurrently, where fsspec's file system is asynchronous.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, Final

import fsspec
from typing_extensions import Buffer, override

from spark_bookkeeper.errors import (
    NO_ACCESS,
    BookieError,
    BookieFullError,
    InvalidArgumentError,
    MissingRequirementError,
)
from spark_bookkeeper.protocol.plain_names import has_names_only
from spark_bookkeeper.runtime.iso_times import parse_time
from spark_bookkeeper.storage.objects import Objects
from spark_bookkeeper.storage.requests import OF_ONE_CALL, Requests, is_denied, is_full
from spark_bookkeeper.storage.storage import (
    FileSink,
    Operation,
    Request,
    RequestStorage,
    check_below,
    check_limit,
    nothing,
    top_is_gone,
    unavailable,
    whose,
)

_CONNECTIONS: Final = 128
"""The most open connections of an S3 client; with its default of 10, more requests would wait.
Batches share one half of them; the other half is for single requests."""

_BLOCK_BYTES: Final = 16 << 20
"""The size of one piece of a multipart upload."""

_EXTRAS: Final = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
}

_MODIFIED: Final = ("mtime", "LastModified", "last_modified", "updated", "created")
"""The names that file systems have for a file's time. Any of them will do: files never change."""


class RemoteStorage(RequestStorage):
    """Objects under a prefix.

    Args:
        uri: such as ``s3://bucket/prefix``.
        bookie_id: the bookie of this partition; ``None`` if it is not known yet.
        storage_options: passed to the file system; they never appear in messages.

    Raises:
        MissingRequirementError: the file system's package is not installed.
        InvalidArgumentError: the file system is unknown, or does not take the URI as it is.
    """

    def __init__(self, uri: str, bookie_id: str | None = None, /, **storage_options: Any) -> None:
        protocol = uri.partition("://")[0]
        connections = _CONNECTIONS
        if protocol in ("s3", "s3a"):
            config = {
                "max_pool_connections": _CONNECTIONS,
                # One retry for a lone error, as not every caller retries. Under many 503, s3fs and
                # callers retry, and more retries below theirs, seconds later, would prolong that.
                "retries": {"max_attempts": 1},
                **storage_options.get("config_kwargs", {}),
            }
            storage_options = {**storage_options, "config_kwargs": config}
            connections = int(config["max_pool_connections"])
        try:
            filesystem, root = fsspec.core.url_to_fs(
                uri, **{**storage_options, "use_listings_cache": False, "skip_instance_cache": True}
            )
        except (ImportError, ValueError) as error:
            is_missing, extra = isinstance(error, ImportError), _EXTRAS.get(protocol)
            if not is_missing and protocol in fsspec.available_protocols():
                raise
            if is_missing or extra:  # without its package, fsspec does not know abfss
                remedy = f"pip install 'spark-bookkeeper[{extra}]'" if extra else str(error)
                raise MissingRequirementError(
                    f"{uri} needs a package that is not installed: {remedy}"
                ) from error
            raise InvalidArgumentError(
                f"{uri}: no file system is known by the name {protocol!r}; write file:///path, "
                "s3://bucket/prefix, gs://..., abfs://..., or another one that fsspec has"
            ) from error
        self._uri = uri.rstrip("/")
        self._bookie_id = bookie_id
        self._root = root.rstrip("/")
        self._fs = filesystem
        self._check_root()
        self._objects = Objects(filesystem)
        self._requests = Requests(max(1, connections // 2))

    def _check_root(self) -> None:
        """Raise ``InvalidArgumentError`` if the file system takes the URI for another path."""
        path = self._uri.partition("://")[2].partition("/")[2]
        file = f"{self._root}/file"
        taken = self._fs._strip_protocol(file)  # noqa: SLF001  (as each of its calls does)
        if (split := getattr(self._fs, "split_path", None)) is not None:
            taken = "/".join(split(taken)[:2])
        is_kept = not path or (has_names_only(path) and f"/{self._root}".endswith(f"/{path}"))
        if not is_kept or taken.strip("/") != file.strip("/"):
            raise InvalidArgumentError(
                f"{self._uri!r} is no root of a bookie: its file system would take it for "
                f"{taken.rpartition('/')[0]!r}, or it holds '.', '..' or two slashes. Nothing was "
                "done. Write s3://bucket/prefix, with names of letters and digits"
            )

    def __repr__(self) -> str:
        return f"RemoteStorage({self._uri!r})"

    @property
    @override
    def bookie_id(self) -> str:
        return self._bookie_id or self._uri

    @property
    @override
    def uri(self) -> str:
        return self._uri

    @property
    @override
    def has_directories(self) -> bool:
        return False

    @property
    @override
    def requests_at_once(self) -> int:
        return min(OF_ONE_CALL, self._requests.most) if self._objects.is_asynchronous else 1

    @override
    def ask_all(
        self, requests: Sequence[Request], progress: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        if not requests or self.requests_at_once == 1:
            return super().ask_all(requests, progress)
        is_given_up = False

        def goes_on() -> None:
            if is_given_up:
                raise asyncio.CancelledError
            progress()

        calls = [partial(self._answered, request) for request in requests]
        with self._translated(requests[0].path, *(each.operation for each in requests)):
            try:
                return self._objects.run(partial(self._requests.ask, calls, goes_on))
            except BaseException:
                is_given_up = True  # Ctrl-C: requests under way go on, and no more are sent
                raise

    async def _answered(self, request: Request) -> Any:
        try:
            return await self._asked(request)
        except BookieError as error:
            return error

    async def _asked(self, request: Request) -> Any:
        operation, path, arguments = request
        objects = self._objects
        with self._translated(path, operation):
            full = self._full(path) if path or operation != "list" else self._root
            if operation == "put_if_absent":
                return await objects.put_if_absent(full, bytes(arguments[0]))
            if operation == "read":
                return await objects.read(full)
            if operation == "read_range":
                return await objects.read_range(full, *arguments)
            if operation == "list":
                return await objects.list(full)
            if operation == "exists":
                return await objects.exists(full)
            if operation == "modified_ms":
                return _modified_ms(await objects.info(full))
            size = await objects.size(full)
            if operation == "size":
                return size
            # "sync": a visible object is durable. The answer must also say that it still exists.
            if size is None:
                raise unavailable(self, f"{self._uri}/{path} is gone", path)
            return None

    @override
    def _ask(self, operation: Operation, path: str, *arguments: Any) -> Any:
        with self._translated(path, operation):
            return self._objects.run(partial(self._asked, Request(operation, path, arguments)))

    @override
    def create(self, path: str) -> FileSink:
        with self._translated(path):
            full = self._full(path)
            if self._fs.exists(full):
                raise FileExistsError(f"{full}: the name is taken")
            if not self._objects.is_store:
                return SpooledSink(path, self._translated, self.put_if_absent)
            try:
                file = self._fs.open(full, "xb", block_size=_BLOCK_BYTES)
            except ValueError:  # no exclusive mode; but the name has only one maker (rule R15)
                file = self._fs.open(full, "wb", block_size=_BLOCK_BYTES)
        return UploadSink(path, self._translated, file)

    @override
    def make_directory(self, path: str) -> None:
        # Buckets need no directories; other file systems of fsspec may need them.
        full = self._full(path)
        with self._translated(path), suppress(FileExistsError, NotImplementedError):
            if not self._objects.is_store:
                top, _, below = path.partition("/")
                if below and not self._fs.isdir(self._full(top)):
                    raise top_is_gone(self, path)
                self._fs.makedirs(full, exist_ok=True)

    @override
    def sync(self, *paths: str) -> None:
        for path in paths:
            self._ask("sync", path)

    @override
    def delete(self, *paths: str) -> None:
        for path in paths:
            file = {"name": self._full(path), "type": "file"}
            with self._translated(path):
                self._objects.run(partial(self._objects.remove, file))

    @override
    def delete_directory(self, path: str) -> None:
        objects = self._objects
        with self._translated(path):
            found = objects.run(partial(objects.below, self._full(path)))
            removals = [partial(objects.remove, entry) for entry in found]
            if objects.is_store and self.requests_at_once > 1:
                objects.run(partial(self._requests.ask, removals, nothing))
            else:
                for remove in removals:
                    objects.run(remove)

    @override
    def temporary_files(self, directory: str) -> Sequence[str]:
        if directory:
            check_below(self, directory)
        return []  # an incomplete upload is not a file; a rule of the bucket removes it

    @override
    def space(self) -> tuple[int, int] | None:
        return None

    @override
    def close(self) -> None:
        pass

    def _full(self, path: str) -> str:
        check_below(self, path)
        return f"{self._root}/{path}"

    @contextmanager
    def _translated(self, path: str, *operations: Operation) -> Iterator[None]:
        """Translate the SDK's errors into ours.

        Args:
            operations: the operations that are sent; none of them for other changes.
        """
        try:
            yield
        except BookieError:
            raise
        except (Exception, asyncio.CancelledError) as error:  # an SDK may raise anything
            where = f"{self._uri}/{path}"
            check_limit(self, error, where)
            if is_full(error):
                raise BookieFullError(
                    f"full: {whose(self)}{where}: {error}", bookie_id=self.bookie_id, path=where
                ) from error
            reason = f"{where}: {type(error).__name__}: {error}"
            if is_denied(error):
                reason += f" ({NO_ACCESS})"
            if not operations or "put_if_absent" in operations:  # the others change nothing
                reason += "; the operation may or may not have taken effect"
            raise unavailable(self, reason, where) from error


def _modified_ms(info: Mapping[str, Any] | None) -> int | None:
    told = (info.get(key) for key in _MODIFIED) if info else ()
    return next((ms for ms in map(_milliseconds, told) if ms is not None), None)


def _milliseconds(moment: object) -> int | None:
    """Convert a file system's time to milliseconds since 1970; ``None`` if it is no time."""
    if isinstance(moment, str):
        with suppress(ValueError):
            moment = parse_time(moment)
    if isinstance(moment, datetime):
        moment = moment.timestamp()
    return int(moment * 1000) if isinstance(moment, (int, float)) else None


_SPOOLED_BYTES: Final = 64 << 20
"""A larger file in pieces is collected on the local disk instead of in memory."""

Translated = Callable[[str], AbstractContextManager[None]]
"""Makes a context that translates the SDK's errors into the bookie's, for this path."""


class SpooledSink(FileSink):
    """A file that is put whole at the end, as this file system would show an unfinished one."""

    def __init__(
        self, path: str, translated: Translated, put_if_absent: Callable[[str, bytes], bool]
    ) -> None:
        self._path = path
        self._translated = translated
        self._put_if_absent = put_if_absent
        self._file = SpooledTemporaryFile(max_size=_SPOOLED_BYTES)  # noqa: SIM115  (kept open)

    @override
    def write(self, data: Buffer) -> None:
        with self._translated(self._path):
            self._file.write(data)

    @override
    def finish(self) -> None:
        with self._translated(self._path):
            self._file.seek(0)
            if not self._put_if_absent(self._path, self._file.read()):
                raise FileExistsError(f"{self._path}: the name is taken")
        self.abandon()

    @override
    def abandon(self) -> None:
        self._file.close()


class UploadSink(FileSink):
    """A multipart upload: the object appears when the upload is completed."""

    def __init__(self, path: str, translated: Translated, file: Any) -> None:
        self._path = path
        self._translated = translated
        self._file = file

    @override
    def write(self, data: Buffer) -> None:
        with self._translated(self._path):
            self._file.write(memoryview(data).cast("B"))

    @override
    def finish(self) -> None:
        with self._translated(self._path):
            self._file.close()
        self._file = None

    @override
    def abandon(self) -> None:
        if self._file is not None:
            with suppress(Exception):
                self._file.discard()
            with suppress(Exception):
                self._file.closed = True  # otherwise its destructor would complete the upload
            self._file = None
