"""Tasks sorted by what was read of them: what a worker may take, and what it leaves alone.

Nothing is asked here; ``tasks.py`` reads, and keeps what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from spark_bookkeeper.autorecovery.backlog import GOES, TAKES_DATA, BookieBits, FreeTask, LeftTask
from spark_bookkeeper.autorecovery.notes import as_marked
from spark_bookkeeper.autorecovery.waiting import writable_of
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
