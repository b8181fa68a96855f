"""Make missing and damaged copies again on the bookies that should have them.

A live bookie may lack entries that the metadata says it has: its writer died while the last of
the Qw copies was on its way (an append is acknowledged by Qa of them), or its disk spoilt a file.
Copies need no slot (SLOT-LOG, "Objects"), so they are made in place, and the metadata stays as
it is. A bookie that is lost, or was formatted again, is work for ``recover_bookie``.

Source: SLOT-LOG "Re-replicate", R13; BookKeeper ``client/LedgerFragmentReplicator``, which
replaces the bookie instead.
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
"""Findings of a check that can be put right in place: a copy more does no harm."""


@dataclass(frozen=True, slots=True)
class RepairWork:
    """Check every entry and put right what can be. Picklable."""

    check: CheckWork
    dry_run: bool
    bytes_per_second: int | None = None
    rate_now: RateNow | None = None
    """The limit while it copies; ``None`` is the same as at first."""

    @property
    def ledger_id(self) -> LedgerId:
        """Whose."""
        return self.check.ledger_id

    def name(self) -> str:
        """For people."""
        return self.check.name()

    @property
    def size_bytes(self) -> int:
        """To be read, about."""
        return self.check.size_bytes


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of a share that was not as it should be."""

    finding: Finding
    status: Outcome
    reason: str | None = None
    target: BookieId | None = None
    """Where copies were to be made: its own bookie, or none."""
    entries: int = 0
    """That were copied; of a plan, that would be."""
    bytes: int = 0

    def row(self) -> Row:
        """As reports show it."""
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
    """Of ``repair_ledgers``: a row for each share with something wrong."""

    looked_at: int = 0
    """Ledgers."""

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
    """Check replicas, and make again what is missing or damaged; a row for each share.

    Only shares with something wrong have a row. Ledgers that are not closed are repaired up to
    their last fragment, which belongs to their writer or their recovery.

    Args:
        percentage: of the entries that are looked at, as in ``check_ledgers``; what is wrong with
            others stays as it is.
    """
    job = Job("repair_ledgers", context, runner, progress, bytes_per_second)
    wanted = wanted_ids(context, ledger_ids)
    step = Step("repairing ledgers", repair_one, _failed, limited)
    plan = (RepairWork(check, dry_run) for check in check_works(context, wanted, percentage))
    report = job.report(RepairReport, job.run(step, plan, len(wanted)), dry_run=dry_run)
    return replace(report, looked_at=len(wanted))


def repair_one(context: ClientContext, work: RepairWork) -> Sequence[Repaired]:
    """Repair one ledger; a result for each share that was not as it should be."""
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
        except NoSuchLedgerError as error:  # below it would be a bookie that says so of itself
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
