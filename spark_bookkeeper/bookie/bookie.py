"""The interface of a bookie: the calls that all code above this package makes to a partition.

The interface is about ledgers and their entries. It hides how a bookie stores them (slots, copies,
parts, files): callers know no path and no record. The bookie of this library stores them in files
(``file_bookie.py``); a bookie behind a queue is in ``testing/queue_bookie.py``. Both pass the tests
of ``testing/conformance/bookie.py``.

Requests and answers can be pickled, so another process may receive them. Recovery, re-replication
and audit make one call for many ledgers. Its answers are in the order of the requests: for each
ledger a value or an error. An error for one ledger does not affect the answer for another.

``BookieError`` is about this bookie: no answer, another incarnation, damage. Any call may raise
``BookieUnavailableError``; it is then unknown whether a write took effect, and it may still do so
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
    """Make the answer of ``Bookie.read_small`` for a ledger that is not small."""
    return BookieUnavailableError("it is read by itself", bookie_id=bookie_id)


# Requests


@dataclass(frozen=True, slots=True)
class LedgerRef:
    """One ledger in a request to a bookie."""

    key: LedgerKey
    incarnation: str
    """The expected incarnation. A partition with another one refuses the request (R11)."""
    encoding: LedgerEncoding
    cleared: int = 0
    """How many removals of its copies from this bookie the register counts (R19)."""
    era_alone: bool = False
    """Whether only copies of this era count as stored. A caller that is about to publish the bookie
    sets this, if copies were removed from the bookie before, or an earlier formatting of it was
    published [copy_era]."""
    may_take_last: bool = False
    """Whether copies may use the last space of the partition (``Reserve``). This is true when a
    ledger is ended: without these copies it could not be closed."""

    @property
    def era(self) -> str:
        """16 digits in the name of every copy that is brought to the bookie. Each removal of copies
        and each formatting begins a new era. So a process that pauses for long within a removal
        removes only files of the era that it inspected [copy_era].
        """
        return sha256(f"{self.incarnation}/{self.cleared}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class RangeRef:
    """The entries ``first .. last`` of one ledger; ``last=None`` means all from ``first`` on."""

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

    It is encoded once for all bookies that get the same record. Every repetition sends the same
    bytes (SLOT-LOG rule R3).
    """

    slot: int
    """Its number among the writer's records on that bookie, from 0 without gaps."""
    first: int
    last: int
    """All its entries are in the range ``first .. last``."""
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Verification:
    """A request to verify some entries of a ledger."""

    ledger: LedgerRef
    entry_ids: Sequence[int]
    """Ascending, at least one."""
    known: Holdings | None = None
    """This bookie's earlier answer about these entries, which saves a search."""
    with_files: bool = False
    """Whether to check, in the files of good entries, also the bytes outside entries."""


@dataclass(frozen=True, slots=True)
class NewCopies:
    """Copies to store: entries that were read and verified on any bookie, parts on this one."""

    ledger: LedgerRef
    entries: Sequence[StoredEntry] = ()
    parts: Sequence[PlacedPart] = ()
    is_all: bool = True
    """Whether this call must check that a look-up finds the copies. A caller with many copies of
    one ledger checks by itself, when all are stored."""


# Answers


@dataclass(frozen=True, slots=True)
class NewestRecord:
    """The newest record of a ledger on one bookie, for display."""

    last_add_confirmed: int
    stored_at_ms: int | None
    """When it was stored, in milliseconds since 1970 by the bookie's clock; ``None`` if no record
    exists or the time is unknown."""


class EntryDetails(NamedTuple):
    """The facts about an entry besides its rows."""

    bookie_id: str
    """The bookie that it was read from."""
    last_add_confirmed: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """Verified rows of one message: one batch entry, or several payload entries."""

    batch: pa.RecordBatch
    """The rows with the ledger's schema, or with the requested columns."""
    entry_ids: Int64Array
    """Entry id of each row."""
    positions: Int64Array
    """Position of each row within its entry."""
    entries: tuple[int, ...]
    """The entries, in the order of their rows. Only this tuple shows an entry without rows."""
    size_bytes: int
    """The bytes of the entries."""
    details: tuple[EntryDetails, ...] = ()
    """The details of each entry, if requested."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """A request to compact one closed ledger."""

    ledger: LedgerRef
    last: int
    """The ledger's last entry. Later entries on the bookie do not belong to it, and are removed."""
    token: str
    """Hexadecimal, never used before; part of the new files' names (SLOT-LOG rule R16)."""
    files_least: int = 16
    """The fewest files that are worth the work."""
    bytes_most: int = 256 << 20
    """About the bytes that one call moves. The next call continues."""
    dry_run: bool = False
    """Whether to report only, and change nothing."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of compacting a ledger on a bookie. A dry run reports what it would do."""

    removed: int = 0
    """The number of files removed; 0 if there was nothing to do."""
    written: int = 0
    """The number of files that replace them; an estimate in a dry run."""
    entries: int = 0
    """The number of entries moved."""
    size_bytes: int = 0
    """The bytes of these entries."""
    is_partial: bool = False
    """Whether another call has more to do: this one reached its limit of bytes or files."""
    reason: str | None = None
    """Why files were left that should have been compacted."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The files that ``Bookie.sweep`` removed, or would remove in a dry run."""

    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Delivered(Generic[T]):
    """The result of reading some entries."""

    found: Sequence[T]
    """Verified entries or rows, in no order."""
    refused: Mapping[int, str]
    """The other entries, each with the reason."""


class Span(NamedTuple):
    """A run of entries that one reader should read, and its approximate size."""

    first: int
    last: int
    size_bytes: float


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The name under which a bookie has a part, or would store it."""

    name: str
    is_there: bool
    """Whether the whole part exists, and is durable."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot of a writer's log, for display."""

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
    """One entry as a bookie's record describes it, for display. Its bytes were not read."""

    entry_id: int
    size_bytes: int
    last_add_confirmed: int
    digest: bytes
    rows: int | None
    """The number of rows. ``None``: unknown without reading the batch."""


class PartSink(Protocol):
    """A new part that is written piece by piece. It has no final name until ``finish``."""

    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Make the part complete and durable under its name (SLOT-LOG rules R9, R15)."""

    def abandon(self) -> None:
        """Drop the part. At most an unlisted file is left, for the collector. Never raises."""


class Bookie(Protocol):
    """A handle on one bookie.

    Besides ``BookieUnavailableError``, a call for a ledger may raise or answer with
    ``CookieMismatchError``: the partition has another incarnation than the request.
    """

    @property
    def bookie_id(self) -> str:
        """The bookie's id."""

    @property
    def calls_at_once(self) -> int:
        """The number of concurrent calls to make for many ledgers: 1 if one call shares the slow
        work of all its ledgers; more if each ledger waits separately.
        """
        return 1

    def session(self) -> Bookie:
        """Return a new handle for one purpose, such as a writer or a reader. It may cache what it
        reads, and its cache begins empty.
        """

    def answer(self) -> None:
        """Send one small request, and return if the bookie answers. The answer is dropped."""

    # For writers

    def prepare(self, ledger: LedgerRef) -> None:
        """Prepare for the first add. Raises ``NoSuchLedgerError``: it was deleted here."""

    def add(self, ledger: LedgerRef, record: NewRecord) -> None:
        """Store a writer's next record, and return when it is durable.

        After ``BookieUnavailableError`` repeat the same record before sending another one.

        Raises:
            LedgerFencedError: its slot has a fence. Other bookies may still have the record.
            SlotTakenError: the slot has another record, or cannot be read.
            BookieReadOnlyError: the last space is kept for the ends of ledgers; nothing was stored.
            NoSuchLedgerError: it was deleted here.
        """

    def begin_part(self, ledger: LedgerRef, name: str) -> PartSink:
        """Begin a part. It counts only if a record lists it (SLOT-LOG rule R15).

        The sink raises ``BookieReadOnlyError`` if only the last space is left.

        Args:
            name: a name never used before, or one that ``find_part`` returned as free.
        """

    # For recovery and copies

    def check(self, ledger: LedgerRef) -> None:
        """Check that it accepts a ledger. Raises ``NoSuchLedgerError``: it was deleted here."""

    def fence(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        """Fence ledgers, so that earlier writers can add no more records, and return their tails.
        A tail is read after the fence. So an entry that it lacks is absent for ever, unless the
        tail has it in doubt.

        Errors: ``NoSuchLedgerError`` (deleted here), ``CorruptEntryError`` (nearly all was lost).
        """

    def tail(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        """Return the tails of ledgers without fencing. They prove no entry absent."""

    def newest(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[NewestRecord]]:
        """Return the newest record of each ledger on this bookie."""

    def holdings(self, ranges: Sequence[RangeRef]) -> Sequence[Answer[Holdings]]:
        """Return the entries of each range that this bookie has."""

    def verify(self, wanted: Sequence[Verification]) -> Sequence[Answer[Verdict]]:
        """Compare entries with their digests, and make good ones durable. Rows are decoded only if
        no digest exists (``DUMMY``).
        """

    def lacking(self, wanted: Sequence[EntriesRef]) -> Sequence[Answer[Sequence[int]]]:
        """Return the entries to copy to this bookie, ascending: all that cannot be read here now.

        This proves no entry absent. Errors: the errors of ``check``.
        """

    def read_small(
        self, wanted: Sequence[EntriesRef], most_bytes: int
    ) -> Sequence[Answer[Sequence[StoredEntry]]]:
        """Read entries of ledgers that are small here: records without parts, and ``most_bytes`` at
        most. The entries are in no order. Unreadable entries are left out.

        Errors: ``BookieUnavailableError`` also for a ledger that is not small: use ``read``.
        """

    def write_copies(self, copies: Sequence[NewCopies]) -> Sequence[Answer[None]]:
        """Store copies durably, and read them back. A repetition changes nothing.

        Where ``NewCopies.is_all``, it also checks that a look-up finds the copies.

        Errors: ``BookieReadOnlyError`` as from ``add``, unless ``LedgerRef.may_take_last``.
        """

    def find_part(self, ledger: LedgerRef, part: PartRef, *, is_copy: bool = True) -> PartPlace:
        """Return the name of a part on this bookie, or a free name for it.

        Args:
            is_copy: whether a copy will list the part: then this call makes a name. Otherwise a
                record will list it, under the same name on every bookie: then the part gets that
                name, unless another file has taken it.
        """

    def read_part(self, ledger: LedgerRef, part: PartRef, offset: int) -> bytes | pa.Buffer:
        """Return the next bytes of a part, some MiB, not verified; empty at its end."""

    def check_part(self, ledger: LedgerRef, part: PlacedPart) -> bool:
        """Whether a part that was just copied here has the bytes that were once appended.

        Raises ``BookieUnavailableError``: it does not read back as written.
        """

    # For readers

    def read(
        self, ledger: LedgerRef, entry_ids: Sequence[int], known: Holdings | None = None
    ) -> Delivered[StoredEntry]:
        """Read entries.

        Args:
            entry_ids: ascending, at least one.
            known: an earlier answer of this bookie about the entries. Or an answer of another
                bookie, to find the entries in this one's files by the other's records.
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
        """Read entries as rows: one ``Rows`` for each message.

        Args:
            columns: the only columns to return.
            has_details: whether to return ``EntryDetails`` too.
        """

    def split(self, wanted: RangeRef) -> Sequence[Span]:
        """Return where to cut a range for several readers, ascending; empty: no preference."""

    # For display

    def slots(self, ledger: LedgerRef) -> Sequence[SlotView]:
        """Return the records of writers and fences, up to the first unreadable slot."""

    def entries(self, wanted: RangeRef) -> Sequence[EntryView]:
        """Return the entries of a range that it has, ascending."""

    # For maintenance

    def ledgers(self) -> Sequence[LedgerKey]:
        """Return the ledgers of which it has files. Raises if its storage is missing."""

    def sizes_of(self, key: LedgerKey) -> Sequence[int]:
        """Return the bytes of each file of a ledger here."""

    def files_of(self, key: LedgerKey) -> int:
        """Return the number of a ledger's files here, without opening them."""

    def retire(self, key: LedgerKey) -> None:
        """Refuse all data of a ledger from now on: it was deleted (SLOT-LOG rule R12)."""

    def delete(self, key: LedgerKey) -> None:
        """Remove all files of a retired ledger. Idempotent."""

    def clear(self, ledger: LedgerRef) -> None:
        """Remove every entry of a closed ledger, and keep its fence. Idempotent.

        The caller ensures that the ledger's metadata do not list this bookie, and will not before
        this call has returned (SLOT-LOG rule R19).
        """

    def compact(self, wanted: Compaction) -> Compacted:
        """Replace many small files of a closed ledger by few large ones (SLOT-LOG rule R20).

        Readable entries stay readable all the time. Damaged entries are left as they are. If a call
        is interrupted, the next call finishes the work.

        Errors: ``NoSuchLedgerError`` (deleted here).
        """

    def sweep(
        self, ledger: LedgerRef, before_ms: int, shares: Sequence[Share], *, dry_run: bool = False
    ) -> Swept:
        """Remove the remains of unfinished writes to a closed ledger: temporary files, and parts
        that no record lists (SLOT-LOG rules R15, R21).

        Args:
            before_ms: remove only files written before this time of the storage's clock. This
                spares writers repetitions; safety does not depend on it.
            shares: the entries that the metadata assign to this bookie. If one of them was in a
                lost slot and is not elsewhere on this bookie, no part is removed: the lost slot
                may have listed it.
            dry_run: whether to report only, and remove nothing.

        Errors: ``CorruptEntryError`` (the needed parts are unknown; nothing was removed).
        """

    def close(self) -> None:
        """Release handles; idempotent."""
