"""Large shares, copied ahead in pieces by many tasks.

One task could copy a fragment of any size, but alone, while the others have nothing to do and
nobody sees how far it is. So a large fragment is cut by entry ids, from the metadata alone, and
its pieces are work like any other. When all of them are copied and read back, the fragment's own
work finds its copies, reads nothing again, and changes the metadata. When one of them is not, the
fragment's own work does what is left, as if there had been no pieces.

Source: Bookie Ledger Recovery, "The Rereplication process"; SLOT-LOG "Re-replicate", "Copies".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.copying import TargetError
from spark_bookkeeper.errors import (
    BookieError,
    EntryUnreadableError,
    MetadataFormatError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.rereplicate import CopiedAhead, FragmentWork
from spark_bookkeeper.replication.runner import Bounds, DoMany, ItemT, ResultT
from spark_bookkeeper.replication.shares import copy_share, share_of, sources_of
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.runtime.throttle import Throttle

PIECE_BYTES: Final = 512 << 20
"""About the size of a piece. A share that is smaller than two of them is not cut."""


@dataclass(frozen=True, slots=True)
class PieceWork:
    """Copy a range of a share to its new bookie, and leave the metadata as it is. Picklable."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    """Of the fragment."""
    source: BookieId
    """Whose share it is."""
    start: EntryId
    end: EntryId
    """What to copy of the share, both ends included."""
    target: BookieId
    lost: tuple[BookieId, ...]
    bytes_per_second: int | None
    size_bytes: int
    nonce: bytes | None = None
    """Of the ledger it was planned for; ``None`` takes the one that is there."""
    sources: tuple[BookieId, ...] = ()
    """The bookies that it is copied from."""

    def name(self) -> str:
        """For people."""
        return name_of(self.ledger_id, self.start, self.source, self.target)


@dataclass(frozen=True, slots=True)
class PieceCopied:
    """What became of a piece. No report shows it: it is for the fragment's own work."""

    work: PieceWork
    status: Outcome
    reason: str | None = None
    entries: int = 0
    bytes: int = 0


class CutFragment:
    """A fragment that is copied in pieces, and what has become of them so far.

    Args:
        work: the fragment's own, as it would be without pieces.
        pieces: all of them.
    """

    def __init__(self, work: FragmentWork, pieces: Sequence[PieceWork]) -> None:
        self._work = work
        self._bytes = {(piece.source, piece.target): 0 for piece in pieces}
        self._left = len(pieces)

    def take(self, copied: PieceCopied) -> None:
        """Note the result of one of the pieces."""
        self._bytes[copied.work.source, copied.work.target] += copied.bytes
        if copied.status is Outcome.REPLICATED:
            self._left -= 1

    def finish(self) -> FragmentWork:
        """The fragment's own work, which is told what its pieces came to."""
        ahead = [
            CopiedAhead(source, target, size, not self._left)
            for (source, target), size in self._bytes.items()
        ]
        return replace(self._work, ahead=tuple(ahead), size_bytes=0)


def pieces_of(
    work: FragmentWork,
    metadata: LedgerMetadata,
    choose: Callable[[Ledger, FragmentRange, int, Sequence[BookieId]], BookieId],
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[PieceWork]:
    """The pieces of all lost shares of a fragment; none when it is not large.

    Args:
        choose: says which bookie takes a share, as the fragment's own work will (``Targets``).
    """
    first = work.first_entry_id
    fragment = metadata.fragment_range(first)
    if fragment is None:
        return  # the fragment's own work says so
    entries = 0 if fragment.last_entry_id is None else fragment.last_entry_id - first + 1
    count = min(work.size_bytes // piece_bytes, entries)
    if count < 2:
        return
    try:
        ledger = Ledger.of(work.ledger_id, metadata)
    except MetadataFormatError:
        return  # the fragment's own work says so
    taken: list[BookieId] = []
    for position, bookie in enumerate(fragment.ensemble):
        if bookie not in work.lost:
            continue
        try:
            target = choose(ledger, fragment, position, taken)
        except NotEnoughBookiesError:
            return  # the fragment's own work says so
        taken.append(target)
        for number in range(count):
            yield PieceWork(
                work.ledger_id,
                first,
                bookie,
                EntryId(first + entries * number // count),
                EntryId(first + entries * (number + 1) // count - 1),
                target,
                work.lost,
                work.bytes_per_second,
                work.size_bytes // count,
                metadata.nonce,
                tuple(each for each in fragment.ensemble if each not in work.lost),
            )


def copy_piece(context: ClientContext, work: PieceWork) -> Sequence[PieceCopied]:
    """Copy one piece and read it back."""
    try:
        ledger, found = context.ledger(work.ledger_id, work.nonce)
    except NoSuchLedgerError as error:
        return [PieceCopied(work, Outcome.GONE, error.message)]
    fragment = found.value.fragment_range(work.first_entry_id)
    last = fragment.last_entry_id if fragment else None
    if fragment is None or last is None or work.source not in fragment.ensemble:
        return [PieceCopied(work, Outcome.LEFT, "the fragment was changed meanwhile")]
    registration = context.bookies.last_registrations().get(work.target)
    if registration is None:
        return [PieceCopied(work, Outcome.LEFT, f"{work.target} is gone meanwhile")]
    entries = _owned(context, ledger, fragment, last, work)
    if not entries:
        return [PieceCopied(work, Outcome.REPLICATED)]
    try:
        target = context.bookies.replica(work.target, ledger, registration.incarnation)
        target.check()
        throttle = Throttle(context.runtime, work.bytes_per_second)
        size = copy_share(context, ledger, fragment, entries, target, work.lost, throttle)
    except EntryUnreadableError as error:
        return [PieceCopied(work, Outcome.LEFT, error.message)]
    except TargetError as error:
        return [PieceCopied(work, Outcome.LEFT, error.cause.message)]
    return [PieceCopied(work, Outcome.REPLICATED, None, len(entries), size)]


def _owned(
    context: ClientContext, ledger: Ledger, fragment: FragmentRange, last: EntryId, work: PieceWork
) -> Sequence[EntryId]:
    """The entries of a piece. Parts are copied whole, by the piece in which they begin."""
    quorum = ledger.metadata.quorum
    position = fragment.ensemble.index(work.source)
    of_fragment = range(fragment.first_entry_id, last + 1)
    entries = set(share_of(ledger, position, work.start, work.end))
    for replica in sources_of(context, ledger, fragment).values():
        try:
            parts = replica.holdings(work.start, work.end).parts
        except BookieError:
            continue
        for part in parts:
            ids = [EntryId(e) for e in part.entry_ids if e in of_fragment]
            inside = [e for e in ids if quorum.holds(position, e)]
            if inside and inside[0] < work.start:
                entries.difference_update(inside)
            elif inside and inside[0] <= work.end:
                entries.update(inside)
    return sorted(entries)


def do_others(
    do_many: DoMany[ItemT, ResultT],
    context: ClientContext,
    works: Sequence[ItemT | PieceWork],
    bounds: Bounds,
) -> Sequence[Sequence[ResultT] | None]:
    """Do together what is no piece; ``None`` for every piece, which is large and goes by itself."""
    others = {number: work for number, work in enumerate(works) if not isinstance(work, PieceWork)}
    numbers = list(others)

    def told(number: int, results: Sequence[ResultT]) -> None:
        bounds.told(numbers[number], results)

    done = do_many(context, list(others.values()), replace(bounds, told=told))
    found = dict(zip(numbers, done, strict=True))
    return [found.get(number) for number in range(len(works))]
