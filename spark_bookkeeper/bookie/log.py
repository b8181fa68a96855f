"""The slot log of one ledger on one bookie: adding to it, fencing it, finding entries in it.

Slots are created by put-if-absent and filled without gaps, so the first absent slot is where a
writer's next record would have to go; a FENCE put there stops that writer on this bookie for
ever. What is absent is found by trying to create it, never by a listing.

Source: SLOT-LOG, "Steps", rules R1 to R6, R9, R11, R15. Rule names stand where they are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import Location, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.index import UNBOUNDED, EntryIndex, Tail
from spark_bookkeeper.bookie.marker import check_marker_data, decode_marker, lost_directory
from spark_bookkeeper.bookie.part_files import MOST_NAMES, PartFiles, names_are_taken
from spark_bookkeeper.bookie.reading import EntryReader, ScannedRows
from spark_bookkeeper.bookie.record import Record, RecordKind, decode, encode_copy, encode_fence
from spark_bookkeeper.bookie.schema import MARKER_PATH, LedgerKey
from spark_bookkeeper.bookie.slots import SlotReader
from spark_bookkeeper.bookie.storage.named import NamedStorage
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.bookie.verification import spoilt_files
from spark_bookkeeper.errors import (
    BookieError,
    BookieUnavailableError,
    CorruptEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
    SlotTakenError,
)
from spark_bookkeeper.protocol.ids import NO_ENTRY
from spark_bookkeeper.protocol.metadata import DigestType

_MOST_HOLES: Final = 1000
"""Slots lost below others that a fence still fills."""


class LedgerLog:
    """One ledger on one bookie. Holds no lock; ``add`` may be called for several slots at once.

    Args:
        storage: the bookie's partition.
        bookie_id: for messages.
        incarnation: the one that the ledger's metadata names; any other partition is refused.
        key: the ledger's life.
        encoding: the ledger's.
    """

    def __init__(
        self,
        storage: Storage,
        bookie_id: str,
        incarnation: str,
        key: LedgerKey,
        encoding: LedgerEncoding,
    ) -> None:
        self.storage: Storage = NamedStorage(storage, bookie_id)
        self.bookie_id = bookie_id
        self.incarnation = incarnation
        self.key = key
        self.encoding = encoding
        self.parts = PartFiles(self.storage, bookie_id, key)
        self._reader = EntryReader(self.storage, bookie_id, encoding)
        self._slots = SlotReader(self.storage, bookie_id, key, encoding)
        self._ranges: dict[int, tuple[int, int]] = {}
        """First and last entry of the slots added in this session, where still needed."""
        self._good_marker: bytes | None = None
        """The marker as it was found to be right; the same bytes need not be decoded again."""
        self._won: set[int] = set()
        self._won_prefix = 0
        self._top: int | None = None
        """The highest slot that ``tail`` has seen, -1 for none; ``None`` before it was asked."""

    def __repr__(self) -> str:
        return f"LedgerLog({self.key.directory} on {self.bookie_id})"

    # Writing

    def prepare(self) -> None:
        """Make the ledger's directory, once, before the first add (R11).

        Raises:
            CookieMismatchError: another incarnation.
            NoSuchLedgerError: the ledger was deleted here.
            BookieUnavailableError: no answer.
        """
        self.check()
        self.storage.make_directory(self.key.slots)

    def check(self) -> None:
        """Whether this bookie can take anything of the ledger, copies for example.

        Raises:
            CookieMismatchError: another incarnation.
            NoSuchLedgerError: the ledger was deleted here.
            BookieUnavailableError: no answer.
        """
        self._check_life()
        self._check_tombstone()

    def add(self, slot: int, data: bytes, held: tuple[int, int] | None = None) -> int:
        """Put a record into a slot.

        Call it again with the same bytes and slot after ``BookieUnavailableError``; never with
        others, and never go on to the next slot first (R3). Slots may be added in any order,
        and ascend in entry ids.

        Args:
            slot: its number.
            data: the record, as ``encode_add`` made it for this slot.
            held: a range with all its entries, from who has just encoded them; without it the
                record is decoded to know, which costs as much as the encoding.

        Returns:
            how many slots from 0 on were won without a gap: acks of records count only below
            that [prefix_ack].

        Raises:
            LedgerFencedError: the slot is a FENCE. The record may still be elsewhere.
            SlotTakenError: the slot is another's, or cannot be read.
            CookieMismatchError: the partition was wiped or replaced.
            BookieUnavailableError: unknown; the put may also land later.
        """
        self._admit(slot, held or self._range(slot, data))
        path = self.key.slot(slot)
        if not self.storage.put_if_absent(path, data):
            self._check_exists(slot, path, data)
        self._check_life()  # [cookie_ack]: after the put, before it counts
        if not self.storage.has_directories:
            self._check_tombstone()
        return self._count_win(slot)

    def write_copy(
        self, entries: Sequence[StoredEntry] = (), parts: Sequence[PlacedPart] = ()
    ) -> str:
        """Store copies of entries, durably, and read them back; repeating it changes nothing.

        Args:
            entries: verified ones, of any form, read from anywhere.
            parts: parts that ``self.parts`` has here.

        Returns:
            the path of the copy.

        Raises:
            CookieMismatchError: the partition was wiped or replaced.
            BookieUnavailableError: unknown whether it is there, or it is not read back as it was
                written; repeat it.
        """
        name, data = encode_copy(self.key, self.encoding, entries, parts)
        self.storage.make_directory(self.key.copies)
        path = self.key.copy(name)
        for attempt in range(1, MOST_NAMES + 1):
            is_new = self.storage.put_if_absent(path, data)
            if self._holds(path, data):
                if not is_new:
                    self.storage.sync(path)  # merely found (R9b)
                break
            if is_new:
                raise BookieUnavailableError(
                    f"bookie {self.bookie_id}: {path} is not read back as it was written",
                    bookie_id=self.bookie_id,
                    path=path,
                )
            # The name is taken by other bytes: damaged ones, or the same entries written by
            # another version. They are left alone, since another client may count on them.
            path = self.key.copy(f"{name.removesuffix('.arrow')}-{attempt}.arrow")
        else:
            raise names_are_taken(self.bookie_id, self.key.copy(name))
        self._check_life()
        return path

    # Fencing

    def fence(self, after: int | None = None) -> Tail:
        """Fence this bookie's slot log, and say what is at its end.

        When it returns, every slot below the fence is occupied (R4b), the fence is durable (R9b)
        and the answer was read after it [fresh_negative], from the right incarnation
        [cookie_neg].

        Args:
            after: the tail begins behind this entry, if that is lower than the last add
                confirmed that is found here.

        Raises:
            CookieMismatchError: another incarnation; it says nothing about the ledger.
            NoSuchLedgerError: the ledger was deleted here.
            CorruptEntryError: a stray slot, or nearly all below it was lost.
            BookieUnavailableError: no answer, or the ledgers of this bookie are gone.
        """
        self._slots.forget()
        occupied = self._slots.numbers()
        is_unknown_here = not occupied
        if is_unknown_here:
            self._check_tombstone()
            self.storage.make_directory(self.key.slots)
        fence_at = self._put_fence(occupied)
        tail = self._slots.tail(max(occupied, default=-1), after, has_copies=len(occupied) > 0)
        self._check_life()
        if is_unknown_here:
            self._check_witness()
        return replace(tail, slots=fence_at, is_fenced=True)

    def tail(self, after: int | None = None) -> Tail:
        """The same without fencing. It proves of no entry that it is absent.

        Raises:
            CookieMismatchError: another incarnation.
            BookieUnavailableError: no answer.
        """
        top = self._top
        if top is None:  # later no listing: a reader that follows a ledger asks often
            top = max(self._slots.numbers(), default=-1)
        while self.storage.size(self.key.slot(top + 1)) is not None:
            top += 1
        self._top = top
        tail = self._slots.tail(top, after, has_copies=False)
        self._check_life()
        return tail

    # Finding and reading

    def records(self, newest_first: bool = False) -> Iterator[Record]:
        """The record in every slot that is there, a FENCE with the number of its slot.

        Raises:
            CorruptEntryError: a slot cannot be decoded.
            BookieUnavailableError: no answer.
        """
        for number in sorted(self._slots.numbers(), reverse=newest_first):
            record = self._slots.record(number)
            if record is not None:
                yield replace(record, slot=number)

    def locate(self, first: int, last: int | None = None) -> EntryIndex:
        """Where the entries ``first..last`` are on this bookie, in slots or copies.

        Reads the slots that can hold them, found by bisection. To prove that an entry is
        absent, fence first and call this after it.

        Raises:
            CookieMismatchError: another incarnation.
            BookieUnavailableError: no answer.
        """
        end = UNBOUNDED if last is None else last
        numbers = self._slots.numbers()
        number = max(numbers, default=-1) + 1
        while self.storage.size(self.key.slot(number)) is not None:  # a listing proves nothing
            numbers.add(number)
            number += 1
        index = self._slots.search(numbers, first, end)
        self._check_life()
        return index

    def read(self, location: Location) -> StoredEntry:
        """One verified entry; see ``EntryReader.read``."""
        return self._reader.read(location)

    def read_many(self, locations: Iterable[Location]) -> Iterator[StoredEntry]:
        """Verified entries in the order given; see ``EntryReader.read_many``."""
        return self._reader.read_many(locations)

    def read_each(
        self, locations: Iterable[Location]
    ) -> Iterator[tuple[Location, StoredEntry | BookieError]]:
        """Verified entries, or why not, in the order given; see ``EntryReader.read_each``."""
        return self._reader.read_each(locations)

    def scan(
        self, locations: Iterable[Location], columns: Sequence[str] | None = None
    ) -> Iterator[ScannedRows]:
        """Verified rows, a message at a time; see ``EntryReader.scan``."""
        return self._reader.scan(locations, columns)

    def spoilt_files(self, index: EntryIndex) -> dict[str, str]:
        """The files of an index that are damaged outside their entries, each with the reason."""
        return dict(
            spoilt_files(
                self.storage,
                self.key,
                self.parts,
                index.holdings,
                has_digests=self.encoding.digest_type is not DigestType.DUMMY,
            )
        )

    # Inside

    def _admit(self, slot: int, held: tuple[int, int]) -> None:
        """What ``locate`` and ``fence`` rely on when they stop early, and R3 when it compares."""
        known = self._ranges.setdefault(slot, held)
        assert known == held, "content_fixed"
        below, above = self._ranges.get(slot - 1), self._ranges.get(slot + 1)
        assert below is None or below[1] < held[0], "entries-in-write-order"
        assert above is None or held[1] < above[0], "entries-in-write-order"

    def _range(self, slot: int, data: bytes) -> tuple[int, int]:
        record = decode(data, self.key, self.encoding, bookie_id=self.bookie_id)
        assert record.kind is RecordKind.ADD
        assert record.slot == slot
        assert record.first != NO_ENTRY, "a record holds an entry"
        return record.first, record.last

    def _check_exists(self, slot: int, path: str, data: bytes) -> None:
        """A name that is taken is not success: is it ours? [exists_check]."""
        found = self.storage.read(path)
        if found is None:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: {path} existed and is gone; repeat the same bytes",
                bookie_id=self.bookie_id,
                path=path,
            )
        if found == data:
            self.storage.sync(path)  # it may be visible and not durable yet (R9b)
            return
        try:
            record = decode(found, self.key, self.encoding, bookie_id=self.bookie_id, path=path)
            owner = record.token
        except CorruptEntryError:
            owner = "unreadable"
        else:
            if record.kind is RecordKind.FENCE:
                raise LedgerFencedError(
                    f"bookie {self.bookie_id} has a fence of ledger {self.key.ledger_id} in slot "
                    f"{slot}: another client recovers it",
                    ledger_id=self.key.ledger_id,
                    bookie_id=self.bookie_id,
                )
        raise SlotTakenError(
            f"bookie {self.bookie_id}: slot {slot} of ledger {self.key.ledger_id} is not this "
            f"writer's ({owner}); the bookie must be replaced in the ensemble",
            bookie_id=self.bookie_id,
            path=path,
        )

    def _count_win(self, slot: int) -> int:
        self._won.add(slot)
        prefix = self._won_prefix
        while prefix in self._won:
            prefix += 1
        # Two threads may both come here; each returns what is true, and the lower of the two
        # that stays behind is found again by the next call.
        for number in range(self._won_prefix, prefix - 1):
            self._ranges.pop(number, None)
        self._won_prefix = prefix
        return prefix

    def _put_fence(self, occupied: set[int]) -> int:
        """FENCE in every absent slot from the first one on [fence_first_hole], up to one with
        nothing above it; adds to ``occupied`` what it meets, and returns the lowest of its fences.

        Holes are found by the put itself: a listing may be late, and what was seen may be gone
        [fence_no_hole]. A writer that had won what is lost goes on above everything that is there,
        and so the last fence is there too [fence_above_all]. What it stands on is made durable
        first (all below that is, or it would not be there), so that no power cut ever leaves a
        fence above a hole: such a hole is damage [fence_on_durable].
        """
        fence = _fence(self.key)
        filled: list[int] = []
        number, top = 0, max(occupied, default=-1)
        self._check_holes(top + 1 - len(occupied), top)
        while True:
            while number in occupied:
                number += 1
            if number > max(top, 0):
                self.storage.sync(self.key.slot(number - 1))  # merely found, and relied on (R9b)
                if self._slots.is_fence(number - 1):
                    return min(filled, default=number - 1)
            if self.storage.put_if_absent(self.key.slot(number), fence):
                filled.append(number)
                if number > top:
                    return filled[0]
            occupied.add(number)  # a hole that was filled, or a race that was lost: look again
            top = max(top, number)

    def _check_holes(self, count: int, top: int) -> None:
        """So many are not filled one by one."""
        if count > _MOST_HOLES:
            path = self.key.slot(top)
            raise CorruptEntryError(
                f"bookie {self.bookie_id}: {count} slots below {path} are missing. Either it does "
                "not belong there, and is to be moved away, or most of the ledger was lost here: "
                "nothing is concluded from what is left",
                bookie_id=self.bookie_id,
                path=path,
            )

    def _holds(self, path: str, data: bytes) -> bool:
        """Whether a file has these bytes, and none besides."""
        found = self.storage.read_range(path, 0, len(data) + 1)
        return found is not None and pa.py_buffer(found).equals(pa.py_buffer(data))

    def _check_life(self) -> None:
        data = self.storage.read(MARKER_PATH)
        if data is None or data != self._good_marker:
            check_marker_data(data, self.storage, self.incarnation, self.bookie_id)
            self._good_marker = data

    def _check_witness(self) -> None:
        """A ledger never seen is not one of a bookie that lost all of them (R5).

        Where there are directories, making this one's has shown it already.
        """
        assert self._good_marker is not None, "cookie_neg"
        if not self.storage.has_directories:
            lost = lost_directory(self.storage, decode_marker(self._good_marker, self.storage))
            if lost is not None:
                raise BookieUnavailableError(
                    f"bookie {self.bookie_id}: {lost}", bookie_id=self.bookie_id
                )

    def _check_tombstone(self) -> None:
        if self.storage.size(self.key.tombstone) is not None:
            raise NoSuchLedgerError(
                f"ledger {self.key.ledger_id} was deleted on bookie {self.bookie_id}",
                ledger_id=self.key.ledger_id,
            )


@lru_cache(maxsize=64)
def _fence(key: LedgerKey) -> bytes:
    """Every bookie of an ensemble takes the same bytes."""
    return encode_fence(key)
