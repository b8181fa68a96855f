"""Which tasks to take next: the most endangered ledgers, then the oldest, else at random.

What was read of a task is kept until it is taken, or until something happens to a bookie that
matters to it: so a whole large bookie that is lost is not read again with every round, nor with
every other bookie that is started again.

Source: BookKeeper ``ZkLedgerUnderreplicationManager.getLedgerToRereplicate`` (skips what is
locked; at random, so that workers do not meet).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from spark_bookkeeper.autorecovery.backlog import (
    GOES,
    TAKES_DATA,
    Backlog,
    BookieBits,
    Bookies,
    FreeTask,
    Ids,
    LeftTask,
    LeftTasks,
    Read,
    Sorter,
    is_among,
    mark_of,
)
from spark_bookkeeper.autorecovery.backoff import writable_of
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import LEDGERS_AT_ONCE, chunks
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.task_notes import TaskNote

TASKS_PLANNED: Final = 1_000
"""So many of the most endangered are taken in one round."""

_PART: Final = 8
"""The tree is listed again when one in so many of the tasks that are known is gone: then what is
listed in all is a few times the tasks, however many there are."""

_LIST_SECONDS: Final = 30.0
"""And after so long, for what was published meanwhile."""

_MARKS_SEEN: Final = 1_000
"""Of so many that are left alone it is read then whether they were published again, of others the
next time: some sixteen requests."""

_SELDOM: Final = 10
"""Where none may be taken, it is listed when somebody tells that tasks came or went: while others
work through very many, that is all the time, so it takes at most one part in so many of it."""

_Standing: TypeAlias = tuple[str, bool]
"""The incarnation of a bookie, and whether it is read-only: what the order depends on."""


class _Listing(NamedTuple):
    """What is known of the last time that the tree was listed."""

    at: float
    seconds: float
    """How long the names took."""
    free: int
    """How many tasks were known then that may be taken."""


class Tasks:
    """The tasks as one worker sees them.

    Args:
        local: the bookie beside which it runs; it takes what that bookie can store, or what needs
            no bookie.
        config: how long a ledger is left alone at the most before it is looked at again.
        asked_at_ms: what waits for an event, and was not tried since then, is due all the same.
    """

    def __init__(
        self,
        context: ClientContext,
        local: BookieId | None,
        config: AutorecoveryConfig,
        asked_at_ms: int = 0,
    ) -> None:
        self._context = context
        self._local = local
        self._config = config
        self._asked_at_ms = asked_at_ms
        self._notes = Notes(context.store.registers)
        self._bookies: Mapping[BookieId, _Standing] = {}
        self._bits = BookieBits()
        self._backlog = Backlog()
        self._left = LeftTasks()
        self._locked: Ids = np.empty(0, np.int64)
        """Tasks that are in neither, as another had their locks when they were looked at."""
        self._listed: _Listing | None = None
        self._marks_seen_at = 0.0
        """When it was looked last whether what is left alone was published again."""
        self._is_told = False
        """Whether tasks came or went since then, as far as anybody told."""
        self._changed: Callable[[], None] | None = None
        self._without: list[LedgerId] = []
        """What was listed, and had no task when it was read."""

    @property
    def next_due_at_ms(self) -> int | None:
        """When there is something to do or to look at, if nothing changes before."""
        if len(self._backlog):
            return 0
        times = [self._left.until_ms]
        if self._is_told and self._listed is not None:
            left = self._listed.at + _pause(self._listed) - self._context.runtime.now()
            times.append(self._context.cluster_ms() + round(left * 1000))
        return min((each for each in times if each is not None), default=None)

    @property
    def is_outdated(self) -> bool:
        """Whether a bookie came or went since the order was made, as far as anybody was told."""
        return _standing(self._context.bookies.last_registrations()) != self._bookies

    def next(self, changed: Callable[[], None] | None = None) -> list[FreeTask]:
        """The tasks to take, the most urgent first; at most ``TASKS_PLANNED``. None of them comes
        again, unless it is put back, or the tree is listed again and it is still there.

        Args:
            changed: called once when tasks come or go, or a lock is released that kept this worker
                from a task. Who gives none is told nothing, so it is listed anew.
        """
        registered = self._context.bookies.registrations()
        self._forget_what_changed(registered)
        self._changed = changed
        listed, self._listed = self._listed, None  # without an answer, what is taken is found anew
        due = self._left.take_due(self._context.cluster_ms(), self._config.retry_most_ms)
        found: list[FreeTask] = []
        was_empty = not len(self._backlog)
        if listed is None or self._is_to_be_listed(listed):
            locked = self._context.store.underreplication.locks(changed)
            listed = self._list(locked, registered)
        elif len(due) or len(self._locked) or not was_empty:
            locked = self._context.store.underreplication.locks(changed)
            self._look_at(np.concatenate([due, self._locked]), locked, registered)
            listed = listed._replace(free=max(listed.free, len(self._backlog)))
        else:
            locked = {}
        while more := self._backlog.take(TASKS_PLANNED - len(found)):
            free = [each for each in more if each.ledger_id not in locked]
            found += free if was_empty else self._still_free(free, registered)
        self._listed = listed
        return found

    def rest(self) -> Iterator[FreeTask]:
        """Those that come after what ``next`` has given, as they were when it looked; for a plan.
        None of them comes again.
        """
        while more := self._backlog.take(TASKS_PLANNED):
            yield from more

    def take_those_without(self) -> Sequence[LedgerId]:
        """The ledgers that were listed and had no task when it was read; none of them comes again,
        unless it is listed again: it was done just then, or something is left of its task.
        """
        without, self._without = self._without, []
        return without

    def put_back(self, tasks: Sequence[FreeTask]) -> None:
        """They were not worked on after all."""
        self._backlog.add(tasks)

    def _forget_what_changed(self, registered: Bookies) -> None:
        """What came, went or changed its mode since the last look moves some tasks: those are found
        when the tree is listed, and read again.
        """
        before, self._bookies = self._bookies, _standing(registered)
        moved = {b for b, _ in before.items() ^ self._bookies.items()}
        if not moved:
            return
        happened = self._bits.of(moved)
        if moved & writable_of(registered):
            happened |= TAKES_DATA
        there = {b: each.incarnation for b, each in registered.items()}
        if any(there.get(b) != incarnation for b, (incarnation, _) in before.items()):
            happened |= GOES  # one that was formatted again is as lost as one that is away
        self._backlog.forget(happened)
        self._left.forget(happened)
        self._listed = None

    def _is_to_be_listed(self, listed: _Listing) -> bool:
        since = self._context.runtime.now() - listed.at
        if since >= _LIST_SECONDS:
            return True
        if listed.free:
            return len(self._backlog) * _PART <= listed.free * (_PART - 1)
        return self._changed is None or (self._is_told and since >= _pause(listed))

    def _tell(self) -> None:
        """Tasks came or went; called from any thread."""
        self._is_told = True
        if self._changed is not None:
            self._changed()

    def _list(self, locked: Collection[LedgerId], registered: Bookies) -> _Listing:
        """Find the tasks that are not known."""
        runtime, tree = self._context.runtime, self._context.store.underreplication
        began = runtime.now()
        self._is_told = False
        noted = np.sort(np.fromiter(self._notes.ledger_ids(), np.int64))
        told = None if self._changed is None else self._tell
        ids = np.fromiter(tree.ledger_ids(told), np.int64)
        at = runtime.now()
        self._left.keep(ids, noted)
        self._forget_marked_again()
        known = np.sort(np.concatenate([self._backlog.ledger_ids, self._left.ledger_ids]))
        self._look_at(ids[~is_among(ids, known)], locked, registered, noted)
        return _Listing(at, at - began, len(self._backlog))

    def _forget_marked_again(self) -> None:
        """What was published again since it was left alone is not known any more: nothing in the
        tree tells of it.
        """
        now = self._context.runtime.now()
        if now - self._marks_seen_at < _LIST_SECONDS:
            return
        self._marks_seen_at = now
        marks = self._left.in_turn(_MARKS_SEEN)
        found = self._context.store.underreplication.read_many(marks)
        again = [i for i, task in found if task is not None and mark_of(task) != marks[i]]
        self._left.forget_these(np.sort(np.array(again, np.int64)))

    def _look_at(
        self, ids: Ids, locked: Collection[LedgerId], registered: Bookies, noted: Ids | None = None
    ) -> None:
        """Put those of them where they belong of which nobody has the lock.

        Args:
            ids: of tasks that are not known, or were there when they were looked at last.
            noted: ledgers that have a note, ascending; ``None``: each is asked for.
        """
        is_locked = np.array([ledger_id in locked for ledger_id in ids.tolist()], np.bool_)
        self._locked = ids[is_locked]
        for chunk in chunks(ids[~is_locked].tolist(), LEDGERS_AT_ONCE):
            self._sort_in(chunk, np.sort(chunk) if noted is None else noted, registered)

    def _sort_in(self, ledger_ids: Sequence[LedgerId], noted: Ids, registered: Bookies) -> None:
        """Read them, and put each where it belongs."""
        sorter = self._sorter(registered)
        is_noted = is_among(np.array(ledger_ids, np.int64), noted).tolist()
        asked = [i for i, has_note in zip(ledger_ids, is_noted, strict=True) if has_note]
        read = self._read(ledger_ids, asked)
        self._without += [i for i in ledger_ids if i not in read.tasks]
        left, waiting = sorter.by_notes(read)
        wanted = [ledger_id for ledger_id in read.tasks if ledger_id not in left]
        free: list[FreeTask] = []
        for ledger_id, found in self._context.store.read_ledgers(wanted):
            task: FreeTask | LeftTask | None = None
            if ledger_id in waiting:
                task = sorter.waiting(ledger_id, read, found)
            task = task or sorter.by_metadata(ledger_id, read, found)
            if isinstance(task, FreeTask):
                free.append(task)
            else:
                left[ledger_id] = task
        self._left.add(list(left.values()))
        self._backlog.add(free)

    def _still_free(self, tasks: Sequence[FreeTask], registered: Bookies) -> list[FreeTask]:
        """Those that nobody has done or tried in vain since they were read; what was tried is left
        until its time.
        """
        sorter, ids = self._sorter(registered), [each.ledger_id for each in tasks]
        read = self._read(ids, ids)
        left, waiting = sorter.by_notes(read)
        for ledger_id, found in self._context.store.read_ledgers(sorted(waiting)):
            if (task := sorter.waiting(ledger_id, read, found)) is not None:
                left[ledger_id] = task
        self._left.add(list(left.values()))
        free = read.tasks.keys() - left.keys()
        return [each for each in tasks if each.ledger_id in free]

    def _read(self, ledger_ids: Sequence[LedgerId], noted: Sequence[LedgerId]) -> Read:
        """Their tasks, and the notes of those that may have one."""
        empty = TaskNote()
        notes = {i: note for i, note in self._notes.read_many(noted) if note != empty}
        tasks = self._context.store.underreplication.read_many(ledger_ids)
        return Read({i: task for i, task in tasks if task is not None}, notes)

    def _sorter(self, registered: Bookies) -> Sorter:
        context = self._context
        return Sorter(
            self._local,
            self._config,
            self._asked_at_ms,
            self._bits,
            registered,
            context.cluster_ms(),
            lambda: int(context.runtime.token()[:8], 16),
        )


def _pause(listed: _Listing) -> float:
    """After so many seconds it may be listed again."""
    return min(_LIST_SECONDS, _SELDOM * listed.seconds)


def _standing(registered: Bookies) -> Mapping[BookieId, _Standing]:
    return {b: (each.incarnation, each.is_readonly) for b, each in registered.items()}
