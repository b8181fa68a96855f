"""Small copies for many ledgers, which go from step to step together.

Each target is asked once what it has, each source once for what is to be copied, each target once
to store it. What is large, lies in parts, or is not found where it is looked for first is left out,
and is for ``copy_entries``, which asks everybody and says what is the matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from spark_bookkeeper.bookie.bookie import (
    Answer,
    Bookie,
    LedgerRef,
    NewCopies,
    RangeRef,
    Verification,
    value_of,
)
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.bookies.together import Together
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieUnavailableError, BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.reader import Ask, Reader, Unreadable

SMALL_BYTES: Final = 256 << 10
"""For one target: what is larger gains nothing by company, and many of these fit into memory."""

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
    wanted: list[EntryId] = field(default_factory=list)
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
    context: ClientContext, together: Together, copies: Mapping[K, SmallCopy]
) -> Mapping[K, SmallCopy]:
    """Those whose targets have all of their entries now, durably, and read back.

    Nothing is raised for any of the others: they drop out.
    """
    return _stored(context, together, _read(together, _held(together, copies)))


def _held(together: Together, copies: Mapping[K, SmallCopy]) -> Mapping[K, SmallCopy]:
    """With what each target lacks."""
    wanted = {
        key: (copy.target_id, Verification(copy.target.ledger, copy.entries))
        for key, copy in copies.items()
        if copy.entries
    }
    answers = together.ask("looking for copies of many ledgers", _good, wanted)
    kept: dict[K, SmallCopy] = {}
    for key, copy in copies.items():
        good = answers.get(key, frozenset())
        if not isinstance(good, BookKeeperError):
            copy.wanted = [e for e in copy.entries if e not in good]
            kept[key] = copy
    return kept


def _good(bookie: Bookie, wanted: Sequence[Verification]) -> Sequence[Answer[Iterable[int]]]:
    """What a bookie that takes copies has of them already."""
    answers: list[Answer[frozenset[int]]] = []
    for one, verdict in zip(wanted, bookie.verify(wanted), strict=True):
        try:
            bookie.check(one.ledger)
        except BookKeeperError as error:
            answers.append(error)
            continue
        good = () if isinstance(verdict, BookKeeperError) else verdict.good
        answers.append(frozenset(good))
    return answers


def _read(together: Together, copies: Mapping[K, SmallCopy]) -> Mapping[K, SmallCopy]:
    """With the entries, each from the first bookie that is to be asked for it."""
    wanted: dict[tuple[K, int], tuple[BookieId, tuple[LedgerRef, Ask]]] = {}
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
            wanted[key, ask.position] = ensemble[ask.position], (source.ledger, ask)
    answers = together.ask("reading entries of many ledgers", _entries, wanted)
    for (key, _), found in answers.items():
        if not isinstance(found, BookKeeperError):
            copies[key].found += found
    return {key: copy for key, copy in copies.items() if len(copy.found) == len(copy.wanted)}


def _entries(
    bookie: Bookie, wanted: Sequence[tuple[LedgerRef, Ask]]
) -> Sequence[Answer[Sequence[StoredEntry]]]:
    """Small entries that lie in records; no answer where there are others."""
    ranges = [RangeRef(ledger, ask.entries[0], ask.entries[-1]) for ledger, ask in wanted]
    answers: list[Answer[Sequence[StoredEntry]]] = []
    for (ledger, ask), held in zip(wanted, bookie.holdings(ranges), strict=True):
        try:
            known = value_of(held)
            _, sizes = known.pieces(ask.entries)
            if known.parts or int(sizes.sum()) > SMALL_BYTES:
                answers.append(_by_itself(bookie))
                continue
            answers.append(bookie.read(ledger, ask.entries, known).found)
        except BookKeeperError as error:
            answers.append(error)
    return answers


def _by_itself(bookie: Bookie) -> BookieUnavailableError:
    return BookieUnavailableError("it is copied by itself", bookie_id=bookie.bookie_id)


def _stored(
    context: ClientContext, together: Together, copies: Mapping[K, SmallCopy]
) -> Mapping[K, SmallCopy]:
    """Those that their targets have, durably, and read back."""
    wanted: dict[K, tuple[BookieId, tuple[NewCopies, RangeRef]]] = {}
    for key, copy in copies.items():
        if copy.found:
            ledger, entries = copy.target.ledger, sorted(copy.found, key=lambda e: e.entry_id)
            told = RangeRef(ledger, entries[0].entry_id, entries[-1].entry_id)
            wanted[key] = copy.target_id, (NewCopies(ledger, entries), told)
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


def _store(bookie: Bookie, wanted: Sequence[tuple[NewCopies, RangeRef]]) -> Sequence[Answer[None]]:
    answers = list(bookie.write_copies([copies for copies, _ in wanted]))
    found = bookie.holdings([told for _, told in wanted])  # whoever looks for them finds them
    for number, held in enumerate(found):
        if answers[number] is not None:
            continue
        if isinstance(held, BookKeeperError):
            answers[number] = held
        elif held.lacking([entry.entry_id for entry in wanted[number][0].entries]):
            answers[number] = _by_itself(bookie)
    return answers
