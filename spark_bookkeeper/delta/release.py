"""Releasing archived ledgers: bookies drop copies, and a table stands for them from then on.

The steps, each of which begins only when the one before it is certain:

1. Every entry is rebuilt from the table's rows, and compared with the bookies' copies, and
2. is read back as readers will (``proof.py``).
3. Copies that are to be kept are verified.
4. One compare-and-swap of the ledger's metadata puts the table in place of the leaving bookies, and
records that these are about to drop their copies.
5. They drop them, and a second compare-and-swap records it (``dropping.py``).

A repeated run begins with the state in the metadata, so a run may be killed at any time. Many
ledgers go through each step in a batch: a step costs the same for one ledger and for hundreds
(decision 0037).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, incarnations_of, with_incarnations
from spark_bookkeeper.delta.archive import ArchiveReport
from spark_bookkeeper.delta.dropping import (
    DROPPING,
    RELEASE,
    DropWork,
    release_row,
    released_row,
    to_drop,
)
from spark_bookkeeper.delta.proof import BATCH_LEDGERS, Proof, Proven, Unproven, batches_to_prove
from spark_bookkeeper.errors import BookKeeperError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import LedgerChange, Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.accepted_loss import kept_entries, loss_text
from spark_bookkeeper.protocol.archive import Archived, archived_of, leaving, released
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, is_table
from spark_bookkeeper.replication.check_ledgers import CheckWork, Finding, check_one
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome, Row, report_rows
from spark_bookkeeper.replication.runner import Failure, Progress, Runner, Step, no_progress
from spark_bookkeeper.replication.shares import share_bytes
from spark_bookkeeper.table.opening import table_of

STEPS: Final = 4
"""Number of steps in the progress; the change of the metadata is part of the last one."""


class _RefusedError(Exception):
    """Nothing was released; the message says why."""


def release_ledgers(
    context: ClientContext,
    runner: Runner,
    table: str,
    ledger_ids: Iterable[LedgerId],
    *,
    keep: int = 1,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Iterator[Row]:
    """Make bookies drop copies of closed ledgers whose rows are in a table; yield a row for each.

    Args:
        table: URI of the Delta table, in the form of bookies' roots: a path, ``s3://...``.
        ledger_ids: the ledgers; an id that is given twice counts once.
        keep: the least number of copies of every entry that stay on bookies; 0 keeps none.
        dry_run: only report which bookies would drop their copies, and the sizes.
        progress: called with the step of the current ledgers, the number of ledgers that are done,
            and the bytes read.

    Raises:
        InvalidArgumentError: ``keep`` is below 0, or no storage is at the URI.
    """
    check_release(context, table, keep)
    wanted = list(dict.fromkeys(ledger_ids))
    told = _Told(progress, len(wanted))
    heard = no_progress if progress is no_progress else told
    job = Job("release_ledgers", context, runner, heard)
    for start in range(0, len(wanted), BATCH_LEDGERS):
        some = wanted[start : start + BATCH_LEDGERS]
        planned = list(_planned(context, table, some, keep))
        rows = [each for each in planned if isinstance(each, Row)]
        told.done += len(rows)
        ledgers = [each for each in planned if isinstance(each, _Releasing)]
        # In the order of the table's rows: a task with neighbours reads only a part of the table.
        ledgers.sort(key=lambda each: each.ledger_id)
        by_id = {each.ledger_id: each for each in ledgers}
        for batch in batches_to_prove([each.ledger for each in ledgers]):
            releasing = [by_id[ledger.ledger_id] for ledger in batch]
            if dry_run:
                rows += [each.plan() for each in releasing]
            else:
                rows += _Batch(context, job, table, releasing, told).run()
        asked = {ledger_id: number for number, ledger_id in enumerate(some)}
        yield from sorted(rows, key=lambda row: asked[LedgerId(row.ledger_id)])


def check_release(context: ClientContext, table: str, keep: int) -> None:
    """Raise ``InvalidArgumentError`` for a number or a table that a release cannot have."""
    whole_number("keep", keep, 0)
    table_of(context, table)


def release_archived(
    context: ClientContext,
    runner: Runner,
    table: str,
    report: ArchiveReport,
    keep: int,
    *,
    progress: Progress = no_progress,
) -> ArchiveReport:
    """Release the ledgers that an archive run found in or added to the table; add their rows."""
    wanted = (Outcome.ARCHIVED, Outcome.PLANNED)
    ledger_ids = [LedgerId(row.ledger_id) for row in report.rows if row.status in wanted]
    started = context.runtime.now()
    rows = report_rows(
        chain(
            report.rows,
            release_ledgers(
                context,
                runner,
                table,
                ledger_ids,
                keep=keep,
                dry_run=report.dry_run,
                progress=progress,
            ),
        )
    )
    took_ms = round((context.runtime.now() - started) * 1000)
    return replace(report, rows=rows, duration_ms=report.duration_ms + took_ms)


# The plan


@dataclass(slots=True, eq=False)
class _Releasing:
    """A ledger that is to be released, or whose release is to be completed."""

    ledger: Ledger
    known: Versioned[LedgerMetadata]
    table: str
    keep: int
    archived: Archived | None
    leave: set[BookieId]
    """The bookies that give up their copies."""
    goes_on: bool
    """Whether an earlier run released it, and only the copies are left to be dropped."""
    proven: Proven | None = None
    """The proof that the table stands for it; ``None`` until it succeeds."""
    row: Row | None = None
    """The row of its report; ``None`` until the result is known."""

    @property
    def ledger_id(self) -> LedgerId:
        return self.ledger.ledger_id

    def left(self, reason: str) -> None:
        """Record that the ledger goes no further, and why."""
        self.row = release_row(self.ledger, self.table, Outcome.LEFT, reason)

    def plan(self) -> Row:
        """Return the row that a dry run reports."""
        if self.goes_on:
            reason = f"{', '.join(to_drop(self.known.value))} would drop what they hold"
        else:
            reason = f"{', '.join(sorted(self.leave))} would drop its copies"
        return release_row(self.ledger, self.table, Outcome.PLANNED, reason)


def _planned(
    context: ClientContext, table: str, ledger_ids: Sequence[LedgerId], keep: int
) -> Iterator[_Releasing | Row]:
    """Yield the ledgers that need work, and rows for the others."""
    for ledger_id, found in context.store.read_ledgers(ledger_ids):
        if found is None:
            reason = f"ledger {ledger_id} does not exist: it was deleted"
            yield Row(ledger_id, RELEASE, Outcome.GONE, reason)
            continue
        try:
            if not isinstance(found, Versioned):
                raise found
            yield _plan(Ledger.of(ledger_id, found.value), found, table, keep)
        except BookKeeperError as error:
            yield Row(ledger_id, RELEASE, Outcome.LEFT, error.message, target=table)


def _plan(
    ledger: Ledger, known: Versioned[LedgerMetadata], table: str, keep: int
) -> _Releasing | Row:
    """Plan one ledger. Raises ``BookKeeperError`` for metadata that are not understood."""
    metadata = known.value
    if metadata.last_entry_id is None:
        reason = "not closed: only a ledger that cannot change any more is released"
        return release_row(ledger, table, Outcome.PENDING, reason)
    if metadata.last_entry_id == NO_ENTRY:
        reason = "it has no entries, and so no copies"
        return release_row(ledger, table, Outcome.RELEASED, reason)
    if len(kept_entries(metadata, EntryId(0), metadata.last_entry_id)) <= metadata.last_entry_id:
        reason = f"no table stands for a ledger with holes: {loss_text(metadata)}. Its copies stay"
        return release_row(ledger, table, Outcome.NO_LONGER_NEEDED, reason)
    archived = archived_of(metadata)
    leave = leaving(metadata, keep)
    # A recovery may have replaced the table by bookies; then only its record is left.
    stands = archived is not None and any(map(is_table, metadata.members()))
    # A ledger that was released to another table is compared with this one, which replaces it.
    if leave or (stands and archived is not None and archived.table != table):
        return _Releasing(ledger, known, table, keep, archived, leave, goes_on=False)
    if to_drop(metadata):
        return _Releasing(ledger, known, table, keep, archived, leave, goes_on=True)
    if stands:
        return released_row(ledger)
    reason = f"{keep} copies are to be kept, and it has no more"
    return release_row(ledger, table, Outcome.NO_LONGER_NEEDED, reason)


# Progress


class _Told:
    """Reports the steps of consecutive batches as the progress of one work."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self.done = 0
        """Number of ledgers that have finished all steps."""
        self._ledgers = 0
        self._step = 0
        self._bytes = 0
        self._bytes_before = 0

    def begin(self, step: int, ledgers: int) -> None:
        """Begin a step for this many ledgers; steps count from 0."""
        self._step, self._ledgers = step, ledgers
        self._bytes_before += self._bytes
        self._bytes = 0

    def __call__(self, phase: str, done: int, total: int, size_bytes: int) -> None:
        share = (self._step + (done / total if total else 1)) / STEPS
        self._bytes = size_bytes
        self._progress(
            f"releasing ledgers, {phase}",
            self.done + int(self._ledgers * share),
            self._total,
            self._bytes_before + size_bytes,
        )


# The steps


class _Batch:
    """A batch of ledgers that go through the steps."""

    def __init__(
        self,
        context: ClientContext,
        job: Job,
        table: str,
        ledgers: Sequence[_Releasing],
        told: _Told,
    ) -> None:
        self._context = context
        self._job = job
        self._table = table
        self._ledgers = {each.ledger_id: each for each in ledgers}
        self._told = told

    def run(self) -> list[Row]:
        """Run all steps; return a row for each ledger."""
        self._prove()
        self._begin(2)
        self._verify()
        self._publish()
        self._begin(3)
        self._drop()
        self._told.done += len(self._ledgers)
        return [each.row for each in self._ledgers.values() if each.row is not None]

    def _begin(self, step: int) -> None:
        self._told.begin(step, len(self._ledgers))

    @property
    def _left(self) -> list[_Releasing]:
        """The ledgers without a result so far."""
        return [each for each in self._ledgers.values() if each.row is None]

    @property
    def _unproven(self) -> list[_Releasing]:
        """The ledgers without a result so far for which the table does not stand yet."""
        return [each for each in self._left if not each.goes_on]

    def _prove(self) -> None:
        """Prove that the table stands for the ledgers that are not released yet."""
        proof = Proof(self._context, self._job, self._table, self._begin)
        try:
            found = proof.of([each.ledger for each in self._unproven])
        except BookKeeperError as error:
            for each in self._unproven:
                each.left(f"{error.message}. Nothing was released")
            return
        for ledger_id, judged in found.items():
            each = self._ledgers[ledger_id]
            if isinstance(judged, Unproven):
                what_next = ": archive it to another table" if judged.is_certain else ""
                each.left(f"{judged.reason}. Nothing was released{what_next}")
            else:
                each.proven = judged

    def _verify(self) -> None:
        """Verify the copies that are to stay: dropped ones can no longer be copied.

        For a ledger whose release goes on, verify all that stays, its table included: an earlier
        run that was killed may have left the last good copies.
        """
        works = [work for each in self._left for work in _to_verify(each)]
        answers = list(self._job.run(_VERIFYING, works))
        assert len(answers) == len(works), "release-after-proof"
        for found in answers:
            each = self._ledgers[found.ledger_id]
            if found.status is Outcome.HEALTHY or each.row is not None:
                continue
            what = f"{found.status} on {found.source}: {found.reason}"
            if each.goes_on:
                each.left(
                    f"what stays is not whole: {what}. Copies that were to be dropped stay until "
                    "it is"
                )
            else:
                each.left(
                    f"{each.keep} copies are to be kept, and one of them is {what}. Nothing was "
                    "released"
                )

    # The change

    def _publish(self) -> None:
        """Release each ledger, by this one change of its metadata (``release-after-proof``)."""
        now_ms = self._context.runtime.wall_ms()
        changes = [_Change(each, now_ms) for each in self._unproven]
        if not changes:
            return
        # Written in a batch first; a change that failed is then made by itself (rule R14).
        answers = self._context.store.write_ledgers(
            [
                LedgerChange(each.of.ledger_id, each.made_of(each.of.known.value), each.of.known)
                for each in changes
            ]
        )
        for change, answer in zip(changes, answers, strict=True):
            if not isinstance(answer, Versioned):
                self._publish_one(change)

    def _publish_one(self, change: _Change) -> None:
        each = change.of
        try:
            update_ledger(self._context.store, each.ledger_id, change, known=each.known)
        except NoSuchLedgerError as error:
            each.row = release_row(each.ledger, self._table, Outcome.GONE, error.message)
        except BookKeeperError as error:
            each.left(error.message)
        except _RefusedError as error:
            each.left(str(error))

    # What follows from it

    def _drop(self) -> None:
        works = [
            DropWork(each.ledger_id, each.known.value.nonce, self._table) for each in self._left
        ]
        for row in self._job.run(DROPPING, works):
            self._ledgers[LedgerId(row.ledger_id)].row = row


def _to_verify(each: _Releasing) -> Iterator[CheckWork]:
    metadata = each.known.value
    for fragment in metadata.fragment_ranges():
        for bookie in fragment.ensemble:
            if each.goes_on or (bookie not in each.leave and not is_table(bookie)):
                size = share_bytes(metadata, fragment)
                share = fragment.first_entry_id, bookie
                yield CheckWork(each.ledger_id, 100, share, size, metadata.nonce)


def _not_checked(work: CheckWork, failure: Failure) -> Finding:
    return Finding(work.ledger_id, Outcome.LEFT, failure.reason)


_VERIFYING: Final = Step("verifying what stays", check_one, _not_checked)


class _Change:
    """The change of a ledger's metadata that releases it.

    Raises ``_RefusedError`` if the metadata are no longer those that were proven.
    """

    def __init__(self, of: _Releasing, now_ms: int) -> None:
        assert of.proven is not None, "release-after-proof"
        self.of = of
        self._index = of.proven.index
        self._proven = of.known.value.fragments
        self._incarnations = of.ledger.incarnations
        # Earlier versions do not know this rule: a bookie that is named again keeps its copies.
        dropping = to_drop(of.known.value)
        dropping |= {bookie: self._incarnations.get(bookie, "") for bookie in sorted(of.leave)}
        self._record = Archived(of.table, self._index, of.proven.version, of.keep, now_ms, dropping)

    def __call__(self, old: LedgerMetadata) -> LedgerMetadata | None:
        """Return the new metadata; ``None``: an earlier attempt or another client wrote them."""
        incarnations = incarnations_of(old)
        if old.fragments == self._proven and all(
            incarnations.get(bookie) == self._incarnations.get(bookie) for bookie in self.of.leave
        ):
            return self.made_of(old)
        if self._stands_in(old):
            return None
        raise _RefusedError(
            "its fragments were changed meanwhile, by a recovery or another release: nothing "
            "was released here. Repeat it"
        )

    def made_of(self, old: LedgerMetadata) -> LedgerMetadata:
        """Return the metadata with the proven table in place of the leaving bookies."""
        new = released(old, self._record)
        tables = {bookie: self._index for bookie in new.members() if is_table(bookie)}
        return with_incarnations(new, tables, renewed=True)

    def _stands_in(self, old: LedgerMetadata) -> bool:
        """Whether the table stands, and no fragment names a leaving bookie any more."""
        archived, named = archived_of(old), old.members()
        is_there = archived is not None and archived.table == self.of.table
        return is_there and any(map(is_table, named)) and self.of.leave.isdisjoint(named)
