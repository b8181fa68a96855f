"""Refill one ledger of a bookie whose disk was replaced: copy its shares back, then publish.

``refill_bookie.py`` explains refill, and finds the ledgers. Several tasks copy large shares in
pieces; the ledger's own work then finds these copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, incarnations_of, with_new_incarnation
from spark_bookkeeper.client.recover.copying import TargetError
from spark_bookkeeper.errors import (
    BookieError,
    EntryUnreadableError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.collection import may_be_named
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.replication.pieces import CutFragment, PieceCopied, PieceWork, pieces_of
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.rereplicate import CopiedAhead, FragmentWork, ShareCopied
from spark_bookkeeper.replication.shares import copied_ahead, copy_share, share_bytes, share_of
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.runtime.throttle import Throttle


@dataclass(frozen=True, slots=True)
class RefillWork:
    """Copy back a bookie's shares of one ledger, and publish its new incarnation. Picklable."""

    ledger_id: LedgerId
    bookie: BookieId
    incarnation: str
    """The incarnation that is to hold the ledger from now on; no other is filled."""
    bytes_per_second: int | None
    size_bytes: int = 0
    """About how many bytes are to be copied, where known."""
    ahead: tuple[tuple[EntryId, CopiedAhead], ...] = ()
    """Shares that were copied in pieces before, each with the first entry of its fragment."""
    nonce: bytes | None = None
    """The nonce of the ledger that was planned; ``None`` accepts any ledger of this id."""

    def name(self) -> str:
        """Return the name in progress messages."""
        return name_of(self.ledger_id, target=self.bookie)


def refill_ledger(context: ClientContext, work: RefillWork) -> Sequence[ShareCopied]:
    """Copy every share of the bookie back and read it, then publish its incarnation with one CAS.

    A crash at any moment loses nothing. This checks again everything that the plan found. If one
    share cannot be copied, the bookie still needs refill for the whole ledger: metadata name one
    incarnation of a bookie, and that one must hold every share.
    """
    one = ShareCopied(work.ledger_id, Outcome.LEFT, None, source=work.bookie)
    try:
        ledger, found = context.ledger(work.ledger_id, work.nonce)
    except NoSuchLedgerError as error:
        return [replace(one, status=Outcome.GONE, reason=error.message)]
    except MetadataFormatError as error:
        return [replace(one, reason=error.message)]
    fragments = fragments_with(found.value, work.bookie)
    if not fragments:
        reason = "another bookie has its place"
        return [replace(one, status=Outcome.NO_LONGER_NEEDED, reason=reason)]
    if ledger.incarnations.get(work.bookie) == work.incarnation:
        return [replace(one, status=Outcome.NO_LONGER_NEEDED, reason="it is filled")]
    blocked = refill_blocker(context.bookies.last_registrations(), work, found.value)
    if blocked is not None:
        return [replace(one, reason=blocked)]
    shares = [_copy(context, work, ledger, fragment) for fragment in fragments]
    if not _is_whole(shares):
        return [_in_limbo(share) for share in shares]
    try:
        update_ledger(
            context.store,
            work.ledger_id,
            lambda old: with_refilled_bookie(old, work, found.value, fragments),
            known=found,
        )
    except NoSuchLedgerError as error:
        gone = f"meanwhile {error.message}"
        return [replace(s, status=Outcome.GONE, reason=gone, entries=0, bytes=0) for s in shares]
    except (RefillRefusedError, MetadataFormatError) as error:
        return [replace(share, status=Outcome.LEFT, reason=str(error)) for share in shares]
    return shares


def refill_blocker(
    alive: Mapping[BookieId, Registration], work: RefillWork, metadata: LedgerMetadata
) -> str | None:
    """Return why a ledger cannot be refilled now, whatever is copied; ``None`` if it can.

    Args:
        alive: the bookies that were alive when the metadata were read, or later.
    """
    registration = alive.get(work.bookie)
    if registration is None:
        return f"{work.bookie} is not registered now"
    if registration.incarnation != work.incarnation:
        return f"{work.bookie} was formatted once more since this was planned"
    if not may_be_named(metadata, metadata, work.bookie):
        return REMOVING.format(work.bookie)
    return _why_not_fixed(metadata, work.bookie)


def _why_not_fixed(metadata: LedgerMetadata, bookie: BookieId) -> str | None:
    """Return why a recovery may still read the ledger's end from the bookie [refill_fixed_only]."""
    if not metadata.is_closed and bookie in metadata.last_fragment.ensemble:
        return "the ledger is not closed and its writer may be writing here"
    return None


def _is_whole(shares: Sequence[ShareCopied]) -> bool:
    """Whether every share is copied; from then on clients believe the bookie [refill_whole]."""
    return all(share.status is Outcome.REPLICATED for share in shares)


def _in_limbo(share: ShareCopied) -> ShareCopied:
    if share.status is not Outcome.REPLICATED:
        return share
    return replace(
        share, status=Outcome.LEFT, reason="copied, and in limbo with the rest of its ledger"
    )


def _copy(
    context: ClientContext, work: RefillWork, ledger: Ledger, fragment: FragmentRange
) -> ShareCopied:
    """Copy the bookie's share of one fragment back to it, and read it there."""
    first, last = fragment.first_entry_id, fragment.last_entry_id
    share = ShareCopied(work.ledger_id, Outcome.LEFT, None, first, last, work.bookie)
    entries = entries_of(ledger, fragment, work.bookie)
    ahead = next((each for start, each in work.ahead if start == first), None)
    copied = ahead.size_bytes if ahead else 0
    try:
        target = context.bookies.replica(work.bookie, ledger, work.incarnation)
        target.check()
        if entries:
            copied += copy_share(
                context,
                ledger,
                fragment,
                entries,
                target,
                (work.bookie,),
                Throttle(context.runtime, work.bytes_per_second),
                held=copied_ahead(target, entries, ahead is not None and ahead.is_whole),
            )
    except EntryUnreadableError as error:
        return replace(share, status=Outcome.UNRECOVERABLE, reason=error.message)
    except TargetError as error:
        return replace(share, reason=error.cause.message)
    except BookieError as error:
        return replace(share, reason=error.message)
    return filled(work, fragment, len(entries), copied)


def entries_of(ledger: Ledger, fragment: FragmentRange, bookie: BookieId) -> Sequence[EntryId]:
    """Return the entries that a bookie should hold of a fragment that names it, ascending."""
    last = fragment.last_entry_id
    assert last is not None, "R13: only where the writer cannot be writing"
    return share_of(ledger, fragment.ensemble.index(bookie), fragment.first_entry_id, last)


def filled(work: RefillWork, fragment: FragmentRange, entries: int, size_bytes: int) -> ShareCopied:
    """Return the result for the bookie's share of a fragment, once it is copied back."""
    return ShareCopied(
        work.ledger_id,
        Outcome.REPLICATED,
        None,
        fragment.first_entry_id,
        fragment.last_entry_id,
        work.bookie,
        work.bookie,
        entries,
        size_bytes,
    )


REMOVING: Final = (
    "copies of the ledger that nothing named are, or were meanwhile, removed from {}, perhaps these"
)


class RefillRefusedError(Exception):
    """The ledger was changed, so that the copies do not fit any more; the message says how."""


def with_refilled_bookie(
    old: LedgerMetadata, work: RefillWork, before: LedgerMetadata, copied: Sequence[FragmentRange]
) -> LedgerMetadata | None:
    """Return the metadata that the CAS writes. Pure, because the CAS may repeat it.

    Args:
        before: the metadata as they were read before the shares were copied.
        copied: the fragments whose shares were copied.

    Raises:
        RefillRefusedError: the ledger now has other fragments or a writer on the bookie, or copies
            are, or were meanwhile, removed from the bookie [gc_register].
    """
    now = incarnations_of(old).get(work.bookie)
    if work.bookie not in old.bookies() or now == work.incarnation:
        return None
    if now != incarnations_of(before).get(work.bookie):
        raise RefillRefusedError(f"{work.bookie} was filled in yet another incarnation meanwhile")
    why = _why_not_fixed(old, work.bookie)
    if why is not None:
        raise RefillRefusedError(why)
    if not may_be_named(old, before, work.bookie):
        raise RefillRefusedError(REMOVING.format(work.bookie))
    there = {(f.first_entry_id, f.last_entry_id): f.ensemble.index(work.bookie) for f in copied}
    for fragment in fragments_with(old, work.bookie):
        position = fragment.ensemble.index(work.bookie)
        if there.get((fragment.first_entry_id, fragment.last_entry_id)) != position:
            raise RefillRefusedError("its fragments were changed by another client meanwhile")
    return with_new_incarnation(old, work.bookie, work.incarnation)


def fragments_with(metadata: LedgerMetadata, bookie: BookieId) -> Sequence[FragmentRange]:
    return [f for f in metadata.fragment_ranges() if bookie in f.ensemble]


def pieces_of_ledger(
    work: RefillWork, metadata: LedgerMetadata, piece_bytes: int
) -> Mapping[EntryId, Sequence[PieceWork]]:
    """Return the pieces of the large fragments, by the first entry of each fragment.

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
    """A ledger with shares that are copied in pieces, and the results of its pieces so far."""

    def __init__(self, work: RefillWork, pieces: Mapping[EntryId, Sequence[PieceWork]]) -> None:
        self._work = work
        self._fragments = {
            first: CutFragment(_fragment_work(work, first), each) for first, each in pieces.items()
        }

    def take(self, copied: PieceCopied) -> None:
        """Record the result of one piece."""
        self._fragments[copied.work.first_entry_id].take(copied)

    def finish(self) -> RefillWork:
        """Return the ledger's own work, with the results of its pieces."""
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
