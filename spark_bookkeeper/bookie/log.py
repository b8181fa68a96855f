"""The slot log of one ledger on one bookie: adding to it, fencing it, finding entries in it.

Slots are created by put-if-absent and filled without gaps, so the first absent slot is where a
writer's next record would have to go; a FENCE put there stops that writer on this bookie for
ever. What is absent is found by trying to create it, never by a listing.

Source: SLOT-LOG, "Steps", rules R1 to R6, R9, R11, R15. Rule names stand where they are kept.
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
    """The bytes of a partition's marker, which one read may tell to many ledgers."""

    data: bytes | None


def read_marker_data(storage: Storage) -> MarkerData:
    """As it is now."""
    return MarkerData(storage.read(MARKER_PATH))


_MOST_HOLES: Final = 1000
"""Slots lost below others that a fence still fills."""


class LedgerLog:
    """One ledger on one bookie. Holds no lock; ``add`` may be called for several slots at once.

    Args:
        storage: the bookie's partition.
        ledger: the ledger, and the incarnation of the partition; any other is refused.
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
        """Slots that were found, and made durable since the last look (R9b)."""
        self._ranges: dict[int, tuple[int, int]] = {}
        """First and last entry of the slots sent in this session, each until the next is there."""
        self._good_marker: bytes | None = None
        """The bytes of the marker when it was last found right. While they are the same, none is
        decoded."""
        self._kept: object = None
        """What ``Storage.keep`` gave for the directory of the slots: while a writer holds it, puts
        are cheaper."""
        self._top: int | None = None
        """The highest slot that ``tail`` has seen, -1 for none; ``None`` before it was asked."""

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
            self.storage.make_directory(self.paths.slots)  # some file systems want one
            return
        self._check_life()
        # The tombstone is looked for in a directory that is there: whoever puts one afterwards
        # removes that directory, and no add goes into one that is gone [gc_tombstone].
        self.storage.make_directory(self.paths.slots)
        self.check_tombstone()
        self._kept = self.storage.keep(self.paths.slots)

    def check(self) -> None:
        """Whether this bookie can take anything of the ledger, copies for example.

        Raises:
            CookieMismatchError: another incarnation.
            NoSuchLedgerError: the ledger was deleted here.
            BookieUnavailableError: no answer.
        """
        # Neither waits for the other, in a bucket.
        look = Request("read", MARKER_PATH), Request("exists", self.paths.tombstone)
        marker, is_deleted = self.storage.ask_all(look)
        for answer in (marker, is_deleted):
            if isinstance(answer, BookieError):
                raise answer
        self._check_marker(marker)
        self._check_kept(is_deleted=is_deleted)

    def was_sent(self, slot: int) -> bool:
        """Whether a record was sent to a slot in this session, and none above it is there yet."""
        return slot in self._ranges

    def add(self, slot: int, data: bytes, held: tuple[int, int]) -> None:
        """Put a record into a slot.

        Call it again with the same bytes and slot after ``BookieUnavailableError``; never with
        others, and never go on to the next slot first (R3). Slots may be added in any order,
        and ascend in entry ids.

        Args:
            slot: its number.
            data: the record, as ``encode_add`` made it for this slot.
            held: a range with all its entries.

        Returns when it is there. That counts only when all slots below it are won [prefix_ack]:
        a writer sends one after the other.

        Raises:
            LedgerFencedError: the slot is a FENCE. The record may still be elsewhere.
            SlotTakenError: the slot is another's, or cannot be read.
            CookieMismatchError: the partition was wiped or replaced.
            BookieUnavailableError: unknown; the put may also land later.
        """
        self._admit(slot, held)
        path = self.paths.slot(slot)
        if not self.storage.put_if_absent(path, data):
            self._check_exists(slot, path, data)
        # [cookie_ack]: after the put, before it counts. The put has shown that the directory is
        # the one it was, so a look at the marker that is cheaper than reading it is enough.
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
        """Store copies of entries, durably, and read them back; repeating it changes nothing.

        Args:
            entries: verified ones, of any form, read from anywhere.
            parts: parts that ``self.parts`` has here.
            token: hexadecimal, never used before; it becomes part of the name, so that the file is
                the caller's, whatever else was there, or is to be removed.

        Returns:
            the path of the copy.

        Raises:
            CookieMismatchError: the partition was wiped or replaced.
            BookieUnavailableError: unknown whether it is there, or it is not read back as it was
                written; repeat it.
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
                    self.storage.sync(path)  # merely found (R9b)
                break
            if is_new or token is not None:
                raise BookieUnavailableError(
                    f"bookie {self.bookie_id}: {path} is not read back as it was written",
                    bookie_id=self.bookie_id,
                    path=path,
                )
            # The name is taken by other bytes: damaged ones, or the same entries written by
            # another version. They are left alone, since another client may count on them.
            path = self.paths.copy(f"{name.removesuffix('.arrow')}-{attempt}.arrow")
        else:
            raise names_are_taken(self.storage, self.paths.copy(name))
        self.parts.check_kept(part.ref.name for part in parts)
        self._check_life()
        return path

    # Fencing

    def fence(self) -> Tail:
        """Fence this bookie's slot log, and say what is at its end.

        When it returns, every slot below the fence is occupied (R4b), the fence is durable (R9b)
        and the answer was read after it [fresh_negative], from the right incarnation
        [cookie_neg].

        Raises:
            CookieMismatchError: another incarnation; it says nothing about the ledger.
            NoSuchLedgerError: the ledger was deleted here.
            CorruptEntryError: a stray slot, or nearly all below it was lost.
            BookieUnavailableError: no answer, or the ledgers of this bookie are gone.
        """
        occupied = self.look()
        if not occupied:
            self.storage.make_directory(self.paths.slots)
            self.check_tombstone()  # as in ``prepare``
        fence_at = self._put_fence(occupied)
        return self.fenced(self.end(occupied), fence_at)

    def look(self) -> set[int]:
        """The slots that a listing shows, before a fence; what was seen earlier is forgotten.

        Raises ``BookieUnavailableError`` without an answer.
        """
        self._slots.forget()
        self.durable.clear()
        return self._slots.numbers()

    def usual_fence(self, occupied: set[int]) -> tuple[str, bytes] | None:
        """Where a fence goes, and its bytes, if a listing shows all slots below it; else ``None``,
        and ``fence`` is to be called. It counts only if the put creates it.

        Small files that are read from now on are kept for ``take_whole``.
        """
        number = len(occupied)
        self._slots.keep_whole()
        if number and (max(occupied) != number - 1 or self._slots.is_fence(number - 1)):
            return None
        if number and not self.storage.has_directories and self._slots.has_read(number - 1):
            self.durable.add(self.paths.slot(number - 1))  # in a bucket, what is seen is durable
        return self.paths.slot(number), _fence(self.key)

    def keep_whole(self, bytes_most: int = WHOLE_KEPT_BYTES) -> None:
        """From now on small files that are read are kept for ``take_whole``, so many bytes."""
        self._slots.keep_whole(bytes_most)

    def take_whole(self) -> Mapping[str, bytes]:
        """Small files that were read whole since ``usual_fence`` or ``keep_whole``, by their
        paths; once.
        """
        return self._slots.take_whole()

    def end(self, occupied: set[int]) -> Tail:
        """What is in the slots that a fence met, and in copies, behind that fence."""
        return self._slots.tail(max(occupied, default=-1), has_copies=len(occupied) > 0)

    def fenced(self, end: Tail, fence_at: int, *, marker: MarkerData | None = None) -> Tail:
        """What a fence answers, once the partition is known to be the right one.

        Args:
            end: as it was read behind the fence.
            fence_at: the lowest slot with a fence of ours, or the one that was met.
            marker: read after the end was, or that would be another partition's; ``None``
                reads it.
        """
        self.check_life(marker or read_marker_data(self.storage))
        self._check_witness()
        return replace(end, slots=fence_at, is_fenced=True)

    def tail(self) -> Tail:
        """What is at the end, without a fence. It proves of no entry that it is absent: a writer
        may be putting it.

        Raises:
            CookieMismatchError: another incarnation.
            BookieUnavailableError: no answer.
        """
        top = self._top
        if top is None:  # later no listing: a reader that follows a ledger asks often
            top = max(self._slots.numbers(), default=-1)
        while self.storage.exists(self.paths.slot(top + 1)):
            top += 1
        self._top = top
        tail = self._slots.tail(top, has_copies=False)
        self._check_life()
        return tail

    def ends_in_fence(self) -> bool:
        """Whether a fence stands above everything here, durable from now on (R9b). What was below
        it may have been compacted.
        """
        top = max(self._slots.numbers(), default=-1)
        if top < 0 or not self._slots.is_fence(top) or not self._is_absent(top + 1):
            return False
        self.storage.sync(self.paths.slot(top))
        self._check_life()
        return True

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

    def copied(self) -> Iterator[Record]:
        """The record of every copy that can be decoded."""
        for holding in self._slots.copies(0, UNBOUNDED)[0]:
            yield holding.record

    def slot_numbers(self) -> set[int]:
        """The slots that are listed."""
        return self._slots.numbers()

    def is_fence(self, number: int) -> bool:
        """Whether a slot has a fence, and nothing that is damaged."""
        return self._slots.is_fence(number)

    def is_add(self, number: int) -> bool:
        """Whether a slot has its own add, and nothing that is damaged."""
        return self._slots.is_add(number)

    def look_again(self) -> None:
        """Forget what was seen of its files: some of them are gone."""
        self._slots.forget()
        self.durable.clear()

    def kept_copies(self, paths: Set[str], last: int) -> EntryIndex:
        """Where entries up to ``last`` are in these copies, as far as they are listed; read anew.

        Raises what ``locate`` does.
        """
        self.look_again()
        listed = map(self.paths.copy, self.storage.list(self.paths.copies))
        records = ((path, self._slots.copy(path)) for path in listed if path in paths)
        holdings = tuple(Holding(path, record) for path, record in records if record is not None)
        return self.located(EntryIndex(self.bookie_id, self.key, 0, last, holdings))

    def locate(self, first: int, last: int | None = None) -> EntryIndex:
        """Where the entries ``first..last`` are on this bookie, in slots or copies.

        Reads the slots that can hold them, found by bisection. To prove that an entry is
        absent, fence first and call this after it.

        Raises:
            CookieMismatchError: another incarnation.
            BookieUnavailableError: no answer.
        """
        return self.located(self.search(first, last))

    def locate_in(self, slots: Set[int], last: int) -> EntryIndex:
        """Where entries up to ``last`` are in these slots, or in copies. Raises what ``locate``
        does.
        """
        return self.located(self._slots.search(slots, 0, last))

    def search(self, first: int, last: int | None = None) -> EntryIndex:
        """What ``locate`` reads; it counts once ``located`` says so."""
        end = UNBOUNDED if last is None else last
        numbers = self._slots.numbers()
        number = max(numbers, default=-1) + 1
        while self.storage.exists(self.paths.slot(number)):  # a listing proves nothing
            numbers.add(number)
            number += 1
        return self._slots.search(numbers, first, end)

    def located(self, index: EntryIndex, *, marker: MarkerData | None = None) -> EntryIndex:
        """What ``locate`` answers, once the partition is known to be the right one.

        Args:
            index: as ``search`` has read it.
            marker: read after that; ``None`` reads it.
        """
        self.check_life(marker or read_marker_data(self.storage))
        if not self.ledger.era_alone:
            return index
        return index.only(lambda path: is_of_era(path.rpartition("/")[2], self.ledger.era))

    def translated(self, index: EntryIndex) -> EntryIndex:
        """An index that another bookie gave, with the names that the same files have on this
        one.
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
        """The files of an index that are damaged outside their entries, each with the reason."""
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
        """Note the entries of a slot. They ascend with the slots, so that ``locate`` and ``fence``
        may stop early, and are the same when the slot is sent again (R3).
        """
        known = self._ranges.setdefault(slot, held)
        assert known == held, "content_fixed"
        below, above = self._ranges.get(slot - 1), self._ranges.get(slot + 1)
        assert below is None or below[1] < held[0], "entries-in-write-order"
        assert above is None or held[1] < above[0], "entries-in-write-order"

    def _check_exists(self, slot: int, path: str, data: bytes) -> None:
        """The name of the slot is taken. That is success only if the bytes are ours, from an
        earlier try [exists_check].
        """
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
                self.storage.sync(self.paths.slot(number - 1))  # merely found, and relied on (R9b)
                # Met and not put: it may be in a lost slot, with others above it since the listing.
                if self._slots.is_fence(number - 1) and self._is_absent(number):
                    return min(filled, default=number - 1)
            if self.storage.put_if_absent(self.paths.slot(number), fence):
                filled.append(number)
                if number > top:
                    return filled[0]
            occupied.add(number)  # a hole that was filled, or a race that was lost: look again
            if number > top:  # slot by slot, a fast writer would stay ahead for ever
                occupied |= self._slots.numbers()
                top = max(occupied)
                self._check_holes(top + 1 - len(occupied), top)

    def _is_absent(self, number: int) -> bool:
        return not self.storage.exists(self.paths.slot(number))

    def _check_holes(self, count: int, top: int) -> None:
        """Refuse to fill more holes than ``_MOST_HOLES``: so many say that the ledger was lost
        here.
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
        """Whether a file has these bytes, and none besides."""
        compared = _Compared([data] if isinstance(data, bytes) else data)
        is_there = self.storage.read_through(path, 0, len(data) + 1, compared.take)
        return is_there and compared.is_same

    def finds(self, path: str, data: bytes | None = None) -> bool:
        """Whether the copy at that path is listed, by which whoever looks for its entries finds it.

        Args:
            data: and whether it has these bytes, and none besides. So its header, which a look-up
                would decode, is the one that was encoded.
        """
        directory, _, name = path.rpartition("/")
        is_listed = name in self.storage.list(directory)
        return is_listed and (data is None or self.storage.read(path) == data)

    def check_life(self, marker: MarkerData) -> None:
        """Whether a marker that was just read is the right one.

        Raises:
            CookieMismatchError: another incarnation.
        """
        self._check_marker(marker.data)

    def check_tombstone(self) -> None:
        """Raises ``NoSuchLedgerError`` where the ledger was deleted on this bookie."""
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
        """Nobody concludes anything from a bookie that lost all its ledgers (R5).

        Where there are directories, only formatting makes theirs again, and nothing can be put
        before. A bucket takes whatever is put: what lies there of a ledger may be a fence that an
        earlier recovery put, which was then told of the loss, or a put that came late. So it
        is asked each time, after the end was read.
        """
        assert self._good_marker is not None, "cookie_neg"
        if not self.storage.has_directories:
            lost = lost_directory(self.storage, decode_marker(self._good_marker, self.storage))
            if lost is not None:
                raise BookieUnavailableError(
                    f"bookie {self.bookie_id}: {lost}", bookie_id=self.bookie_id
                )


class _Compared:
    """Compares bytes that are read in pieces with expected ones, which come in pieces of other
    sizes.
    """

    def __init__(self, expected: Iterable[Buffer]) -> None:
        self._expected = iter(expected)
        self._at = memoryview(b"")
        self._is_same = True

    def take(self, data: Buffer) -> None:
        """The next that were found."""
        found = memoryview(data).cast("B")
        while found and self._is_same and self._goes_on():
            size = min(len(found), len(self._at))
            # Not as memoryviews, which compare one number after the other.
            self._is_same = pa.py_buffer(found[:size]).equals(pa.py_buffer(self._at[:size]))
            found, self._at = found[size:], self._at[size:]
        self._is_same = self._is_same and not found

    @property
    def is_same(self) -> bool:
        """Whether all that was expected has come, and nothing besides."""
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
    """The bytes of a ledger's fence, which are the same for every bookie."""
    return encode_fence(key)
