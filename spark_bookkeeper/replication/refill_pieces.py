"""A ledger of a bookie whose disk was replaced, of which large shares are copied in pieces.

Several tasks copy them; then the ledger's own work finds them there, and ends its limbo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.pieces import CutFragment, PieceCopied, PieceWork, pieces_of
from spark_bookkeeper.replication.refill_ledger import RefillWork, fragments_with
from spark_bookkeeper.replication.rereplicate import FragmentWork
from spark_bookkeeper.replication.shares import share_bytes


def pieces_of_ledger(
    work: RefillWork, metadata: LedgerMetadata, piece_bytes: int
) -> Mapping[EntryId, Sequence[PieceWork]]:
    """The pieces of those fragments that are large, by their first entry.

    Args:
        piece_bytes: shares of several times this size are cut.
    """
    found: dict[EntryId, Sequence[PieceWork]] = {}
    if work.size_bytes < 2 * piece_bytes:
        return found
    for fragment in fragments_with(metadata, work.bookie):
        share = _fragment_work(work, fragment.first_entry_id, share_bytes(metadata, fragment))
        pieces = list(pieces_of(share, metadata, lambda *_: work.bookie, piece_bytes))
        if pieces:
            found[fragment.first_entry_id] = pieces
    return found


class CutLedger:
    """A ledger of which some shares are copied in pieces, and what has become of them so far."""

    def __init__(self, work: RefillWork, pieces: Mapping[EntryId, Sequence[PieceWork]]) -> None:
        self._work = work
        self._fragments = {
            first: CutFragment(_fragment_work(work, first), each) for first, each in pieces.items()
        }

    def take(self, copied: PieceCopied) -> None:
        """Note the result of one of the pieces."""
        self._fragments[copied.work.first_entry_id].take(copied)

    def finish(self) -> RefillWork:
        """The ledger's own work, which is told what its pieces came to."""
        ahead = [
            (first, each)
            for first, fragment in self._fragments.items()
            for each in fragment.finish().ahead
        ]
        return replace(self._work, ahead=tuple(ahead), size_bytes=0)


def _fragment_work(work: RefillWork, first: EntryId, size_bytes: int = 0) -> FragmentWork:
    return FragmentWork(
        work.ledger_id,
        first,
        (work.bookie,),
        work.bookie,
        True,
        work.bytes_per_second,
        size_bytes,
        nonce=work.nonce,
    )
