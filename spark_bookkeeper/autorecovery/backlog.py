"""The tasks that a worker knows of and has not taken: of each as little as its order needs.

A million of them take 32 MB, and three times as much while they are put in order; they are read
from the cluster once, and again when something happens to a bookie that matters to them. Nothing is
asked here: ``tasks.py`` reads, and keeps what comes of it.
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
"""What happens: some bookie takes data that did not before."""

GOES: Final = 1 << 62
"""What happens: some bookie is lost. A task that is left may be published again for it, or its
ledger's ensemble may have come to name it since, so whatever is left heeds it."""

_BITS: Final = 62


class BookieBits:
    """What happens to bookies, as bits of a number: one for each bookie.

    With more than 62 bookies some share a bit, and more is read again than need be.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, bookies: Iterable[str]) -> int:
        """The bits of these."""
        bits = 0
        for bookie in bookies:
            bits |= 1 << self._numbers.setdefault(bookie, len(self._numbers)) % _BITS
        return bits


@dataclass(frozen=True, slots=True)
class FreeTask:
    """A task that this worker may take."""

    ledger_id: LedgerId
    live_copies: int
    """Of the entries that have the fewest; 0 of a ledger that cannot be read."""
    marked_at_ms: int
    dice: int
    """Below 2**32."""
    heeds: int = 0
    """What may happen that changes its place in the order, or who may take it (``BookieBits``)."""


class LeftTask(NamedTuple):
    """A task that this worker looks at again later."""

    ledger_id: LedgerId
    until_ms: int
    is_noted: bool
    """Whether a note says so."""
    heeds: int
    """What may happen before that is a reason to look again (``BookieBits``, ``GOES`` always)."""
    mark: int
    """Another one where it is published again; below 2**32."""


class Backlog:
    """Free tasks: the fewest live copies first, then the oldest, then by the dice."""

    def __init__(self) -> None:
        self._ordered: npt.NDArray[Any] = np.empty(0, _FREE)
        self._added: list[npt.NDArray[Any]] = []

    def __len__(self) -> int:
        return len(self._ordered) + sum(map(len, self._added))

    @property
    def ledger_ids(self) -> Ids:
        """Of all of them, in no order."""
        return np.concatenate([self._ordered, *self._added])["ledger_id"]

    def add(self, tasks: Sequence[FreeTask]) -> None:
        """Some more; none that is there."""
        if not tasks:
            return  # what is there is in order already
        rows = [(t.ledger_id, t.live_copies, t.marked_at_ms, t.dice, t.heeds) for t in tasks]
        self._added.append(np.array(rows, _FREE))

    def forget(self, happened: int) -> None:
        """Those that heed any of this (``BookieBits``)."""
        self._ordered = _unmoved(self._ordered, happened)
        self._added = [_unmoved(rows, happened) for rows in self._added]

    def take(self, most: int) -> list[FreeTask]:
        """The first in order, which are there no more."""
        if self._added:
            rows = np.concatenate([self._ordered, *self._added])
            order = np.lexsort((rows["dice"], rows["marked_at_ms"], rows["live_copies"]))
            self._ordered, self._added = rows[order], []
        taken, self._ordered = self._ordered[:most], self._ordered[most:]
        return [FreeTask(*row) for row in taken.tolist()]


class LeftTasks:
    """Tasks that this worker looks at again later."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[Any]] = []

    @property
    def _rows(self) -> npt.NDArray[Any]:
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, _LEFT), *self._parts])]
        return self._parts[0]

    @property
    def ledger_ids(self) -> Ids:
        """Of all of them, in no order."""
        ids: Ids = self._rows["ledger_id"]
        return ids

    @property
    def until_ms(self) -> int | None:
        """When the first is to be looked at; ``None`` where there are none."""
        return int(self._rows["until_ms"].min()) if len(self._rows) else None

    def add(self, tasks: Sequence[LeftTask]) -> None:
        """Some more."""
        self._parts.append(np.array(tasks, _LEFT))

    def forget(self, happened: int) -> None:
        """Those that heed any of this (``BookieBits``)."""
        self._parts = [_unmoved(self._rows, happened)]

    def take_due(self, now_ms: int, most_ms: int) -> Ids:
        """Those whose time has come, which are there no more.

        Args:
            most_ms: the longest that anything is left alone; a time further off is another clock's.
        """
        rows = self._rows
        left_ms = rows["until_ms"] - now_ms
        is_left = (left_ms > 0) & (left_ms <= most_ms)
        self._parts = [rows[is_left]]
        due: Ids = rows["ledger_id"][~is_left]
        return due

    def keep(self, there: Ids, noted: Ids) -> None:
        """Forget those that have no task any more, or of which a note said when that is gone.

        Args:
            there: ledgers that have a task, ascending.
            noted: ledgers that have a note, ascending.
        """
        rows = self._rows
        has_note = ~rows["is_noted"] | is_among(rows["ledger_id"], noted)
        self._parts = [rows[has_note & is_among(rows["ledger_id"], there)]]

    def in_turn(self, most: int) -> Mapping[LedgerId, int]:
        """The marks of some of them: each time of others, until it was the turn of all."""
        rows = self._rows
        self._parts = [rows[most:], rows[:most]]
        return {LedgerId(i): mark for i, mark in rows[:most][["ledger_id", "mark"]].tolist()}

    def forget_these(self, ledger_ids: Ids) -> None:
        """Those of them that are there; ascending."""
        rows = self._rows
        self._parts = [rows[~is_among(rows["ledger_id"], ledger_ids)]]


def _unmoved(rows: npt.NDArray[Any], happened: int) -> npt.NDArray[Any]:
    return rows[rows["heeds"] & np.uint64(happened) == 0]


def is_among(asked: Ids, known: Ids) -> npt.NDArray[np.bool_]:
    """For each whether it is one of the known ones, which are ascending."""
    if not len(known):
        return np.zeros(len(asked), np.bool_)
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return known[places] == asked


TaskRead: TypeAlias = Versioned[Task] | MetadataFormatError
LedgerRead: TypeAlias = Versioned[LedgerMetadata] | MetadataFormatError | None
Bookies: TypeAlias = Mapping[BookieId, Registration]

_MARKS: Final = 1 << 32


class Read(NamedTuple):
    """What was read of some ledgers, of each as far as there is any."""

    tasks: Mapping[LedgerId, TaskRead]
    notes: Mapping[LedgerId, TaskNote]


class Sorter:
    """What one worker thinks at one moment.

    Args:
        local: the bookie beside which it runs; ``None`` is a worker that copies to any.
        config: how long a task is left alone at the most before it is looked at again.
        asked_at_ms: what waits for an event, and was not tried since then, is due all the same.
        bits: gives each bookie its bit.
        dice: a number below 2**32, another one each time.
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
        """The longest that a note may say to wait; a time further off is another clock's."""
        self._asked_at_ms = asked_at_ms
        self._bits = bits
        self._registered = registered
        self._incarnations = registered_incarnations(registered)
        self._writable = writable_of(registered)
        self._now_ms = now_ms
        self._dice = dice

    def by_notes(self, read: Read) -> tuple[dict[LedgerId, LeftTask], set[LedgerId]]:
        """The tasks to be left alone; and those that wait for an event, of which only the metadata
        say whether it has come (``waiting``).
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
        """A task that waits for an event; ``None`` where that has come."""
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
        """A task that is due, by its ledger."""
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
        """Looked at again then, or after the longest that anything is left alone."""
        until_ms = min(until_ms, self._now_ms + self._most_ms)
        mark = mark_of(read.tasks[ledger_id])
        return LeftTask(ledger_id, until_ms, ledger_id in read.notes, heeds | GOES, mark)

    def _heeds(self, found: LedgerRead) -> int:
        """What may happen to bookies that changes what is thought of a ledger: to its members, and
        to the one beside which this worker runs.
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
    """Another number where it is published again; below 2**32."""
    return hash(as_marked(task)) % _MARKS


def can_help(
    local: BookieId | None,
    metadata: LedgerMetadata,
    live: Collection[BookieId],
    writable: Collection[BookieId],
    named: Collection[str] = (),
) -> bool:
    """Whether a worker can do anything: its bookie can take a place, or there is something to do
    that needs no place. BookKeeper's worker finds out by trying.

    Args:
        local: the bookie beside which it runs; ``None`` is a worker that copies to any.
        named: bookies that the task names. What is damaged on one that is there is made again in
            place, by anybody, however long another member is away.

    Source: Bookie Ledger Recovery, "ReplicationWorker" ("segments of which its local bookie is
    not a member").
    """
    absent = set(absent_members(metadata, live))
    if local is None or not absent:
        return True
    if (metadata.bookies() - absent) & set(named):
        return True
    if not metadata.is_closed and absent & set(metadata.last_fragment.ensemble):
        return True  # it has to be recovered first, by anybody
    return any(local in bookies for _, bookies in takers(metadata, live, writable))
