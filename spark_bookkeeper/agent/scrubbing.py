"""Scrubbing: read everything that a bookie should have, compare it with its digests, and repeat.

It reads the ledgers that have a directory on a bookie in order of their ids, keeps its progress in
the metadata store, and begins again after the last. A damaged or missing replica is published to
autorecovery, with this bookie as the one that lacks it, and a worker copies it again. Entries that
could not be read in time are not published: a slow bookie is not a damaged one. If the whole
directory of a ledger is gone, the auditor's check of all ledgers finds it: to find it here, every
bookie would read the metadata of all ledgers.

Source: BookKeeper 4.17 ``server/service/ScrubberService`` (which compares no digests).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from typing_extensions import override

from spark_bookkeeper.autorecovery.checks import publish_finding
from spark_bookkeeper.bookie.verdict import RefusalKind
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import (
    BookieError,
    BookKeeperError,
    CookieMismatchError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.protocol.stored_json import decoded, number
from spark_bookkeeper.replication.report import Outcome, Report, Row, counted
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.replication.shares import pieces_to_read, share_of
from spark_bookkeeper.runtime.throttle import Throttle

LEDGERS_AT_ONCE: Final = 100
"""The number of ledgers whose metadata are read in one call; then the progress is stored."""

REMEMBERED_AFTER_S: Final = 10
"""The progress is also stored after so many seconds: a batch of ledgers may take hours."""

MOST_NAMED: Final = 100
"""The most ledger ids in a mark."""

PIECE_BYTES: Final = 8 << 20
"""The bytes of one read; between two the throttle waits, and a stop is noticed."""

PIECE_ENTRIES: Final = 16_384


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The amount of data that was scrubbed, good or bad."""

    ledgers: int = 0
    shares: int = 0
    """The number of shares of fragments."""
    entries: int = 0
    bytes: int = 0
    """The bytes that were read and found good."""


@dataclass(frozen=True, repr=False)
class ScrubReport(Report):
    """The report of ``scrub``: one row for each share that is damaged, or could not be read."""

    looked_at: LookedAt = field(default_factory=LookedAt)

    @property
    @override
    def without_rows(self) -> str:
        return f"nothing was found wrong in {counted(self.looked_at.ledgers, 'ledger')}"

    @override
    def totals(self) -> dict[str, Any]:
        """Return the totals of every job, here for everything that was scrubbed."""
        of_rows = super().totals()
        seen = self.looked_at
        bad = of_rows["ledgers"] - of_rows["ledgers_complete"]
        return {
            **of_rows,
            "ledgers": seen.ledgers,
            "ledgers_complete": seen.ledgers - bad,
            "fragments": seen.shares,
            "entries": seen.entries,
            "bytes": seen.bytes,
        }


@dataclass(frozen=True, slots=True)
class ScrubMark:
    """The progress of one bookie's scrubbing."""

    incarnation: str = ""
    next_ledger_id: int = 0
    began_at_ms: int = 0
    """When this round began."""
    rounds: int = 0
    """The number of rounds that were completed."""
    ended_at_ms: int = 0
    """When the last completed round ended."""
    corrupt: tuple[int, ...] = ()
    """Ledgers with bad replicas, found since the last round began."""
    corrupt_before: tuple[int, ...] = ()
    """Ledgers with bad replicas, found in the round before."""


@dataclass(frozen=True, slots=True)
class Scrubbing:
    """The options of a scrub."""

    bytes_per_second: int | None = None
    """Limit on reading."""
    from_start: bool = False
    """Begin a new round instead of continuing the current one."""
    is_stopping: Callable[[], bool] = lambda: False
    """Whether to stop now and leave the rest for the next call."""


def scrub(
    context: ClientContext,
    bookie: BookieId,
    wish: Scrubbing | None = None,
    *,
    progress: Progress = no_progress,
) -> ScrubReport:
    """Scrub one bookie to the end of its round.

    Raises:
        CookieMismatchError: it has no registration and no cookie, or its partition changed.
        BookKeeperError: the bookie or the metadata store does not answer; the next call continues.
    """
    wish = wish or Scrubbing()
    started = context.runtime.now()
    scrubbing = _Scrub(context, bookie, wish, progress)
    rows = scrubbing.run()
    duration_ms = round((context.runtime.now() - started) * 1000)
    return ScrubReport("scrub", tuple(rows), duration_ms=duration_ms, looked_at=scrubbing.looked_at)


def read_mark(registers: Registers, bookie: BookieId) -> ScrubMark:
    """Return the progress of a bookie's scrubbing; an empty mark if no readable one exists."""
    return _decode(registers.read(_name(bookie)))


class _Scrub:
    def __init__(
        self, context: ClientContext, bookie: BookieId, wish: Scrubbing, progress: Progress
    ) -> None:
        self._context = context
        self._bookie = bookie
        self._wish = wish
        self._progress = progress
        self._throttle = Throttle(context.runtime, wish.bytes_per_second)
        self._incarnation = ""
        self._is_cut = False
        """Whether the scrub stopped within a ledger, which is then read from its start again."""
        self.looked_at = LookedAt()
        self._bytes_read = 0
        self._done = self._held = 0
        """Ledgers on the bookie, for the progress."""
        self._remembered_at = context.runtime.now()
        self._rows: list[Row] = []
        self._corrupt: list[int] = []

    def run(self) -> Sequence[Row]:
        mark = self._begin()
        held = sorted(
            {key.ledger_id for key in self._context.bookies.bookie(self._bookie).ledgers()}
        )
        left = [LedgerId(ledger_id) for ledger_id in held if ledger_id >= mark.next_ledger_id]
        self._done, self._held = len(held) - len(left), len(held)
        while left and not self._wish.is_stopping():
            some, left = left[:LEDGERS_AT_ONCE], left[LEDGERS_AT_ONCE:]
            upto = self._scrub(some)
            self._remember(upto, is_end=not left and upto > some[-1])
        if not held or (not left and mark.next_ledger_id > held[-1]):
            self._remember(0, is_end=True)
        return self._rows

    def _begin(self) -> ScrubMark:
        incarnation = self._incarnation = self._read_incarnation()
        now_ms = self._context.runtime.wall_ms()

        def begin(old: ScrubMark) -> ScrubMark:
            if old.incarnation != incarnation:
                return ScrubMark(incarnation, began_at_ms=now_ms)
            if self._wish.from_start or old.next_ledger_id == 0:
                return replace(old, next_ledger_id=0, began_at_ms=now_ms)
            return old

        return self._change(begin)

    def _read_incarnation(self) -> str:
        """Return the partition's incarnation; an unregistered bookie has it in its cookie."""
        registration = self._context.bookies.registrations().get(self._bookie)
        if registration is not None:
            return registration.incarnation
        cookie = self._context.store.read_cookie(self._bookie)
        if cookie is None:
            raise CookieMismatchError(
                f"bookie {self._bookie} has neither a registration nor a cookie, so nothing says "
                "which partition is meant; nothing was read. `spark-bookkeeper bookie cookie "
                "create` writes it again",
                bookie_id=self._bookie,
            )
        return cookie.value.incarnation

    def _scrub(self, ledger_ids: Sequence[LedgerId]) -> int:
        """Scrub these ledgers. Return the id from which to go on."""
        for ledger_id, found in self._context.store.read_ledgers(ledger_ids):
            if self._wish.is_stopping():
                return ledger_id
            if self._context.runtime.now() - self._remembered_at >= REMEMBERED_AFTER_S:
                self._remember(ledger_id, is_end=False)
            self._tell()
            if isinstance(found, Versioned):
                self._look_at(ledger_id, found.value)
            if self._is_cut:
                return ledger_id
            self._done += 1
        self._tell()
        return ledger_ids[-1] + 1

    def _look_at(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Scrub all shares of one ledger; publish bad ones."""
        before, rows = self.looked_at, self._shares(ledger_id, metadata)
        if any(row.status is Outcome.PUBLISHED for row in rows):
            now = self._read_again(ledger_id)
            if now != metadata:
                # The metadata of the batch may be hours old. A share that was deleted or moved
                # since may have been collected here, which is no loss.
                self.looked_at = before
                if now is not None:
                    self._look_at(ledger_id, now)
                return
            publish_finding(self._context, ledger_id, [self._bookie], 100)
            self._corrupt.append(ledger_id)
        self._rows += rows

    def _read_again(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        """Return the current metadata; ``None`` if the ledger was deleted."""
        try:
            return self._context.store.read_ledger_settled(ledger_id).value
        except NoSuchLedgerError:
            return None

    def _shares(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Sequence[Row]:
        """Return a row for each share of a ledger that is not whole."""
        try:
            ledger = Ledger.of(ledger_id, metadata)
        except MetadataFormatError:
            return ()  # a ledger of another client
        if ledger.incarnations.get(self._bookie) != self._incarnation:
            return ()  # the share of an earlier incarnation
        here = [
            self._share(ledger, fragment, position)
            for fragment in metadata.fragment_ranges()
            for position, bookie in enumerate(fragment.ensemble)
            if bookie == self._bookie
        ]
        if here:
            self.looked_at = replace(self.looked_at, ledgers=self.looked_at.ledgers + 1)
        return [row for row in here if row is not None]

    def _share(self, ledger: Ledger, fragment: FragmentRange, position: int) -> Row | None:
        """Read one share in pieces; return a row if it is not whole. For a fragment that is still
        being written, only the entries on the bookie are read.
        """
        first, last = fragment.first_entry_id, fragment.last_entry_id
        row = Row(ledger.ledger_id, "scrub", Outcome.LEFT, None, first, last, self._bookie)
        replica = self._context.bookies.replica(self._bookie, ledger)
        try:
            held = replica.holdings(first, last)
            entries: Sequence[EntryId] = (
                [*map(EntryId, held.entry_ids.tolist())]
                if last is None
                else share_of(ledger, position, first, last)
            )
            bad: dict[int, str] = {}
            unread: dict[int, str] = {}
            size_bytes = 0
            for some in pieces_to_read(held, entries, PIECE_BYTES, PIECE_ENTRIES):
                if self._wish.is_stopping():
                    self._is_cut = True
                    return None
                verdict = replica.verify(some, held)
                read = sum(entry.size_bytes for entry in verdict.good.values())
                size_bytes += read
                self._bytes_read += read
                self._tell()
                for entry_id, refusal in verdict.refused.items():
                    is_unread = refusal.kind is RefusalKind.UNREADABLE
                    (unread if is_unread else bad)[entry_id] = refusal.reason
                self._throttle(read)
        except BookieError as error:
            with suppress(NoSuchLedgerError):  # it was deleted meanwhile
                replica.check()  # raises if the bookie cannot answer for any ledger
            return replace(row, status=Outcome.UNAVAILABLE, reason=error.message)
        seen = self.looked_at
        self.looked_at = replace(
            seen,
            shares=seen.shares + 1,
            entries=seen.entries + len(entries),
            bytes=seen.bytes + size_bytes,
        )
        row = replace(row, entries=len(entries), bytes=size_bytes)
        if bad:
            entry_id, why = next(iter(bad.items()))
            reason = f"{len(bad)} entries are damaged or missing, the first is {entry_id}: {why}"
            return replace(row, status=Outcome.PUBLISHED, reason=reason)
        if unread:
            entry_id, why = next(iter(unread.items()))
            reason = f"{len(unread)} entries could not be read, the first is {entry_id}: {why}"
            return replace(row, status=Outcome.UNREADABLE, reason=reason)
        return None

    def _tell(self) -> None:
        self._progress("scrubbing", self._done, self._held, self._bytes_read)

    def _remember(self, upto: int, *, is_end: bool) -> None:
        self._remembered_at = self._context.runtime.now()
        found, self._corrupt = self._corrupt, []
        now_ms = self._context.runtime.wall_ms()

        def step(old: ScrubMark) -> ScrubMark:
            corrupt = tuple(sorted({*old.corrupt, *found}))[:MOST_NAMED]
            if not is_end:
                return replace(old, next_ledger_id=upto, corrupt=corrupt)
            return replace(
                old,
                next_ledger_id=0,
                rounds=old.rounds + 1,
                ended_at_ms=now_ms,
                corrupt=(),
                corrupt_before=corrupt,
            )

        self._change(step)

    def _change(self, step: Callable[[ScrubMark], ScrubMark]) -> ScrubMark:
        registers = self._context.store.registers
        return change_register(registers, _name(self._bookie), _decode, _encode, step)


def is_due(mark: ScrubMark, now_ms: int, interval_ms: int) -> bool:
    """Whether a round has begun and not ended, or the next one should begin."""
    return mark.next_ledger_id > 0 or not 0 <= now_ms - mark.began_at_ms < interval_ms


def scrub_problems(
    context: ClientContext, bookies: Sequence[BookieId]
) -> Sequence[tuple[str, str]]:
    """Return the bookies on which scrubbing found bad replicas, each with the ledgers."""
    found: list[tuple[str, str]] = []
    for bookie in bookies:
        try:
            mark = read_mark(context.store.registers, bookie)
        except BookKeeperError:
            continue
        corrupt = sorted({*mark.corrupt, *mark.corrupt_before})
        if corrupt:
            shown = ", ".join(map(str, corrupt[:10])) + (", ..." if len(corrupt) > 10 else "")
            found.append((bookie, f"bad replicas of {len(corrupt)} ledgers: {shown}"))
    return found


def _name(bookie: BookieId) -> str:
    return f"scrub/{bookie}"


def _encode(mark: ScrubMark) -> bytes:
    return json.dumps(asdict(mark)).encode()


def _decode(found: Versioned[bytes] | None) -> ScrubMark:
    if found is None:
        return ScrubMark()
    try:
        return decoded(found.value, _mark)
    except ValueError:
        return ScrubMark()  # costs one more round


def _mark(values: Any) -> ScrubMark:
    return ScrubMark(
        incarnation=str(values["incarnation"]),
        next_ledger_id=number(values["next_ledger_id"]),
        began_at_ms=number(values["began_at_ms"]),
        rounds=number(values["rounds"]),
        ended_at_ms=number(values["ended_at_ms"]),
        corrupt=tuple(map(number, values["corrupt"])),
        corrupt_before=tuple(map(number, values["corrupt_before"])),
    )
