"""Find the entries of many ledgers that no bookie can deliver, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange, Ledger
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.client.read.splits import cut
from spark_bookkeeper.client.read.unreadable import LOST, look_for_lost
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.replication.job import Job, Known
from spark_bookkeeper.replication.runner import Failure, Progress, Runner, Step, no_progress
from spark_bookkeeper.replication.stragglers import name_of

PIECES = 4
"""The fewest pieces into which a large ledger is cut."""


@dataclass(frozen=True, slots=True)
class LookWork:
    """Read and verify some entries of one ledger. Picklable."""

    where: EntryRange

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger of the entries."""
        return self.where.ledger.ledger_id

    def name(self) -> str:
        """Return the name in progress messages."""
        return name_of(self.ledger_id, self.where.first)

    @property
    def size_bytes(self) -> int:
        """0, because the size is unknown before the entries are read."""
        return 0


@dataclass(frozen=True, slots=True)
class Lost:
    """Entries that cannot be read. If that could not be checked, ``last`` is ``None``."""

    ledger_id: LedgerId
    first: int
    last: int | None
    bookie_id: str | None
    reason: str

    @property
    def bytes(self) -> int:
        return 0

    def columns(self) -> dict[str, Any]:
        """Return the values by column of ``LOST``."""
        return {
            "ledger_id": self.ledger_id,
            "first_entry_id": self.first,
            "last_entry_id": self.last,
            "entries": None if self.last is None else self.last - self.first + 1,
            "bookie_id": self.bookie_id,
            "reason": self.reason,
        }


def lost_entries(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None = None,
    progress: Progress = no_progress,
) -> pa.Table:
    """Return the entries that no bookie can deliver, by ``LOST`` (``BookKeeper.lost_entries``).

    A ledger that could not be checked has one row without a bookie, with the reason.
    """
    job = Job("lost_entries", context, runner, progress)
    found = job.run(Step("reading ledgers", look, _failed), _plan(context, ledger_ids))
    rows = [lost.columns() for lost in found]
    rows.sort(key=lambda row: (row["ledger_id"], row["first_entry_id"], row["bookie_id"] or ""))
    return pa.Table.from_pylist(rows, schema=LOST)


def _plan(
    context: ClientContext, ledger_ids: Sequence[LedgerId] | None
) -> Iterator[LookWork | Known[Lost]]:
    chosen = context.store.ledger_ids() if ledger_ids is None else ledger_ids
    for ledger_id, found in context.store.read_ledgers(chosen):
        if found is None:
            yield Known(_unknown(ledger_id, 0, "the ledger was deleted, or never existed"))
        elif not isinstance(found, Versioned):
            yield Known(_unknown(ledger_id, 0, found.message))
        else:
            try:
                yield from _pieces(context, Ledger.of(ledger_id, found.value))
            except BookKeeperError as error:
                yield Known(_unknown(ledger_id, 0, error.message))


def _pieces(context: ClientContext, ledger: Ledger) -> list[LookWork]:
    last = ledger.metadata.last_entry_id
    if last is None:
        last = read_last_add_confirmed(context, ledger)
    pieces = cut(context, ledger, EntryId(0), last, PIECES)
    return [LookWork(EntryRange(ledger, first, end)) for first, end in pieces]


def look(context: ClientContext, work: LookWork) -> Sequence[Lost]:
    """Read some entries; return a result for each lost run and each bookie that should hold it."""
    return [
        Lost(LedgerId(run.ledger_id), run.first, run.last, bookie, reason)
        for run in look_for_lost(context, work.where)
        for bookie, reason in run.causes
    ]


def _failed(work: LookWork, failure: Failure) -> Lost:
    return _unknown(work.where.ledger.ledger_id, work.where.first, failure.reason)


def _unknown(ledger_id: LedgerId, first: int, reason: str) -> Lost:
    return Lost(ledger_id, first, None, None, reason)
