"""Check the replicas that a task names and whose bookies are present, and repair them in place.

The checked replicas are noted, so that a retry of the rest does not read them again.

Source: SLOT-LOG rule R13. (Apache BookKeeper checks no replica whose bookie is present.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.task_notes import TaskNote, Whole
from spark_bookkeeper.replication.check_ledgers import CheckWork
from spark_bookkeeper.replication.rates import RateNow
from spark_bookkeeper.replication.repair_ledgers import RepairWork, repair_one
from spark_bookkeeper.replication.report import Outcome, Row


class ReportedReplicas:
    """The reported replicas of one task, during one attempt.

    Args:
        bytes_per_second: the limit at first.
        rate_now: returns the current limit.
    """

    def __init__(
        self,
        context: ClientContext,
        notes: Notes,
        task: Versioned[Task],
        bytes_per_second: int | None,
        rate_now: RateNow,
    ) -> None:
        self._context = context
        self._notes = notes
        self._task = task
        self._rate = bytes_per_second
        self._rate_now = rate_now
        self._note = TaskNote()
        """The note before this attempt."""
        self._suspects: set[str] = set()
        """Bookies whose replicas are read as a whole, whatever the note says."""
        self._whole: dict[BookieId, str] = {}
        """Bookies whose replicas have no fault, and their incarnations."""
        self._seen: tuple[int, ...] | None = None
        """For a closed ledger: the state for which its replicas are checked (``Whole``)."""
        self._seen_at_ms = 0
        self.known: frozenset[tuple[str, str]] = frozenset()
        """Replicas that an earlier attempt found whole, so that this one skips them."""

    def begin(self, note: TaskNote, found: Versioned[LedgerMetadata]) -> None:
        """Begin an attempt with the earlier note and the ledger's metadata."""
        self._note = note
        self._suspects |= {*note.suspects}
        if not found.value.is_closed:
            return
        task = self._task
        self._seen = task.created, task.version, note.findings, note.percentage, found.version
        self._seen_at_ms = self._context.cluster_ms()
        if note.whole is not None:
            self.known = note.whole.still(self._seen, self._seen_at_ms)
            if self.known:
                self._seen_at_ms = note.whole.at_ms

    def is_news(self, note: TaskNote) -> bool:
        """Whether damage was published since ``begin``, or a closer check is demanded."""
        before = self._note
        return (note.percentage, note.findings) != (before.percentage, before.findings)

    def there(self, ledger: Ledger, absent: Sequence[BookieId]) -> frozenset[BookieId]:
        """Return the members that the task names and that are not absent."""
        return (ledger.metadata.bookies() - set(absent)) & set(self._task.value.missing)

    def repair(
        self, ledger: Ledger, absent: Sequence[BookieId], registered: Mapping[BookieId, str]
    ) -> Sequence[Row]:
        """Check the replicas that are present and not ``known``, and repair them.

        If a check of some entries found a fault and repaired it, all entries are checked. As long
        as some of that fault is left, the next attempt finds it again.
        """
        rows: list[Row] = []
        there = self.there(ledger, absent)
        self._whole = {bookie: registered[bookie] for bookie in there if bookie in registered}
        for fragment in ledger.metadata.fragment_ranges():
            for bookie in fragment.ensemble:
                if bookie not in there or (bookie, registered.get(bookie)) in self.known:
                    continue
                percentage = 100 if bookie in self._suspects else self._note.percentage
                found = self._repair(ledger, fragment.first_entry_id, bookie, percentage)
                if percentage < 100 and any(row.status is Outcome.REPLICATED for row in found):
                    self._suspects.add(bookie)
                    suspected = partial(TaskNote.suspected, bookie=bookie)
                    self._notes.change(self._task.value.ledger_id, suspected)
                    found += self._repair(ledger, fragment.first_entry_id, bookie, 100)
                if not all(row.status.is_done for row in found):
                    self._whole.pop(bookie, None)
                rows += found
        return rows

    def _repair(
        self, ledger: Ledger, first: EntryId, bookie: BookieId, percentage: int
    ) -> list[Row]:
        check = CheckWork(
            self._task.value.ledger_id,
            percentage,
            (first, bookie),
            nonce=ledger.metadata.nonce,
            bytes_per_second=self._rate,
            rate_now=self._rate_now,
        )
        repair = RepairWork(check, False, self._rate, self._rate_now)
        return [each.row() for each in repair_one(self._context, repair)]

    def noted(self, old: TaskNote) -> TaskNote:
        """Return the note with what this attempt has found about its replicas."""
        whole = None
        if self._seen is not None and self._whole:
            whole = Whole(self._seen, self._seen_at_ms, tuple(sorted(self._whole.items())))
        return old.cleared(self._whole, whole)
