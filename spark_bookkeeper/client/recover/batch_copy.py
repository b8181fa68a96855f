"""Make small copies for many ledgers in batches.

One call to each target finds the entries that it lacks, one to each source reads them, and one to
each target stores them. Large copies and copies in parts are left out, and those that the first
source lacks. They are for ``copy_entries``, which reads all sources and reports the problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from spark_bookkeeper.bookie.bookie import Bookie, EntriesRef, NewCopies
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.bookies.batch_client import BatchClient
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.copying import Throttle, no_throttle
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.reader import Reader, Unreadable
from spark_bookkeeper.runtime.answer import Answer

SMALL_BYTES: Final = 256 << 10
"""Limit for one target: larger copies gain nothing in batches, and many fit into memory."""

SMALL_ENTRIES: Final = 4_096
"""Limit for one fragment: looking for more entries gains nothing in batches, of any size."""

K = TypeVar("K")


@dataclass(slots=True, eq=False)
class SmallCopy:
    """Entries of one fragment to copy to a bookie, and the state of the copy."""

    ledger: Ledger
    ensemble: tuple[BookieId, ...]
    entries: Sequence[EntryId]
    """Ascending."""
    target: Replica
    preference: Sequence[int]
    """Positions to read from, in this order; without the target's."""
    wanted: Sequence[EntryId] = ()
    """The entries that the target lacks."""
    found: list[StoredEntry] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """The size of the copied entries."""
        return sum(entry.size_bytes for entry in self.found)

    @property
    def target_id(self) -> BookieId:
        """The bookie that gets the copies."""
        return BookieId(self.target.bookie_id)


def copy_many(
    context: ClientContext, together: BatchClient, copies: Mapping[K, SmallCopy]
) -> Mapping[K, SmallCopy]:
    """Copy entries; return the copies that are durable on their target and were read back.

    A copy that failed is left out; no error is raised for it.
    """
    return store_many(context, together, read_many(together, copies), no_throttle)


def read_many(together: BatchClient, copies: Mapping[K, SmallCopy]) -> Mapping[K, SmallCopy]:
    """Read the entries that each target lacks; return the complete copies, whose size is then
    known. A copy that failed is left out; no error is raised for it.
    """
    return _read(together, _held(together, copies))


def _held(together: BatchClient, copies: Mapping[K, SmallCopy]) -> Mapping[K, SmallCopy]:
    """Set ``wanted`` to the entries that each target lacks; leave out copies that failed."""
    wanted = {
        key: (copy.target_id, EntriesRef(copy.target.ledger, copy.entries))
        for key, copy in copies.items()
        if copy.entries
    }
    answers = together.ask("looking for copies of many ledgers", _lacking, wanted)
    kept: dict[K, SmallCopy] = {}
    for key, copy in copies.items():
        lacking = answers.get(key, ())
        if not isinstance(lacking, BookKeeperError):
            copy.wanted = cast(Sequence[EntryId], lacking)
            kept[key] = copy
    return kept


def _lacking(bookie: Bookie, wanted: Sequence[EntriesRef]) -> Sequence[Answer[Sequence[int]]]:
    return bookie.lacking(wanted)


def _read(together: BatchClient, copies: Mapping[K, SmallCopy]) -> Mapping[K, SmallCopy]:
    """Read the entries, each from its first source; leave out copies that are incomplete."""
    wanted: dict[tuple[K, int], tuple[BookieId, EntriesRef]] = {}
    for key, copy in copies.items():
        ledger, ensemble = copy.ledger, copy.ensemble
        asks = Reader(ledger.metadata.quorum, ensemble, copy.wanted, copy.preference).next()
        if isinstance(asks, Unreadable):
            continue
        for ask in asks:
            try:
                source = together.replica(ensemble[ask.position], ledger)
            except BookKeeperError:
                continue
            asked = EntriesRef(source.ledger, ask.entries)
            wanted[key, ask.position] = ensemble[ask.position], asked
    answers = together.ask("reading entries of many ledgers", _entries, wanted)
    for (key, _), found in answers.items():
        if not isinstance(found, BookKeeperError):
            copies[key].found += found
    return {key: copy for key, copy in copies.items() if len(copy.found) == len(copy.wanted)}


def _entries(
    bookie: Bookie, wanted: Sequence[EntriesRef]
) -> Sequence[Answer[Sequence[StoredEntry]]]:
    return bookie.read_small(wanted, SMALL_BYTES)


def store_many(
    context: ClientContext,
    together: BatchClient,
    copies: Mapping[K, SmallCopy],
    throttle: Throttle,
) -> Mapping[K, SmallCopy]:
    """Store copies that were read; return those that are durable on their target and were read
    back. A copy that failed is left out; no error is raised for it.

    Args:
        throttle: called with the bytes of all copies before any is stored.
    """
    wanted = {
        key: (copy.target_id, NewCopies(copy.target.ledger, copy.found))
        for key, copy in copies.items()
        if copy.found
    }
    throttle(sum(copies[key].size_bytes for key in wanted))
    answers = together.ask("storing copies of many ledgers", _store, wanted)
    stored: dict[K, SmallCopy] = {}
    for key, copy in copies.items():
        if key not in wanted:
            stored[key] = copy
        elif not isinstance(answers[key], BookKeeperError):
            context.metrics.copies.inc()
            context.metrics.copied_bytes.inc(copy.size_bytes)
            stored[key] = copy
    return stored


def _store(bookie: Bookie, wanted: Sequence[NewCopies]) -> Sequence[Answer[None]]:
    return bookie.write_copies(wanted)
