"""The Rereplication process for many small fragments, which go from step to step together.

Each has its own ``FragmentCopy`` and ``Reader``, and what is decided about it is decided there.
Here is only who is asked when: the metadata of all are read together, each target is asked once
what it has, each source once for what is to be copied, each target once to store it, and the
bookies of all are replaced by writes that travel together. What is large, and any share with which
something is the matter, is for ``rereplicate_fragment``.

Source: as ``rereplicate.py``; the order of the steps of each share is the same (rule R13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_bookkeeper.bookie.bookie import (
    Answer,
    Bookie,
    EntryRange,
    LedgerRef,
    NewCopies,
    Verification,
    value_of,
)
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.bookies.together import Together
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieUnavailableError, BookKeeperError
from spark_bookkeeper.metadata.store import LedgerChange, Versioned
from spark_bookkeeper.protocol.collection import being_removed
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.reader import Ask, Reader, Unreadable
from spark_bookkeeper.replication.rereplicate import (
    FragmentCopy,
    FragmentWork,
    RefusedError,
    ShareCopied,
    Successor,
    with_successors,
)
from spark_bookkeeper.replication.shares import in_order, share_of

SMALL_BYTES: Final = 256 << 10
"""Of a share: what is larger gains nothing by company, and many of these fit into memory."""


def rereplicate_many(
    context: ClientContext, works: Sequence[FragmentWork]
) -> Sequence[Sequence[ShareCopied] | None]:
    """What became of the fragments of which one share was to be made again, and was; ``None`` for
    every other, which is for ``rereplicate_fragment``. Nothing is raised for any of them.
    """
    together = Together(context.bookies, context.runtime)
    shares = _planned(context, together, works)
    shares = _held(together, shares)
    shares = _read(together, shares)
    shares = _stored(context, together, shares)
    published = _published(context, shares)
    return [published.get(number) for number in range(len(works))]


@dataclass(slots=True, eq=False)
class _Share:
    """The only lost share of a fragment, and how far it has come."""

    copy: FragmentCopy
    position: int
    entries: Sequence[EntryId]
    target: Replica
    incarnation: str
    wanted: list[EntryId] = field(default_factory=list)
    """What the target lacks."""
    found: list[StoredEntry] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """That are copied."""
        return sum(entry.size_bytes for entry in self.found)


_Shares = Mapping[int, _Share]
"""By the number of the work. Those with which something is the matter drop out."""


def _planned(context: ClientContext, together: Together, works: Sequence[FragmentWork]) -> _Shares:
    """Of each ledger one fragment: two would get into each other's way at the end."""
    numbers: dict[LedgerId, int] = {}
    for number, work in enumerate(works):
        if work.size_bytes <= SMALL_BYTES and work.bytes_per_second is None and not work.ahead:
            numbers.setdefault(work.ledger_id, number)
    shares: dict[int, _Share] = {}
    for ledger_id, found in context.store.read_ledgers(list(numbers)):
        number = numbers[ledger_id]
        if isinstance(found, Versioned):
            try:
                share = _plan(context, together, works[number], found)
            except BookKeeperError:
                continue
            if share is not None:
                shares[number] = share
    return shares


def _plan(
    context: ClientContext, together: Together, work: FragmentWork, found: Versioned[LedgerMetadata]
) -> _Share | None:
    ledger = Ledger.of(work.ledger_id, found.value)
    fragment = found.value.fragment_range(work.first_entry_id)
    is_planned = work.nonce is None or work.nonce == found.value.nonce
    if not is_planned or fragment is None or fragment.last_entry_id is None:
        return None
    copy = FragmentCopy(context, work, ledger, fragment, found)
    if len(copy.lost) != 1 or copy.is_back(copy.lost[0][1]):
        return None
    position, _ = copy.lost[0]
    removing = being_removed(found.value, copy.alive)
    target = copy.targets.choose(ledger, fragment, position, (), removing)
    incarnation = copy.alive[target].incarnation
    entries = share_of(ledger, position, fragment.first_entry_id, fragment.last_entry_id)
    replica = together.replica(target, ledger, incarnation)
    return _Share(copy, position, entries, replica, incarnation)


def _held(together: Together, shares: _Shares) -> _Shares:
    """With what each target lacks."""
    wanted = {
        number: (BookieId(share.target.bookie_id), Verification(share.target.ledger, share.entries))
        for number, share in shares.items()
        if share.entries
    }
    answers = together.ask("looking for copies of many ledgers", _good, wanted)
    kept: dict[int, _Share] = {}
    for number, share in shares.items():
        good = answers.get(number, frozenset())
        if not isinstance(good, BookKeeperError):
            share.wanted = [e for e in share.entries if e not in good]
            kept[number] = share
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


def _read(together: Together, shares: _Shares) -> _Shares:
    """With the entries, each from the first bookie that is to be asked for it."""
    wanted: dict[tuple[int, int], tuple[BookieId, tuple[LedgerRef, Ask]]] = {}
    for number, share in shares.items():
        fragment, ledger = share.copy.fragment, share.copy.ledger
        ensemble = fragment.ensemble
        others = [p for p, bookie in enumerate(ensemble) if bookie != share.target.bookie_id]
        preference = in_order(ensemble, others, [bookie for _, bookie in share.copy.lost])
        asks = Reader(ledger.metadata.quorum, ensemble, share.wanted, preference).next()
        if isinstance(asks, Unreadable):
            continue
        for ask in asks:
            try:
                source = together.replica(ensemble[ask.position], ledger)
            except BookKeeperError:
                continue
            wanted[number, ask.position] = ensemble[ask.position], (source.ledger, ask)
    answers = together.ask("reading entries of many ledgers", _entries, wanted)
    for (number, _), found in answers.items():
        if not isinstance(found, BookKeeperError):
            shares[number].found += found
    return {n: share for n, share in shares.items() if len(share.found) == len(share.wanted)}


def _entries(
    bookie: Bookie, wanted: Sequence[tuple[LedgerRef, Ask]]
) -> Sequence[Answer[Sequence[StoredEntry]]]:
    """Small entries that lie in records; no answer where there are others."""
    ranges = [EntryRange(ledger, ask.entries[0], ask.entries[-1]) for ledger, ask in wanted]
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


def _stored(context: ClientContext, together: Together, shares: _Shares) -> _Shares:
    """Those that their targets have, durably, and read back."""
    wanted: dict[int, tuple[BookieId, tuple[NewCopies, EntryRange]]] = {}
    for number, share in shares.items():
        if share.found:
            ledger, entries = share.target.ledger, sorted(share.found, key=lambda e: e.entry_id)
            told = EntryRange(ledger, entries[0].entry_id, entries[-1].entry_id)
            copies = NewCopies(ledger, entries)
            wanted[number] = BookieId(share.target.bookie_id), (copies, told)
    answers = together.ask("storing copies of many ledgers", _store, wanted)
    stored: dict[int, _Share] = {}
    for number, share in shares.items():
        if number not in wanted:
            stored[number] = share
        elif not isinstance(answers[number], BookKeeperError):
            context.metrics.copies.inc()
            context.metrics.copied_bytes.inc(share.size_bytes)
            stored[number] = share
    return stored


def _store(
    bookie: Bookie, wanted: Sequence[tuple[NewCopies, EntryRange]]
) -> Sequence[Answer[None]]:
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


def _published(context: ClientContext, shares: _Shares) -> dict[int, Sequence[ShareCopied]]:
    """Those whose targets have taken the places of the lost bookies."""
    changes: dict[int, LedgerChange] = {}
    for number, share in shares.items():
        found = share.copy.known
        assert found is not None
        successor = Successor(BookieId(share.target.bookie_id), share.incarnation)
        try:
            chosen = {share.position: successor}
            new = with_successors(found.value, share.copy.fragment, chosen, found.value)
        except RefusedError:
            continue
        if new is not None:
            changes[number] = LedgerChange(share.copy.ledger.ledger_id, new, found)
    done: dict[int, Sequence[ShareCopied]] = {}
    if not changes:
        return done
    answers = context.store.write_ledgers(list(changes.values()))
    for number, answer in zip(changes, answers, strict=True):
        if isinstance(answer, Versioned):
            share = shares[number]
            (_, lost), target = share.copy.lost[0], BookieId(share.target.bookie_id)
            size = share.size_bytes
            done[number] = [share.copy.replicated(lost, target, len(share.entries), size)]
    return done
