"""A bookie's partition on any fsspec file system that can create a file conditionally.

Object stores make a put complete, durable and atomic by themselves; what is needed from fsspec
is ``pipe_file(mode="create")``, which fails when the name exists. Whether a file system keeps
that promise is found out by the probe when the bookie is formatted (SLOT-LOG rule R18).

An object store takes its time for each request, and takes many at once. So what is asked for many
files is on its way for many of them at a time, from one thread, where fsspec's file system is an
asynchronous one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, Final, TypeVar

import fsspec
import fsspec.asyn
from typing_extensions import Buffer, override

from spark_bookkeeper.bookie.storage.requests import Requests
from spark_bookkeeper.bookie.storage.storage import (
    Content,
    FileSink,
    Storage,
    nothing,
    top_is_gone,
    unavailable,
    whose,
)
from spark_bookkeeper.errors import (
    BookieError,
    BookieFullError,
    InvalidArgumentError,
    MissingRequirementError,
)

_CONFLICT_ATTEMPTS: Final = 8
"""S3 may answer 409 while another conditional put of the name is going on."""

_CONNECTIONS: Final = 128
"""That a client of S3 may have open; its own default of 10 would make the others wait. Calls for
many files share a half, and the others are for requests by themselves."""

_BLOCK_BYTES: Final = 16 << 20
"""Size of one piece of a multipart upload."""

_SPOOLED_BYTES: Final = 64 << 20
"""Beyond this a file in pieces waits on the local disk instead of in memory."""

_EXTRAS: Final = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "az": "azure",
}


_MODIFIED: Final = ("mtime", "LastModified", "last_modified", "updated", "created")
"""What file systems call the time of a file's content; ours never change."""


T = TypeVar("T")


class RemoteStorage(Storage):
    """Objects under a prefix.

    Args:
        uri: ``s3://bucket/prefix`` and the like.
        bookie_id: whose partition it is; ``None`` where that is not known yet.
        storage_options: passed to the file system; they never appear in messages.

    Raises:
        MissingRequirementError: the file system's package is not installed.
        InvalidArgumentError: there is no such file system.
    """

    def __init__(self, uri: str, bookie_id: str | None = None, /, **storage_options: Any) -> None:
        protocol = uri.partition("://")[0]
        connections = _CONNECTIONS
        if protocol in ("s3", "s3a"):
            config = {
                "max_pool_connections": _CONNECTIONS,
                **storage_options.get("config_kwargs", {}),
            }
            storage_options = {**storage_options, "config_kwargs": config}
            connections = int(config["max_pool_connections"])
        try:
            filesystem, root = fsspec.core.url_to_fs(
                uri, **{**storage_options, "use_listings_cache": False, "skip_instance_cache": True}
            )
        except ImportError as error:
            extra = _EXTRAS.get(protocol)
            remedy = f"pip install 'spark-bookkeeper[{extra}]'" if extra else str(error)
            raise MissingRequirementError(
                f"{uri} needs a package that is not installed: {remedy}"
            ) from error
        except ValueError as error:
            if protocol in fsspec.available_protocols():
                raise
            raise InvalidArgumentError(
                f"{uri}: no file system is known by the name {protocol!r}; write file:///path, "
                "s3://bucket/prefix, gs://..., abfs://..., or another one that fsspec has"
            ) from error
        self._uri = uri.rstrip("/")
        self._bookie_id = bookie_id
        self._root = root.rstrip("/")
        self._fs = filesystem
        self._requests = Requests(max(1, connections // 2))

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

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        data = bytes(data)
        with self._translated(path):
            for attempt in range(_CONFLICT_ATTEMPTS):
                try:
                    self._fs.pipe_file(self._full(path), data, mode="create")
                except Exception as error:  # noqa: BLE001  (raised again there)
                    if _found_taken(error, attempt):
                        return False
                else:
                    return True
        raise AssertionError("the last attempt returns or raises")

    @override
    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        if not self._is_asynchronous:
            return super().put_all(files, progress, relied_on, directories)
        if directories:
            self.make_directories(directories, progress)
        if relied_on:
            self.sync_all(relied_on, progress)
        if not files:
            return []
        return self._at_once(files[0][0], [partial(self._put, *file) for file in files], progress)

    @override
    def sync_all(self, paths: Sequence[str], progress: Callable[[], None] = nothing) -> None:
        if not self._is_asynchronous:
            super().sync_all(paths, progress)
            return
        if paths:
            self._at_once(paths[0], [partial(self._require, path) for path in paths], progress)

    @property
    def _is_asynchronous(self) -> bool:
        return bool(self._fs.async_impl) and not self._fs.asynchronous

    def _at_once(
        self,
        path: str,
        requests: Sequence[Callable[[], Awaitable[T]]],
        progress: Callable[[], None],
    ) -> list[T]:
        """The answers to all of them, in order. When one fails, the others have ended too.

        Args:
            path: of one of them, for messages.
        """
        with self._translated(path):
            found = fsspec.asyn.sync(self._fs.loop, self._requests.ask, requests, progress)
            if found is None:  # so fsspec says that it was cancelled, as its loop ended
                raise asyncio.CancelledError
        answers: list[T] = []
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        return answers

    async def _put(self, path: str, data: bytes) -> bool:
        """``put_if_absent``, as a request among others."""
        with self._translated(path):
            for attempt in range(_CONFLICT_ATTEMPTS):
                try:
                    await self._fs._pipe_file(self._full(path), data, mode="create")  # noqa: SLF001  (fsspec's)
                except Exception as error:  # noqa: BLE001  (raised again there)
                    if _found_taken(error, attempt):
                        return False
                else:
                    return True
        raise AssertionError("the last attempt returns or raises")

    async def _require(self, path: str) -> None:
        """``sync``, as a request among others."""
        with self._translated(path):
            try:
                info = await self._fs._info(self._full(path))  # noqa: SLF001  (fsspec's)
            except FileNotFoundError as error:
                _require_bucket(error)
                info = None
            self._check_there(path, _size(info))

    @override
    def create(self, path: str) -> FileSink:
        with self._translated(path):
            full = self._full(path)
            if self._fs.exists(full):
                raise FileExistsError(f"{full}: the name is taken")
            if not _is_object_store(self._fs):
                return _SpooledSink(self, path)
            try:
                file = self._fs.open(full, "xb", block_size=_BLOCK_BYTES)
            except ValueError:  # no exclusive mode; the name is used by nobody else (rule R15)
                file = self._fs.open(full, "wb", block_size=_BLOCK_BYTES)
        return _UploadSink(self, path, file)

    @override
    def read(self, path: str) -> bytes | None:
        with self._translated(path):
            try:
                data: bytes = self._fs.cat_file(self._full(path))
            except FileNotFoundError as error:
                _require_bucket(error)
                return None
            return data

    @override
    def read_range(self, path: str, offset: int, length: int) -> bytes | None:
        if length <= 0:
            return None if self.size(path) is None else b""
        with self._translated(path):
            try:
                data: bytes = self._fs.cat_file(self._full(path), start=offset, end=offset + length)
            except FileNotFoundError as error:
                _require_bucket(error)
                return None
            except Exception as error:
                if _is_beyond_end(error):
                    return b""
                raise
            return data

    @override
    def size(self, path: str) -> int | None:
        with self._translated(path):
            try:
                info = self._fs.info(self._full(path))
            except FileNotFoundError as error:
                _require_bucket(error)
                return None
            return _size(info)

    @override
    def modified_ms(self, path: str) -> int | None:
        with self._translated(path):
            try:
                info = self._fs.info(self._full(path))
            except FileNotFoundError as error:
                _require_bucket(error)
                return None
            told = (info.get(key) for key in _MODIFIED)
            return next((ms for ms in map(_milliseconds, told) if ms is not None), None)

    @override
    def list(self, directory: str) -> Sequence[str]:
        prefix = self._full(directory)
        with self._translated(directory):
            try:
                found = self._fs.ls(prefix, detail=True, refresh=True)
            except FileNotFoundError as error:
                _require_bucket(error)
                return []
            except NotADirectoryError:
                return []
        names = {
            entry["name"].rstrip("/").rpartition("/")[2]
            for entry in found
            if entry["name"].rstrip("/") != prefix.strip("/")
        }
        return sorted(names)

    @override
    def make_directory(self, path: str) -> None:
        # Buckets have none; file systems behind fsspec that do may need it.
        with self._translated(path), suppress(FileExistsError, NotImplementedError):
            if not _is_object_store(self._fs):
                top, _, below = path.partition("/")
                if below and not self._fs.isdir(self._full(top)):
                    raise top_is_gone(self, path)
                self._fs.makedirs(self._full(path), exist_ok=True)

    @override
    def sync(self, *paths: str) -> None:
        # A visible object is a durable one. That it is still there is part of the answer.
        for path in paths:
            self._check_there(path, self.size(path))

    def _check_there(self, path: str, size: int | None) -> None:
        if size is None:
            raise unavailable(self, f"{self._uri}/{path} is gone", path)

    @override
    def delete(self, *paths: str) -> None:
        for path in paths:
            with self._translated(path):
                try:
                    self._fs.rm_file(self._full(path))
                except FileNotFoundError as error:
                    _require_bucket(error)

    @override
    def delete_directory(self, path: str) -> None:
        with self._translated(path):
            try:
                self._fs.rm(self._full(path), recursive=True)
            except FileNotFoundError as error:
                _require_bucket(error)

    @override
    def temporary_files(self, directory: str) -> Sequence[str]:
        return []  # uploads that were never completed are no files; a rule of the bucket ends them

    @override
    def space(self) -> tuple[int, int] | None:
        return None

    @override
    def close(self) -> None:
        pass

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except BookieError:
            raise
        except (Exception, asyncio.CancelledError) as error:  # whatever their SDK raises
            where = f"{self._uri}/{path}"
            if _is_full(error):
                raise BookieFullError(
                    f"{whose(self)}{where}: {error}", bookie_id=self.bookie_id, path=where
                ) from error
            reason = (
                f"{where}: {type(error).__name__}: {error}; the operation may or may not have "
                "taken effect"
            )
            raise unavailable(self, reason, where) from error


class _SpooledSink(FileSink):
    """For file systems that would show a file while it is still written: one put at the end."""

    def __init__(self, storage: RemoteStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._file = SpooledTemporaryFile(max_size=_SPOOLED_BYTES)  # noqa: SIM115  (kept open)

    @override
    def write(self, data: Buffer) -> None:
        with self._storage._translated(self._path):  # noqa: SLF001  (the same module)
            self._file.write(data)

    @override
    def finish(self) -> None:
        with self._storage._translated(self._path):  # noqa: SLF001  (the same module)
            self._file.seek(0)
            if not self._storage.put_if_absent(self._path, self._file.read()):
                raise FileExistsError(f"{self._path}: the name is taken")
        self.abandon()

    @override
    def abandon(self) -> None:
        self._file.close()


class _UploadSink(FileSink):
    """A multipart upload: the object appears when it is completed."""

    def __init__(self, storage: RemoteStorage, path: str, file: Any) -> None:
        self._storage = storage
        self._path = path
        self._file = file

    @override
    def write(self, data: Buffer) -> None:
        with self._storage._translated(self._path):  # noqa: SLF001  (the same module)
            self._file.write(memoryview(data).cast("B"))

    @override
    def finish(self) -> None:
        with self._storage._translated(self._path):  # noqa: SLF001  (the same module)
            self._file.close()
        self._file = None

    @override
    def abandon(self) -> None:
        if self._file is not None:
            with suppress(Exception):
                self._file.discard()
            with suppress(Exception):
                self._file.closed = True  # or its destructor would complete the upload
            self._file = None


_NO_SPACE: Final = {28, 122}  # ENOSPC, EDQUOT

_NO_SPACE_CODES: Final = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
"""Of Ceph and MinIO, with HTTP status 507, 403 or 400; Amazon's own service has no limit."""


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


def _is_full(error: BaseException) -> bool:
    """There is no space, and an answer said so: the bookie still serves what it has."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return True
    codes = {response.get("Error", {}).get("Code") for _, response in _chain(error)}
    return _status(error) == 507 or bool(codes & _NO_SPACE_CODES)


def _is_taken(error: BaseException) -> bool:
    """The name exists; also the answer to an SDK's own retry of a put that had succeeded."""
    return isinstance(error, FileExistsError) or _status(error) == 412


def _is_conflict(error: BaseException) -> bool:
    return _status(error) == 409 or "ConditionalRequestConflict" in str(error)


def _found_taken(error: Exception, attempt: int) -> bool:
    """What became of an attempt to put that failed: whether the name is taken, or try again.

    Raises:
        Exception: the error, which says neither, or there were attempts enough.
    """
    if _is_taken(error):
        return True
    if not _is_conflict(error) or attempt == _CONFLICT_ATTEMPTS - 1:
        raise error
    return False


def _size(info: Mapping[str, Any] | None) -> int | None:
    """Of a file, as a file system tells it; a directory is none."""
    return None if info is None or info.get("type") == "directory" else int(info["size"])


def _milliseconds(moment: object) -> int | None:
    """Milliseconds since 1970 of a time as some file system tells it, or ``None``."""
    if isinstance(moment, str):
        with suppress(ValueError):
            moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    if isinstance(moment, datetime):
        moment = moment.timestamp()
    return int(moment * 1000) if isinstance(moment, (int, float)) else None


def _require_bucket(error: FileNotFoundError) -> None:
    """A bucket that is not there is no answer about a file that may be in it (rule R5)."""
    if "NoSuchBucket" in f"{error} {error.__cause__}":
        raise error


def _is_beyond_end(error: BaseException) -> bool:
    return _status(error) == 416 or "InvalidRange" in str(error)


def _is_object_store(filesystem: Any) -> bool:
    names = filesystem.protocol
    return bool({"s3", "gs", "abfs", "az"} & ({names} if isinstance(names, str) else set(names)))
