"""A range of a ledger's entries and the table that is to stand for them: what one task works on.

A small ledger is one piece, and many of them are done together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.delta.batches import is_small
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.replication.under_way import name_of
from spark_bookkeeper.table.listing import ENTRIES
from spark_bookkeeper.table.neighbours import TOGETHER_ENTRIES, WINDOW_BYTES
from spark_bookkeeper.table.opening import table_of
from spark_bookkeeper.table.table_bookie import TableBookie

PIECE_BYTES: Final = 128 << 20
"""About how much of a ledger one task works on; no more entries than one batch of the list."""


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
        """Whose they are."""
        return self.ledger.ledger_id

    def name(self) -> str:
        """For people."""
        return name_of(self.ledger_id, self.first)

    @property
    def size_bytes(self) -> int:
        """About, from the ledger's length."""
        metadata = self.ledger.metadata
        assert metadata.last_entry_id is not None, "release-needs-an-end"
        part = (self.last - self.first + 1) / (metadata.last_entry_id + 1)
        return round((metadata.length_bytes or 0) * part)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the ledger."""
        return self.first == 0 and self.last == self.ledger.metadata.last_entry_id

    @property
    def may_go_with_others(self) -> bool:
        """Whether it is a small ledger."""
        is_short = self.last < TOGETHER_ENTRIES
        return self.is_whole and is_short and is_small(self.ledger)

    def windows(self) -> Iterator[tuple[EntryId, EntryId]]:
        """The same entries in ranges that fit in memory."""
        average = max(1, self.size_bytes // (self.last - self.first + 1))
        count = max(1, WINDOW_BYTES // average)
        for start in range(self.first, self.last + 1, count):
            yield EntryId(start), EntryId(min(self.last, start + count - 1))

    def open_table(self, context: ClientContext) -> TableBookie:
        """Raises ``InvalidArgumentError``, see ``table_of``."""
        return table_of(context, self.table)


def ranges_of(ledger: Ledger) -> Iterator[tuple[EntryId, EntryId]]:
    """The entries of a closed ledger that has some, cut into pieces."""
    last = ledger.metadata.last_entry_id
    assert last is not None, "release-needs-an-end"
    average = max(1, (ledger.metadata.length_bytes or 0) // (last + 1))
    count = max(1, min(ENTRIES, PIECE_BYTES // average))
    for first in range(0, last + 1, count):
        yield EntryId(first), EntryId(min(last, first + count - 1))
