"""What a bookie's file system must offer: the narrow waist under the slot log.

Three back ends: ``local.py`` (files and directories, synced), ``remote.py`` (any fsspec file
system with a true conditional create) and ``testing/memory_storage.py`` (the twin, with faults).
All inherit ``testing/conformance/storage.py``.

Paths are relative to the bookie's root, with ``/`` between parts. They are names, and no patterns.
One that leads out of the root is refused (``check_below``). Files are immutable: they appear whole
or not at all, and are never overwritten.

Every method may raise ``BookieUnavailableError``: no answer that says anything. After that a
write may have happened, and may still happen later (SLOT-LOG rule R3).
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
"""So much is joined sooner than it is written piece by piece."""


class Content:
    """The content of a new file. ``bytes()`` joins it; joining much costs as much as writing it,
    since the memory for it is new every time.

    Args:
        is_private: it holds secrets, so where files have modes only their owner may read it.
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
        """Its pieces in order; one, where it is little."""
        if self._size <= _JOINED_BYTES:
            yield memoryview(bytes(self))
            return
        for piece in self._pieces:
            yield memoryview(piece).cast("B")


class FileSink(Protocol):
    """A new file being written piece by piece. Nothing is visible as final until ``finish``."""

    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Make the file complete and durable under its name (SLOT-LOG rules R9, R15)."""

    def abandon(self) -> None:
        """Give up; leaves at most an unlisted file that the collector removes. Never raises."""


Operation: TypeAlias = Literal[
    "put_if_absent", "read", "read_range", "size", "exists", "modified_ms", "list", "sync"
]


class Request(NamedTuple):
    """A method of a storage that is to be called, on one file or directory."""

    operation: Operation
    path: str
    arguments: tuple[Any, ...] = ()
    """After the path."""

    @property
    def moved_bytes(self) -> int:
        """As many as it may move, as far as it tells."""
        if self.operation == "put_if_absent":
            return len(self.arguments[0])
        return int(self.arguments[1]) if self.operation == "read_range" else 0


def nothing() -> None:
    """Nobody wants to hear of it."""


class Storage(Protocol):
    """One storage partition.

    What is asked for many files together is done for all of them or raises, and then nothing is
    known of any: whoever asked goes on with each by itself. It calls ``progress`` now and then,
    whenever something came back, and may be stopped by what that raises.
    """

    @property
    def bookie_id(self) -> str:
        """Whose partition it is, as every error of it says. Before that is known, its ``uri``."""

    @property
    def uri(self) -> str:
        """The root, as an fsspec URI (``file:///...``, ``s3://...``, ``memory://...``)."""

    @property
    def has_directories(self) -> bool:
        """Whether a put into a missing directory fails, so that a wipe is noticed (rule R11)."""

    @property
    def syncs_as_one(self) -> bool:
        """Whether what is put together costs hardly more syncs than a file by itself."""
        return False

    @property
    def requests_at_once(self) -> int:
        """How many requests of one ``ask_all`` are on their way together."""
        return 1

    def ask_all(
        self, requests: Sequence[Request], progress: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        """What each of these calls returns, in their order; in place of an answer its
        ``BookieError``, which keeps back no other. They may take effect in any order.

        Raises:
            BookieUnavailableError: nobody waits for the answers any more.
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
            that an earlier attempt of one's own succeeded (an SDK that retries inside, an
            answer that was lost): read it and compare (SLOT-LOG rule R3).

        Does not create the ledger's directory where the back end has directories: the call
        then raises ``BookieUnavailableError`` (rule R11), see ``make_directory``.

        Source: SLOT-LOG rules R1 and R9.
        """

    def put_all(
        self,
        files: Sequence[tuple[str, bytes]],
        progress: Callable[[], None] = nothing,
        relied_on: Sequence[str] = (),
        directories: Sequence[str] = (),
    ) -> Sequence[bool]:
        """``put_if_absent`` for many files, path and content; all are durable when it returns.

        Args:
            relied_on: files that were merely found. They are durable, as by ``sync_all``, before
                any of the new ones appears.
            directories: made before, as by ``make_directories``, and durable before any of the new
                files appears.
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
        """What makes puts into a directory cheaper, for as long as the caller holds it.

        Nothing is asked of the storage here. Every put is checked as without it.
        """
        return None

    def create(self, path: str) -> FileSink:
        """Begin a file under a name that nobody else uses (parts). Fails if it exists."""

    def read(self, path: str) -> bytes | None:
        """The whole content, or ``None``: the file is certainly not there now.

        ``None`` is only about this file at this moment; whether the bookie is the right one is
        asked separately (``BOOKIE`` marker). Anything doubtful raises.
        """

    def read_again(self, path: str) -> bytes | None:
        """The same for a small file that seldom changes and is asked for with every put.

        Where the storage can tell that it is still the file that was read here before, its content
        is not read again.
        """
        return self.read(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        """``length`` bytes from ``offset`` (fewer at the end), or ``None`` as in ``read``."""

    def read_through(
        self, path: str, offset: int, length: int, take: Callable[[Buffer], None]
    ) -> bool:
        """Hand what ``read_range`` returns to ``take``, in pieces that are gone afterwards.

        Returns:
            False: the file is certainly not there, as in ``read``.
        """
        data = self.read_range(path, offset, length)
        if data is not None:
            take(data)
        return data is not None

    def size(self, path: str) -> int | None:
        """Size in bytes, or ``None`` as in ``read``."""

    def exists(self, path: str) -> bool:
        """Whether a file is there now. ``False`` says as much as ``None`` of ``read``."""
        return self.size(path) is not None

    def modified_ms(self, path: str) -> int | None:
        """When a file got its content, in milliseconds since 1970 by the storage's own clock.

        For people, and never for a decision (SLOT-LOG rule R17). ``None`` when the file is not
        there, or where the storage keeps no such time.
        """

    def list(self, directory: str) -> Sequence[str]:
        """Names directly in a directory, sorted; empty if it is not there. Never cached.

        A listing may suggest what exists; it never proves that something is absent (R4, R12).
        """

    def make_directory(self, path: str) -> None:
        """Create a directory durably, with its parents; no-op in buckets.

        What lies directly below the root is created only when it is named by itself, as when a
        partition is formatted: where it is gone, so is what it held, and the call raises
        ``BookieUnavailableError`` (SLOT-LOG rule R5).
        """

    def make_directories(
        self, paths: Sequence[str], progress: Callable[[], None] = nothing
    ) -> None:
        """``make_directory`` for many directories."""
        for path in paths:
            self.make_directory(path)
            progress()

    def sync(self, *paths: str) -> None:
        """Make files that were merely found, and their names, durable (SLOT-LOG rule R9b)."""

    def sync_all(self, paths: Sequence[str], progress: Callable[[], None] = nothing) -> None:
        """``sync`` for files of many directories."""
        for path in paths:
            self.sync(path)
            progress()

    def delete(self, *paths: str) -> None:
        """Remove files, in any order; one that is not there counts as removed."""

    def delete_directory(self, path: str) -> None:
        """Remove a directory with everything in it; one that is not there counts as removed.

        Where there are directories, names go in ascending order, so that of a ledger's slots the
        FENCE goes last (SLOT-LOG, "Collect").
        """

    def temporary_files(self, directory: str) -> Sequence[str]:
        """Names of writes that were not finished: left by killed processes, or going on now.

        Only where they are visible. Deleting one makes the write that it belongs to fail, and
        nothing else.
        """

    def space(self) -> tuple[int, int] | None:
        """(free bytes, total bytes), or ``None`` where there is no such number (buckets)."""

    def inodes(self) -> tuple[int, int] | None:
        """(free, total): every file takes one. ``None`` where they are not numbered."""
        return None

    def close(self) -> None:
        """Release handles; idempotent."""


class RequestStorage(Storage):
    """A storage of which each of the operations for one file is a request, sent by ``_ask``."""

    def _ask(self, operation: Operation, path: str, *arguments: Any) -> Any:
        """The answer to one request."""
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
    """What the text of an error begins with: the bookie, where it is known."""
    return "" if storage.bookie_id == storage.uri else f"bookie {storage.bookie_id}: "


def check_limit(storage: Storage, error: BaseException, where: str) -> None:
    """Raises ``ProcessLimitError`` where that is why an operation failed."""
    seen: BaseException | None = error
    while seen is not None:  # an SDK's own errors have it as their cause
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
    """An operation on a file that did not succeed, or is not known to have."""
    return BookieUnavailableError(
        f"{whose(storage)}{reason}", bookie_id=storage.bookie_id, path=path
    )


def check_below(storage: Storage, path: str) -> None:
    """Raises ``BookieUnavailableError`` for a path that leads nowhere below the root, or may not.

    It was made of what somebody stored: of this bookie nothing can be had by it.
    """
    if not has_names_only(path):
        reason = (
            f"{path!r} is no path below {storage.uri}: it is empty, begins or ends with a slash, "
            "or holds '.', '..', '//' or a NUL. Nothing was done. Look who stored this name"
        )
        raise unavailable(storage, reason, path)


def top_is_gone(storage: Storage, path: str) -> BookieUnavailableError:
    """The error of ``make_directory`` where the directory below the root is not there."""
    top = f"{storage.uri}/{path.partition('/')[0]}"
    reason = (
        f"{top} is gone, and what it held with it; nothing was created. Put the storage "
        "back as it was; if that is lost, recover the bookie and format it anew. Do not make the "
        "directory by hand"
    )
    return unavailable(storage, reason, top)
