"""The face of a bookie: what everybody above this package may ask of one storage partition.

It speaks of ledgers and their entries. How a bookie keeps them (slots, copies, parts, files) is
its own affair; whoever asks knows no path and no record. The bookie of this library keeps them in
files (``file_bookie.py``); one behind a queue is in ``testing/queue_bookie.py``, and both inherit
``testing/conformance/bookie.py``.

Requests and answers are values that can be pickled, so that they may travel. What recovery,
re-replication and audit ask of many ledgers, they ask in one call, which answers for each of them
with a value or an error, in the order asked; nothing that is wrong with one ledger keeps back the
answer for another.

``BookieError`` is about this bookie: no answer, another incarnation, damage. Any call may raise
``BookieUnavailableError``; whether a write took effect is then unknown, and it may still take it
later (SLOT-LOG rule R3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.holdings import Holdings, LedgerTail
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.messages import Int64Array
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.protocol.quorum import Share
from spark_bookkeeper.runtime.answer import Answer

T = TypeVar("T")


def too_large_for_batch(bookie_id: str) -> BookieUnavailableError:
    """What ``Bookie.read_small`` answers for a ledger that is not small."""
    return BookieUnavailableError("it is read by itself", bookie_id=bookie_id)


# What requests name


@dataclass(frozen=True, slots=True)
class LedgerRef:
    """One ledger as a bookie is asked for it."""

    key: LedgerKey
    incarnation: str
    """Which formatting of the bookie's partition is meant; any other refuses (R11)."""
    encoding: LedgerEncoding
    cleared: int = 0
    """How often its copies were removed from there, as the register says (R19)."""
    era_alone: bool = False
    """Whether only copies of this era count as being there. So it is for whoever is about to have
    the register name the bookie, where copies were removed from it before, or another formatting
    of it was named [copy_era]."""
    may_take_last: bool = False
    """Whether copies may take of the last space of the partition (``Reserve``). So they may where a
    ledger is ended: without them it could not be closed."""

    @property
    def era(self) -> str:
        """16 digits in the name of every copy that is brought there. Each removal of copies, and
        each formatting, begins another era. So a process that falls asleep in the middle of a
        removal, and goes on much later, removes only files of the era that it looked at [copy_era].
        """
        return sha256(f"{self.incarnation}/{self.cleared}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class RangeRef:
    """The entries ``first .. last`` of one ledger; ``last=None`` is all from the first on."""

    ledger: LedgerRef
    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True)
class EntriesRef:
    """Some entries of one ledger."""

    ledger: LedgerRef
    entry_ids: Sequence[int]
    """Ascending, at least one."""


@dataclass(frozen=True, slots=True, eq=False)
class NewRecord:
    """A writer's next record on a bookie; ``new_record`` makes it.

    It is encoded when it is made, once for all bookies that get the same one, and goes with the
    same bytes into every repeat (SLOT-LOG rule R3).
    """

    slot: int
    """Its number among the writer's records on that bookie, from 0 on without gaps."""
    first: int
    last: int
    """It holds entries of the range ``first .. last`` and no others."""
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Verification:
    """Verify some entries of a ledger."""

    ledger: LedgerRef
    entry_ids: Sequence[int]
    """Ascending, at least one."""
    known: Holdings | None = None
    """What this bookie has said of them before, so that it need not look again."""
    with_files: bool = False
    """Also whether what surrounds good entries in their files is whole."""


@dataclass(frozen=True, slots=True)
class NewCopies:
    """Copies to be stored: entries that were read and verified anywhere, parts that are here."""

    ledger: LedgerRef
    entries: Sequence[StoredEntry] = ()
    parts: Sequence[PlacedPart] = ()
    is_all: bool = True
    """Whether whoever stores them relies on this call to see that a look-up finds them. Who has
    much to copy for one ledger looks when all of it is there."""


# What answers tell


@dataclass(frozen=True, slots=True)
class NewestRecord:
    """The front of a ledger on one bookie, for people."""

    last_add_confirmed: int
    stored_at_ms: int | None
    """By the bookie's clock, in milliseconds since 1970; ``None`` where nothing was stored, or
    nothing tells."""


class EntryDetails(NamedTuple):
    """What is known of an entry besides its rows."""

    bookie_id: str
    """The bookie that it was read from."""
    last_add_confirmed: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """Verified rows of one message: one batch entry, or several payload entries."""

    batch: pa.RecordBatch
    """Under the ledger's schema, or the columns of it that were asked for."""
    entry_ids: Int64Array
    """Entry id of each row."""
    positions: Int64Array
    """Position of each row within its entry."""
    entries: tuple[int, ...]
    """The entries, in the order of their rows; one without rows is named here alone."""
    size_bytes: int
    """Of the entries."""
    details: tuple[EntryDetails, ...] = ()
    """Of each of the entries, where they were asked for."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Compact one closed ledger."""

    ledger: LedgerRef
    last: int
    """Its last entry; what a bookie has beyond that is no entry of the ledger, and goes."""
    token: str
    """Hexadecimal, and never used before: it names the new files (SLOT-LOG rule R16)."""
    files_least: int = 16
    """Fewer files than this are not worth the work."""
    bytes_most: int = 256 << 20
    """About so much is moved by one call; the next one goes on."""
    dry_run: bool = False
    """Only say what would be done."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of the files of a ledger on a bookie."""

    removed: int = 0
    """Files that went, or would go; 0: nothing was to be done."""
    written: int = 0
    """Files that took their place; of a dry run, about so many."""
    entries: int = 0
    """That were moved."""
    size_bytes: int = 0
    """Of them."""
    is_partial: bool = False
    """Whether more is to be done: this was as many bytes or files as one call takes."""
    reason: str | None = None
    """Why it was left as it is, where it should not have been."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What was removed, or would be."""

    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Delivered(Generic[T]):
    """What was read of some entries."""

    found: Sequence[T]
    """Verified. Not in any order."""
    refused: Mapping[int, str]
    """The others, each with the reason."""


class Span(NamedTuple):
    """A run of entries that belong together, and about how large it is."""

    first: int
    last: int
    size_bytes: float


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Under which name a bookie has a part, or would take it."""

    name: str
    is_there: bool
    """The whole part is there, and durable."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot of a writer's log, for people."""

    slot: int
    kind: str
    """``ADD`` or ``FENCE``."""
    first: int | None
    last: int | None
    last_add_confirmed: int
    parts: int
    size_bytes: int | None
    writer: str | None
    """The token of the writer's session."""


class EntryView(NamedTuple):
    """One entry as the records of a bookie tell of it, for people; its bytes were not read."""

    entry_id: int
    size_bytes: int
    last_add_confirmed: int
    digest: bytes
    rows: int | None
    """``None``: only its batch tells."""


class PartSink(Protocol):
    """A new part being written piece by piece. Nothing is visible as final until ``finish``."""

    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Make the part complete and durable under its name (SLOT-LOG rules R9, R15)."""

    def abandon(self) -> None:
        """Give up; leaves at most an unlisted file that the collector removes. Never raises."""


class Bookie(Protocol):
    """A handle on one bookie.

    Besides ``BookieUnavailableError``, whatever names a ledger may raise, or answer with,
    ``CookieMismatchError``: the partition is not in the incarnation that is meant.
    """

    @property
    def bookie_id(self) -> str:
        """Which one."""

    @property
    def calls_at_once(self) -> int:
        """How many calls to make at a time when it is asked about many ledgers: one, where one call
        does the slow work for all of them together; more, where each ledger waits by itself.
        """
        return 1

    def session(self) -> Bookie:
        """A new handle for one purpose, such as a writer or a reader. It may remember what it has
        seen, and begins with nothing.
        """

    def answer(self) -> None:
        """Return, if it answers at all: one small question, whose answer does not matter."""

    # For writers

    def prepare(self, ledger: LedgerRef) -> None:
        """Once before the first add. Raises ``NoSuchLedgerError``: it was deleted here."""

    def add(self, ledger: LedgerRef, record: NewRecord) -> None:
        """Store a writer's next record; returns when it is durable.

        After ``BookieUnavailableError`` repeat the same record, and send no other before.

        Raises:
            LedgerFencedError: a fence is in its slot. The record may still be elsewhere.
            SlotTakenError: the slot is another's, or cannot be read.
            BookieReadOnlyError: the last space is kept for the ends of ledgers; nothing was stored.
            NoSuchLedgerError: it was deleted here.
        """

    def begin_part(self, ledger: LedgerRef, name: str) -> PartSink:
        """Begin a part. It counts only where a record lists it (SLOT-LOG rule R15).

        Its sink raises ``BookieReadOnlyError`` at the last space.

        Args:
            name: never used before, or free as ``find_part`` says.
        """

    # For recovery and copies

    def check(self, ledger: LedgerRef) -> None:
        """Whether it takes anything of a ledger. Raises ``NoSuchLedgerError``: deleted here."""

    def fence(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        """Fence ledgers: no record of an earlier writer is taken any more. What the tail says was
        looked up behind the fence, so that what it lacks is absent for ever, unless in doubt.

        Errors: ``NoSuchLedgerError`` (deleted here), ``CorruptEntryError`` (nearly all was lost).
        """

    def tail(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        """The same without fencing. It proves of no entry that it is absent."""

    def newest(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[NewestRecord]]:
        """How far ledgers have come here, and when."""

    def holdings(self, ranges: Sequence[RangeRef]) -> Sequence[Answer[Holdings]]:
        """Which entries of ranges are here."""

    def verify(self, wanted: Sequence[Verification]) -> Sequence[Answer[Verdict]]:
        """Compare entries with their digests, and make durable what counts. Rows are decoded only
        where nothing else can tell (a ledger without digests).
        """

    def lacking(self, wanted: Sequence[EntriesRef]) -> Sequence[Answer[Sequence[int]]]:
        """What is to be copied here of entries, ascending: all that cannot be read here now.

        Says of no entry that it is absent. Errors: as ``check`` raises them.
        """

    def read_small(
        self, wanted: Sequence[EntriesRef], most_bytes: int
    ) -> Sequence[Answer[Sequence[StoredEntry]]]:
        """Read entries of ledgers that are small here: records without parts, and of this size at
        the most. Not in any order; those that cannot be read are left out.

        Errors: ``BookieUnavailableError`` for a ledger that is not small, too: ``read`` is for it.
        """

    def write_copies(self, copies: Sequence[NewCopies]) -> Sequence[Answer[None]]:
        """Store copies, durably, and read them back; repeating it changes nothing.

        It is also seen that whoever looks for them finds them, unless they say that somebody else
        sees to that (``NewCopies.is_all``).

        Errors: ``BookieReadOnlyError``, as ``add`` raises it, but ``LedgerRef.may_take_last``.
        """

    def find_part(self, ledger: LedgerRef, part: PartRef, *, is_copy: bool = True) -> PartPlace:
        """Where a part is, or can be put.

        Args:
            is_copy: a copy is to list the part, under a name that is made here. Else a record lists
                it that is the same on every bookie, so it has the name that stands there, unless
                something else has taken that.
        """

    def read_part(self, ledger: LedgerRef, part: PartRef, offset: int) -> bytes | pa.Buffer:
        """The next bytes of a part, some MiB of them, as they are: empty at its end."""

    def check_part(self, ledger: LedgerRef, part: PlacedPart) -> bool:
        """Whether a part that was just copied here is what was once appended.

        Raises ``BookieUnavailableError``: it is not read back as it was written.
        """

    # For readers

    def read(
        self, ledger: LedgerRef, entry_ids: Sequence[int], known: Holdings | None = None
    ) -> Delivered[StoredEntry]:
        """Read entries.

        Args:
            entry_ids: ascending, at least one.
            known: what this bookie said of them before; or what another bookie said, to read what
                its records tell of from the files that are here.
        """

    def scan(
        self,
        ledger: LedgerRef,
        entry_ids: Sequence[int],
        known: Holdings | None = None,
        columns: Sequence[str] | None = None,
        *,
        has_details: bool = False,
    ) -> Delivered[Rows]:
        """The same as rows, a message at a time.

        Args:
            columns: the only ones to be delivered.
            has_details: tell ``EntryDetails`` too.
        """

    def split(self, wanted: RangeRef) -> Sequence[Span]:
        """Where a range is best cut for several readers, ascending; empty says nothing."""

    # For people

    def slots(self, ledger: LedgerRef) -> Sequence[SlotView]:
        """What writers and fences have put here, up to the first slot that cannot be read."""

    def entries(self, wanted: RangeRef) -> Sequence[EntryView]:
        """What it has of a range, ascending."""

    # For those who look after the bookie

    def ledgers(self) -> Sequence[LedgerKey]:
        """Which ledgers it has anything of; no answer where its storage is not there."""

    def sizes_of(self, key: LedgerKey) -> Sequence[int]:
        """Bytes of each file that a ledger has here."""

    def files_of(self, key: LedgerKey) -> int:
        """Files that a ledger has here; none of them is looked at."""

    def retire(self, key: LedgerKey) -> None:
        """Take nothing of a ledger from now on: it was deleted (SLOT-LOG rule R12)."""

    def delete(self, key: LedgerKey) -> None:
        """Remove all that is here of a ledger, which was retired. Idempotent."""

    def clear(self, ledger: LedgerRef) -> None:
        """Remove every entry of a closed ledger, and keep its fence. Idempotent.

        The caller has made sure that nothing names this bookie for the ledger, and that nothing
        begins to until this returned (SLOT-LOG rule R19).
        """

    def compact(self, wanted: Compaction) -> Compacted:
        """Make few large files of the many small ones of a closed ledger (SLOT-LOG rule R20).

        Every entry that can be read here can be read all the time; what is damaged is left as it
        is. Ended at any moment, it is done by the next call.

        Errors: ``NoSuchLedgerError`` (deleted here).
        """

    def sweep(
        self, ledger: LedgerRef, before_ms: int, shares: Sequence[Share], *, dry_run: bool = False
    ) -> Swept:
        """Remove what is left of writes to a closed ledger that were never finished: files without
        a name of their own, and parts that no record lists (SLOT-LOG rules R15, R21).

        Args:
            before_ms: only what was written before this time of the storage's clock. It spares
                writers trouble; safety does not rest on it.
            shares: what the metadata name this bookie for. Where one of these entries was in a slot
                that is lost, and is not here otherwise, no part is removed: it may have been listed
                there.
            dry_run: only say what.

        Errors: ``CorruptEntryError`` (which parts are needed is not known; nothing was removed).
        """

    def close(self) -> None:
        """Release what it holds; idempotent."""
