"""Fence, recover and close many ledgers as one job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.many import recover_many
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.job import Job, Known, nothing_done, wanted_ids
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from spark_bookkeeper.replication.runner import Bounds, Failure, Progress, Runner, Step, no_progress
from spark_bookkeeper.replication.under_way import name_of

FIRST: Final = EntryId(0)


@dataclass(frozen=True, slots=True)
class RecoverWork:
    """Recover one ledger. Picklable."""

    ledger_id: LedgerId
    known: Versioned[LedgerMetadata]
    """As it was when the work was planned; the compare-and-swap notices what changed since."""

    def name(self) -> str:
        """For people."""
        return name_of(self.ledger_id)

    @property
    def size_bytes(self) -> int:
        """What its last entries come to is known when it is fenced."""
        return 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """How the recovery of one ledger ended."""

    ledger_id: LedgerId
    status: Outcome
    reason: str | None = None
    first_entry_id: EntryId | None = None
    """0, unless its metadata could not be read."""
    last_entry_id: EntryId | None = None
    """Of a ledger that is closed; ``None``: not known."""
    bytes: int = 0
    """Of all of its entries, once it is closed."""

    def row(self) -> Row:
        """As reports show it."""
        last = self.last_entry_id if self.status is Outcome.CLOSED else None
        return Row(
            self.ledger_id,
            "recover",
            self.status,
            self.reason,
            self.first_entry_id,
            self.last_entry_id,
            entries=0 if last is None else last + 1,
            bytes=self.bytes,
        )


def recover_ledgers(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Recover the given ledgers, or every ledger that is not closed; one row for each.

    A ledger that must wait is ``left``, and its reason names the entry, what each bookie
    answered and the bookie that would unblock it. The others are not held up by it. A ledger
    that was closed without waiting for a silent bookie says in its reason which.
    """
    job = Job("recover_ledgers", context, runner, progress)
    plan = _plan(context, ledger_ids, progress)
    results = nothing_done(plan, _planned) if dry_run else job.run(recovering("ledgers"), plan)
    return job.report(RecoveryReport, results, dry_run=dry_run)


def recovering(what: str) -> Step[RecoverWork, Recovered]:
    """The step that recovers ledgers; ``what`` they are, for progress."""
    return Step(f"recovering {what}", recover_one, _failed, do_many=_recover_some)


def _plan(
    context: ClientContext, ledger_ids: Sequence[LedgerId] | None, progress: Progress
) -> Iterator[RecoverWork | Known[Recovered]]:
    wanted = wanted_ids(context, ledger_ids)
    for done, (ledger_id, found) in enumerate(context.store.read_ledgers(wanted), 1):
        if found is None:
            yield Known(Recovered(ledger_id, Outcome.GONE, "the ledger does not exist"))
        elif isinstance(found, MetadataFormatError):
            yield Known(Recovered(ledger_id, Outcome.LEFT, found.message))
        elif not found.value.is_closed:
            yield RecoverWork(ledger_id, found)
        elif ledger_ids is not None:
            last = found.value.last_entry_id
            yield Known(
                Recovered(ledger_id, Outcome.NO_LONGER_NEEDED, "closed already", FIRST, last)
            )
        progress("reading ledger metadata", done, len(wanted), 0)


def recover_one(context: ClientContext, work: RecoverWork) -> Sequence[Recovered]:
    """Recover one ledger and say how it ended."""
    ledger_id = work.ledger_id
    silent: dict[BookieId, str] = {}
    try:
        metadata = recover_ledger(
            context, ledger_id, work.known, on_silent=silent.__setitem__
        ).value
    except NoSuchLedgerError as error:
        return [Recovered(ledger_id, Outcome.GONE, error.message)]
    except BookKeeperError as error:
        return [Recovered(ledger_id, Outcome.LEFT, error.message, FIRST)]
    reason = "; ".join(f"bookie {bookie}: {said}" for bookie, said in silent.items()) or None
    return [_closed(ledger_id, metadata, reason)]


def _recover_some(
    context: ClientContext, works: Sequence[RecoverWork], _: Bounds
) -> Sequence[Sequence[Recovered] | None]:
    """Recover ledgers together; ``None`` for those that are to be recovered by themselves."""
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


def _planned(work: RecoverWork) -> Recovered:
    return Recovered(work.ledger_id, Outcome.PLANNED, None, FIRST)


def _failed(work: RecoverWork, failure: Failure) -> Recovered:
    return Recovered(work.ledger_id, Outcome.LEFT, failure.reason)
