"""Copy large shares ahead, in pieces, by many tasks.

One task could copy a fragment of any size. But the other tasks would be idle, and no progress would
show. So a large fragment is cut by entry ids, from the metadata alone, and its pieces are ordinary
work. If all pieces are copied and read back, the fragment's own work finds the copies, reads
nothing again, and changes the metadata. If a piece failed, the fragment's own work copies the rest,
as if there had been no pieces.

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
"""About the size of a piece. A share smaller than two pieces is not cut."""


@dataclass(frozen=True, slots=True)
class PieceWork:
    """Copy a range of a share to its new bookie; the metadata stay unchanged. Picklable."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    """The first entry of the fragment."""
    source: BookieId
    """The lost bookie to which the share belongs."""
    start: EntryId
    end: EntryId
    """The range of the share to copy, both ends included."""
    target: BookieId
    lost: tuple[BookieId, ...]
    bytes_per_second: int | None
    size_bytes: int
    nonce: bytes | None = None
    """The nonce of the ledger that was planned; ``None`` accepts any ledger of this id."""
    sources: tuple[BookieId, ...] = ()
    """The bookies from which the piece is copied."""

    def name(self) -> str:
        """Return the name in progress messages."""
        return name_of(self.ledger_id, self.start, self.source, self.target)


@dataclass(frozen=True, slots=True)
class PieceCopied:
    """The result of a piece. No report shows it; the fragment's own work uses it."""

    work: PieceWork
    status: Outcome
    reason: str | None = None
    entries: int = 0
    bytes: int = 0


class CutFragment:
    """A fragment that is copied in pieces, and the results of its pieces so far.

    Args:
        work: the fragment's own work, as it would be without pieces.
        pieces: all pieces of the fragment.
    """

    def __init__(self, work: FragmentWork, pieces: Sequence[PieceWork]) -> None:
        self._work = work
        self._bytes = {(piece.source, piece.target): 0 for piece in pieces}
        self._left = len(pieces)

    def take(self, copied: PieceCopied) -> None:
        """Record the result of one piece."""
        self._bytes[copied.work.source, copied.work.target] += copied.bytes
        if copied.status is Outcome.REPLICATED:
            self._left -= 1

    def finish(self) -> FragmentWork:
        """Return the fragment's own work, with the results of its pieces."""
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
    """Yield the pieces of all lost shares of a fragment; none if it is not large.

    Args:
        choose: returns the target of a share, as the fragment's own work will (``Targets``).
    """
    first = work.first_entry_id
    fragment = metadata.fragment_range(first)
    if fragment is None:
        return  # the fragment's own work reports it
    entries = 0 if fragment.last_entry_id is None else fragment.last_entry_id - first + 1
    count = min(work.size_bytes // piece_bytes, entries)
    if count < 2:
        return
    try:
        ledger = Ledger.of(work.ledger_id, metadata)
    except MetadataFormatError:
        return  # the fragment's own work reports it
    taken: list[BookieId] = []
    for position, bookie in enumerate(fragment.ensemble):
        if bookie not in work.lost:
            continue
        try:
            target = choose(ledger, fragment, position, taken)
        except NotEnoughBookiesError:
            return  # the fragment's own work reports it
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
    """Return the entries of a piece. A part is copied whole, by the piece in which it begins."""
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
    """Do the items that are not pieces as a batch; return ``None`` for pieces, which are large."""
    others = {number: work for number, work in enumerate(works) if not isinstance(work, PieceWork)}
    numbers = list(others)

    def told(number: int, results: Sequence[ResultT]) -> None:
        bounds.told(numbers[number], results)

    done = do_many(context, list(others.values()), replace(bounds, told=told))
    found = dict(zip(numbers, done, strict=True))
    return [found.get(number) for number in range(len(works))]
