"""Fence, recover and close many ledgers as one job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.batch_recovery import recover_many
from spark_bookkeeper.client.recover.recovery import LedgerRecovery, flag, recover_ledger
from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.accepted_loss import AcceptedLoss, EntrySpan, accepted_loss_of
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.job import Job, Known, wanted_ids
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from spark_bookkeeper.replication.runner import Bounds, Failure, Progress, Runner, Step, no_progress
from spark_bookkeeper.replication.stragglers import name_of

FIRST: Final = EntryId(0)
NO_LOSS: Final[Mapping[LedgerId, AcceptedLoss]] = {}


@dataclass(frozen=True, slots=True)
class RecoverWork:
    """Recover one ledger. Picklable."""

    ledger_id: LedgerId
    known: Versioned[LedgerMetadata]
    """The metadata when the work was planned; the compare-and-swap detects later changes."""
    accepting: AcceptedLoss | None = None
    """The loss that an operator accepts: the entries, and the bookies that are gone for good."""

    def name(self) -> str:
        """Return the name in progress messages."""
        return name_of(self.ledger_id)

    @property
    def size_bytes(self) -> int:
        """0, because the size of the last entries is unknown until the ledger is fenced."""
        return 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of the recovery of one ledger."""

    ledger_id: LedgerId
    status: Outcome
    reason: str | None = None
    first_entry_id: EntryId | None = None
    """0, or ``None`` if the metadata could not be read; of accepted entries, the first."""
    last_entry_id: EntryId | None = None
    """The last entry of a closed ledger, or of accepted entries; ``None`` is unknown."""
    bytes: int = 0
    """The bytes of all entries, once the ledger is closed."""

    def row(self) -> Row:
        """Return the row that reports show."""
        last = None if self.status is Outcome.NO_LONGER_NEEDED else self.last_entry_id
        return Row(
            self.ledger_id,
            "recover",
            self.status,
            self.reason,
            self.first_entry_id,
            last,
            entries=0 if last is None or self.status is Outcome.GIVEN_UP else last + 1,
            bytes=self.bytes,
        )


def recover_ledgers(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None,
    *,
    dry_run: bool = False,
    accepting: Mapping[LedgerId, AcceptedLoss] = NO_LOSS,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Recover the given ledgers, or every ledger that is not closed; one row for each.

    A ledger that must wait is ``left``; its reason names the entry, what each bookie answered, and
    the bookie that would unblock it. It does not delay the others. A ledger that was closed without
    waiting for a silent bookie names that bookie in its reason. Each range of accepted entries has
    its own row.
    """
    job = Job("recover_ledgers", context, runner, progress)
    plan = _plan(context, ledger_ids, accepting, progress)
    if not dry_run:
        return job.report(RecoveryReport, job.run(recovering("ledgers"), plan))
    planned = (
        result
        for each in plan
        for result in ([each.result] if isinstance(each, Known) else _foreseen(context, each))
    )
    return job.report(RecoveryReport, planned, dry_run=True)


def recovering(what: str) -> Step[RecoverWork, Recovered]:
    """Return the step that recovers ledgers; ``what`` names them in progress messages."""
    return Step(f"recovering {what}", recover_one, _failed, do_many=_recover_some)


def _plan(
    context: ClientContext,
    ledger_ids: Sequence[LedgerId] | None,
    accepting: Mapping[LedgerId, AcceptedLoss],
    progress: Progress,
) -> Iterator[RecoverWork | Known[Recovered]]:
    wanted = wanted_ids(context, ledger_ids)
    for done, (ledger_id, found) in enumerate(context.store.read_ledgers(wanted), 1):
        if found is None:
            yield Known(Recovered(ledger_id, Outcome.GONE, "the ledger does not exist"))
        elif isinstance(found, MetadataFormatError):
            yield Known(Recovered(ledger_id, Outcome.LEFT, found.message))
        elif not found.value.is_closed:
            yield RecoverWork(ledger_id, found, accepting.get(ledger_id))
        elif ledger_ids is not None:
            last = found.value.last_entry_id
            yield Known(
                Recovered(ledger_id, Outcome.NO_LONGER_NEEDED, "closed already", FIRST, last)
            )
        progress("reading ledger metadata", done, len(wanted), 0)


def recover_one(context: ClientContext, work: RecoverWork) -> Sequence[Recovered]:
    """Recover one ledger and return its results."""
    ledger_id = work.ledger_id
    silent: dict[BookieId, str] = {}
    try:
        metadata = recover_ledger(
            context, ledger_id, work.known, on_silent=silent.__setitem__, accepting=work.accepting
        ).value
    except NoSuchLedgerError as error:
        return [Recovered(ledger_id, Outcome.GONE, error.message)]
    except BookKeeperError as error:
        return [Recovered(ledger_id, Outcome.LEFT, error.message, FIRST)]
    reason = "; ".join(f"bookie {bookie}: {said}" for bookie, said in silent.items()) or None
    loss = accepted_loss_of(metadata.custom_metadata)
    closed = _closed(ledger_id, metadata, reason)
    return [closed, *_given_up(ledger_id, () if loss is None else loss.missing)]


def _recover_some(
    context: ClientContext, works: Sequence[RecoverWork], _: Bounds
) -> Sequence[Sequence[Recovered] | None]:
    """Recover a batch of ledgers; return ``None`` for those that must be recovered one by one."""
    closed = recover_many(context, {work.ledger_id: work.known for work in works})
    return [
        [_closed(work.ledger_id, closed[work.ledger_id].value)]
        if work.ledger_id in closed
        else None
        for work in works
    ]


def _closed(ledger_id: LedgerId, metadata: LedgerMetadata, reason: str | None = None) -> Recovered:
    size = metadata.length_bytes or 0
    return Recovered(ledger_id, Outcome.CLOSED, reason, FIRST, metadata.last_entry_id, size)


def _given_up(ledger_id: LedgerId, spans: Iterable[EntrySpan]) -> Iterator[Recovered]:
    for first, last in spans:
        yield Recovered(ledger_id, Outcome.GIVEN_UP, "may be missing", first, last)


def _foreseen(context: ClientContext, work: RecoverWork) -> Sequence[Recovered]:
    """Return what a run would do, and which loss it would accept as the bookies are now."""
    ledger_id = work.ledger_id
    if work.accepting is None:
        return [Recovered(ledger_id, Outcome.PLANNED, None, FIRST)]
    try:
        known = replace(work.known, value=flag(work.known.value) or work.known.value)
        ledger = Ledger.of(ledger_id, known.value)
        found = LedgerRecovery(context, ledger, known, accepting=work.accepting).foresee()
    except BookKeeperError as error:
        return [Recovered(ledger_id, Outcome.LEFT, error.message, FIRST)]
    kept = Recovered(ledger_id, Outcome.PLANNED, "would be kept", FIRST, found.last_entry_id)
    return [kept, *_given_up(ledger_id, found.given_up)]


def _failed(work: RecoverWork, failure: Failure) -> Recovered:
    return Recovered(work.ledger_id, Outcome.LEFT, failure.reason)
