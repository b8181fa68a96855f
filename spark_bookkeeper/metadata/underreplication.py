"""The under-replication tree: the ledgers that lack replicas, and the workers that repair them.

The auditor publishes a task for each ledger that lacks replicas. Workers take tasks, one worker a
task. The whole tree is Apache BookKeeper's own, with its paths and its bytes, so BookKeeper's
auditor and shell and ours work on one tree. The auditor and the workers are in ``autorecovery/``.

Source: BookKeeper 4.17 ``meta/ZkLedgerUnderreplicationManager``, ``meta/ZkLedgerAuditorManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.formats import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
    format_text,
    parse_bytes,
    parse_text,
)
from spark_bookkeeper.metadata.versioned import Versioned
from spark_bookkeeper.protocol.ids import LedgerId


@dataclass(frozen=True, slots=True)
class Task:
    """A ledger that lacks replicas."""

    ledger_id: LedgerId
    missing: tuple[str, ...]
    """The bookies whose replicas it lacks. Empty if only its racks are wrong: nothing is lost."""
    marked_at_ms: int | None
    """When that was published; ``None`` if the task has no time, which BookKeeper allows."""


@dataclass(frozen=True, eq=False, slots=True)
class Holder:
    """An owner of locks. Holders of the same name differ. So callers that share one client are
    distinct, although the cluster knows only their common session.
    """

    name: str
    """For people."""


class Check(Enum):
    """A check that an auditor repeats; the value is the name of the node with its last time."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


Changed = Callable[[], None]
"""Called once, from any thread, after the value read has changed or the connection was lost."""


class Underreplication(Protocol):
    """The tasks, locks, settings and election of autorecovery in a metadata store.

    Every method raises ``MetadataUnavailableError`` when no answer comes. ``changed`` is called
    once after the returned value became outdated, or without a change; read again to watch again.
    """

    # Tasks

    def mark(
        self, ledger_id: LedgerId, missing: Iterable[str], now_ms: int, *, anew: bool = False
    ) -> bool:
        """Publish a task, or add bookies to the existing one; return whether anything was written.

        Args:
            anew: write the task even if it names all of them, so that its version changes: a caller
                that read the bookies before cannot remove it.
        """

    def read(self, ledger_id: LedgerId) -> Versioned[Task] | None:
        """Return the task of one ledger. Raises ``MetadataFormatError`` if it cannot be decoded."""

    def read_many(
        self, ledger_ids: Iterable[LedgerId]
    ) -> Iterator[tuple[LedgerId, Versioned[Task] | MetadataFormatError | None]]:
        """Do the same for many, pipelined, in order; ``None`` if no task exists by now."""

    def ledger_ids(self, changed: Changed | None = None) -> Iterator[LedgerId]:
        """Yield the ledgers that have a task, ascending; read in bounded pieces.

        ``changed`` is called when tasks come or go, but not when bookies are added to one.
        """

    def remove(self, task: Versioned[Task]) -> bool:
        """Remove a task; return ``False`` and do nothing if it was marked again since. This holds
        even if it was removed in between and its version began anew.
        """

    def sweep(self, ledger_id: LedgerId) -> None:
        """Remove the nodes that a removed task left behind, because ``ledger_ids`` would name the
        ledger for ever. A process of BookKeeper that dies leaves them, and so does a deletion by
        hand. An existing task stays.
        """

    # Locks

    def lock(self, ledger_id: LedgerId, holder: Holder) -> bool:
        """Take the lock of a ledger; return ``False`` if any holder has it, even this one.

        The lock ends with the session. It saves work and makes nothing safe (SLOT-LOG rule R17).
        Without an answer the lock may have been taken; ``unlock`` releases it in that case too.
        """

    def unlock(self, holder: Holder) -> None:
        """Release every lock that this holder took, or may have taken, in this session. If no
        answer or Ctrl-C comes, release the rest as soon as possible.
        """

    def locks(self, changed: Changed | None = None) -> Mapping[LedgerId, str]:
        """Return every lock that is held, with the name of its holder."""

    # Settings

    def is_enabled(self, changed: Changed | None = None) -> bool:
        """Return whether autorecovery is enabled."""

    def disabled_at_ms(self) -> int | None:
        """Return when autorecovery was disabled (store's clock); ``None`` if enabled or unknown."""

    def disable(self) -> bool:
        """Disable autorecovery for the cluster; return ``False`` if it was disabled already."""

    def enable(self) -> bool:
        """Enable autorecovery again; return ``False`` if it was not disabled."""

    def delay_seconds(self, changed: Changed | None = None) -> Versioned[int] | None:
        """Return how long a bookie may be away before it is lost; ``None`` if it was never set.

        Setting the same value again gives another version, by which BookKeeper's tools request an
        audit. Raises ``MetadataFormatError`` if the value is not a number.
        """

    def set_delay_seconds(self, seconds: int) -> None:
        """Set the delay, whatever it was."""

    def checked_at_ms(self, check: Check, changed: Changed | None = None) -> Versioned[int] | None:
        """Return when a check was last done; ``None``: never. Raises ``MetadataFormatError``."""

    def set_checked_at_ms(
        self, check: Check, now_ms: int, before: Versioned[int] | None
    ) -> Versioned[int] | None:
        """Store the time of a check; return ``None`` and store nothing if a new one was requested.

        Args:
            before: the time of the check before, as it was read.
        """

    def forget_checked(self, check: Check) -> None:
        """Forget the time of a check, which is how BookKeeper's tools request one."""

    # The auditor

    def stand(self, name: str, changed: Changed) -> bool:
        """Join the election; return whether this session is the auditor now.

        ``changed`` is called when the caller must check again: the candidate before this one left,
        or this session's own node was deleted.
        """

    def stand_down(self) -> None:
        """Leave the election; do nothing if this session is not in it. If no answer comes now,
        leave as soon as one does.
        """

    def auditor(self) -> str | None:
        """Return the name of the present auditor."""

    def candidates(self) -> Sequence[str]:
        """Return the names of all candidates in the election, the auditor's first."""


# The content of the nodes

LAYOUT: Final = format_text(LedgerRereplicationLayoutFormat(type="BASIC", version=1)).encode()


def check_layout(data: bytes, path: str) -> None:
    """Raise ``MetadataFormatError`` if the tree's layout is not the only one that is known."""
    found = _parsed(data, LedgerRereplicationLayoutFormat(), path)
    if (found.type, found.version) != ("BASIC", 1):
        raise _unreadable(path, f"says {found.type!r}, version {found.version}, and not 'BASIC', 1")


def encode_task(task: Task) -> bytes:
    """Return the bytes that BookKeeper writes."""
    return format_text(
        UnderreplicatedLedgerFormat(replica=task.missing, ctime=task.marked_at_ms)
    ).encode()


def decode_task(data: bytes, ledger_id: LedgerId, path: str) -> Task:
    """Return the task. Raises ``MetadataFormatError``. A time before 1970 counts as none."""
    found = _parsed(data, UnderreplicatedLedgerFormat(), path)
    return Task(ledger_id, tuple(found.replica), found.ctime if found.ctime > 0 else None)


def merged(task: Task, missing: Iterable[str], now_ms: int) -> Task:
    """Return a task with more bookies; the same task if it names them all.

    The time of the first mark stays. (BookKeeper writes the time of the last mark, and reads this
    one as well.)
    """
    more = [bookie for bookie in dict.fromkeys(missing) if bookie not in task.missing]
    if not more:
        return task
    since_ms = now_ms if task.marked_at_ms is None else task.marked_at_ms
    return Task(task.ledger_id, (*task.missing, *more), since_ms)


def encode_lock(holder: str) -> bytes:
    """Return the bytes that BookKeeper writes."""
    return format_text(LockDataFormat(bookieId=holder)).encode()


def decode_lock(data: bytes) -> str:
    """Return the holder; ``?`` if it cannot be decoded, because it is only for people."""
    try:
        return str(_parsed(data, LockDataFormat(), "a lock").bookieId)
    except MetadataFormatError:
        return "?"


def encode_vote(name: str) -> bytes:
    """Return the bytes that BookKeeper writes."""
    return format_text(AuditorVoteFormat(bookieId=name)).encode()


def decode_vote(data: bytes) -> str:
    """Return the candidate's name; ``?`` if it cannot be decoded."""
    try:
        return str(_parsed(data, AuditorVoteFormat(), "a vote").bookieId)
    except MetadataFormatError:
        return "?"


def encode_delay(seconds: int) -> bytes:
    """Return the bytes that BookKeeper writes."""
    return str(seconds).encode()


def decode_delay(data: bytes, path: str) -> int:
    """Return the seconds. Raises ``MetadataFormatError``."""
    text = data.decode(errors="replace")
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise _unreadable(path, f"holds {text[:40]!r} and no whole number of seconds")
    return int(text)


def encode_time(now_ms: int) -> bytes:
    """Return the bytes that BookKeeper writes."""
    data: bytes = CheckAllLedgersFormat(checkAllLedgersCTime=now_ms).SerializeToString()
    return data


def decode_time(data: bytes, path: str) -> int:
    """Return the time. Raises ``MetadataFormatError``."""
    try:
        return int(parse_bytes(data, CheckAllLedgersFormat).checkAllLedgersCTime)
    except ValueError as error:
        raise _unreadable(path, f"holds no time: {error}") from error


def _parsed(data: bytes, message: Any, path: str) -> Any:
    try:
        return parse_text(data.decode(), message)
    except ValueError as error:
        raise _unreadable(path, f"cannot be decoded: {error}") from error


def _unreadable(path: str, what: str) -> MetadataFormatError:
    return MetadataFormatError(
        f"{path} {what}. Nothing was changed. In ZooKeeper's own shell (zkCli.sh) `get {path}` "
        f"shows it; `delete {path}` removes it, and an audit publishes again what is missing",
        path=path,
    )
