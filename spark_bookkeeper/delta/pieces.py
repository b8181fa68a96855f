"""A range of a ledger's entries, with the table that is to stand for them: a task's unit of work.

A small ledger is one piece, and many of them form a batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.table.listing import ENTRIES
from spark_bookkeeper.table.neighbours import TOGETHER_ENTRIES, WINDOW_BYTES
from spark_bookkeeper.table.opening import table_of
from spark_bookkeeper.table.table_bookie import TableBookie

PIECE_BYTES: Final = 128 << 20
"""Approximate size of a piece; it has no more entries than one batch of the list."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The entries ``first .. last`` of a closed ledger. Picklable."""

    ledger: Ledger
    table: str
    """URI of the Delta table."""
    first: EntryId
    last: EntryId

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self.ledger.ledger_id

    def name(self) -> str:
        """Return the name of the piece, for messages."""
        return name_of(self.ledger_id, self.first)

    @property
    def size_bytes(self) -> int:
        """The approximate size, from the ledger's length."""
        metadata = self.ledger.metadata
        assert metadata.last_entry_id is not None, "release-needs-an-end"
        part = (self.last - self.first + 1) / (metadata.last_entry_id + 1)
        return round((metadata.length_bytes or 0) * part)

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole ledger."""
        return self.first == 0 and self.last == self.ledger.metadata.last_entry_id

    @property
    def may_go_with_others(self) -> bool:
        """Whether it is a whole small ledger."""
        is_short = self.last < TOGETHER_ENTRIES
        return self.is_whole and is_short and is_small(self.ledger)

    def windows(self) -> Iterator[tuple[EntryId, EntryId]]:
        """Yield the same entries in ranges that fit in memory."""
        average = max(1, self.size_bytes // (self.last - self.first + 1))
        count = max(1, WINDOW_BYTES // average)
        for start in range(self.first, self.last + 1, count):
            yield EntryId(start), EntryId(min(self.last, start + count - 1))

    def open_table(self, context: ClientContext) -> TableBookie:
        """Return the table. Raises ``InvalidArgumentError``, see ``table_of``."""
        return table_of(context, self.table)


def ranges_of(ledger: Ledger) -> Iterator[tuple[EntryId, EntryId]]:
    """Yield the pieces of a closed ledger that has entries."""
    last = ledger.metadata.last_entry_id
    assert last is not None, "release-needs-an-end"
    average = max(1, (ledger.metadata.length_bytes or 0) // (last + 1))
    count = max(1, min(ENTRIES, PIECE_BYTES // average))
    for first in range(0, last + 1, count):
        yield EntryId(first), EntryId(min(last, first + count - 1))


SMALL_BYTES: Final = 1 << 20
"""The largest size of a small ledger. It must never change: two runs that regard a ledger as small
and as large at the same time would add it twice (decision 0031)."""

BATCH_LEDGERS: Final = 500
"""The most ledgers in a batch; their ids are written out in its commit."""

BATCH_BYTES: Final = 64 << 20
"""Approximate limit of a batch's bytes: they are written again if the table changes meanwhile."""

Batch: TypeAlias = tuple[Ledger, ...]
"""Ledgers with one schema: several small ones, or one of any size."""


def is_small(ledger: Ledger) -> bool:
    """Whether a closed ledger may share a batch; the result never depends on the caller or time."""
    return _size(ledger) <= SMALL_BYTES


def batches(found: Iterable[Ledger | Row], *, in_order: bool) -> Iterator[Batch | Row]:
    """Yield batches of small ledgers with one schema; yield rows and large ledgers in between.

    A commit of Delta and its verification cost some Spark jobs, whatever their size.

    Args:
        found: closed ledgers with entries, and rows about ledgers that are not archived.
        in_order: keep the order of ``found``, as the ledgers of a log require.
    """
    open_batches: dict[Hashable, list[Ledger]] = {}

    def end() -> Iterator[Batch]:
        yield from map(tuple, open_batches.values())
        open_batches.clear()

    for each in found:
        if isinstance(each, Row) or not is_small(each):
            if in_order:
                yield from end()
            yield each if isinstance(each, Row) else (each,)
            continue
        schema = each.schema.serialize().to_pybytes()
        if in_order and schema not in open_batches:
            yield from end()
        batch = open_batches.setdefault(schema, [])
        batch.append(each)
        if len(batch) == BATCH_LEDGERS or sum(map(_size, batch)) >= BATCH_BYTES:
            yield tuple(open_batches.pop(schema))
    yield from end()


def _size(ledger: Ledger) -> int:
    return ledger.metadata.length_bytes or 0
