"""Choose the next tasks: the most endangered ledgers first, then the oldest, else at random.

A task that was read is kept until it is taken, or until something happens to a bookie that matters
to it. So the tasks of a large lost bookie are not read again in every round, nor whenever another
bookie restarts.

Source: BookKeeper ``ZkLedgerUnderreplicationManager.getLedgerToRereplicate`` (skips locked ledgers;
chooses at random, so that workers do not meet).
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
"""The most tasks that one round takes, the most endangered first."""

_PART: Final = 8
"""The tree is listed again when one in this many known tasks is gone. So all listings name only a
few times as many tasks as exist, however many that are."""

_LIST_SECONDS: Final = 30.0
"""The tree is listed again after this time too, to find tasks that were published meanwhile."""

_MARKS_SEEN: Final = 1_000
"""The number of left tasks that a listing checks for a new publication, in some sixteen requests;
the next listing checks others."""

_SELDOM: Final = 10
"""Without a free task, a worker lists the tree when tasks come or go. While others work through
very many, that is all the time, so listing takes at most one part in this many of the time."""

_Standing: TypeAlias = tuple[str, bool]
"""The incarnation of a bookie, and whether it is read-only: the order depends on both."""


class _Listing(NamedTuple):
    """The facts about the last listing of the tree."""

    at: float
    seconds: float
    """How long it took to list the names."""
    free: int
    """The number of free tasks that were known then."""


class Tasks:
    """The tasks from the view of one worker.

    Args:
        local: the bookie next to which it runs; it takes tasks that this bookie can store, and
            tasks that need no bookie.
        config: has the longest time until a left task is checked again.
        asked_at_ms: a task that waits for an event is due if it was last tried before this time.
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
        """Tasks that are neither free nor left, because another worker had their locks."""
        self._listed: _Listing | None = None
        self._marks_seen_at = 0.0
        """When left tasks were last checked for a new publication."""
        self._is_told = False
        """Whether a notification of new or removed tasks came since the last listing."""
        self._changed: Callable[[], None] | None = None
        self._without: list[LedgerId] = []
        """Ledgers that were listed, but had no task when it was read."""

    @property
    def next_due_at_ms(self) -> int | None:
        """The time of the next work or check, if nothing changes before; ``None``: never."""
        if len(self._backlog):
            return 0
        times = [self._left.until_ms]
        if self._is_told and self._listed is not None:
            left = self._listed.at + _pause(self._listed) - self._context.runtime.now()
            times.append(self._context.cluster_ms() + round(left * 1000))
        return min((each for each in times if each is not None), default=None)

    @property
    def is_outdated(self) -> bool:
        """Whether a bookie came or went since the order was made, by the last registrations."""
        return _standing(self._context.bookies.last_registrations()) != self._bookies

    def next(self, changed: Callable[[], None] | None = None) -> list[FreeTask]:
        """Return the tasks to take, the most urgent first; at most ``TASKS_PLANNED``. A task is
        returned once, unless it is put back, or a later listing finds it again.

        Args:
            changed: called once when tasks come or go, or when a lock is released that kept this
                worker from a task. Without it no change is noticed, so the tree is listed anew.
        """
        registered = self._context.bookies.registrations()
        self._forget_what_changed(registered)
        self._changed = changed
        listed, self._listed = self._listed, None  # if a request fails, the next call lists all
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
        """Yield the tasks that come after those of ``next``, as they were at that call; for a plan.
        Each task is removed.
        """
        while more := self._backlog.take(TASKS_PLANNED):
            yield from more

    def take_those_without(self) -> Sequence[LedgerId]:
        """Return and forget the ledgers that were listed but had no task when it was read: it was
        done just then, or only remains of it are left. A later listing may find them again.
        """
        without, self._without = self._without, []
        return without

    def put_back(self, tasks: Sequence[FreeTask]) -> None:
        """Put back tasks that were not worked on."""
        self._backlog.add(tasks)

    def _forget_what_changed(self, registered: Bookies) -> None:
        """Forget the tasks that depend on a bookie that came, went or changed its mode since the
        last call. The next listing finds them, and they are read again.
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
            happened |= GOES  # a bookie that was formatted again is as lost as an absent one
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
        """Record that tasks came or went, and call ``changed``; any thread may call this."""
        self._is_told = True
        if self._changed is not None:
            self._changed()

    def _list(self, locked: Collection[LedgerId], registered: Bookies) -> _Listing:
        """List the tree, and read the tasks that are not known."""
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
        """Forget the left tasks that were published again since they were left. Nothing else in the
        tree shows a new publication.
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
        """Read the tasks whose lock is free, and sort them in; remember those that are locked.

        Args:
            ids: ledgers whose tasks are unknown, due, or were locked at the last check.
            noted: ledgers that have a note, ascending; ``None`` reads the note of each.
        """
        is_locked = np.array([ledger_id in locked for ledger_id in ids.tolist()], np.bool_)
        self._locked = ids[is_locked]
        for chunk in chunks(ids[~is_locked].tolist(), LEDGERS_AT_ONCE):
            self._sort_in(chunk, np.sort(chunk) if noted is None else noted, registered)

    def _sort_in(self, ledger_ids: Sequence[LedgerId], noted: Ids, registered: Bookies) -> None:
        """Read the tasks, and add each to the free or the left tasks."""
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
        """Return the tasks that are still free: since they were read, no worker has done or tried
        them. A task that was tried is left until its time.
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
        """Return the tasks of these ledgers, and the notes of those that may have one."""
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
    """Return the seconds after which the tree may be listed again."""
    return min(_LIST_SECONDS, _SELDOM * listed.seconds)


def _standing(registered: Bookies) -> Mapping[BookieId, _Standing]:
    return {b: (each.incarnation, each.is_readonly) for b, each in registered.items()}
