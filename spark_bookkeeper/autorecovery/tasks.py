"""Which tasks to take next: the most endangered ledgers, then the oldest, else at random.

Source: BookKeeper ``ZkLedgerUnderreplicationManager.getLedgerToRereplicate`` (skips what is
locked; at random, so that workers do not meet).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import LEDGERS_AT_ONCE, chunks
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.protocol.underreplication import absent_members, fewest_copies

TASKS_PLANNED: Final = 1_000
"""So many of the most endangered are kept in memory; then the tree is read again."""


@dataclass(frozen=True, slots=True, order=True)
class FreeTask:
    """A task that this worker may take. The first in order is the next."""

    live_copies: int
    """Of the entries that have the fewest; a ledger that cannot be read comes first."""
    marked_at_ms: int
    dice: int
    ledger_id: LedgerId = field(compare=False)


class Tasks:
    """The tasks as one worker sees them.

    Args:
        local: the bookie beside which it runs; it takes what that bookie can store, or what needs
            no bookie.
        most_ms: the longest that a ledger is left alone.
    """

    def __init__(self, context: ClientContext, local: BookieId | None, most_ms: int) -> None:
        self._context = context
        self._local = local
        self._most_ms = most_ms
        self._notes = Notes(context.store.registers)
        self._known_notes: dict[LedgerId, TaskNote] = {}
        """Of ledgers that are left alone; read again when their time has come."""
        self.next_due_at_ms: int | None = None
        """When the first of those that are left alone is due, as of the last ``next``."""

    def next(self, changed: Callable[[], None] | None = None) -> list[FreeTask]:
        """The tasks to take, the most urgent first; at most ``TASKS_PLANNED``.

        Args:
            changed: called once when tasks come or go, or a lock is released.
        """
        tree = self._context.store.underreplication
        locked = tree.locks(changed)
        registered = self._context.bookies.registrations()
        self._look_at_notes()
        self.next_due_at_ms = None

        def found() -> list[FreeTask]:
            best: list[FreeTask] = []
            for chunk in chunks(tree.ledger_ids(changed), LEDGERS_AT_ONCE):
                free = [i for i in chunk if i not in locked and self._is_due(i, registered)]
                tasks = dict(tree.read_many(free))
                for ledger_id, metadata in self._context.store.read_ledgers(free):
                    task = tasks.get(ledger_id)
                    if task is None:
                        continue
                    candidate = self._candidate(ledger_id, task, metadata, registered)
                    if candidate is not None:
                        best.append(candidate)
                best = heapq.nsmallest(TASKS_PLANNED, best)
            return best

        return found()

    def forget_note(self, ledger_id: LedgerId) -> None:
        """It was worked on: what was known of it is old."""
        self._known_notes.pop(ledger_id, None)

    def _look_at_notes(self) -> None:
        noted = set(self._notes.ledger_ids())
        self._known_notes = {i: n for i, n in self._known_notes.items() if i in noted}
        now_ms = self._context.cluster_ms() if noted else 0
        asked = [
            i
            for i in noted
            if i not in self._known_notes or self._known_notes[i].next_try_at_ms <= now_ms
        ]
        read = self._context.runtime.map(self._notes.read, asked, 16)
        self._known_notes |= dict(zip(asked, read, strict=True))

    def _is_due(self, ledger_id: LedgerId, registered: Mapping[BookieId, Registration]) -> bool:
        note = self._known_notes.get(ledger_id)
        if note is None:
            return True
        writable = sum(not each.is_readonly for each in registered.values())
        if note.is_due(self._context.cluster_ms(), registered, writable, self._most_ms):
            return True
        due = note.next_try_at_ms
        self.next_due_at_ms = due if self.next_due_at_ms is None else min(self.next_due_at_ms, due)
        return False

    def _candidate(
        self,
        ledger_id: LedgerId,
        task: Versioned[Task] | MetadataFormatError,
        found: Versioned[LedgerMetadata] | MetadataFormatError | None,
        registered: Mapping[BookieId, Registration],
    ) -> FreeTask | None:
        marked_at_ms = 0
        if isinstance(task, Versioned) and task.value.marked_at_ms is not None:
            marked_at_ms = task.value.marked_at_ms
        copies = 0
        if isinstance(found, Versioned):
            live = live_members(found.value, registered_incarnations(registered))
            if not self._can_help(found.value, live, registered):
                return None
            copies = fewest_copies(found.value, live)
        dice = int(self._context.runtime.token()[:8], 16)
        return FreeTask(copies, marked_at_ms, dice, ledger_id)

    def _can_help(
        self,
        metadata: LedgerMetadata,
        live: frozenset[BookieId],
        registered: Mapping[BookieId, Registration],
    ) -> bool:
        """Whether this worker's bookie can take a place; BookKeeper's worker finds out by trying.

        Source: Bookie Ledger Recovery, "ReplicationWorker" ("segments of which its local bookie is
        not a member").
        """
        absent = set(absent_members(metadata, live))
        if self._local is None or not absent:
            return True
        if not metadata.is_closed and absent & set(metadata.last_fragment.ensemble):
            return True  # it has to be recovered first, by anybody
        here = registered.get(self._local)
        if here is None or here.is_readonly:
            return False
        return any(
            self._local not in f.ensemble for f in metadata.fragments if absent & set(f.ensemble)
        )
