"""Move shares of closed ledgers from bookies that hold too much to bookies that have room.

A new bookie has none of the older ledgers. A rebalance makes each bookie's part of all bytes follow
the size of its disk, and moves no more than requested. A move is like rereplication
(``rereplicate.py``): the share is copied, read back, and published by a compare-and-swap. The old
copy is garbage from then on; garbage collection removes it.

Source: SLOT-LOG "Re-replicate", R13. BookKeeper has nothing like it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, live_members, registered_incarnations
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.protocol.balance import Balance, Disk
from spark_bookkeeper.protocol.collection import being_removed
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.protocol.placement import Candidate, drawn
from spark_bookkeeper.protocol.racks import fewest_racks
from spark_bookkeeper.protocol.underreplication import live_copies
from spark_bookkeeper.replication.fragments import Todo, copy_fragments
from spark_bookkeeper.replication.job import Job, wanted_ids
from spark_bookkeeper.replication.pieces import PIECE_BYTES
from spark_bookkeeper.replication.recovery_plan import PlannedShare, PlanRow
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, counted
from spark_bookkeeper.replication.rereplicate import FragmentWork
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress, reason_of
from spark_bookkeeper.replication.shares import share_bytes, share_of
from spark_bookkeeper.replication.targets import Targets


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The moves of a rebalance: shares, sources and targets."""

    targets: tuple[BookieId, ...] | None = None
    """The only bookies that get more; ``None`` is every bookie that has too little."""
    max_bytes: int | None = None
    """The most bytes to move; ``None`` is no limit."""
    tolerance_percent: int = 10
    """A bookie that exceeds its part by no more than this loses no share."""
    spare_bytes: int = 0
    """The least bytes that must stay free on a target's disk."""
    bytes_per_second: int | None = None
    """The limit on copying, for the whole job; ``None`` is no limit."""
    piece_bytes: int = PIECE_BYTES
    """Several tasks copy a share of several times this size."""


@dataclass(frozen=True, slots=True)
class Load:
    """The bytes of closed ledgers on one bookie, according to the metadata."""

    bookie_id: BookieId
    before_bytes: int
    after_bytes: int
    """The bytes once the whole plan is done."""
    goal_bytes: int
    """The bookie's part of all bytes."""


@dataclass(frozen=True, repr=False)
class RebalanceReport(RecoveryReport):
    """The report of ``rebalance``: the moves, and what each bookie holds before and after."""

    loads: tuple[Load, ...] = ()
    remark: str | None = None
    """Why no more is moved or planned; ``None``: every bookie then has its part, and none is
    read-only."""

    def totals(self) -> dict[str, Any]:
        """Return the keys of every job, and the bookies."""
        loads = [
            {
                "bookie_id": each.bookie_id,
                "before_bytes": each.before_bytes,
                "after_bytes": each.after_bytes,
                "goal_bytes": each.goal_bytes,
            }
            for each in self.loads
        ]
        return {**super().totals(), "bookies": loads, "remark": self.remark}


def rebalance(
    context: ClientContext,
    runner: Runner,
    wish: Rebalance,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RebalanceReport:
    """Move shares until each bookie has its part, or the limit is reached; one row for each share.

    Only shares of closed ledgers move, from bookies that are alive. A move never puts copies on one
    rack that were on different racks. A crash at any moment loses nothing, and the next run does
    the rest: a moved share counts at its new bookie.

    Raises:
        InvalidArgumentError: a target is not registered, or takes no copies. Nothing was changed.
    """
    alive = context.bookies.registrations()
    _check(wish, alive)
    job = Job("rebalance", context, runner, progress, wish.bytes_per_second)
    plan = _Plan(context, wish, alive, progress)
    before = {bookie: plan.balance.held(bookie) for bookie in plan.bookies}
    if dry_run:
        report = job.report(
            RebalanceReport, (move.planned for move in plan), dry_run=True, columns=PlanRow
        )
    else:
        moves = (Todo(move.work, move.metadata) for move in plan)
        chooser = plan.chooser
        report = job.report(
            RebalanceReport, copy_fragments(job, moves, None, chooser, wish.piece_bytes)
        )
    loads = tuple(
        Load(bookie, before[bookie], plan.balance.held(bookie), plan.balance.goal(bookie))
        for bookie in plan.bookies
    )
    return replace(report, loads=loads, remark=plan.remark())


def _check(wish: Rebalance, alive: Mapping[BookieId, Registration]) -> None:
    for bookie in wish.targets or ():
        found = alive.get(bookie)
        if found is None or not found.incarnation:
            raise InvalidArgumentError(
                f"target {bookie} is not registered; nothing was changed. Registered bookies: "
                f"{', '.join(sorted(alive)) or 'none'}"
            )
        if found.is_readonly:
            raise InvalidArgumentError(
                f"target {bookie} is read-only and takes no copies; nothing was changed. Choose "
                "another target, or none"
            )


@dataclass(frozen=True, slots=True)
class _Move:
    """One share that is to move."""

    work: FragmentWork
    planned: PlannedShare
    metadata: LedgerMetadata | None
    """The ledger's metadata, where the share may be cut into pieces."""


@dataclass
class _Plan:
    """The moves, one by one. The metadata are read twice, and never kept."""

    context: ClientContext
    wish: Rebalance
    alive: Mapping[BookieId, Registration]
    progress: Progress
    bookies: Sequence[BookieId] = field(init=False)
    balance: Balance = field(init=False)
    _is_limited: bool = field(default=False, init=False)
    """Whether a share stays because of ``max_bytes``."""
    _smallest: int | None = field(default=None, init=False)
    """The bytes of the smallest share that ``max_bytes`` kept from moving."""
    _not_placed: int = field(default=0, init=False)
    """The number of shares that no bookie can take."""

    def remark(self) -> str | None:
        """Return why the plan has no more moves; call it after the iteration."""
        if not self.balance.has_source:
            readonly = [b for b in self.bookies if self.alive[b].is_readonly]
            if not readonly:
                return None
            return (
                "every bookie has its part, or nearly so; those that are read-only get nothing: "
                f"{', '.join(readonly)}"
            )
        over = ", ".join(b for b in self.bookies if self.balance.is_over(b))
        more = f"more than their part is still on {over}: "
        if self._is_limited:
            size = self._smallest
            least = "" if size is None else f" (a share has {size:,} or more)"
            return (
                f"{more}--max-bytes {self.wish.max_bytes:,} allows no more{least}. Run it again, "
                "or with a higher limit"
            )
        if self._not_placed:
            whom = "no bookie" if self.wish.targets is None else "none of the bookies named"
            return (
                f"{more}of {counted(self._not_placed, 'share')} {whom} can take one: those that "
                "have less than their part have a copy of it already, would leave less than "
                f"--spare-bytes {self.wish.spare_bytes:,} free, or are on a rack that has one. "
                "`spark-bookkeeper bookie list` shows them; add a bookie, or make room"
            )
        return f"{more}its shares are too large to bring anybody nearer to its part, or open"

    def __post_init__(self) -> None:
        self.bookies = sorted(bookie for bookie, r in self.alive.items() if r.incarnation)
        held: Counter[BookieId] = Counter()
        for _, metadata in self._closed("measuring ledgers"):
            for fragment in metadata.fragment_ranges():
                size = share_bytes(metadata, fragment)
                held.update(dict.fromkeys(fragment.ensemble, size))
        disks = {bookie: self._disk(self.alive[bookie]) for bookie in self.bookies}
        self.balance = Balance(disks, held, self.wish.tolerance_percent, self.wish.spare_bytes)

    def chooser(self, work: FragmentWork) -> Targets:
        """Return a chooser that allows only the planned target of a share."""
        return Targets(self.context.bookies, self.alive, work.lost, work.target)

    def __iter__(self) -> Iterator[_Move]:
        left = self.wish.max_bytes
        for ledger_id, metadata in self._closed("planning moves"):
            if not self.balance.has_source:
                return
            if left is not None and left <= 0:
                self._is_limited = True
                return
            try:
                moves = list(self._moves(ledger_id, metadata, left))
            except Exception as error:  # noqa: BLE001  (one ledger of many, and it can stay)
                reason_of(error, f"planning moves of ledger {ledger_id}")
                continue
            for move in moves:
                if left is not None:
                    left -= move.work.size_bytes
                yield move

    def _closed(self, phase: str) -> Iterator[tuple[LedgerId, LedgerMetadata]]:
        store = self.context.store
        ids = wanted_ids(self.context, None)
        for done, (ledger_id, found) in enumerate(store.read_ledgers(ids), 1):
            if isinstance(found, Versioned) and found.value.is_closed:
                yield ledger_id, found.value
            self.progress(phase, done, len(ids), 0)

    def _disk(self, registration: Registration) -> Disk:
        wanted = self.wish.targets
        return Disk(
            registration.total_bytes,
            registration.usable_bytes,
            registration.is_readonly,
            wanted is None or registration.bookie_id in wanted,
        )

    def _moves(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, left: int | None
    ) -> Iterator[_Move]:
        try:
            ledger = Ledger.of(ledger_id, metadata)
        except MetadataFormatError:
            return  # this library did not write it, so it must not move it
        live = live_members(metadata, registered_incarnations(self.alive))
        for fragment in metadata.fragment_ranges():
            size = share_bytes(metadata, fragment)
            now = fragment
            for position, source in enumerate(fragment.ensemble):
                # A bookie that is away, or needs refill, has nothing to move.
                if source not in live or not self.balance.may_leave(source, size):
                    continue
                target = self._target(ledger, now, position, size)
                if target is None:
                    self._not_placed += 1
                    continue
                if left is not None and size > left:
                    self._is_limited = True
                    self._smallest = min(size, self._smallest or size)
                    break
                left = None if left is None else left - size
                self.balance.move(source, target, size)
                yield self._move(ledger, now, position, target, size, live)
                now = _with(now, position, target)

    def _target(
        self, ledger: Ledger, fragment: FragmentRange, position: int, size: int
    ) -> BookieId | None:
        """Draw a target, weighted by room; a repeated plan draws the same one."""
        room = dict(self.balance.takers(size))
        removing = being_removed(ledger.metadata, room)
        reasons = self.context.bookies.ineligible(self.alive, 0, ledger, removing)
        candidates = [
            Candidate(bookie, free_bytes=left)
            for bookie, left in room.items()
            if bookie not in fragment.ensemble
            and bookie not in reasons
            and self._keeps_racks(ledger, fragment, position, bookie)
        ]
        share = f"ledgers/{ledger.key}/{fragment.first_entry_id}/{position}"
        order = drawn(share, candidates)
        return order[0].bookie_id if order else None

    def _keeps_racks(
        self, ledger: Ledger, fragment: FragmentRange, position: int, bookie: BookieId
    ) -> bool:
        def count(of: FragmentRange) -> int:
            known = (self.alive.get(member) for member in of.ensemble)
            racks = [None if member is None else member.rack for member in known]
            return fewest_racks(ledger.metadata.quorum, racks)

        return count(_with(fragment, position, bookie)) >= count(fragment)

    def _move(
        self,
        ledger: Ledger,
        fragment: FragmentRange,
        position: int,
        target: BookieId,
        size: int,
        live: frozenset[BookieId],
    ) -> _Move:
        metadata, source = ledger.metadata, fragment.ensemble[position]
        first, last = fragment.first_entry_id, fragment.last_entry_id
        assert last is not None, "R13: only of closed ledgers"
        work = FragmentWork(
            ledger.ledger_id,
            first,
            (source,),
            target,
            True,
            self.wish.bytes_per_second,
            size,
            nonce=metadata.nonce,
            sources=tuple(b for b in fragment.ensemble if b != source),
        )
        now = live_copies(metadata.quorum, fragment, live)
        moved = _with(fragment, position, target)
        planned = PlannedShare(
            ledger.ledger_id,
            Outcome.PLANNED,
            None,
            first,
            last,
            source,
            target,
            len(share_of(ledger, position, first, last)),
            size,
            tuple(b for b in fragment.ensemble if b in live),
            now,
            live_copies(metadata.quorum, moved, live | {target}),
        )
        is_large = size >= 2 * self.wish.piece_bytes
        return _Move(work, planned, metadata if is_large else None)


def _with(fragment: FragmentRange, position: int, bookie: BookieId) -> FragmentRange:
    ensemble = fragment.ensemble
    return replace(fragment, ensemble=(*ensemble[:position], bookie, *ensemble[position + 1 :]))
