"""Entries that no bookie can deliver, with the reason of each bookie."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange, Ledger, log_of
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.protocol.accepted_loss import accepted_loss_of
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.reader import Unreadable
from spark_bookkeeper.runtime.log_facts import about

_log = logging.getLogger(__name__)

LOST: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("first_entry_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("bookie_id", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""One row for each run of lost entries and each bookie that should have them. If a ledger could not
be read at all, ``reason`` says why, and the columns after ``first_entry_id`` are null."""

_NOTHING_LOST: Final = pa.Table.from_batches([], schema=LOST)  # ``empty_table`` imports pandas


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Entries ``first .. last`` of one ledger that are lost for the same reasons."""

    ledger_id: int
    first: int
    last: int
    causes: tuple[tuple[str, str], ...]
    """Each bookie of their write set, and why it cannot deliver them."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield rows of ``LOST``."""
        for bookie, reason in self.causes:
            yield {
                "ledger_id": self.ledger_id,
                "first_entry_id": self.first,
                "last_entry_id": self.last,
                "entries": self.last - self.first + 1,
                "bookie_id": bookie,
                "reason": reason,
            }


def warn_of_accepted_loss(ledger: Ledger) -> None:
    """Log a warning if an operator accepted that entries of this ledger may be missing."""
    if (loss := accepted_loss_of(ledger.metadata.custom_metadata)) is not None:
        log = log_of(ledger.metadata)
        _log.warning(
            "ledger %d%s: %s. skip_lost=True (failOnDataLoss=false) passes holes over",
            *(ledger.ledger_id, "" if log is None else f" of log {log!r}", loss),
            extra=about(ledger_id=ledger.ledger_id),
        )


def lost_runs(ledger_id: LedgerId, lost: Sequence[Unreadable]) -> list[UnreadableRange]:
    """Join neighbours that are lost for the same reasons into runs."""
    runs: list[UnreadableRange] = []
    for each in sorted(lost, key=lambda one: one.entry_id):
        causes = tuple(sorted(each.causes.items()))
        before = runs[-1] if runs else None
        if before is not None and before.last + 1 == each.entry_id and before.causes == causes:
            runs[-1] = UnreadableRange(ledger_id, before.first, each.entry_id, causes)
        else:
            runs.append(UnreadableRange(ledger_id, each.entry_id, each.entry_id, causes))
    return runs


def lost_table(ledger_id: LedgerId, lost: Sequence[Unreadable]) -> pa.Table:
    """Return the same runs as a table (``LOST``)."""
    if not lost:  # the usual case
        return _NOTHING_LOST
    rows = [row for run in lost_runs(ledger_id, lost) for row in run.rows()]
    return pa.Table.from_pylist(rows, schema=LOST)


def warn_of_lost(ledger_id: LedgerId, lost: Sequence[Unreadable]) -> None:
    """Log one line for each run that was skipped."""
    for run in lost_runs(ledger_id, lost):
        why = "; ".join(f"{bookie}: {reason}" for bookie, reason in run.causes)
        _log.warning(
            "entries %d to %d of ledger %d are passed over, as no bookie can deliver them: %s",
            *(run.first, run.last, run.ledger_id, why),
            extra=about(ledger_id=run.ledger_id),
        )


def look_for_lost(context: ClientContext, where: EntryRange) -> list[UnreadableRange]:
    """Read and verify a range; return the entries that no bookie can deliver."""
    fetcher = Fetcher(context, where.ledger, columns=(), skip_lost=True)
    for _ in fetcher.scan(where.first, where.last):
        pass
    return lost_runs(where.ledger.ledger_id, fetcher.lost)
