"""Deletion of ledgers without an owner, on the order of an operator.

A ledger gets an owner later only by a change of its metadata (``orphans.py``). So the deletion is a
compare-and-swap: it fails unless the ledger has the same nonce and the version that was just read.

A ledger that is not closed stays, even if its writer seems to be gone. The writer may only be cut
off from the metadata store, and bookies may still acknowledge its entries; those would be deleted
(SLOT-LOG rule R17). Recovery closes the ledger and fences that writer, which then fails.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from spark_bookkeeper.agent.orphans import OwnedLedger, is_free, ledgers_with_owners
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.metadata.update import read_again
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.report import Outcome, Report, Row, counted
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.runtime.spool import Spool

_CLAIMED: Final = "its metadata were changed meanwhile, and somebody owns it by now"
_RESTORED: Final = "its restore was begun and has not ended"


class OrphansReport(Report):
    """The report of ``delete_orphans``: one row for each old enough ledger without an owner."""


def delete_orphans(
    context: ClientContext,
    created_before_ms: int,
    *,
    ledger_ids: Collection[int] | None = None,
    dry_run: bool = True,
    progress: Progress = no_progress,
) -> OrphansReport:
    """Delete the ledgers of ``orphans()`` that were created before a time.

    A ledger without a known creation time stays, and so does one that is not closed.

    Args:
        created_before_ms: milliseconds since 1970, by the clocks of the clients that created them.
        ledger_ids: delete only these of them; ``None``: all.

    Raises:
        InvalidArgumentError: a restore runs, or was begun and has not ended: its ledgers exist
            before the logs that own them. Nothing was deleted.
    """
    started = context.runtime.now()
    _check_no_restore(context)
    doomed = [
        (ledger_id, known)
        for ledger_id, known in ledgers_with_owners(context).items()
        if _is_doomed(known, created_before_ms) and (ledger_ids is None or ledger_id in ledger_ids)
    ]
    # A restore publishes its run before its first ledger exists, so a ledger of a restore that
    # began during the listing is found here.
    _check_no_restore(context)
    rows: Spool[Row] = Spool()
    for ledger_id, known in doomed:
        if dry_run:
            rows.append(_row(ledger_id, known, Outcome.PLANNED))
        else:
            progress("deleting ledgers", len(rows), len(doomed), 0)
            rows.append(_deleted(context, ledger_id, known))
    duration_ms = round((context.runtime.now() - started) * 1000)
    return OrphansReport("delete_orphans", rows, dry_run, duration_ms)


def _check_no_restore(context: ClientContext) -> None:
    running = restores.running(context.store.ballots, context.runtime)
    begun = restores.begun(context.store.registers)
    if running or begun:
        what = "; ".join(running) or f"begun and not there: {counted(len(begun), 'ledger')}"
        raise InvalidArgumentError(
            f"a restore is under way ({what}), whose ledgers nobody owns before it ends; nothing "
            "was deleted. Repeat it when the restore has ended, or was given up (`spark-bookkeeper "
            "cluster restore --forget`)"
        )


def _deleted(context: ClientContext, ledger_id: LedgerId, known: OwnedLedger) -> Row:
    store = context.store
    assert known.metadata is not None
    try:
        found = read_again(store, ledger_id, known.metadata.nonce)
        if not (found.value.is_closed and is_free(found.value)):
            return _row(ledger_id, known, Outcome.NO_LONGER_NEEDED, _CLAIMED)
        if restores.nonce_of(store.registers, ledger_id) is not None:
            return _row(ledger_id, known, Outcome.LEFT, _RESTORED)  # else the id could not be used
        store.delete_ledger(ledger_id, found)
    except NoSuchLedgerError:
        return _row(ledger_id, known, Outcome.GONE)
    except VersionConflictError:
        return _row(ledger_id, known, Outcome.NO_LONGER_NEEDED, _CLAIMED)
    except BookKeeperError as error:
        return _row(ledger_id, known, Outcome.LEFT, error.message)
    return _row(ledger_id, known, Outcome.DELETED)


def _is_doomed(known: OwnedLedger, created_before_ms: int) -> bool:
    if known.metadata is None or known.unowned is None or not known.metadata.is_closed:
        return False
    created_ms = known.metadata.ctime_ms
    return created_ms is not None and 0 <= created_ms < created_before_ms


def _row(
    ledger_id: LedgerId, known: OwnedLedger, status: Outcome, reason: str | None = None
) -> Row:
    assert known.metadata is not None
    length = known.metadata.length_bytes or 0
    return Row(ledger_id, "delete", status, reason or known.unowned, bytes=length)
