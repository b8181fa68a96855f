"""The Rereplication process for one fragment: copy, verify, change the metadata.

Source: Bookie Ledger Recovery, "The Rereplication process"; SLOT-LOG "Re-replicate", R13.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

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
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.shares import copy_share, share_of
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

    action: ClassVar[str] = "copy"
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


def rereplicate_fragment(context: ClientContext, work: FragmentWork) -> Sequence[Row]:
    """One fragment: every lost share is copied and read back, then one CAS names the new bookies.

    Killed at any moment it loses nothing: copies are named by their content, and the metadata
    changes last. Whatever the plan said is looked at again here.
    """
    try:
        ledger, found = context.ledger(work.ledger_id, work.nonce)
    except NoSuchLedgerError as error:
        return [_done(work, None, "gone", error.message)]
    except MetadataFormatError as error:
        return [_left(work, None, error.message)]
    fragment = next(
        (f for f in found.value.fragment_ranges() if f.first_entry_id == work.first_entry_id), None
    )
    if fragment is None:
        return [_done(work, None, "no longer needed", "the fragment was replaced")]
    if fragment.last_entry_id is None:
        return [
            _left(work, fragment, "the ledger is not closed and its writer may be writing here")
        ]
    return _FragmentCopy(context, work, ledger, fragment, found).run()


class _FragmentCopy:
    def __init__(
        self,
        context: ClientContext,
        work: FragmentWork,
        ledger: Ledger,
        fragment: FragmentRange,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> None:
        assert fragment.last_entry_id is not None, "R13: only where the writer cannot be writing"
        self._context = context
        self._work = work
        self._ledger = ledger
        self._fragment = fragment
        self._known = known
        self._last = fragment.last_entry_id
        # The answer to the read of the metadata, just now, came with every change before it.
        self._alive = context.bookies.last_registrations()
        self._targets = Targets(context.bookies, self._alive, work.lost, work.target)
        self._replaced_by_others: set[str] = set()
        self._throttle = Throttle(context.runtime, work.bytes_per_second)

    def run(self) -> Sequence[Row]:
        rows: list[Row] = []
        chosen: dict[int, tuple[BookieId, str]] = {}
        for position, bookie in enumerate(self._fragment.ensemble):
            if bookie not in self._work.lost:
                continue
            if self._is_back(bookie):
                rows.append(
                    _done(self._work, self._fragment, "no longer needed", "it is back", bookie)
                )
                continue
            row, target = self._copy(position, bookie, [t for t, _ in chosen.values()])
            rows.append(row)
            if target is not None:
                chosen[position] = target
        if not rows:
            return [_done(self._work, self._fragment, "no longer needed", "names no lost bookie")]
        try:
            refused = self._publish(chosen) if chosen else None
        except NoSuchLedgerError as error:  # nothing names these copies, and nothing needs them
            gone = f"meanwhile {error.message}"
            return [_done(self._work, self._fragment, "gone", gone, row.source) for row in rows]
        if refused is None:
            return [self._after_publishing(row) for row in rows]
        return [r if r.target is None else _left(self._work, self._fragment, refused) for r in rows]

    def _after_publishing(self, row: Row) -> Row:
        """A share that somebody else gave to another bookie meanwhile is not ours to claim."""
        if row.source not in self._replaced_by_others:
            return row
        reason = "another client replaced the bookie meanwhile"
        return _done(self._work, self._fragment, "no longer needed", reason, row.source)

    def _is_back(self, bookie: BookieId) -> bool:
        registration = self._alive.get(bookie)
        return (
            not self._work.even_if_alive
            and registration is not None
            and registration.incarnation == self._ledger.incarnations.get(bookie)
        )

    def _copy(
        self, position: int, lost: BookieId, taken: Sequence[BookieId]
    ) -> tuple[Row, tuple[BookieId, str] | None]:
        first = self._fragment.first_entry_id
        entries = share_of(self._ledger, position, first, self._last)
        ahead = next((a for a in self._work.ahead if a.source == lost), None)
        failures: dict[BookieId, str] = {}
        while True:
            try:
                target = self._targets.choose(
                    self._ledger, self._fragment, position, taken, failures
                )
            except NotEnoughBookiesError as error:
                return _left(self._work, self._fragment, error.message, lost), None
            incarnation = self._alive[target].incarnation
            try:
                copied = ahead.size_bytes if ahead else 0
                if entries:
                    replica = self._context.bookies.replica(target, self._ledger, incarnation)
                    replica.check()
                    copied += copy_share(
                        self._context,
                        self._ledger,
                        self._fragment,
                        entries,
                        replica,
                        self._work.lost,
                        self._throttle,
                        held=self._held(replica, entries, ahead),
                    )
            except EntryUnreadableError as error:
                reason = error.message
                return _done(self._work, self._fragment, "unrecoverable", reason, lost), None
            except TargetError as error:
                failures[target] = error.cause.message
                continue
            except BookieError as error:
                failures[target] = error.message
                continue
            action = "copy" if entries else "metadata"
            row = Row(
                self._work.ledger_id,
                action,
                "replicated",
                None,
                first,
                self._last,
                lost,
                target,
                len(entries),
                copied,
            )
            return row, (target, incarnation)

    def _held(
        self, target: Replica, entries: Sequence[EntryId], ahead: CopiedAhead | None
    ) -> Collection[EntryId] | None:
        """What was copied in pieces is looked up: it was read back just now."""
        if ahead is None or not ahead.is_whole or ahead.target != target.bookie_id:
            return None
        lacking = target.holdings(entries[0], entries[-1]).lacking(entries)
        return set(entries).difference(map(EntryId, lacking))

    def _publish(self, chosen: Mapping[int, tuple[BookieId, str]]) -> str | None:
        """The one CAS of this fragment; returns why it was refused, or ``None``."""
        before = self._fragment.ensemble
        first = self._fragment.first_entry_id
        refusal: list[str] = []

        def replaced(old: LedgerMetadata) -> LedgerMetadata | None:
            refusal.clear()
            self._replaced_by_others.clear()
            fragment = next((f for f in old.fragment_ranges() if f.first_entry_id == first), None)
            if fragment is None or fragment.last_entry_id != self._last:
                refusal.append("the fragment was changed by another client meanwhile")
                return None
            new = old
            added = {}
            for position, (target, incarnation) in chosen.items():
                if fragment.ensemble[position] != before[position]:
                    if fragment.ensemble[position] != target:
                        self._replaced_by_others.add(before[position])
                    continue  # somebody else replaced this bookie: nothing is left to do here
                if target in fragment.ensemble:
                    refusal.append(f"{target} joined the ensemble meanwhile")
                    return None
                new = new.with_replaced_bookie(first, position, target)
                added[target] = incarnation
            try:
                return with_incarnations(new, added) if added else None
            except CookieMismatchError as error:
                refusal.append(error.message)
                return None

        store = self._context.store
        update_ledger(store, self._work.ledger_id, replaced, known=self._known)
        return refusal[0] if refusal else None


def _left(
    work: FragmentWork, fragment: FragmentRange | None, reason: str, bookie: str | None = None
) -> Row:
    return _done(work, fragment, "left", reason, bookie)


def _done(
    work: FragmentWork,
    fragment: FragmentRange | None,
    status: str,
    reason: str | None,
    bookie: str | None = None,
) -> Row:
    last = fragment.last_entry_id if fragment else None
    return Row(work.ledger_id, "copy", status, reason, work.first_entry_id, last, bookie)
