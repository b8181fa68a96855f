"""Refill a bookie whose disk was replaced: copy back, in place, what it should hold.

Its partition was formatted again, so it is another incarnation (SLOT-LOG rule R11). The ledgers'
metadata mean the earlier incarnation. Until a ledger is refilled, the bookie *needs refill* for it:
its "no such entry" and its fences do not count, and no client reads there. One step ends this, when
every entry that the bookie should hold was copied back and read: a compare-and-swap publishes the
new incarnation. It happens only where no writer can be writing (R13), because a recovery would
believe its "I do not have it" there [refill_fixed_only, refill_whole].

Source: BookKeeper ``bookie/datainteg/DataIntegrityCheckImpl`` (BP-46), which sets a limbo flag on
the bookie and recovers its open ledgers; SLOT-LOG "Re-replicate", R11, R13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import (
    Ledger,
    incarnations_of,
    live_members,
    registered_incarnations,
)
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.protocol.collection import may_be_named
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.protocol.underreplication import RECOVER, SKIPPED, live_copies
from spark_bookkeeper.replication.batch_refill import refill_many
from spark_bookkeeper.replication.job import Job, Known, Reported, wanted_ids
from spark_bookkeeper.replication.pieces import (
    PIECE_BYTES,
    PieceCopied,
    PieceWork,
    copy_piece,
    do_others,
)
from spark_bookkeeper.replication.recover_ledgers import Recovered, RecoverWork, recovering
from spark_bookkeeper.replication.recovery_plan import PlannedShare, PlanRow
from spark_bookkeeper.replication.refill_ledger import (
    REMOVING,
    CutLedger,
    RefillWork,
    fragments_with,
    pieces_of_ledger,
    refill_ledger,
)
from spark_bookkeeper.replication.report import Outcome, RecoveryReport
from spark_bookkeeper.replication.rereplicate import ShareCopied
from spark_bookkeeper.replication.runner import (
    Failure,
    Progress,
    Runner,
    Step,
    limited,
    no_progress,
    reason_of,
)
from spark_bookkeeper.replication.shares import share_bytes, share_of


@dataclass(frozen=True, slots=True)
class Refill:
    """Which bookie to refill, and how."""

    bookie: BookieId
    """The bookie, registered in its new incarnation."""
    ledger_ids: tuple[LedgerId, ...] | None = None
    """Only these ledgers; ``None`` is all ledgers."""
    skip_open_ledgers: bool = False
    """Whether to leave out ledgers that must be fenced and closed first."""
    bytes_per_second: int | None = None
    """The limit on copying, for the whole job; ``None`` is no limit."""
    piece_bytes: int = PIECE_BYTES
    """Several tasks copy a share of several times this size."""


_Copying = RefillWork | PieceWork
_Copied = ShareCopied | PieceCopied
_Planned = Recovered | PlannedShare | ShareCopied


def refill_bookie(
    context: ClientContext,
    runner: Runner,
    wish: Refill,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Copy back to a bookie what it holds according to the metadata; one row for each share.

    Open ledgers whose last fragment is on the bookie are first fenced, recovered and closed. A
    crash at any moment loses nothing, and the next run does the rest: a ledger that is done names
    the new incarnation, and existing copies are found by their content.

    Raises:
        InvalidArgumentError: the bookie is not registered, or a ledger of ``wish`` does not exist.
            Nothing was changed.
    """
    registration = context.bookies.registrations().get(wish.bookie)
    _check(context, wish, registration)
    assert registration is not None
    job = Job("refill_bookie", context, runner, progress, wish.bytes_per_second)
    survey = _Survey(context, wish, registration, progress)
    if dry_run:
        planned = (row for ledger in survey.needs_refill() for row in survey.plan(*ledger))
        return job.report(RecoveryReport, planned, dry_run=True, columns=PlanRow)
    return job.report(RecoveryReport, _results(job, survey))


def _results(job: Job, survey: _Survey) -> Iterator[Reported]:
    """Close the open ledgers, refill ledger by ledger, and finish the large ledgers.

    Each step reads the metadata once and keeps none: with a million ledgers, memory holds only the
    large ones.
    """
    yield from job.run(recovering("open ledgers"), survey.to_be_closed())
    cut: dict[LedgerId, CutLedger] = {}

    def plan() -> Iterator[_Copying | Known[_Copied]]:
        for ledger_id, found in survey.needs_refill():
            if isinstance(found, MetadataFormatError):
                yield Known(ShareCopied(ledger_id, Outcome.LEFT, found.message))
                continue
            left = survey.reason_to_leave(found.value)
            if left is not None:
                first = found.value.last_fragment.first_entry_id
                yield Known(ShareCopied(ledger_id, Outcome.LEFT, left, first, source=survey.bookie))
                continue
            work = survey.work(ledger_id, found.value)
            pieces = pieces_of_ledger(work, found.value, survey.wish.piece_bytes)
            if pieces:
                cut[ledger_id] = CutLedger(work, pieces)
                for each in pieces.values():
                    yield from each
            else:
                yield work

    copying: Step[_Copying, _Copied] = Step(
        "filling ledgers", _copy_one, _failed, limited, partial(do_others, refill_many)
    )
    for copied in job.run(copying, plan()):
        if isinstance(copied, PieceCopied):
            cut[copied.work.ledger_id].take(copied)
        else:
            yield copied
    finishing = Step("finishing large ledgers", refill_ledger, _ledger_failed, limited)
    yield from job.run(finishing, [ledger.finish() for ledger in cut.values()])


@dataclass
class _Survey:
    """Finds the ledgers for which the bookie needs refill, and what to do about each."""

    context: ClientContext
    wish: Refill
    registration: Registration
    progress: Progress
    alive: Mapping[BookieId, Registration] = field(init=False)

    def __post_init__(self) -> None:
        self.alive = self.context.bookies.last_registrations()

    @property
    def bookie(self) -> BookieId:
        return self.wish.bookie

    def needs_refill(
        self,
    ) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | MetadataFormatError]]:
        """Yield the ledgers that name another incarnation of the bookie, or cannot be read."""
        store = self.context.store
        wanted = wanted_ids(self.context, self.wish.ledger_ids)
        for done, (ledger_id, found) in enumerate(store.read_ledgers(wanted), 1):
            self.progress("reading ledger metadata", done, len(wanted), 0)
            if isinstance(found, MetadataFormatError):
                yield ledger_id, found
            elif found is not None and self.bookie in found.value.bookies():
                try:
                    meant = incarnations_of(found.value).get(self.bookie)
                except MetadataFormatError as error:
                    yield ledger_id, error
                    continue
                if meant != self.registration.incarnation:
                    yield ledger_id, found

    def to_be_closed(self) -> Iterator[RecoverWork | Known[Recovered]]:
        """Yield the open ledgers whose last fragment is on the bookie."""
        for ledger_id, found in self.needs_refill():
            if isinstance(found, Versioned) and self._ends_here(found.value):
                if self.wish.skip_open_ledgers:
                    continue  # ``reason_to_leave`` reports it
                yield RecoverWork(ledger_id, found)

    def _ends_here(self, metadata: LedgerMetadata) -> bool:
        return not metadata.is_closed and self.bookie in metadata.last_fragment.ensemble

    def reason_to_leave(self, metadata: LedgerMetadata) -> str | None:
        """Return why the ledger cannot be refilled, as far as its metadata show."""
        if not self._ends_here(metadata):
            return None
        if self.wish.skip_open_ledgers:
            return SKIPPED
        return f"the ledger is not closed, and {self.bookie} is in its last fragment"

    def work(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> RefillWork:
        size = sum(share_bytes(metadata, f) for f in fragments_with(metadata, self.bookie))
        return RefillWork(
            ledger_id,
            self.bookie,
            self.registration.incarnation,
            self.wish.bytes_per_second,
            size,
            nonce=metadata.nonce,
        )

    def plan(
        self, ledger_id: LedgerId, found: Versioned[LedgerMetadata] | MetadataFormatError
    ) -> Iterator[_Planned]:
        """Yield what a run would do for one ledger."""
        try:
            yield from list(self._plan(ledger_id, found))
        except Exception as error:  # noqa: BLE001  (one ledger of many becomes its row)
            reason = reason_of(error, f"planning to refill ledger {ledger_id}")
            yield ShareCopied(ledger_id, Outcome.LEFT, reason, source=self.bookie)

    def _plan(
        self, ledger_id: LedgerId, found: Versioned[LedgerMetadata] | MetadataFormatError
    ) -> Iterator[_Planned]:
        if isinstance(found, MetadataFormatError):
            yield ShareCopied(ledger_id, Outcome.LEFT, found.message)
            return
        metadata = found.value
        first = metadata.last_fragment.first_entry_id
        if self._ends_here(metadata):
            if self.wish.skip_open_ledgers:
                left = self.reason_to_leave(metadata)
                yield ShareCopied(ledger_id, Outcome.LEFT, left, first, source=self.bookie)
                return
            yield Recovered(ledger_id, Outcome.PLANNED, "fence, recover and close it first")
        if not may_be_named(metadata, metadata, self.bookie):
            left = REMOVING.format(self.bookie)
            yield ShareCopied(ledger_id, Outcome.LEFT, left, first, source=self.bookie)
            return
        live = live_members(metadata, registered_incarnations(self.alive), [self.bookie])
        for fragment in metadata.fragment_ranges():
            if self.bookie in fragment.ensemble:
                yield self._planned(ledger_id, metadata, fragment, live)

    def _planned(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        fragment: FragmentRange,
        live: frozenset[BookieId],
    ) -> PlannedShare:
        now = live_copies(metadata.quorum, fragment, live)
        last = fragment.last_entry_id
        entries = 0
        if last is not None:
            ledger = Ledger.of(ledger_id, metadata)
            position = fragment.ensemble.index(self.bookie)
            entries = len(share_of(ledger, position, fragment.first_entry_id, last))
        return PlannedShare(
            ledger_id,
            Outcome.PLANNED,
            f"{now} live {'copy' if now == 1 else 'copies'} at the least",
            fragment.first_entry_id,
            last,
            self.bookie,
            self.bookie,
            entries,
            0 if last is None else share_bytes(metadata, fragment),
            tuple(b for b in fragment.ensemble if b in live),
            now,
            live_copies(metadata.quorum, fragment, live | {self.bookie}),
        )


def _check(context: ClientContext, wish: Refill, registration: Registration | None) -> None:
    bookie = wish.bookie
    if registration is not None and registration.incarnation:
        for ledger_id, found in context.store.read_ledgers(wish.ledger_ids or ()):
            if found is None:
                raise InvalidArgumentError(
                    f"ledger {ledger_id} does not exist; nothing was changed. `spark-bookkeeper "
                    "ledger list` shows those there are"
                )
        return
    if registration is not None:
        raise InvalidArgumentError(
            f"bookie {bookie} is none of this library's: its registration names no storage. "
            "Nothing was changed"
        )
    if context.store.cookie_version(bookie) is None:
        raise InvalidArgumentError(
            f"bookie {bookie} is unknown: it has no registration and no cookie. Nothing was "
            "changed; `spark-bookkeeper bookie list` shows the bookies"
        )
    raise InvalidArgumentError(
        f"bookie {bookie} is not registered, so nothing can be copied to it; nothing was changed. "
        "Where its disk was replaced: `spark-bookkeeper bookie format --replaced` and "
        "`spark-bookkeeper bookie start`, then repeat. To copy what it held to others: "
        f"`{RECOVER.format(bookie)}`"
    )


def _copy_one(context: ClientContext, work: _Copying) -> Sequence[_Copied]:
    if isinstance(work, PieceWork):
        return copy_piece(context, work)
    return refill_ledger(context, work)


def _failed(work: _Copying, failure: Failure) -> _Copied:
    if isinstance(work, PieceWork):
        return PieceCopied(work, Outcome.LEFT, failure.reason)
    return _ledger_failed(work, failure)


def _ledger_failed(work: RefillWork, failure: Failure) -> ShareCopied:
    return ShareCopied(work.ledger_id, Outcome.LEFT, failure.reason, source=work.bookie)
