"""Finding entries in the slots and copies of one ledger on one bookie, from their headers.

Answers are exact about what they cannot say: a damaged or missing slot casts doubt on the
entries that may have been in it, and on no others.

Source: SLOT-LOG rule R5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from typing import Final

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.framing import FrameError, header_end
from spark_bookkeeper.bookie.index import (
    UNBOUNDED,
    Doubt,
    EntryIndex,
    Holding,
    Tail,
    possible_range,
)
from spark_bookkeeper.bookie.record import Record, RecordKind, decode
from spark_bookkeeper.bookie.schema import LedgerKey, copy_range, slot_number
from spark_bookkeeper.bookie.storage import Storage
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.protocol.ids import NO_ENTRY

_HEADER_GUESS_BYTES: Final = 64 << 10
"""Read first; a longer header takes a second read."""

_CACHED_RECORDS: Final = 256


class SlotReader:
    """Headers of one ledger's slots and copies on one bookie."""

    def __init__(
        self, storage: Storage, bookie_id: str, key: LedgerKey, encoding: LedgerEncoding
    ) -> None:
        self._storage = storage
        self._bookie_id = bookie_id
        self._key = key
        self._encoding = encoding
        self._records: dict[str, Record] = {}  # present records never change (R1)

    def forget(self) -> None:
        """Read everything again: what was seen earlier may have vanished in a power cut."""
        self._records.clear()

    def search(self, numbers: Set[int], first: int, last: int) -> EntryIndex:
        """Where the entries ``first..last`` are, in these slots or in copies."""
        ordered = sorted(numbers)
        start = self._bisect(ordered, first)
        holdings, doubts = self._collect(_upwards(ordered, start), first, last)
        copies, copy_doubts = self.copies(first, last)
        return EntryIndex(
            self._bookie_id, self._key, first, last, (*holdings, *copies), (*doubts, *copy_doubts)
        )

    def is_fence(self, number: int) -> bool:
        try:
            record = self.record(self._key.slot(number))
        except CorruptEntryError:
            return False
        return record is not None and record.kind is RecordKind.FENCE

    def tail(self, occupied: Collection[int], after: int | None, *, has_copies: bool) -> Tail:
        holdings: list[Holding] = []
        readable: list[tuple[int, Record]] = []
        unreadable: list[tuple[int, str, bool]] = []
        confirmed: int = NO_ENTRY
        floor: int = NO_ENTRY
        is_fenced = False
        newest_first = reversed(occupied) if isinstance(occupied, range) else sorted(occupied)[::-1]
        top = -1
        for number in newest_first:
            top = max(top, number)
            path = self._key.slot(number)
            try:
                record = self.record(path)
            except CorruptEntryError as error:
                unreadable.append((number, error.message, True))
                continue
            if record is None:
                unreadable.append((number, "it is gone", False))
                continue
            if record.kind is RecordKind.FENCE:
                is_fenced = True
                continue
            readable.append((number, record))
            confirmed = max(confirmed, record.last_add_confirmed)
            floor = confirmed if after is None else min(confirmed, after)
            if record.last <= floor:  # so is everything below: slots ascend in entry ids
                break
            holdings.append(Holding(path, record))
        doubts = [
            Doubt(*possible_range(number, number, readable), self._key.slot(number), why, bad)
            for number, why, bad in unreadable
        ]
        copies, copy_doubts = self.copies(floor + 1, UNBOUNDED) if has_copies else ([], [])
        entries = EntryIndex(
            self._bookie_id,
            self._key,
            floor + 1,
            UNBOUNDED,
            (*reversed(holdings), *copies),
            (*doubts, *copy_doubts),
        )
        return Tail(top + 1, is_fenced, confirmed, entries)

    def _bisect(self, numbers: Sequence[int], entry_id: int) -> int:
        """Index to read on from, upwards, to meet every slot with entries from ``entry_id`` on.

        A readable slot below them comes first, since it bounds what damaged ones can hold.
        """
        low, high = 0, len(numbers)
        while low < high:
            middle = (low + high) // 2
            probe = middle
            while probe >= low and (record := self._add_at(numbers[probe])) is None:
                probe -= 1
            if probe < low or (record is not None and record.last < entry_id):
                low = middle + 1
            else:
                high = probe
        start = low - 1
        while start > 0 and self._add_at(numbers[start]) is None:
            start -= 1
        return max(start, 0)

    def _add_at(self, number: int) -> Record | None:
        try:
            record = self.record(self._key.slot(number))
        except CorruptEntryError:
            return None
        return record if record is not None and record.kind is RecordKind.ADD else None

    def _collect(
        self, slots: Iterable[tuple[int, int, bool]], first: int, last: int
    ) -> tuple[list[Holding], list[Doubt]]:
        """Records that hold entries of a range, and doubts about slots that are no use.

        Args:
            slots: runs of slot numbers, ascending, and whether the run is a hole.
            first: of the range.
            last: of the range.
        """
        holdings: list[Holding] = []
        readable: list[tuple[int, Record]] = []
        unreadable: list[tuple[int, int, str, bool]] = []
        for low, high, is_hole in slots:
            path = self._key.slot(low)
            if is_hole:
                unreadable.append((low, high, "a slot below existing ones is missing", False))
                continue
            try:
                record = self.record(path)
            except CorruptEntryError as error:
                unreadable.append((low, high, error.message, True))
                continue
            if record is None:
                unreadable.append((low, high, "it is gone", False))
                continue
            if record.kind is RecordKind.FENCE:
                continue
            readable.append((low, record))
            if record.first > last:
                break
            if record.last >= first:
                holdings.append(Holding(path, record))
        doubts = [
            Doubt(*possible_range(low, high, readable), self._key.slot(low), why, bad)
            for low, high, why, bad in unreadable
        ]
        return holdings, doubts

    def copies(self, first: int, last: int) -> tuple[list[Holding], list[Doubt]]:
        holdings: list[Holding] = []
        doubts: list[Doubt] = []
        for name in self._storage.list(self._key.copies):
            held = copy_range(name)
            if held is None or held[0] > last or held[1] < first:
                continue
            path = self._key.copy(name)
            try:
                record = self.record(path)
            except CorruptEntryError as error:
                doubts.append(Doubt(*held, path, error.message, True))
                continue
            if record is not None and record.kind is RecordKind.COPY:
                holdings.append(Holding(path, record))
            else:
                doubts.append(Doubt(*held, path, "it is gone", False))
        return holdings, doubts

    def record(self, path: str) -> Record | None:
        """A verified header, ``None`` if the file is not there."""
        record = self._records.get(path)
        if record is None:
            head = self._storage.read_range(path, 0, _HEADER_GUESS_BYTES)
            with suppress(FrameError):  # decode says what is wrong
                if head is not None and header_end(head) > len(head) == _HEADER_GUESS_BYTES:
                    head = self._storage.read_range(path, 0, header_end(head))
            if head is None:
                return None
            record = decode(head, self._key, self._encoding, bookie_id=self._bookie_id, path=path)
            if len(self._records) >= _CACHED_RECORDS:
                self._records.clear()
            self._records[path] = record
        return record

    def numbers(self) -> set[int]:
        names = self._storage.list(self._key.slots)
        return {number for name in names if (number := slot_number(name)) is not None}


def _upwards(numbers: Sequence[int], start: int) -> Iterator[tuple[int, int, bool]]:
    """Runs ``(low, high, is_hole)`` of slot numbers from an index on, the holes between them."""
    previous = numbers[start - 1] if start else -1
    for number in numbers[start:]:
        if number > previous + 1:
            yield previous + 1, number - 1, True
        yield number, number, False
        previous = number
