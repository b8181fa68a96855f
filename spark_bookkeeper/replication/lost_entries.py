"""Which entries of many ledgers can be read from no bookie, and why from none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.lost import LOST, look_for_lost
from spark_bookkeeper.client.read.reader import read_last_add_confirmed
from spark_bookkeeper.client.read.splits import cut
from spark_bookkeeper.client.write.bulk import EntryRange
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress

PIECES = 4
"""A large ledger is so many pieces of work at least."""

_LOST = "lost"


@dataclass(frozen=True, slots=True)
class LookWork:
    """Read and verify some entries of one ledger. Picklable."""

    action: ClassVar[str] = "read"
    where: EntryRange

    @property
    def ledger_id(self) -> LedgerId:
        return self.where.ledger.ledger_id

    @property
    def first_entry_id(self) -> int:
        return self.where.first


def lost_entries(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None = None,
    progress: Progress = no_progress,
) -> pa.Table:
    """All that is acknowledged in these ledgers is read and verified; what cannot be is told.

    Nothing is fenced or changed.

    Args:
        context: the cluster.
        runner: what reads.
        ledger_ids: ``None`` is all ledgers.
        progress: called as the work goes on.

    Returns:
        a row for each run of lost entries and each bookie that should have them (``LOST``);
        none at all when everything can be read. Of a ledger that could not be looked at there
        is one row without a bookie, which says why.
    """
    chosen = context.store.ledger_ids() if ledger_ids is None else ledger_ids
    rows: list[dict[str, Any]] = []
    work: list[LookWork] = []
    for ledger_id, found in context.store.read_ledgers(chosen):
        if found is None:
            rows.append(_told(ledger_id, 0, "the ledger was deleted, or never existed"))
            continue
        if not isinstance(found, Versioned):
            rows.append(_told(ledger_id, 0, found.message))
            continue
        try:
            work += _pieces(context, Ledger.of(ledger_id, found.value))
        except BookKeeperError as error:
            rows.append(_told(ledger_id, 0, error.message))
    for row in runner.run("reading ledgers", work, _look, progress):
        if row.status == _LOST:
            rows.append(_row(row))
        elif row.status == "left":
            rows.append(_told(row.ledger_id, row.first_entry_id or 0, row.reason))
    rows.sort(key=lambda row: (row["ledger_id"], row["first_entry_id"], row["bookie_id"] or ""))
    return pa.Table.from_pylist(rows, schema=LOST)


def _pieces(context: ClientContext, ledger: Ledger) -> Iterator[LookWork]:
    last = ledger.metadata.last_entry_id
    if last is None:
        last = read_last_add_confirmed(context, ledger)
    for first, end in cut(context, ledger, EntryId(0), last, PIECES):
        yield LookWork(EntryRange(ledger, first, end))


def _look(context: ClientContext, work: LookWork) -> Sequence[Row]:
    runs = look_for_lost(context, work.where)
    entries = work.where.last - work.where.first + 1
    found = [
        Row(
            ledger_id=run.ledger_id,
            action=work.action,
            status=_LOST,
            reason=reason,
            first_entry_id=run.first,
            last_entry_id=run.last,
            source=bookie,
            entries=run.last - run.first + 1,
        )
        for run in runs
        for bookie, reason in run.causes
    ]
    return found or [Row(work.ledger_id, work.action, "healthy", entries=entries)]


def _row(row: Row) -> dict[str, Any]:
    return {
        "ledger_id": row.ledger_id,
        "first_entry_id": row.first_entry_id,
        "last_entry_id": row.last_entry_id,
        "entries": row.entries,
        "bookie_id": row.source,
        "reason": row.reason,
    }


def _told(ledger_id: int, first: int, reason: str | None) -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "first_entry_id": first,
        "last_entry_id": None,
        "entries": None,
        "bookie_id": None,
        "reason": reason,
    }
