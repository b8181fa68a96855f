"""The Rereplication process for one fragment: copy, verify, change the metadata.

Source: Bookie Ledger Recovery, "The Rereplication process"; SLOT-LOG "Re-replicate", R13.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from typing_extensions import override

from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.client.recover.copying import TargetError
from spark_bookkeeper.errors import (
    BookieError,
    CookieMismatchError,
    EntryUnreadableError,
    MetadataFormatError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.collection import being_removed, may_be_named
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.replication.rates import RateNow, throttle_for
from spark_bookkeeper.replication.report import Outcome, ShareResult
from spark_bookkeeper.replication.shares import copied_ahead, copy_share, share_of
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.replication.targets import Targets
from spark_bookkeeper.runtime.throttle import Throttle


@dataclass(frozen=True, slots=True)
class CopiedAhead:
    """The part of a share that other tasks copied ahead, for the work of its fragment."""

    source: BookieId
    target: BookieId
    size_bytes: int
    """The bytes that were copied."""
    is_whole: bool
    """Whether the whole share was copied and read back."""


@dataclass(frozen=True, slots=True)
class FragmentWork:
    """Copy the shares of lost bookies in one fragment to other bookies. Picklable."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    lost: tuple[BookieId, ...]
    """Bookies whose shares are to be copied; they are never chosen as targets."""
    target: BookieId | None
    even_if_alive: bool
    bytes_per_second: int | None
    size_bytes: int = 0
    """About the bytes of one share, where known, for sharing out work."""
    ahead: tuple[CopiedAhead, ...] = ()
    """The large shares that were copied in pieces before (``pieces.py``)."""
    nonce: bytes | None = None
    """The nonce of the ledger that was planned; ``None`` accepts any ledger of this id."""
    rate_now: RateNow | None = None
    """Returns the limit while the work runs; ``None`` keeps the first limit."""
    sources: tuple[BookieId, ...] = ()
    """The bookies from which the shares are copied, where known."""

    def name(self) -> str:
        """Return the name in progress messages."""
        return name_of(self.ledger_id, self.first_entry_id, ", ".join(self.lost), self.target)


@dataclass(frozen=True, slots=True)
class ShareCopied(ShareResult):
    """The result for a lost bookie's share."""

    @property
    @override
    def action(self) -> str:
        return "metadata" if self.status is Outcome.REPLICATED and not self.entries else "copy"


def rereplicate_fragment(context: ClientContext, work: FragmentWork) -> Sequence[ShareCopied]:
    """Copy every lost share and read it back, then publish the new bookies with one CAS.

    A crash at any moment loses nothing: copies are named by their content, and the metadata changes
    last. This checks again everything that the plan found.
    """
    one = ShareCopied(work.ledger_id, Outcome.LEFT, None, work.first_entry_id)
    try:
        ledger, found = context.ledger(work.ledger_id, work.nonce)
    except NoSuchLedgerError as error:
        return [replace(one, status=Outcome.GONE, reason=error.message)]
    except MetadataFormatError as error:
        return [replace(one, reason=error.message)]
    fragment = found.value.fragment_range(work.first_entry_id)
    if fragment is None:
        reason = "the fragment was replaced"
        return [replace(one, status=Outcome.NO_LONGER_NEEDED, reason=reason)]
    if fragment.last_entry_id is None:
        reason = "the ledger is not closed and its writer may be writing here"
        return [replace(one, reason=reason)]
    return FragmentCopy(context, work, ledger, fragment, found).run()


class FragmentCopy:
    """Copies the shares of one fragment, from the state that is known when the work begins.

    ``run`` does the work; ``batch_rereplicate.py`` does it for many fragments by the same steps.

    Args:
        targets: chooses the bookies that get copies, among those alive when the metadata were read,
            or later; ``None`` reads which are alive.
    """

    def __init__(
        self,
        context: ClientContext,
        work: FragmentWork,
        ledger: Ledger,
        fragment: FragmentRange,
        known: Versioned[LedgerMetadata] | None = None,
        targets: Targets | None = None,
    ) -> None:
        assert fragment.last_entry_id is not None, "R13: only where the writer cannot be writing"
        self._context = context
        self._work = work
        self.ledger = ledger
        self.fragment = fragment
        self.known = known
        self.last = fragment.last_entry_id
        if targets is None:
            # The session delivered every earlier change before the reply to the metadata read.
            alive = context.bookies.last_registrations()
            targets = Targets(context.bookies, alive, work.lost, work.target)
        self.alive = targets.alive
        self.targets = targets

    def run(self) -> Sequence[ShareCopied]:
        shares: list[ShareCopied] = []
        chosen: dict[int, Successor] = {}
        for position, bookie in self.lost:
            if self.is_back(bookie):
                shares.append(self.share(Outcome.NO_LONGER_NEEDED, "it is back", bookie))
                continue
            share, successor = self._copy(position, bookie, [s.bookie for s in chosen.values()])
            shares.append(share)
            if successor is not None:
                chosen[position] = successor
        if not shares:
            return [self.share(Outcome.NO_LONGER_NEEDED, "names no lost bookie")]
        if not chosen:
            return shares
        try:
            now = self._publish(chosen)
        except NoSuchLedgerError as error:  # no ledger names these copies
            gone = f"meanwhile {error.message}"
            return [self.share(Outcome.GONE, gone, share.source) for share in shares]
        except RefusedError as error:
            return [
                share
                if share.target is None
                else self.share(Outcome.LEFT, str(error), share.source)
                for share in shares
            ]
        return [self._after_publishing(share, now) for share in shares]

    def _after_publishing(self, share: ShareCopied, now: LedgerMetadata) -> ShareCopied:
        """Return the result of a share after the metadata were written. If another client gave the
        share to another bookie meanwhile, the result does not claim it.
        """
        if share.target is None or share.source is None:
            return share
        fragment = now.fragment_range(self.fragment.first_entry_id)
        position = self.fragment.ensemble.index(share.source)
        if fragment is not None and fragment.ensemble[position] == share.target:
            return share
        reason = "another client replaced the bookie meanwhile"
        return self.share(Outcome.NO_LONGER_NEEDED, reason, share.source)

    @cached_property
    def _throttle(self) -> Throttle:
        return throttle_for(self._context, self._work.bytes_per_second, self._work.rate_now)

    @property
    def lost(self) -> list[tuple[int, BookieId]]:
        """The lost bookies of the fragment, by position, also those that are back."""
        return [(p, b) for p, b in enumerate(self.fragment.ensemble) if b in self._work.lost]

    def share(
        self, status: Outcome, reason: str | None, source: BookieId | None = None
    ) -> ShareCopied:
        """Return a result for a lost bookie's share."""
        return ShareCopied(
            self._work.ledger_id, status, reason, self.fragment.first_entry_id, self.last, source
        )

    def is_back(self, bookie: BookieId) -> bool:
        """Whether the bookie is back in the ledger's incarnation, so that no copy is needed."""
        registration = self.alive.get(bookie)
        return (
            not self._work.even_if_alive
            and registration is not None
            and registration.incarnation == self.ledger.incarnations.get(bookie)
        )

    def _copy(
        self, position: int, lost: BookieId, taken: Sequence[BookieId]
    ) -> tuple[ShareCopied, Successor | None]:
        first = self.fragment.first_entry_id
        entries = share_of(self.ledger, position, first, self.last)
        ahead = next((a for a in self._work.ahead if a.source == lost), None)
        failures = being_removed(self.ledger.metadata, self.alive)
        while True:
            try:
                target = self.targets.choose(self.ledger, self.fragment, position, taken, failures)
            except NotEnoughBookiesError as error:
                return self.share(Outcome.LEFT, error.message, lost), None
            incarnation = self.alive[target].incarnation
            try:
                copied = ahead.size_bytes if ahead else 0
                if entries:
                    replica = self._context.bookies.replica(target, self.ledger, incarnation)
                    replica.check()
                    copied += copy_share(
                        self._context,
                        self.ledger,
                        self.fragment,
                        entries,
                        replica,
                        self._work.lost,
                        self._throttle,
                        held=self._held(replica, entries, ahead),
                    )
            except EntryUnreadableError as error:
                return self.share(Outcome.UNRECOVERABLE, error.message, lost), None
            except TargetError as error:
                failures[target] = error.cause.message
                continue
            except (BookieError, NoSuchLedgerError) as error:  # the latter: deleted on the target
                failures[target] = error.message
                continue
            done = self.replicated(lost, target, len(entries), copied)
            return done, Successor(target, incarnation)

    def replicated(
        self, lost: BookieId, target: BookieId, entries: int, size_bytes: int
    ) -> ShareCopied:
        """Return the result of a share that was copied."""
        done = self.share(Outcome.REPLICATED, None, lost)
        return replace(done, target=target, entries=entries, bytes=size_bytes)

    def _held(
        self, target: Replica, entries: Sequence[EntryId], ahead: CopiedAhead | None
    ) -> Collection[EntryId] | None:
        is_there = ahead is not None and ahead.is_whole and ahead.target == target.bookie_id
        return copied_ahead(target, entries, is_there)

    def _publish(self, chosen: Mapping[int, Successor]) -> LedgerMetadata:
        """Write this fragment's one CAS, and return the metadata that are stored afterwards.

        Raises:
            RefusedError: the ledger was changed so that these bookies do not fit any more.
        """
        return update_ledger(
            self._context.store,
            self._work.ledger_id,
            lambda old: with_successors(old, self.fragment, chosen, self.ledger.metadata),
            known=self.known,
        ).value


@dataclass(frozen=True, slots=True)
class Successor:
    """The bookie that replaces a lost one, and its incarnation."""

    bookie: BookieId
    incarnation: str
    """The incarnation that got the copies."""


class RefusedError(Exception):
    """The ensemble cannot be changed as planned; the message says why."""


def with_successors(
    old: LedgerMetadata,
    copied: FragmentRange,
    chosen: Mapping[int, Successor],
    seen: LedgerMetadata,
) -> LedgerMetadata | None:
    """Return the metadata that the CAS writes. Pure, because the CAS may repeat it.

    Args:
        copied: the fragment as it was when its shares were copied.
        chosen: the new bookies by position in its ensemble.
        seen: the ledger's metadata as they were before anything was copied.

    Raises:
        RefusedError: the fragment was changed, or has the successor at another position, or copies
            are, or were meanwhile, removed from the successor [gc_register].
    """
    first = copied.first_entry_id
    fragment = old.fragment_range(first)
    if fragment is None or fragment.last_entry_id != copied.last_entry_id:
        raise RefusedError("the fragment was changed by another client meanwhile")
    new = old
    added: dict[BookieId, str] = {}
    for position, successor in chosen.items():
        if fragment.ensemble[position] != copied.ensemble[position]:
            continue  # another client replaced this bookie: nothing is left to do here
        if not may_be_named(old, seen, successor.bookie):
            raise RefusedError(
                f"copies of the ledger that nothing named were removed from {successor.bookie} "
                "meanwhile, and perhaps these; it will be done again"
            )
        if successor.bookie in fragment.ensemble:
            raise RefusedError(f"{successor.bookie} joined the ensemble meanwhile")
        new = new.with_replaced_bookie(first, position, successor.bookie)
        added[successor.bookie] = successor.incarnation
    try:
        return with_incarnations(new, added) if added else None
    except CookieMismatchError as error:
        raise RefusedError(error.message) from error
