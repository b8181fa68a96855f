"""Which tasks to take next: the most endangered ledgers, then the oldest, else at random.

What was read of a task is kept until it is taken or a bookie comes or goes, which changes the
order of all: so a whole large bookie that is lost is not read again with every round.

Source: BookKeeper ``ZkLedgerUnderreplicationManager.getLedgerToRereplicate`` (skips what is
locked; at random, so that workers do not meet).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from spark_bookkeeper.autorecovery.backlog import Backlog, FreeTask, Ids, LeftAlone, is_among
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import LEDGERS_AT_ONCE, chunks
from spark_bookkeeper.autorecovery.replication import writable_of
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.task_notes import WAIT_FOR_EVENT_MS, Marked, TaskNote
from spark_bookkeeper.protocol.underreplication import (
    absent_members,
    blocked,
    fewest_copies,
    takers,
)

TASKS_PLANNED: Final = 1_000
"""So many of the most endangered are taken in one round."""

_PART: Final = 8
"""The tree is listed again when one in so many of the tasks that are known is gone: then what is
listed in all is a few times the tasks, however many there are."""

_LIST_SECONDS: Final = 30.0
"""And after so long, for what was published meanwhile."""

TaskRead: TypeAlias = Versioned[Task] | MetadataFormatError
Bookies: TypeAlias = Mapping[BookieId, Registration]


class Tasks:
    """The tasks as one worker sees them.

    Args:
        local: the bookie beside which it runs; it takes what that bookie can store, or what needs
            no bookie.
        most_ms: the longest that a ledger is left alone before somebody looks what became of it.
        asked_at_ms: what waits for an event, and was not tried since then, is due all the same.
    """

    def __init__(
        self,
        context: ClientContext,
        local: BookieId | None,
        most_ms: int,
        asked_at_ms: int = 0,
    ) -> None:
        self._context = context
        self._local = local
        self._most_ms = most_ms
        self._asked_at_ms = asked_at_ms
        self._notes = Notes(context.store.registers)
        self._start_over({})

    def _start_over(self, registered: Bookies) -> None:
        self._bookies = _standing(registered)
        self._backlog = Backlog()
        self._left = LeftAlone()
        self._listed: tuple[float, int] | None = None
        """When the tree was listed last, and how many free tasks were known then."""

    @property
    def next_due_at_ms(self) -> int | None:
        """When there is something to do or to look at, if nothing changes before."""
        return 0 if len(self._backlog) else self._left.until_ms

    @property
    def is_outdated(self) -> bool:
        """Whether a bookie came or went since the order was made, as far as anybody was told."""
        return _standing(self._context.bookies.last_registrations()) != self._bookies

    def next(self, changed: Callable[[], None] | None = None) -> list[FreeTask]:
        """The tasks to take, the most urgent first; at most ``TASKS_PLANNED``. None of them comes
        again, unless it is put back, or the tree is listed again and it is still there.

        Args:
            changed: called once when tasks come or go, or a lock is released.
        """
        locked = self._context.store.underreplication.locks(changed)
        registered = self._context.bookies.registrations()
        if _standing(registered) != self._bookies:
            self._start_over(registered)
        was_empty = not len(self._backlog)
        if self._is_to_be_listed():
            self._list(changed, locked, registered)
        listed, self._listed = self._listed, None  # without an answer, what is taken is found anew
        found: list[FreeTask] = []
        while more := self._backlog.take(TASKS_PLANNED - len(found)):
            free = [each for each in more if each.ledger_id not in locked]
            found += free if was_empty else self._still_free(free, registered)
        self._listed = listed
        return found

    def put_back(self, tasks: Sequence[FreeTask]) -> None:
        """They were not worked on after all."""
        self._backlog.add(tasks)

    def _is_to_be_listed(self) -> bool:
        if self._listed is None:
            return True
        at, size = self._listed
        is_late = self._context.runtime.now() - at >= _LIST_SECONDS
        return is_late or len(self._backlog) * _PART <= size * (_PART - 1)

    def _list(
        self,
        changed: Callable[[], None] | None,
        locked: Collection[LedgerId],
        registered: Bookies,
    ) -> None:
        self._listed = None
        noted = np.sort(np.fromiter(self._notes.ledger_ids(), np.int64))
        self._left.forget(self._context.cluster_ms(), noted)
        known = np.sort(np.concatenate([self._backlog.ledger_ids, self._left.ledger_ids]))
        tree = self._context.store.underreplication
        for chunk in chunks(tree.ledger_ids(changed), LEDGERS_AT_ONCE):
            is_known = is_among(np.array(chunk, np.int64), known)
            new = [
                ledger_id
                for ledger_id, is_old in zip(chunk, is_known.tolist(), strict=True)
                if not is_old and ledger_id not in locked
            ]
            if new:
                self._sort_in(new, noted, registered)
        self._listed = self._context.runtime.now(), len(self._backlog)

    def _sort_in(self, ledger_ids: Sequence[LedgerId], noted: Ids, registered: Bookies) -> None:
        """Read them, and put each where it belongs."""
        now_ms = self._context.cluster_ms()
        is_noted = is_among(np.array(ledger_ids, np.int64), noted).tolist()
        asked = [i for i, has_note in zip(ledger_ids, is_noted, strict=True) if has_note]
        notes = dict(self._notes.read_many(asked))
        tasks = {
            ledger_id: task
            for ledger_id, task in self._context.store.underreplication.read_many(ledger_ids)
            if task is not None
        }
        left, waiting = self._not_due(notes, tasks, registered)
        wanted = [ledger_id for ledger_id in tasks if ledger_id not in left]
        free: list[FreeTask] = []
        for ledger_id, found in self._context.store.read_ledgers(wanted):
            if ledger_id in waiting and self._is_blocked(found, registered):
                left[ledger_id] = notes[ledger_id].next_try_at_ms
                continue
            candidate = self._candidate(ledger_id, tasks[ledger_id], found, registered)
            if candidate is None:
                left[ledger_id] = now_ms + self._most_ms
            else:
                free.append(candidate)
        self._leave(left, notes)
        self._backlog.add(free)

    def _still_free(self, tasks: Sequence[FreeTask], registered: Bookies) -> list[FreeTask]:
        """Those that nobody has done or tried in vain since they were read; what was tried is left
        until its time.
        """
        ids = [each.ledger_id for each in tasks]
        notes = dict(self._notes.read_many(ids))
        found = {
            ledger_id: task
            for ledger_id, task in self._context.store.underreplication.read_many(ids)
            if task is not None
        }
        left, waiting = self._not_due(notes, found, registered)
        for ledger_id, metadata in self._context.store.read_ledgers(sorted(waiting)):
            if self._is_blocked(metadata, registered):
                left[ledger_id] = notes[ledger_id].next_try_at_ms
        self._leave(left, notes)
        return [each for each in tasks if each.ledger_id in found and each.ledger_id not in left]

    def _not_due(
        self,
        notes: Mapping[LedgerId, TaskNote],
        tasks: Mapping[LedgerId, TaskRead],
        registered: Bookies,
    ) -> tuple[dict[LedgerId, int], set[LedgerId]]:
        """Of these tasks those to be left alone, with the time until which; and those that wait for
        an event, of which only the metadata say whether it has come (``_is_blocked``).
        """
        now_ms = self._context.cluster_ms()
        left: dict[LedgerId, int] = {}
        waiting: set[LedgerId] = set()
        for ledger_id, note in notes.items():
            if ledger_id not in tasks or self._is_due(note, tasks[ledger_id], registered):
                continue
            if note.waits_for_event and not note.is_refused(now_ms, self._most_ms, self._local):
                waiting.add(ledger_id)
            else:
                left[ledger_id] = note.waits_until_ms(self._local)
        return left, waiting

    def _leave(self, until_ms: Mapping[LedgerId, int], notes: Mapping[LedgerId, TaskNote]) -> None:
        """Look at them again then, or after the longest that anything is left alone."""
        latest_ms = self._context.cluster_ms() + self._most_ms
        self._left.add([(i, min(at_ms, latest_ms), i in notes) for i, at_ms in until_ms.items()])

    def _is_due(self, note: TaskNote, task: TaskRead, registered: Bookies) -> bool:
        marked = None
        if isinstance(task, Versioned):
            marked = Marked(task.value.missing, task.value.marked_at_ms)
        writable = len(writable_of(registered))
        now_ms = self._context.cluster_ms()
        tried_at_ms = note.next_try_at_ms - WAIT_FOR_EVENT_MS
        if note.waits_for_event and tried_at_ms < self._asked_at_ms:
            return True
        return note.is_due(now_ms, marked, registered, writable, self._most_ms, self._local)

    def _is_blocked(
        self,
        found: Versioned[LedgerMetadata] | MetadataFormatError | None,
        registered: Bookies,
    ) -> bool:
        if not isinstance(found, Versioned):
            return False
        live = live_members(found.value, registered_incarnations(registered))
        return blocked(found.value, live, writable_of(registered)) is not None

    def _candidate(
        self,
        ledger_id: LedgerId,
        task: TaskRead,
        found: Versioned[LedgerMetadata] | MetadataFormatError | None,
        registered: Bookies,
    ) -> FreeTask | None:
        marked_at_ms, named = 0, frozenset[str]()
        if isinstance(task, Versioned):
            marked_at_ms = task.value.marked_at_ms or 0
            named = frozenset(task.value.missing)
        copies = 0
        if isinstance(found, Versioned):
            live = live_members(found.value, registered_incarnations(registered))
            if not can_help(self._local, found.value, live, writable_of(registered), named):
                return None
            copies = fewest_copies(found.value, live)
        dice = int(self._context.runtime.token()[:8], 16)
        return FreeTask(ledger_id, copies, marked_at_ms, dice)


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


def _standing(registered: Bookies) -> Mapping[BookieId, tuple[str, bool]]:
    """What of the bookies the order depends on."""
    return {b: (each.incarnation, each.is_readonly) for b, each in registered.items()}
