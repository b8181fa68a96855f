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
from typing import ClassVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.copying import TargetError
from spark_bookkeeper.errors import EntryUnreadableError, NoSuchLedgerError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.check_ledgers import CheckWork, Finding, check_works, findings
from spark_bookkeeper.replication.report import RecoveryReport, Row
from spark_bookkeeper.replication.runner import (
    Progress,
    Runner,
    limited,
    no_progress,
    reason_of,
)
from spark_bookkeeper.replication.shares import copy_share
from spark_bookkeeper.runtime.throttle import Throttle

FOUND_WRONG = frozenset({"missing", "damaged", "unreadable"})
"""Findings of a check that can be put right in place: a copy more does no harm."""


@dataclass(frozen=True, slots=True)
class RepairWork:
    """Check every entry and put right what can be. Picklable."""

    action: ClassVar[str] = "copy"
    check: CheckWork
    dry_run: bool
    bytes_per_second: int | None = None

    @property
    def ledger_id(self) -> LedgerId:
        """For the account of work that failed, as ``size_bytes`` is for sharing it out."""
        return self.check.ledger_id

    @property
    def size_bytes(self) -> int:
        """To be read, about."""
        return self.check.size_bytes


def repair_ledgers(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None,
    *,
    dry_run: bool = False,
    bytes_per_second: int | None = None,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Read every replica, and make again what is missing or damaged; a row for each share.

    Only shares with something wrong have a row. Ledgers that are not closed are repaired up to
    their last fragment, which belongs to their writer or their recovery.
    """
    started = context.runtime.now()
    wanted = list(context.store.ledger_ids()) if ledger_ids is None else list(ledger_ids)
    work = [RepairWork(check, dry_run) for check in check_works(context, wanted, 100)]
    work = limited(work, bytes_per_second, runner)
    rows = list(runner.run("repairing ledgers", work, repair_one, progress))
    duration_ms = round((context.runtime.now() - started) * 1000)
    rows.sort(key=lambda row: (row.ledger_id, row.first_entry_id or 0, row.source or ""))
    return RecoveryReport("repair_ledgers", tuple(rows), dry_run, duration_ms)


def repair_one(context: ClientContext, work: RepairWork) -> Sequence[Row]:
    """Repair one ledger; a row for each share that was not as it should be."""
    found = findings(context, work.check)
    return [_repair(context, work, f) for f in found if f.row.status != "healthy"]


def _repair(context: ClientContext, work: RepairWork, finding: Finding) -> Row:
    row = replace(finding.row, action="copy", entries=0, bytes=0)  # so far nothing is copied
    if row.status not in FOUND_WRONG:
        return replace(row, status="gone" if row.status == "gone" else "left")
    row = replace(row, target=row.source)
    count = len(finding.refused)
    try:
        ledger, found = context.ledger(work.ledger_id, work.check.nonce)
        fragment = next(
            (f for f in found.value.fragment_ranges() if f.first_entry_id == row.first_entry_id),
            None,
        )
        if fragment is None or row.source not in fragment.ensemble:
            return replace(row, status="no longer needed", reason="another bookie has its place")
        if fragment.last_entry_id is None:
            return replace(row, status="left", reason="the ledger is not closed: recover it first")
        if work.dry_run:
            return replace(row, status="planned", entries=count)
        target = context.bookies.replica(BookieId(row.source), ledger)
        target.check()
        throttle = Throttle(context.runtime, work.bytes_per_second)
        copied = copy_share(
            context, ledger, fragment, finding.refused, target, (), throttle, held=()
        )
    except NoSuchLedgerError as error:
        return replace(row, status="gone", reason=error.message)
    except EntryUnreadableError as error:
        return replace(row, status="unrecoverable", reason=error.message)
    except TargetError as error:
        return replace(row, status="left", reason=error.cause.message)
    except Exception as error:  # noqa: BLE001  (one share of many becomes its row)
        what = f"repairing ledger {work.ledger_id} on {row.source}"
        return replace(row, status="left", reason=reason_of(error, what))
    return replace(row, status="replicated", reason=None, entries=count, bytes=copied)
