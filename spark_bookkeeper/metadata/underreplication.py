"""The under-replication tree: which ledgers lack replicas, and who sees to it.

The auditor publishes a task for each ledger that lacks replicas, and workers take tasks, one
worker a task. All of it is Apache BookKeeper's own, in its places and its bytes, so its auditor,
its shell and ours work on one tree. Whoever does the work is in ``autorecovery/``.

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
    """The bookies whose replicas it lacks. Empty where its racks are wrong and nothing is lost."""
    marked_at_ms: int | None
    """When that was published; ``None`` where nobody says, as BookKeeper can be told."""


@dataclass(frozen=True, eq=False, slots=True)
class Holder:
    """Who takes locks. Each is another one, also of the same name: so callers of one client are
    told apart, of whom the cluster knows no more than that their session is the same.
    """

    name: str
    """For people."""


class Check(Enum):
    """What an auditor looks at now and then; the value is the node that remembers when."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


Changed = Callable[[], None]
"""Called once, from any thread, after what was read has changed or the connection was lost."""


class Underreplication(Protocol):
    """Every method raises ``MetadataUnavailableError`` when there is no answer.

    Where a method takes ``changed``, that is called once after what it returned is not so any
    more; it may be called when nothing changed, and who wants to hear more asks again.
    """

    # Tasks

    def mark(
        self, ledger_id: LedgerId, missing: Iterable[str], now_ms: int, *, anew: bool = False
    ) -> bool:
        """Publish a task, or add bookies to the one there is; whether anything was written.

        Args:
            anew: also one that names them all is written, and has another version: whoever looked
                at the bookies before cannot remove it.
        """

    def read(self, ledger_id: LedgerId) -> Versioned[Task] | None:
        """The task of one ledger. Raises ``MetadataFormatError`` when it cannot be decoded."""

    def read_many(
        self, ledger_ids: Iterable[LedgerId]
    ) -> Iterator[tuple[LedgerId, Versioned[Task] | MetadataFormatError | None]]:
        """The same for many, pipelined, in order; ``None`` where there is none by now."""

    def ledger_ids(self, changed: Changed | None = None) -> Iterator[LedgerId]:
        """The ledgers that have a task, ascending; read in bounded pieces.

        ``changed`` hears of tasks that come and go, not of bookies that are added to one.
        """

    def remove(self, task: Versioned[Task]) -> bool:
        """Take a task away; ``False`` and nothing done when it was marked again since, also where
        it had gone in between, and its version began anew.
        """

    def sweep(self, ledger_id: LedgerId) -> None:
        """Remove what a task has left that went without it, as a process of BookKeeper leaves it
        that dies, and who deletes a task by hand: ``ledger_ids`` would name it for ever. A task
        that is there stays.
        """

    # Locks

    def lock(self, ledger_id: LedgerId, holder: Holder) -> bool:
        """Take the lock of a ledger; ``False`` when somebody has it, also the same holder.

        It goes with the session. Nothing is safe because of it (SLOT-LOG rule R17): it saves work.
        Where there is no answer it may have been taken: ``unlock`` releases it, too.
        """

    def unlock(self, holder: Holder) -> None:
        """Release every lock that this holder took, or may have taken, in this session. What cannot
        be released now, since there is no answer or Ctrl-C comes, is released as soon as it can be.
        """

    def locks(self, changed: Changed | None = None) -> Mapping[LedgerId, str]:
        """Every lock that is held, with the name of its holder."""

    # Settings

    def is_enabled(self, changed: Changed | None = None) -> bool:
        """Whether autorecovery is to do anything."""

    def disabled_at_ms(self) -> int | None:
        """Since when it is stopped, by the store's clock; ``None`` when it is not, or unknown."""

    def disable(self) -> bool:
        """Stop it for the whole cluster; ``False`` when it was stopped before."""

    def enable(self) -> bool:
        """Let it go on; ``False`` when it was not stopped."""

    def delay_seconds(self, changed: Changed | None = None) -> Versioned[int] | None:
        """How long a bookie may be away before it is lost; ``None`` where nobody has said.

        Setting the same value again gives another version, which is how BookKeeper's tools ask
        for an audit. Raises ``MetadataFormatError`` when it is no number.
        """

    def set_delay_seconds(self, seconds: int) -> None:
        """Set it, whatever it was."""

    def checked_at_ms(self, check: Check, changed: Changed | None = None) -> Versioned[int] | None:
        """When a check was done last; ``None`` for never. Raises ``MetadataFormatError``."""

    def set_checked_at_ms(
        self, check: Check, now_ms: int, before: Versioned[int] | None
    ) -> Versioned[int] | None:
        """Remember that it was done; ``None`` and nothing done where it was asked for again since.

        Args:
            before: when it was done the last time, as it was read.
        """

    def forget_checked(self, check: Check) -> None:
        """Forget when it was done, which is how BookKeeper's tools ask for it."""

    # The auditor

    def stand(self, name: str, changed: Changed) -> bool:
        """Take part in the election; whether this session is the auditor now.

        ``changed`` is called when that is to be asked again: the one before has gone, or one's
        own vote has.
        """

    def stand_down(self) -> None:
        """Take part no more; nothing happens when this session does not. Where there is no answer
        now, as soon as there is one.
        """

    def auditor(self) -> str | None:
        """The name of who is auditor now."""

    def candidates(self) -> Sequence[str]:
        """The names of all who take part in the election, the auditor's first."""


# What the nodes hold

LAYOUT: Final = format_text(LedgerRereplicationLayoutFormat(type="BASIC", version=1)).encode()


def check_layout(data: bytes, path: str) -> None:
    """Raises ``MetadataFormatError`` when the tree is of another kind than the only one known."""
    found = _parsed(data, LedgerRereplicationLayoutFormat(), path)
    if (found.type, found.version) != ("BASIC", 1):
        raise _unreadable(path, f"says {found.type!r}, version {found.version}, and not 'BASIC', 1")


def encode_task(task: Task) -> bytes:
    """As BookKeeper writes it."""
    return format_text(
        UnderreplicatedLedgerFormat(replica=task.missing, ctime=task.marked_at_ms)
    ).encode()


def decode_task(data: bytes, ledger_id: LedgerId, path: str) -> Task:
    """Raises ``MetadataFormatError``. A time before 1970 says nothing."""
    found = _parsed(data, UnderreplicatedLedgerFormat(), path)
    return Task(ledger_id, tuple(found.replica), found.ctime if found.ctime > 0 else None)


def merged(task: Task, missing: Iterable[str], now_ms: int) -> Task:
    """A task with more bookies; the same where it names them all.

    It lacks replicas since it was marked first. (BookKeeper writes the time of the last mark, and
    reads this one as well.)
    """
    more = [bookie for bookie in dict.fromkeys(missing) if bookie not in task.missing]
    if not more:
        return task
    since_ms = now_ms if task.marked_at_ms is None else task.marked_at_ms
    return Task(task.ledger_id, (*task.missing, *more), since_ms)


def encode_lock(holder: str) -> bytes:
    """As BookKeeper writes it."""
    return format_text(LockDataFormat(bookieId=holder)).encode()


def decode_lock(data: bytes) -> str:
    """The holder; it is only there for people, so what cannot be decoded is ``?``."""
    try:
        return str(_parsed(data, LockDataFormat(), "a lock").bookieId)
    except MetadataFormatError:
        return "?"


def encode_vote(name: str) -> bytes:
    """As BookKeeper writes it."""
    return format_text(AuditorVoteFormat(bookieId=name)).encode()


def decode_vote(data: bytes) -> str:
    """The candidate's name; ``?`` where it cannot be decoded."""
    try:
        return str(_parsed(data, AuditorVoteFormat(), "a vote").bookieId)
    except MetadataFormatError:
        return "?"


def encode_delay(seconds: int) -> bytes:
    """As BookKeeper writes it."""
    return str(seconds).encode()


def decode_delay(data: bytes, path: str) -> int:
    """Raises ``MetadataFormatError``."""
    text = data.decode(errors="replace")
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise _unreadable(path, f"holds {text[:40]!r} and no whole number of seconds")
    return int(text)


def encode_time(now_ms: int) -> bytes:
    """As BookKeeper writes it."""
    data: bytes = CheckAllLedgersFormat(checkAllLedgersCTime=now_ms).SerializeToString()
    return data


def decode_time(data: bytes, path: str) -> int:
    """Raises ``MetadataFormatError``."""
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
