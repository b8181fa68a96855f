"""Small copies for many ledgers, which go from step to step together.

Each target is asked once what it has, each source once for what is to be copied, each target once
to store it. What is large, lies in parts, or is not found where it is looked for first is left out,
and is for ``copy_entries``, which asks everybody and says what is the matter.
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
"""For one target: what is larger gains nothing by company, and many of these fit into memory."""

SMALL_ENTRIES: Final = 4_096
"""Of one fragment: to look for more gains nothing by company either, however small they are."""

K = TypeVar("K")


@dataclass(slots=True, eq=False)
class SmallCopy:
    """Entries of one fragment that a bookie is to have, and how far it has come."""

    ledger: Ledger
    ensemble: tuple[BookieId, ...]
    entries: Sequence[EntryId]
    """Ascending."""
    target: Replica
    preference: Sequence[int]
    """Positions that may be read from, in the order in which they are asked; not the target's."""
    wanted: Sequence[EntryId] = ()
    """What the target lacks."""
    found: list[StoredEntry] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """That are copied."""
        return sum(entry.size_bytes for entry in self.found)

    @property
    def target_id(self) -> BookieId:
        """Who is to have them."""
        return BookieId(self.target.bookie_id)


def copy_many(
    context: ClientContext, together: BatchClient, copies: Mapping[K, SmallCopy]
) -> Mapping[K, SmallCopy]:
    """Those whose targets have all of their entries now, durably, and read back.

    Nothing is raised for any of the others: they drop out.
    """
    return store_many(context, together, read_many(together, copies), no_throttle)


def read_many(together: BatchClient, copies: Mapping[K, SmallCopy]) -> Mapping[K, SmallCopy]:
    """Those of which all is found that their targets lack, so that it is known how large they are.
    Nothing is raised for any of the others: they drop out.
    """
    return _read(together, _held(together, copies))


def _held(together: BatchClient, copies: Mapping[K, SmallCopy]) -> Mapping[K, SmallCopy]:
    """With what each target lacks."""
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
    """With the entries, each from the first bookie that is to be asked for it."""
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
    """Those, of what was read, that their targets have now, durably, and read back. Nothing is
    raised for any of the others: they drop out.

    Args:
        throttle: asked for all that is to be stored, before any of it is.
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
