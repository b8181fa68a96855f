"""The slot log of one ledger on one bookie: add records, fence it, find entries in it.

Slots are created by put-if-absent and filled without gaps. So a writer's next record must go into
the first absent slot, and a FENCE in that slot stops the writer on this bookie for ever. Only an
attempt to create a slot proves it absent, never a listing.

Source: SLOT-LOG, "Steps", rules R1 to R6, R9, R11, R15. The code shows each rule's name in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.entry import PlacedPart, StoredEntry
from spark_bookkeeper.bookie.index import UNBOUNDED, EntryIndex, Holding, Tail
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.marker import check_marker_data, decode_marker, lost_directory
from spark_bookkeeper.bookie.part_files import MOST_NAMES, PartFiles, names_are_taken
from spark_bookkeeper.bookie.reading import EntryReader
from spark_bookkeeper.bookie.record import Record, RecordKind, decode, encode_copy, encode_fence
from spark_bookkeeper.bookie.schema import MARKER_PATH, LedgerPaths, has_content_of, is_of_era
from spark_bookkeeper.bookie.slots import WHOLE_KEPT_BYTES, SlotReader
from spark_bookkeeper.bookie.verification import spoilt_files
from spark_bookkeeper.errors import (
    BookieError,
    BookieUnavailableError,
    CorruptEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
    SlotTakenError,
)
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.storage.storage import Content, Request, Storage


@dataclass(frozen=True, slots=True)
class MarkerData:
    """The bytes of a partition's marker, so that one read can serve many ledgers."""

    data: bytes | None


def read_marker_data(storage: Storage) -> MarkerData:
    """Read the marker as it is now."""
    return MarkerData(storage.read(MARKER_PATH))


_MOST_HOLES: Final = 1000
"""The most lost slots below others that a fence fills."""


class LedgerLog:
    """One ledger on one bookie. It has no lock; ``add`` may run for several slots concurrently.

    Args:
        storage: the bookie's partition.
        ledger: the ledger, and the incarnation of the partition; any other one is refused.
    """

    def __init__(self, storage: Storage, ledger: LedgerRef) -> None:
        self.storage = storage
        self.bookie_id = storage.bookie_id
        self.ledger = ledger
        self.key = ledger.key
        self.encoding = ledger.encoding
        self.paths = LedgerPaths(ledger.key)
        self.parts = PartFiles(storage, self.paths, ledger)
        self._slots = SlotReader(storage, ledger.key, ledger.encoding)
        self.reader = EntryReader(storage, ledger.encoding)
        """Reads the entries that ``locate`` finds."""
        self.durable: set[str] = set()
        """Slots that were found, and made durable since the last ``look`` (R9b)."""
        self._ranges: dict[int, tuple[int, int]] = {}
        """First and last entry of slots sent in this session, each until the next one is stored."""
        self._good_marker: bytes | None = None
        """The bytes of the marker when it was last right. While they are the same, the marker is
        not decoded again."""
        self._kept: object = None
        """The result of ``Storage.keep`` for the directory of the slots: while a writer holds it,
        puts are cheaper."""
        self._top: int | None = None
        """The highest slot that ``tail`` has seen, -1 for none; ``None`` before its first call."""

    def __repr__(self) -> str:
        return f"LedgerLog({self.key} on {self.bookie_id})"

    # Writing

    def prepare(self) -> None:
        """Make the ledger's directory, once, before the first add (R11).

        Raises:
            CookieMismatchError: another incarnation.
            NoSuchLedgerError: the ledger was deleted here.
            BookieUnavailableError: no answer.
        """
        if not self.storage.has_directories:
            self.check()
            self.storage.make_directory(self.paths.slots)  # some file systems need one
            return
        self._check_life()
        # The tombstone is checked after the directory exists. A collector that puts one later
        # removes the directory, and no add goes into a missing directory [gc_tombstone].
        self.storage.make_directory(self.paths.slots)
        self.check_tombstone()
        self._kept = self.storage.keep(self.paths.slots)

    def check(self) -> None:
        """Check that this bookie accepts data of the ledger, for example copies.

        Raises:
            CookieMismatchError: another incarnation.
            NoSuchLedgerError: the ledger was deleted here.
            BookieUnavailableError: no answer.
        """
        # In a bucket, the two requests run concurrently.
        look = Request("read", MARKER_PATH), Request("exists", self.paths.tombstone)
        marker, is_deleted = self.storage.ask_all(look)
        for answer in (marker, is_deleted):
            if isinstance(answer, BookieError):
                raise answer
        self._check_marker(marker)
        self._check_kept(is_deleted=is_deleted)

    def was_sent(self, slot: int) -> bool:
        """Whether this session sent a record to a slot, and the next slot is not stored yet."""
        return slot in self._ranges

    def add(self, slot: int, data: bytes, held: tuple[int, int]) -> None:
        """Put a record into a slot, and return when it is stored.

        After ``BookieUnavailableError`` call it again with the same bytes and slot, before any
        other slot (R3). Slots may be added in any order, but must ascend in entry ids.

        The record counts only when all slots below are won [prefix_ack]. So a writer sends slots
        one after the other.

        Args:
            slot: the number of the slot.
            data: the record, as ``encode_add`` made it for this slot.
            held: a range that contains all its entries.

        Raises:
            LedgerFencedError: the slot has a FENCE. Other bookies may still have the record.
            SlotTakenError: the slot has another record, or cannot be read.
            CookieMismatchError: the partition was wiped or replaced.
            BookieUnavailableError: the outcome is unknown; the put may also land later.
        """
        self._admit(slot, held)
        path = self.paths.slot(slot)
        if not self.storage.put_if_absent(path, data):
            self._check_exists(slot, path, data)
        # [cookie_ack]: after the put, before it counts. The put has shown that the directory is
        # still the same one, so the cheaper ``read_again`` of the marker is enough.
        if self.storage.has_directories:
            self._check_marker(self.storage.read_again(MARKER_PATH))
        else:
            self.check()
        self._ranges.pop(slot - 1, None)

    def write_copy(
        self,
        entries: Sequence[StoredEntry] = (),
        parts: Sequence[PlacedPart] = (),
        *,
        token: str | None = None,
    ) -> str:
        """Store copies of entries durably, and read them back. A repetition changes nothing.

        Args:
            entries: verified entries of any form, read from any bookie.
            parts: parts that ``self.parts`` has here.
            token: hexadecimal, never used before; it becomes part of the name. So no other process
                has made, or is about to remove, a file of that name.

        Returns:
            The path of the copy.

        Raises:
            CookieMismatchError: the partition was wiped or replaced.
            BookieUnavailableError: the outcome is unknown, or the copy does not read back as it
                was written; repeat the call.
        """
        name, data = encode_copy(self.key, self.encoding, entries, parts, era=self.ledger.era)
        self.storage.make_directory(self.paths.copies)
        if token is not None:
            name = f"{name.removesuffix('.arrow')}-{int(token, 16)}.arrow"
        path = self.paths.copy(name)
        for attempt in range(1, MOST_NAMES + 1):
            is_new = self.storage.put_if_absent(path, data)
            if (is_new or token is None) and self.holds(path, data):
                if not is_new:
                    self.storage.sync(path)  # found, not created (R9b)
                break
            if is_new or token is not None:
                raise BookieUnavailableError(
                    f"bookie {self.bookie_id}: {path} is not read back as it was written",
                    bookie_id=self.bookie_id,
                    path=path,
                )
            # A file with other bytes has the name: a damaged one, or the same entries written by
            # another version. It is left alone, since another client may rely on it.
            path = self.paths.copy(f"{name.removesuffix('.arrow')}-{attempt}.arrow")
        else:
            raise names_are_taken(self.storage, self.paths.copy(name))
        self.parts.check_kept(part.ref.name for part in parts)
        self._check_life()
        return path

    # Fencing

    def fence(self) -> Tail:
        """Fence this bookie's slot log, and return its end.

        On return, every slot below the fence is occupied (R4b) and the fence is durable (R9b). The
        end was read after the fence [fresh_negative], from the right incarnation [cookie_neg].

        Raises:
            CookieMismatchError: another incarnation, which proves nothing about the ledger.
            NoSuchLedgerError: the ledger was deleted here.
            CorruptEntryError: a slot does not belong here, or nearly all slots below it were lost.
            BookieUnavailableError: no answer, or the ledgers of this bookie are gone.
        """
        occupied = self.look()
        if not occupied:
            self.storage.make_directory(self.paths.slots)
            self.check_tombstone()  # as in ``prepare``
        fence_at = self._put_fence(occupied)
        return self.fenced(self.end(occupied), fence_at)

    def look(self) -> set[int]:
        """Return the listed slots, before a fence, and drop everything that was cached.

        Raises ``BookieUnavailableError`` without an answer.
        """
        self._slots.forget()
        self.durable.clear()
        return self._slots.numbers()

    def usual_fence(self, occupied: set[int]) -> tuple[str, bytes] | None:
        """Return the path and bytes of a fence, if all slots below it are listed. The fence counts
        only if the put creates it. Otherwise return ``None``: call ``fence``.

        From now on, small files that are read are kept for ``take_whole``.
        """
        number = len(occupied)
        self._slots.keep_whole()
        if number and (max(occupied) != number - 1 or self._slots.is_fence(number - 1)):
            return None
        if number and not self.storage.has_directories and self._slots.has_read(number - 1):
            self.durable.add(self.paths.slot(number - 1))  # a visible object is durable
        return self.paths.slot(number), _fence(self.key)

    def keep_whole(self, bytes_most: int = WHOLE_KEPT_BYTES) -> None:
        """From now on, keep small files that are read, up to ``bytes_most``, for ``take_whole``."""
        self._slots.keep_whole(bytes_most)

    def take_whole(self) -> Mapping[str, bytes]:
        """Return the small files that were read since ``usual_fence`` or ``keep_whole``, by their
        paths. They are no longer kept.
        """
        return self._slots.take_whole()

    def end(self, occupied: set[int]) -> Tail:
        """Read, after a fence, the end of the slots below it, and copies."""
        return self._slots.tail(max(occupied, default=-1), has_copies=len(occupied) > 0)

    def fenced(self, end: Tail, fence_at: int, *, marker: MarkerData | None = None) -> Tail:
        """Check that the partition is the right one, and return the answer of ``fence``.

        Args:
            end: the end that was read after the fence.
            fence_at: the lowest slot with a fence of this call, or the one that was found.
            marker: read after the end, so that the end is from this partition; ``None`` reads
                it now.
        """
        self.check_life(marker or read_marker_data(self.storage))
        self._check_witness()
        return replace(end, slots=fence_at, is_fenced=True)

    def tail(self) -> Tail:
        """Return the end of the slot log, without a fence. It proves no entry absent: a writer may
        be putting it just now.

        Raises:
            CookieMismatchError: another incarnation.
            BookieUnavailableError: no answer.
        """
        top = self._top
        if top is None:  # list only once: a reader that follows a ledger calls this often
            top = max(self._slots.numbers(), default=-1)
        while self.storage.exists(self.paths.slot(top + 1)):
            top += 1
        self._top = top
        tail = self._slots.tail(top, has_copies=False)
        self._check_life()
        return tail

    def ends_in_fence(self) -> bool:
        """Whether the highest slot is a fence, which is durable from now on (R9b). Slots below it
        may have been compacted.
        """
        top = max(self._slots.numbers(), default=-1)
        if top < 0 or not self._slots.is_fence(top) or not self._is_absent(top + 1):
            return False
        self.storage.sync(self.paths.slot(top))
        self._check_life()
        return True

    # Finding and reading

    def records(self, newest_first: bool = False) -> Iterator[Record]:
        """Yield the record of every listed slot. A FENCE gets the number of its slot.

        Raises:
            CorruptEntryError: a slot cannot be decoded.
            BookieUnavailableError: no answer.
        """
        for number in sorted(self._slots.numbers(), reverse=newest_first):
            record = self._slots.record(number)
            if record is not None:
                yield replace(record, slot=number)

    def copied(self) -> Iterator[Record]:
        """Yield the record of every copy that can be decoded."""
        for holding in self._slots.copies(0, UNBOUNDED)[0]:
            yield holding.record

    def slot_numbers(self) -> set[int]:
        """Return the listed slots."""
        return self._slots.numbers()

    def is_fence(self, number: int) -> bool:
        """Whether a slot has an undamaged fence."""
        return self._slots.is_fence(number)

    def is_add(self, number: int) -> bool:
        """Whether a slot has its own, undamaged add."""
        return self._slots.is_add(number)

    def look_again(self) -> None:
        """Drop everything cached about its files, as some of them are gone."""
        self._slots.forget()
        self.durable.clear()

    def kept_copies(self, paths: Set[str], last: int) -> EntryIndex:
        """Locate entries up to ``last`` in those of these copies that are listed, read anew.

        Raises the errors of ``locate``.
        """
        self.look_again()
        listed = map(self.paths.copy, self.storage.list(self.paths.copies))
        records = ((path, self._slots.copy(path)) for path in listed if path in paths)
        holdings = tuple(Holding(path, record) for path, record in records if record is not None)
        return self.located(EntryIndex(self.bookie_id, self.key, 0, last, holdings))

    def locate(self, first: int, last: int | None = None) -> EntryIndex:
        """Locate the entries ``first..last`` in the slots and copies of this bookie.

        Only slots that can hold them are read, found by bisection. To prove an entry absent,
        fence first, then call this.

        Raises:
            CookieMismatchError: another incarnation.
            BookieUnavailableError: no answer.
        """
        return self.located(self.search(first, last))

    def locate_in(self, slots: Set[int], last: int) -> EntryIndex:
        """Locate entries up to ``last`` in these slots, or in copies. Raises the errors of
        ``locate``.
        """
        return self.located(self._slots.search(slots, 0, last))

    def search(self, first: int, last: int | None = None) -> EntryIndex:
        """Do the reads of ``locate``. The result counts only after ``located`` has checked it."""
        end = UNBOUNDED if last is None else last
        numbers = self._slots.numbers()
        number = max(numbers, default=-1) + 1
        while self.storage.exists(self.paths.slot(number)):  # a listing proves nothing
            numbers.add(number)
            number += 1
        return self._slots.search(numbers, first, end)

    def located(self, index: EntryIndex, *, marker: MarkerData | None = None) -> EntryIndex:
        """Check that the partition is the right one, and return the answer of ``locate``.

        Args:
            index: the result of ``search``.
            marker: read after the search; ``None`` reads it now.
        """
        self.check_life(marker or read_marker_data(self.storage))
        if not self.ledger.era_alone:
            return index
        return index.only(lambda path: is_of_era(path.rpartition("/")[2], self.ledger.era))

    def translated(self, index: EntryIndex) -> EntryIndex:
        """Convert the index of another bookie: replace its file names by the names that the same
        files have on this bookie.
        """
        copies = self.storage.list(self.paths.copies)

        def path_here(path: str) -> str:
            directory, _, name = path.rpartition("/")
            if directory != self.paths.copies:
                return path
            mine = (copy for copy in copies if has_content_of(copy, name))
            return self.paths.copy(next(mine, name))

        return index.renamed(path_here, self.parts.name_here)

    def spoilt_files(self, index: EntryIndex) -> dict[str, str]:
        """Return the files of an index with damage outside their entries, each with the reason."""
        return dict(
            spoilt_files(
                self.storage,
                self.paths,
                self.parts,
                index.holdings,
                has_digests=self.encoding.digest_type is not DigestType.DUMMY,
            )
        )

    # Inside

    def _admit(self, slot: int, held: tuple[int, int]) -> None:
        """Note the entries of a slot. They must ascend with the slots, since ``locate`` and
        ``fence`` stop early, and must be the same in a repetition (R3).
        """
        known = self._ranges.setdefault(slot, held)
        assert known == held, "content_fixed"
        below, above = self._ranges.get(slot - 1), self._ranges.get(slot + 1)
        assert below is None or below[1] < held[0], "entries-in-write-order"
        assert above is None or held[1] < above[0], "entries-in-write-order"

    def _check_exists(self, slot: int, path: str, data: bytes) -> None:
        """Check a slot whose name is taken. Only the writer's own bytes, from an earlier attempt,
        mean success [exists_check].
        """
        found = self.storage.read(path)
        if found is None:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: {path} existed and is gone; repeat the same bytes",
                bookie_id=self.bookie_id,
                path=path,
            )
        if found == data:
            self.storage.sync(path)  # a visible file may not be durable yet (R9b)
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

    def _put_fence(self, occupied: set[int]) -> int:
        """Put a FENCE into every absent slot from the first one on [fence_first_hole], the last
        one above all slots. Add all slots that exist to ``occupied``. Return the lowest new fence,
        or the existing last one.

        The put itself finds the holes: a listing may be late, and a listed slot may be gone
        [fence_no_hole]. A writer that had won a lost slot goes on above all existing slots, so the
        last fence is there [fence_above_all]. The slot below that fence is made durable first; all
        slots below were durable before it was put. So no power cut leaves a fence above a hole, and
        such a hole means damage [fence_on_durable].
        """
        fence = _fence(self.key)
        filled: list[int] = []
        number, top = 0, max(occupied, default=-1)
        self._check_holes(top + 1 - len(occupied), top)
        while True:
            while number in occupied:
                number += 1
            if number > max(top, 0):
                self.storage.sync(self.paths.slot(number - 1))  # the new fence relies on it (R9b)
                # A fence that exists may fill a lost slot, with slots above it since the listing.
                if self._slots.is_fence(number - 1) and self._is_absent(number):
                    return min(filled, default=number - 1)
            if self.storage.put_if_absent(self.paths.slot(number), fence):
                filled.append(number)
                if number > top:
                    return filled[0]
            occupied.add(number)  # a hole that is now filled, or a lost race
            if number > top:  # list again: going slot by slot, a fast writer would stay ahead
                occupied |= self._slots.numbers()
                top = max(occupied)
                self._check_holes(top + 1 - len(occupied), top)

    def _is_absent(self, number: int) -> bool:
        return not self.storage.exists(self.paths.slot(number))

    def _check_holes(self, count: int, top: int) -> None:
        """Refuse to fill more than ``_MOST_HOLES`` holes: so many mean that most of the ledger was
        lost here.
        """
        if count > _MOST_HOLES:
            path = self.paths.slot(top)
            raise CorruptEntryError(
                f"bookie {self.bookie_id}: {count} slots below {path} are missing. Either it does "
                "not belong there, and is to be moved away, or most of the ledger was lost here: "
                "nothing is concluded from what is left",
                bookie_id=self.bookie_id,
                path=path,
            )

    def holds(self, path: str, data: bytes | Content) -> bool:
        """Whether a file has exactly these bytes."""
        compared = _Compared([data] if isinstance(data, bytes) else data)
        is_there = self.storage.read_through(path, 0, len(data) + 1, compared.take)
        return is_there and compared.is_same

    def finds(self, path: str, data: bytes | None = None) -> bool:
        """Whether the copy at that path is listed, so that a look-up finds its entries.

        Args:
            data: if given, the copy must also have exactly these bytes. Then its header, which a
                look-up decodes, is the one that was encoded.
        """
        directory, _, name = path.rpartition("/")
        is_listed = name in self.storage.list(directory)
        return is_listed and (data is None or self.storage.read(path) == data)

    def check_life(self, marker: MarkerData) -> None:
        """Check that a marker that was just read is the right one.

        Raises:
            CookieMismatchError: another incarnation.
        """
        self._check_marker(marker.data)

    def check_tombstone(self) -> None:
        """Raise ``NoSuchLedgerError`` if the ledger was deleted on this bookie."""
        self._check_kept(is_deleted=self.storage.exists(self.paths.tombstone))

    def _check_kept(self, *, is_deleted: bool) -> None:
        if is_deleted:
            raise NoSuchLedgerError(
                f"ledger {self.key.ledger_id} was deleted on bookie {self.bookie_id}",
                ledger_id=self.key.ledger_id,
            )

    def _check_life(self) -> None:
        self.check_life(read_marker_data(self.storage))

    def _check_marker(self, data: bytes | None) -> None:
        if data is None or data != self._good_marker:
            check_marker_data(data, self.storage, self.ledger.incarnation, self.bookie_id)
            self._good_marker = data

    def _check_witness(self) -> None:
        """Raise if the bookie lost all its ledgers, as it then proves nothing (R5).

        On a disk, a put fails until formatting makes the directory of the ledgers again. A bucket
        accepts every put. After a loss it may have a late put, or the fence of an earlier recovery
        that this check then stopped. So the witness is checked each time, after the end was read.
        """
        assert self._good_marker is not None, "cookie_neg"
        if not self.storage.has_directories:
            lost = lost_directory(self.storage, decode_marker(self._good_marker, self.storage))
            if lost is not None:
                raise BookieUnavailableError(
                    f"bookie {self.bookie_id}: {lost}", bookie_id=self.bookie_id
                )


class _Compared:
    """Compares bytes that are read in pieces with expected bytes, whose pieces have other sizes."""

    def __init__(self, expected: Iterable[Buffer]) -> None:
        self._expected = iter(expected)
        self._at = memoryview(b"")
        self._is_same = True

    def take(self, data: Buffer) -> None:
        """Compare the next bytes read."""
        found = memoryview(data).cast("B")
        while found and self._is_same and self._goes_on():
            size = min(len(found), len(self._at))
            # memoryviews would compare byte by byte, which is slow.
            self._is_same = pa.py_buffer(found[:size]).equals(pa.py_buffer(self._at[:size]))
            found, self._at = found[size:], self._at[size:]
        self._is_same = self._is_same and not found

    @property
    def is_same(self) -> bool:
        """Whether exactly the expected bytes were read."""
        return self._is_same and not self._goes_on()

    def _goes_on(self) -> bool:
        while not self._at:
            piece = next(self._expected, None)
            if piece is None:
                return False
            self._at = memoryview(piece).cast("B")
        return True


@lru_cache(maxsize=1024)
def _fence(key: LedgerKey) -> bytes:
    """Return the bytes of a ledger's fence, which are the same on every bookie."""
    return encode_fence(key)
