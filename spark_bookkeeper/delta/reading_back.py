"""Reads every entry back by the list below the table, and from the files that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.bookie.bookie import Delivered, LedgerRef
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.delta.pieces import Piece
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.runner import Bounds, Failure, Step
from spark_bookkeeper.table.listing import Listing
from spark_bookkeeper.table.neighbours import together


@dataclass(frozen=True, slots=True)
class ReadBackWork(Piece):
    """Read entries by the stored list."""

    index: str
    """The digest of the list."""

    @property
    def ref(self) -> LedgerRef:
        """The reference by which the table reads the ledger."""
        return LedgerRef(self.ledger.key, self.index, self.ledger.encoding)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The result for a piece."""

    ledger_id: LedgerId
    bytes: int = 0
    reason: str | None = None
    """How it differs from the list; ``None`` if it does not."""


def read_back(context: ClientContext, work: ReadBackWork) -> Sequence[ReadBack]:
    """Read back one piece of a ledger."""
    bookie = work.open_table(context)
    listing = bookie.listing(work.ref)
    size = 0
    for start, end in work.windows():
        ids = range(start, end + 1)
        delivery = bookie.read_exactly(work.ref, ids)
        if (reason := _trouble(listing, ids, delivery)) is not None:
            return [ReadBack(work.ledger_id, size, reason)]
        size += _bytes(delivery)
    return [ReadBack(work.ledger_id, size)]


def read_back_many(
    context: ClientContext, works: Sequence[ReadBackWork], _: Bounds
) -> Sequence[Sequence[ReadBack] | None]:
    """Read back small ledgers, whose rows are read from the table in batches. ``None`` for all
    other works, and for each that failed: ``read_back`` then finds the reason.
    """
    done: list[Sequence[ReadBack] | None] = [None] * len(works)
    for some in together(works):
        bookie = some[0][1].open_table(context)
        try:
            found = bookie.read_many([work.ref for _, work in some], is_exact=True)
        except BookKeeperError:
            continue
        for (number, work), (listing, delivery) in zip(some, found, strict=True):
            if _trouble(listing, range(work.first, work.last + 1), delivery) is None:
                done[number] = [ReadBack(work.ledger_id, _bytes(delivery))]
    return done


def not_read_back(work: ReadBackWork, failure: Failure) -> ReadBack:
    return ReadBack(work.ledger_id, reason=failure.reason)


READING_BACK: Final = Step(
    "reading it back from the table",
    read_back,
    not_read_back,
    do_many=read_back_many,
    shares_with_neighbours=True,
)


def _trouble(listing: Listing, ids: Sequence[int], delivery: Delivered[StoredEntry]) -> str | None:
    """Return how the entries differ from the list; ``None`` if they do not."""
    if delivery.refused:
        entry_id, reason = next(iter(delivery.refused.items()))
        return f"entry {entry_id} is not read back: {reason}"
    if [entry.entry_id for entry in delivery.found] != list(ids):
        return f"not all of the entries {ids[0]} to {ids[-1]} are read back"
    for entry in delivery.found:
        told = listing.entry(entry.entry_id)
        if told is None or (told.digest, told.size) != (entry.digest, entry.size_bytes):
            return f"entry {entry.entry_id} is read back in other bytes"
    return None


def _bytes(delivery: Delivered[StoredEntry]) -> int:
    return sum(entry.size_bytes for entry in delivery.found)
