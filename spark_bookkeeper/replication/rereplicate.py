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
    """What others have copied of a share, just now, for the work of its fragment."""

    source: BookieId
    target: BookieId
    size_bytes: int
    """That were copied."""
    is_whole: bool
    """Whether all of the share is there and was read back."""


@dataclass(frozen=True, slots=True)
class FragmentWork:
    """Make the shares of lost bookies in one fragment again. Picklable."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    lost: tuple[BookieId, ...]
    """Bookies whose shares are to be made again; never chosen as targets."""
    target: BookieId | None
    even_if_alive: bool
    bytes_per_second: int | None
    size_bytes: int = 0
    """Of one share, about, where it is known; so work can be shared out."""
    ahead: tuple[CopiedAhead, ...] = ()
    """Of large shares, what was copied in pieces before (``pieces.py``)."""
    nonce: bytes | None = None
    """Of the ledger it was planned for; ``None`` takes the one that is there."""
    rate_now: RateNow | None = None
    """The limit while it copies; ``None`` is the same as at first."""
    sources: tuple[BookieId, ...] = ()
    """The bookies that it is copied from, where they are known."""

    def name(self) -> str:
        """For people."""
        return name_of(self.ledger_id, self.first_entry_id, ", ".join(self.lost), self.target)


@dataclass(frozen=True, slots=True)
class ShareCopied(ShareResult):
    """What became of a lost bookie's share."""

    @property
    @override
    def action(self) -> str:
        return "metadata" if self.status is Outcome.REPLICATED and not self.entries else "copy"


def rereplicate_fragment(context: ClientContext, work: FragmentWork) -> Sequence[ShareCopied]:
    """One fragment: every lost share is copied and read back, then one CAS names the new bookies.

    Killed at any moment it loses nothing: copies are named by their content, and the metadata
    changes last. Whatever the plan said is looked at again here.
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
    """The shares of one fragment, with all that is known of it when the work begins.

    ``run`` does the work; ``batch_rereplicate.py`` does it for many by the same steps.

    Args:
        targets: among which the bookies are chosen that take copies, as they were when the metadata
            were known, or later; ``None`` looks which are alive.
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
            # The answer to the read of the metadata, just now, came with every change before it.
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
        except NoSuchLedgerError as error:  # nothing names these copies, and nothing needs them
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
        """What is reported of a share after the metadata were written: if somebody else gave it to
        another bookie meanwhile, it is not reported as ours.
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
        """What became of a lost bookie's share."""
        return ShareCopied(
            self._work.ledger_id, status, reason, self.fragment.first_entry_id, self.last, source
        )

    def is_back(self, bookie: BookieId) -> bool:
        """Whether it is there again as it was, so that nothing is to be made again."""
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
            except (BookieError, NoSuchLedgerError) as error:  # the latter: deleted there
                failures[target] = error.message
                continue
            done = self.replicated(lost, target, len(entries), copied)
            return done, Successor(target, incarnation)

    def replicated(
        self, lost: BookieId, target: BookieId, entries: int, size_bytes: int
    ) -> ShareCopied:
        """A share that was made again."""
        done = self.share(Outcome.REPLICATED, None, lost)
        return replace(done, target=target, entries=entries, bytes=size_bytes)

    def _held(
        self, target: Replica, entries: Sequence[EntryId], ahead: CopiedAhead | None
    ) -> Collection[EntryId] | None:
        is_there = ahead is not None and ahead.is_whole and ahead.target == target.bookie_id
        return copied_ahead(target, entries, is_there)

    def _publish(self, chosen: Mapping[int, Successor]) -> LedgerMetadata:
        """The one CAS of this fragment; returns what is stored afterwards.

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
    """The bookie that takes the place of a lost one, and its incarnation."""

    bookie: BookieId
    incarnation: str
    """That took the copies."""


class RefusedError(Exception):
    """The ensemble cannot be changed as it was meant to be; the message says why."""


def with_successors(
    old: LedgerMetadata,
    copied: FragmentRange,
    chosen: Mapping[int, Successor],
    seen: LedgerMetadata,
) -> LedgerMetadata | None:
    """The step of the CAS: pure, for it may be asked several times.

    Args:
        copied: the fragment as it was when its shares were copied.
        chosen: by position in its ensemble.
        seen: the ledger's metadata as they were before anything was copied.

    Raises:
        RefusedError: the fragment is another one, or has the successor at another place, or
            copies are, or were meanwhile, removed from the successor [gc_register].
    """
    first = copied.first_entry_id
    fragment = old.fragment_range(first)
    if fragment is None or fragment.last_entry_id != copied.last_entry_id:
        raise RefusedError("the fragment was changed by another client meanwhile")
    new = old
    added: dict[BookieId, str] = {}
    for position, successor in chosen.items():
        if fragment.ensemble[position] != copied.ensemble[position]:
            continue  # somebody else replaced this bookie: nothing is left to do here
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
