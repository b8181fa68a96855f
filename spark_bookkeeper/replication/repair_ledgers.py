"""Copy missing and damaged replicas again to the bookies that should have them.

A live bookie may lack entries that the metadata says it has: its writer died while the last of the
Qw copies was in transit (Qa of them acknowledge an append), or its disk spoilt a file. Copies need
no slot (SLOT-LOG, "Objects"), so they are made in place, and the metadata stays as it is.
``recover_bookie`` is for a bookie that is lost or was formatted again.

Source: SLOT-LOG "Re-replicate", R13; BookKeeper ``client/LedgerFragmentReplicator``, which replaces
the bookie instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.copying import TargetError
from spark_bookkeeper.errors import EntryUnreadableError, NoSuchLedgerError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.check_ledgers import CheckWork, Finding, check_one, check_works
from spark_bookkeeper.replication.job import Job, wanted_ids
from spark_bookkeeper.replication.rates import RateNow, throttle_for
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row, counted
from spark_bookkeeper.replication.runner import (
    Failure,
    Progress,
    Runner,
    Step,
    limited,
    no_progress,
    reason_of,
)
from spark_bookkeeper.replication.shares import copy_share

FOUND_WRONG: Final = frozenset({Outcome.MISSING, Outcome.DAMAGED, Outcome.UNREADABLE})
"""Findings that can be repaired in place, because an additional copy does no harm."""


@dataclass(frozen=True, slots=True)
class RepairWork:
    """Check entries and repair what can be repaired. Picklable."""

    check: CheckWork
    dry_run: bool
    bytes_per_second: int | None = None
    rate_now: RateNow | None = None
    """Returns the limit while the work runs; ``None`` keeps the first limit."""

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger to check and repair."""
        return self.check.ledger_id

    def name(self) -> str:
        """Return the name in progress messages."""
        return self.check.name()

    @property
    def size_bytes(self) -> int:
        """About how many bytes are to be read."""
        return self.check.size_bytes


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of the repair of one share that had a fault."""

    finding: Finding
    status: Outcome
    reason: str | None = None
    target: BookieId | None = None
    """The bookie that was to get copies: the bookie of the share, or ``None``."""
    entries: int = 0
    """Entries that were copied; in a plan, entries that would be."""
    bytes: int = 0

    def row(self) -> Row:
        """Return the row that reports show."""
        return replace(
            self.finding.row(),
            action="copy",
            status=self.status,
            reason=self.reason,
            target=self.target,
            entries=self.entries,
            bytes=self.bytes,
        )


@dataclass(frozen=True, repr=False)
class RepairReport(RecoveryReport):
    """The report of ``repair_ledgers``: a row for each share that had a fault."""

    looked_at: int = 0
    """The number of ledgers that were checked."""

    @property
    @override
    def without_rows(self) -> str:
        return f"nothing was found wrong in {counted(self.looked_at, 'ledger')}"


def repair_ledgers(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None,
    *,
    percentage: int = 100,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress = no_progress,
) -> RepairReport:
    """Check replicas, and copy again those that are missing or damaged; a row for each share.

    Only shares with a fault have a row. In an open ledger the last fragment is not repaired,
    because it belongs to its writer or its recovery.

    Args:
        percentage: how many of the entries to check, as in ``check_ledgers``; faults of other
            entries stay.
    """
    job = Job("repair_ledgers", context, runner, progress, bytes_per_second)
    wanted = wanted_ids(context, ledger_ids)
    step = Step("repairing ledgers", repair_one, _failed, limited)
    plan = (RepairWork(check, dry_run) for check in check_works(context, wanted, percentage))
    report = job.report(RepairReport, job.run(step, plan, len(wanted)), dry_run=dry_run)
    return replace(report, looked_at=len(wanted))


def repair_one(context: ClientContext, work: RepairWork) -> Sequence[Repaired]:
    """Repair one ledger; return a result for each share that had a fault."""
    found = check_one(context, work.check)
    return [_repair(context, work, f) for f in found if f.status is not Outcome.HEALTHY]


def _failed(work: RepairWork, failure: Failure) -> Repaired:
    finding = Finding(work.check.ledger_id, Outcome.UNREADABLE, failure.reason)
    return Repaired(finding, Outcome.LEFT, failure.reason)


def _repair(context: ClientContext, work: RepairWork, finding: Finding) -> Repaired:
    bookie = finding.source
    if finding.status not in FOUND_WRONG or bookie is None:
        status = Outcome.GONE if finding.status is Outcome.GONE else Outcome.LEFT
        return Repaired(finding, status, finding.reason)

    def ended(status: Outcome, reason: str | None, entries: int = 0, copied: int = 0) -> Repaired:
        return Repaired(finding, status, reason, bookie, entries, copied)

    count = len(finding.refused)
    try:
        try:
            ledger, found = context.ledger(finding.ledger_id, work.check.nonce)
        except NoSuchLedgerError as error:  # raised below, it comes from a bookie
            return ended(Outcome.GONE, error.message)
        fragment = found.value.fragment_range(finding.first_entry_id)
        if fragment is None or bookie not in fragment.ensemble:
            return ended(Outcome.NO_LONGER_NEEDED, "another bookie has its place")
        if fragment.last_entry_id is None:
            return ended(Outcome.LEFT, "the ledger is not closed: recover it first")
        if work.dry_run:
            return ended(Outcome.PLANNED, finding.reason, count)
        target = context.bookies.replica(bookie, ledger)
        target.check()
        throttle = throttle_for(context, work.bytes_per_second, work.rate_now)
        copied = copy_share(
            context, ledger, fragment, finding.refused, target, (), throttle, held=()
        )
    except EntryUnreadableError as error:
        return ended(Outcome.UNRECOVERABLE, error.message)
    except TargetError as error:
        return ended(Outcome.LEFT, error.cause.message)
    except Exception as error:  # noqa: BLE001  (one share of many becomes its row)
        what = f"repairing ledger {finding.ledger_id} on {bookie}"
        return ended(Outcome.LEFT, reason_of(error, what))
    return ended(Outcome.REPLICATED, None, count, copied)
