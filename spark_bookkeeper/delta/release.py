"""Giving back the bookies' space of archived ledgers: the table stands for copies from then on.

In this order, and each step of a ledger only when the one before it is certain:

1. Every entry is made again of the table's rows and compared with what bookies have, and
2. is read back as readers will (``proof.py``).
3. Copies that are to be kept are verified where they are.
4. One compare-and-swap of the ledger's metadata puts the table where bookies leave, and names
   these as about to drop what they hold.
5. They drop it, and a second compare-and-swap says so (``dropping.py``).

Whoever repeats it begins with what the metadata say, so that it may be killed anywhere. Many
ledgers go through the steps together, a step at a time: what each of them costs is the same for
one ledger and for hundreds (decision 0037).
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
"""In which something is waited for; the change of the metadata is part of the last one."""


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
    """Have bookies drop copies of closed ledgers whose rows are in a table; one row for each.

    Args:
        table: URI of the Delta table, as bookies' roots are given: a path, ``s3://...``.
        ledger_ids: which; one that is named twice is released once.
        keep: copies of every entry that stay on bookies, at the least; 0 is none.
        dry_run: only say which bookies would drop how much.
        progress: told how many ledgers are done, in which step the next ones are, and what
            was read.

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
        # As they lie in the table: whoever does neighbours reads one part of it, and not all.
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
    """Raises ``InvalidArgumentError``: a number or a table to which nothing can be released."""
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
    """Release what a run of the archive found, or put, in the table; rows behind those it has."""
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
    """A ledger that is to be released, or whose release is to be brought to its end."""

    ledger: Ledger
    known: Versioned[LedgerMetadata]
    table: str
    keep: int
    archived: Archived | None
    leave: set[BookieId]
    """Who gives its copies up."""
    goes_on: bool
    """Whether it was released before, and only what follows from that is left to do."""
    proven: Proven | None = None
    """That the table stands for it, when that is known."""
    row: Row | None = None
    """How it ended, when that is known."""

    @property
    def ledger_id(self) -> LedgerId:
        return self.ledger.ledger_id

    def left(self, reason: str) -> None:
        """It goes no further."""
        self.row = release_row(self.ledger, self.table, Outcome.LEFT, reason)

    def plan(self) -> Row:
        """What a run would do."""
        if self.goes_on:
            reason = f"{', '.join(to_drop(self.known.value))} would drop what they hold"
        else:
            reason = f"{', '.join(sorted(self.leave))} would drop its copies"
        return release_row(self.ledger, self.table, Outcome.PLANNED, reason)


def _planned(
    context: ClientContext, table: str, ledger_ids: Sequence[LedgerId], keep: int
) -> Iterator[_Releasing | Row]:
    """Ledgers for which there is something to do, and what is to be said of the others."""
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
    """Raises ``BookKeeperError``: its metadata say something that is not understood."""
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
    # A recovery may have put bookies where the table stood; then only the record is left of it.
    stands = archived is not None and any(map(is_table, metadata.members()))
    # One that was released to another table is compared with this one, which takes its place.
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
    """Tells of the steps of one batch after another as of one work on so many ledgers."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self.done = 0
        """Ledgers that are through all steps."""
        self._ledgers = 0
        self._step = 0
        self._bytes = 0
        self._bytes_before = 0

    def begin(self, step: int, ledgers: int) -> None:
        """So many ledgers go through a step now; steps count from 0."""
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
    """Ledgers that go through the steps together."""

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
        """A row for each of them."""
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
        """Those with which nothing is the matter until now."""
        return [each for each in self._ledgers.values() if each.row is None]

    @property
    def _unproven(self) -> list[_Releasing]:
        """Those of them for which the table does not stand yet."""
        return [each for each in self._left if not each.goes_on]

    def _prove(self) -> None:
        """Whether the table stands for those that are not released yet."""
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
        """Copies that are to stay are whole: what is dropped cannot be copied any more.

        Of a ledger whose release goes on all that stays, its table too: whoever was killed before
        may have left the last good copies.
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
        """The one step by which each ledger is released (``release-after-proof``)."""
        now_ms = self._context.runtime.wall_ms()
        changes = [_Change(each, now_ms) for each in self._unproven]
        if not changes:
            return
        # Written together first; what did not come through is changed by itself (rule R14).
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
    """The step of a ledger's metadata that releases it.

    Raises ``_RefusedError`` when what was proven is not what is there.
    """

    def __init__(self, of: _Releasing, now_ms: int) -> None:
        assert of.proven is not None, "release-after-proof"
        self.of = of
        self._index = of.proven.index
        self._proven = of.known.value.fragments
        self._incarnations = of.ledger.incarnations
        # Versions before this one do not know the rule: one that is named again keeps its copy.
        dropping = to_drop(of.known.value)
        dropping |= {bookie: self._incarnations.get(bookie, "") for bookie in sorted(of.leave)}
        self._record = Archived(of.table, self._index, of.proven.version, of.keep, now_ms, dropping)

    def __call__(self, old: LedgerMetadata) -> LedgerMetadata | None:
        """The metadata afterwards; ``None``: they say it already, by us or by somebody faster."""
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
        """What was proven, put in place."""
        new = released(old, self._record)
        tables = {bookie: self._index for bookie in new.members() if is_table(bookie)}
        return with_incarnations(new, tables, renewed=True)

    def _stands_in(self, old: LedgerMetadata) -> bool:
        """Whether the table stands, and none of those that were to leave is named any more."""
        archived, named = archived_of(old), old.members()
        is_there = archived is not None and archived.table == self.of.table
        return is_there and any(map(is_table, named)) and self.of.leave.isdisjoint(named)
