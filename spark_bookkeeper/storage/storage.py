"""The interface of a bookie's storage, on which the slot log is built.

Three back ends: ``local.py`` (files and directories, synced), ``remote.py`` (any fsspec file
system with a true conditional create) and ``testing/memory_storage.py`` (the twin, with faults).
All pass the tests of ``testing/conformance/storage.py``.

Paths are relative to the bookie's root, with ``/`` between parts. They are names, not patterns.
A path that leads out of the root is refused (``check_below``). Files are immutable: they appear
whole or not at all, and are never overwritten.

Every method may raise ``BookieUnavailableError``: the outcome is unknown. A write may then have
happened, and may still happen later (SLOT-LOG rule R3).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
from typing_extensions import Buffer, override

from spark_bookkeeper.errors import BookieError, BookieUnavailableError, ProcessLimitError
from spark_bookkeeper.protocol.plain_names import has_names_only

_JOINED_BYTES: Final = 1 << 20
"""Up to this size, joining the pieces is faster than writing them one by one."""


class Content:
    """The content of a new file. ``bytes()`` joins it. Joining large content costs as much as
    writing it, since new memory is allocated every time.

    Args:
        is_private: it holds secrets. Where files have modes, only the owner may read it.
    """

    __slots__ = ("_pieces", "_size", "is_private")

    def __init__(self, pieces: Sequence[Buffer], *, is_private: bool = False) -> None:
        self.is_private = is_private
        self._pieces = pieces
        self._size = sum(memoryview(piece).nbytes for piece in pieces)

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the pieces in order. Small content is one piece."""
        if self._size <= _JOINED_BYTES:
            yield memoryview(bytes(self))
            return
        for piece in self._pieces:
            yield memoryview(piece).cast("B")


class FileSink(Protocol):
    """A new file that is written piece by piece. It has no final name until ``finish``."""

    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Make the file complete and durable under its name (SLOT-LOG rules R9, R15)."""

    def abandon(self) -> None:
        """Drop the file. At most an unlisted file is left, for the collector. Never raises."""


Operation: TypeAlias = Literal[
    "put_if_absent", "read", "read_range", "size", "exists", "modified_ms", "list", "sync"
]


class Request(NamedTuple):
    """One call of a storage method, on one file or directory."""

    operation: Operation
    path: str
    arguments: tuple[Any, ...] = ()
    """The arguments after the path."""

    @property
    def moved_bytes(self) -> int:
        """The most bytes that it may move; 0 where its arguments do not say."""
        if self.operation == "put_if_absent":
            return len(self.arguments[0])
        return int(self.arguments[1]) if self.operation == "read_range" else 0


def nothing() -> None:
    """Do nothing: the default ``progress`` callback."""


class Storage(Protocol):
    """One storage partition.

    A method for many files does its work for all of them, or raises. After an error the outcome is
    unknown for each file, and the caller repeats the work file by file. These methods call
    ``progress`` whenever a part is done. An exception of ``progress`` may stop them.
    """

    @property
    def bookie_id(self) -> str:
        """The bookie of this partition, as its errors show it; its ``uri`` until that is known."""

    @property
    def uri(self) -> str:
        """The URI of the root for fsspec (``file:///...``, ``s3://...``, ``memory://...``)."""

    @property
    def has_directories(self) -> bool:
        """Whether a put into a missing directory fails, which reveals a wipe (rule R11)."""

    @property
    def syncs_as_one(self) -> bool:
        """Whether a batch of puts needs hardly more syncs than one put."""
        return False

    @property
    def requests_at_once(self) -> int:
        """The number of requests of one ``ask_all`` that are sent concurrently."""
        return 1

    def ask_all(
        self, requests: Sequence[Request], progress: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        """Send requests, and return their answers in order. The answer of a request that failed is
        its ``BookieError``; the others are still sent. Requests may take effect in any order.

        Raises:
            BookieUnavailableError: the caller no longer waits for the answers.
        """
        answers: list[Any] = []
        for operation, path, arguments in requests:
            try:
                answers.append(getattr(self, operation)(path, *arguments))
            except BookieError as error:
                answers.append(error)
            progress()
        return answers

    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        """Create a file with complete, durable content, unless the name is taken.

        Returns:
            True when this call created it, False when the name existed. False may also mean
            that an earlier attempt of the same caller succeeded (an SDK retried it, or the
            answer was lost): read the file and compare (SLOT-LOG rule R3).

        Where the back end has directories, a missing directory is not created: the call
        raises ``BookieUnavailableError`` (rule R11), see ``make_directory``.

        Source: SLOT-LOG rules R1 and R9.
        """

    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        """Call ``put_if_absent`` for many files. All are durable when this returns.

        Args:
            files: the path and content of each.
            relied_on: files that were found, not created. They are made durable, as by
                ``sync_all``, before any new file appears.
            directories: made durable, as by ``make_directories``, before any new file appears.
        """
        if directories:
            self.make_directories(directories, progress)
        if relied_on:
            self.sync_all(relied_on, progress)
        created = []
        for path, data in files:
            created.append(self.put_if_absent(path, data))
            progress()
        return created

    def keep(self, directory: str) -> object:
        """Return an object that makes puts into a directory cheaper while the caller holds it.

        This sends no request to the storage. Every put is still checked.
        """
        return None

    def create(self, path: str) -> FileSink:
        """Begin a file under a name that has only one maker (parts). Fails if it exists."""

    def read(self, path: str) -> bytes | None:
        """Return the whole content, or ``None`` if the file certainly does not exist now.

        ``None`` is only about this file at this moment. The caller checks separately whether
        this is the right bookie (``BOOKIE`` marker). An uncertain result raises.
        """

    def read_again(self, path: str) -> bytes | None:
        """Read, as ``read`` does, a small file that seldom changes and is read often.

        Its content is not read again where the storage can see that the file is unchanged since
        the last call.
        """
        return self.read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        """Return ``length`` bytes from ``offset`` (fewer at the end), or ``None`` as ``read``."""

    def read_through(
        self, path: str, offset: int, length: int, take: Callable[[Buffer], None]
    ) -> bool:
        """Pass the bytes of ``read_range`` to ``take``, in pieces valid during that call only.

        Returns:
            Whether the file exists. False is as certain as ``None`` of ``read``.
        """
        data = self.read_range(path, offset, length)
        if data is not None:
            take(data)
        return data is not None

    def size(self, path: str) -> int | None:
        """Return the size in bytes, or ``None`` as ``read``."""

    def exists(self, path: str) -> bool:
        """Whether a file exists now. ``False`` is as certain as ``None`` of ``read``."""
        return self.size(path) is not None

    def modified_ms(self, path: str) -> int | None:
        """Return when a file got its content, in milliseconds since 1970 by the storage's clock.

        Show it to operators; never base a decision on it (SLOT-LOG rule R17). ``None`` when the
        file does not exist, or where the storage keeps no such time.
        """

    def list(self, directory: str) -> Sequence[str]:
        """Return the names directly in a directory, sorted; none if it does not exist. Not cached.

        A listing may suggest what exists; it never proves that something is absent (R4, R12).
        """

    def make_directory(self, path: str) -> None:
        """Create a directory durably, with its parents; do nothing in buckets.

        A directory directly below the root is created only if ``path`` is that directory, as
        when a partition is formatted. A missing one has lost its content, so a call for a path
        below it raises ``BookieUnavailableError`` (SLOT-LOG rule R5).
        """

    def make_directories(
        self, paths: Sequence[str], progress: Callable[[], None] = nothing
    ) -> None:
        """Call ``make_directory`` for many directories."""
        for path in paths:
            self.make_directory(path)
            progress()

    def sync(self, *paths: str) -> None:
        """Make files that were found, not created, durable, with their names (rule R9b)."""

    def sync_all(self, paths: Sequence[str], progress: Callable[[], None] = nothing) -> None:
        """Call ``sync`` for files of many directories."""
        for path in paths:
            self.sync(path)
            progress()

    def delete(self, *paths: str) -> None:
        """Remove files, in any order. A file that does not exist counts as removed."""

    def delete_directory(self, path: str) -> None:
        """Remove a directory with its content. One that does not exist counts as removed.

        Where directories exist, names are removed in ascending order, so a ledger's FENCE is
        removed after its other slots (SLOT-LOG, "Collect").
        """

    def temporary_files(self, directory: str) -> Sequence[str]:
        """Return the names of unfinished writes: of killed processes, or still running.

        Empty where such files are not visible. Deleting one makes its write fail, and has no
        other effect.
        """

    def space(self) -> tuple[int, int] | None:
        """Return (free bytes, total bytes), or ``None`` where these do not exist (buckets)."""

    def inodes(self) -> tuple[int, int] | None:
        """Return (free, total) inodes; a file takes one. ``None`` where they are not limited."""
        return None

    def close(self) -> None:
        """Release handles; idempotent."""


class RequestStorage(Storage):
    """A storage that sends each operation on one file as a request, by ``_ask``."""

    def _ask(self, operation: Operation, path: str, *arguments: Any) -> Any:
        """Return the answer to one request."""
        raise NotImplementedError

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        return bool(self._ask("put_if_absent", path, data))

    @override
    def read(self, path: str) -> bytes | None:
        data: bytes | None = self._ask("read", path)
        return data

    @override
    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        data: bytes | pa.Buffer | None = self._ask("read_range", path, offset, length)
        return data

    @override
    def size(self, path: str) -> int | None:
        size: int | None = self._ask("size", path)
        return size

    @override
    def exists(self, path: str) -> bool:
        return bool(self._ask("exists", path))

    @override
    def modified_ms(self, path: str) -> int | None:
        moment: int | None = self._ask("modified_ms", path)
        return moment

    @override
    def list(self, directory: str) -> Sequence[str]:
        names: Sequence[str] = self._ask("list", directory)
        return names


def whose(storage: Storage) -> str:
    """Return the prefix of an error message: the bookie, where it is known."""
    return "" if storage.bookie_id == storage.uri else f"bookie {storage.bookie_id}: "


def check_limit(storage: Storage, error: BaseException, where: str) -> None:
    """Raise ``ProcessLimitError`` if a limit of open files made an operation fail."""
    seen: BaseException | None = error
    while seen is not None:  # an SDK wraps the ``OSError``, which is then a cause
        if isinstance(seen, OSError) and seen.errno in (errno.EMFILE, errno.ENFILE):
            limits = (
                "this process may open no more files"
                if seen.errno == errno.EMFILE
                else "this machine may open no more files"
            )
            raise ProcessLimitError(
                f"{limits} ({os.strerror(seen.errno)}, {where}); nothing is wrong with the bookie. "
                "Close ledgers that are done, or raise the limit (`ulimit -n`)",
                bookie_id=storage.bookie_id,
            ) from error
        seen = seen.__cause__


def unavailable(storage: Storage, reason: str, path: str) -> BookieUnavailableError:
    """Make the error of an operation on a file that failed, or whose outcome is unknown."""
    return BookieUnavailableError(
        f"{whose(storage)}{reason}", bookie_id=storage.bookie_id, path=path
    )


def check_below(storage: Storage, path: str) -> None:
    """Raise ``BookieUnavailableError`` unless a path certainly leads below the root.

    A bad path comes from a name in storage or metadata. No file of this bookie has such a path.
    """
    if not has_names_only(path):
        reason = (
            f"{path!r} is no path below {storage.uri}: it is empty, begins or ends with a slash, "
            "or holds '.', '..', '//' or a NUL. Nothing was done. Look who stored this name"
        )
        raise unavailable(storage, reason, path)


def top_is_gone(storage: Storage, path: str) -> BookieUnavailableError:
    """Make the error of ``make_directory`` if the directory directly below the root is missing."""
    top = f"{storage.uri}/{path.partition('/')[0]}"
    reason = (
        f"{top} is gone, and what it held with it; nothing was created. Put the storage "
        "back as it was; if that is lost, recover the bookie and format it anew. Do not make the "
        "directory by hand"
    )
    return unavailable(storage, reason, top)
