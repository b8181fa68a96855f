"""The tasks that a worker knows and has not taken, with only the fields that their order needs.

A million tasks take 32 MB, and three times as much while they are sorted. A worker reads them from
the cluster once, and again when something happens to a bookie that matters to them. This module
sends no requests: ``tasks.py`` reads, and keeps the results here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_bookkeeper.autorecovery.backoff import writable_of
from spark_bookkeeper.autorecovery.notes import as_marked
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.protocol.underreplication import (
    absent_members,
    blocked,
    fewest_copies,
    takers,
)

Ids: TypeAlias = npt.NDArray[np.int64]
"""Ledger ids."""

_FREE: Final[np.dtype[Any]] = np.dtype(
    [
        *(("ledger_id", "i8"), ("live_copies", "i4"), ("marked_at_ms", "i8"), ("dice", "u4")),
        ("heeds", "u8"),
    ]
)
_LEFT: Final[np.dtype[Any]] = np.dtype(
    [
        *(("ledger_id", "i8"), ("until_ms", "i8"), ("is_noted", "?"), ("heeds", "u8")),
        ("mark", "u4"),
    ]
)

TAKES_DATA: Final = 1 << 63
"""The event that a bookie takes data that did not before."""

GOES: Final = 1 << 62
"""The event that a bookie is lost. A left task may be published again for that bookie, or its
ledger's ensemble may name it by now, so every left task heeds this event."""

_BITS: Final = 62


class BookieBits:
    """Maps bookies to the bits of a number, one bit each, to record events that happen to them.

    With more than 62 bookies, some share a bit, and more tasks than necessary are read again.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, bookies: Iterable[str]) -> int:
        """Return the bits of these bookies."""
        bits = 0
        for bookie in bookies:
            bits |= 1 << self._numbers.setdefault(bookie, len(self._numbers)) % _BITS
        return bits


@dataclass(frozen=True, slots=True)
class FreeTask:
    """A task that this worker may take."""

    ledger_id: LedgerId
    live_copies: int
    """The copies of the entries that have the fewest; 0 if the ledger cannot be read."""
    marked_at_ms: int
    dice: int
    """A random number below 2**32."""
    heeds: int = 0
    """The events that change its place in the order, or who may take it (``BookieBits``)."""


class LeftTask(NamedTuple):
    """A task that this worker checks again later."""

    ledger_id: LedgerId
    until_ms: int
    is_noted: bool
    """Whether the ledger has a note."""
    heeds: int
    """The events that are a reason to check it earlier (``BookieBits``, always with ``GOES``)."""
    mark: int
    """A number below 2**32, from ``mark_of``; it changes when the task is published again."""


class Backlog:
    """The free tasks: the fewest live copies first, then the oldest, then by ``dice``."""

    def __init__(self) -> None:
        self._ordered: npt.NDArray[Any] = np.empty(0, _FREE)
        self._added: list[npt.NDArray[Any]] = []

    def __len__(self) -> int:
        return len(self._ordered) + sum(map(len, self._added))

    @property
    def ledger_ids(self) -> Ids:
        """The ledger ids of all tasks, in no order."""
        return np.concatenate([self._ordered, *self._added])["ledger_id"]

    def add(self, tasks: Sequence[FreeTask]) -> None:
        """Add tasks that are not in the backlog yet."""
        if not tasks:
            return  # nothing was added, so ``take`` need not sort again
        rows = [(t.ledger_id, t.live_copies, t.marked_at_ms, t.dice, t.heeds) for t in tasks]
        self._added.append(np.array(rows, _FREE))

    def forget(self, happened: int) -> None:
        """Remove the tasks that heed any of these events (``BookieBits``)."""
        self._ordered = _unmoved(self._ordered, happened)
        self._added = [_unmoved(rows, happened) for rows in self._added]

    def take(self, most: int) -> list[FreeTask]:
        """Remove and return the first tasks in order."""
        if self._added:
            rows = np.concatenate([self._ordered, *self._added])
            order = np.lexsort((rows["dice"], rows["marked_at_ms"], rows["live_copies"]))
            self._ordered, self._added = rows[order], []
        taken, self._ordered = self._ordered[:most], self._ordered[most:]
        return [FreeTask(*row) for row in taken.tolist()]


class LeftTasks:
    """The tasks that this worker checks again later."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[Any]] = []

    @property
    def _rows(self) -> npt.NDArray[Any]:
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, _LEFT), *self._parts])]
        return self._parts[0]

    @property
    def ledger_ids(self) -> Ids:
        """The ledger ids of all tasks, in no order."""
        ids: Ids = self._rows["ledger_id"]
        return ids

    @property
    def until_ms(self) -> int | None:
        """The time at which the first is to be checked; ``None`` if there are no tasks."""
        return int(self._rows["until_ms"].min()) if len(self._rows) else None

    def add(self, tasks: Sequence[LeftTask]) -> None:
        """Add tasks."""
        self._parts.append(np.array(tasks, _LEFT))

    def forget(self, happened: int) -> None:
        """Remove the tasks that heed any of these events (``BookieBits``)."""
        self._parts = [_unmoved(self._rows, happened)]

    def take_due(self, now_ms: int, most_ms: int) -> Ids:
        """Remove the tasks whose time has come, and return their ledger ids.

        Args:
            most_ms: the longest wait; a time further off was set by another clock.
        """
        rows = self._rows
        left_ms = rows["until_ms"] - now_ms
        is_left = (left_ms > 0) & (left_ms <= most_ms)
        self._parts = [rows[is_left]]
        due: Ids = rows["ledger_id"][~is_left]
        return due

    def keep(self, there: Ids, noted: Ids) -> None:
        """Keep only the tasks that still exist and, if they had a note, still have it.

        Args:
            there: ledgers that have a task, ascending.
            noted: ledgers that have a note, ascending.
        """
        rows = self._rows
        has_note = ~rows["is_noted"] | is_among(rows["ledger_id"], noted)
        self._parts = [rows[has_note & is_among(rows["ledger_id"], there)]]

    def in_turn(self, most: int) -> Mapping[LedgerId, int]:
        """Return the marks of at most ``most`` tasks; repeated calls go through all in turn."""
        rows = self._rows
        self._parts = [rows[most:], rows[:most]]
        return {LedgerId(i): mark for i, mark in rows[:most][["ledger_id", "mark"]].tolist()}

    def forget_these(self, ledger_ids: Ids) -> None:
        """Remove the tasks of these ledgers, which are ascending."""
        rows = self._rows
        self._parts = [rows[~is_among(rows["ledger_id"], ledger_ids)]]


def _unmoved(rows: npt.NDArray[Any], happened: int) -> npt.NDArray[Any]:
    return rows[rows["heeds"] & np.uint64(happened) == 0]


def is_among(asked: Ids, known: Ids) -> npt.NDArray[np.bool_]:
    """Return, for each asked id, whether it is known; ``known`` is ascending."""
    if not len(known):
        return np.zeros(len(asked), np.bool_)
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return known[places] == asked


TaskRead: TypeAlias = Versioned[Task] | MetadataFormatError
LedgerRead: TypeAlias = Versioned[LedgerMetadata] | MetadataFormatError | None
Bookies: TypeAlias = Mapping[BookieId, Registration]

_MARKS: Final = 1 << 32


class Read(NamedTuple):
    """The tasks and notes of some ledgers, for each ledger that has one."""

    tasks: Mapping[LedgerId, TaskRead]
    notes: Mapping[LedgerId, TaskNote]


class Sorter:
    """Decides, for one worker at one moment, which tasks are free and which wait.

    Args:
        local: the bookie next to which the worker runs; ``None`` is a worker that copies to any.
        config: has the longest time until a left task is checked again.
        asked_at_ms: a task that waits for an event is due if it was last tried before this time.
        bits: gives each bookie its bit.
        dice: returns another random number below 2**32 at each call.
    """

    def __init__(
        self,
        local: BookieId | None,
        config: AutorecoveryConfig,
        asked_at_ms: int,
        bits: BookieBits,
        registered: Bookies,
        now_ms: int,
        dice: Callable[[], int],
    ) -> None:
        self._local = local
        self._most_ms = config.retry_most_ms
        self._believed_ms = max(config.retry_most_ms, config.open_ledger_grace_ms)
        """The longest wait that a note may demand; a time further off was set by another clock."""
        self._asked_at_ms = asked_at_ms
        self._bits = bits
        self._registered = registered
        self._incarnations = registered_incarnations(registered)
        self._writable = writable_of(registered)
        self._now_ms = now_ms
        self._dice = dice

    def by_notes(self, read: Read) -> tuple[dict[LedgerId, LeftTask], set[LedgerId]]:
        """Return the tasks to leave for later, and those that wait for an event. Only the ledger's
        metadata show whether that event has come (``waiting``).
        """
        left: dict[LedgerId, LeftTask] = {}
        waiting: set[LedgerId] = set()
        for ledger_id, note in read.notes.items():
            task = read.tasks.get(ledger_id)
            if task is None or self._is_due(note, task):
                continue
            is_refused = note.is_refused(self._now_ms, self._believed_ms, self._local)
            if note.waits_for_event and not is_refused:
                waiting.add(ledger_id)
            else:
                until_ms = note.waits_until_ms(self._local)
                heeds = self._bits.of(note.waits_for) | TAKES_DATA
                left[ledger_id] = self._left(ledger_id, read, until_ms, heeds)
        return left, waiting

    def waiting(self, ledger_id: LedgerId, read: Read, found: LedgerRead) -> LeftTask | None:
        """Return a task that still waits for its event; ``None`` if the event has come."""
        if not isinstance(found, Versioned):
            return None
        live = live_members(found.value, self._incarnations)
        if blocked(found.value, live, self._writable) is None:
            return None
        until_ms = read.notes[ledger_id].next_try_at_ms
        return self._left(ledger_id, read, until_ms, self._heeds(found) | TAKES_DATA)

    def by_metadata(
        self, ledger_id: LedgerId, read: Read, found: LedgerRead
    ) -> FreeTask | LeftTask:
        """Return a due task: free, or left for later if this worker cannot help its ledger."""
        task, heeds = read.tasks[ledger_id], self._heeds(found)
        marked_at_ms, named = 0, frozenset[str]()
        if isinstance(task, Versioned):
            marked_at_ms = task.value.marked_at_ms or 0
            named = frozenset(task.value.missing)
        copies = 0
        if isinstance(found, Versioned):
            live = live_members(found.value, self._incarnations)
            if not can_help(self._local, found.value, live, self._writable, named):
                return self._left(ledger_id, read, self._now_ms + self._most_ms, heeds)
            copies = fewest_copies(found.value, live)
        return FreeTask(ledger_id, copies, marked_at_ms, self._dice(), heeds)

    def _left(self, ledger_id: LedgerId, read: Read, until_ms: int, heeds: int) -> LeftTask:
        """Return the task as left until ``until_ms``, but not beyond the longest wait."""
        until_ms = min(until_ms, self._now_ms + self._most_ms)
        mark = mark_of(read.tasks[ledger_id])
        return LeftTask(ledger_id, until_ms, ledger_id in read.notes, heeds | GOES, mark)

    def _heeds(self, found: LedgerRead) -> int:
        """Return the events that change what to do about a ledger: those of its members, and of the
        bookie next to which this worker runs.
        """
        members = found.value.bookies() if isinstance(found, Versioned) else ()
        return self._bits.of([*members, *([] if self._local is None else [self._local])])

    def _is_due(self, note: TaskNote, task: TaskRead) -> bool:
        if note.waits_for_event and note.tried_at_ms < self._asked_at_ms:
            return True
        return note.is_due(
            self._now_ms,
            as_marked(task),
            self._registered,
            len(self._writable),
            self._believed_ms,
            self._local,
        )


def mark_of(task: TaskRead) -> int:
    """Return a number below 2**32 that changes when the task is published again."""
    return hash(as_marked(task)) % _MARKS


def can_help(
    local: BookieId | None,
    metadata: LedgerMetadata,
    live: Collection[BookieId],
    writable: Collection[BookieId],
    named: Collection[str] = (),
) -> bool:
    """Whether a worker can do anything for a ledger: its bookie can take a lost bookie's place, or
    some work needs no such place. BookKeeper's worker finds out by trying.

    Args:
        local: the bookie next to which the worker runs; ``None`` is a worker that copies to any.
        named: bookies that the task names. Any worker repairs damage in place on one that is
            present, however long another member is away.

    Source: Bookie Ledger Recovery, "ReplicationWorker" ("segments of which its local bookie is not
    a member").
    """
    absent = set(absent_members(metadata, live))
    if local is None or not absent:
        return True
    if (metadata.bookies() - absent) & set(named):
        return True
    if not metadata.is_closed and absent & set(metadata.last_fragment.ensemble):
        return True  # any worker can do the recovery, which comes first
    return any(local in bookies for _, bookies in takers(metadata, live, writable))
