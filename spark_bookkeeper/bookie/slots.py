"""Find entries in the slots and copies of one ledger on one bookie, from their headers.

A slot may be damaged, missing, or have another file's bytes. Then the entries that it may have held
are in doubt, and no others.

Source: SLOT-LOG rule R5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from typing import Final

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.framing import MARK_BYTES, FrameError, header_end
from spark_bookkeeper.bookie.index import (
    UNBOUNDED,
    Doubt,
    EntryIndex,
    Holding,
    Tail,
    possible_range,
)
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.record import Record, RecordKind, decode
from spark_bookkeeper.bookie.schema import LedgerPaths, copy_range, slot_number
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.protocol.ids import NO_ENTRY
from spark_bookkeeper.storage.storage import Request, Storage

_HEADER_GUESS_BYTES: Final = 64 << 10
"""The bytes of the first read; a longer header needs a second read."""

_CACHED_RECORDS: Final = 256

_WHOLE_BYTES: Final = 16 << 10
"""The largest file that is kept whole, after ``keep_whole``."""

WHOLE_KEPT_BYTES: Final = 64 << 10
"""The default limit of the bytes of these files that are kept for one ledger."""

_GONE: Final = "it is gone"

_LOOKS: Final = 3
"""The most listings of a ledger's copies, if some are gone before they are read. Compaction
writes new files before it removes old ones, so a later listing shows them."""


class SlotReader:
    """Reads the headers of one ledger's slots and copies on one bookie."""

    def __init__(self, storage: Storage, key: LedgerKey, encoding: LedgerEncoding) -> None:
        self._storage = storage
        self._bookie_id = storage.bookie_id
        self._key = key
        self._paths = LedgerPaths(key)
        self._encoding = encoding
        self._records: dict[str, Record] = {}  # present records never change (R1)
        self._whole: dict[str, bytes] | None = None
        """Small files that were read whole with the header; ``None``: none are kept."""
        self._whole_left = 0
        """The bytes of such files that may still be kept."""
        self._heads: dict[str, bytes | pa.Buffer] = {}
        """Beginnings of files that were read ahead, until the walk over them ends."""

    def forget(self) -> None:
        """Drop everything cached: a power cut may have removed files that were read earlier."""
        self._records.clear()
        self._heads.clear()
        self._whole = None

    def keep_whole(self, bytes_most: int = WHOLE_KEPT_BYTES) -> None:
        """From now on, keep small files that are read, up to ``bytes_most`` in all."""
        self._whole, self._whole_left = {}, bytes_most

    def take_whole(self) -> Mapping[str, bytes]:
        """Return the small files that were read since ``keep_whole``, by their paths."""
        found, self._whole = self._whole, None
        return found or {}

    def search(self, numbers: Set[int], first: int, last: int) -> EntryIndex:
        """Find the entries ``first..last`` in these slots or in copies."""
        ordered = sorted(numbers)
        start = self._bisect(ordered, first)
        holdings, doubts = self._collect(_upwards(ordered, start), first, last)
        copies, copy_doubts = self.copies(first, last)
        return EntryIndex(
            self._bookie_id, self._key, first, last, (*holdings, *copies), (*doubts, *copy_doubts)
        )

    def has_read(self, number: int) -> bool:
        """Whether the good record of a slot was read since ``forget``."""
        return self._paths.slot(number) in self._records

    def is_fence(self, number: int) -> bool:
        try:
            record = self.record(number)
        except CorruptEntryError:
            return False
        return record is not None and record.kind is RecordKind.FENCE

    def is_add(self, number: int) -> bool:
        return self._add_at(number) is not None

    def tail(self, top: int, *, has_copies: bool) -> Tail:
        """Read the slots from ``top`` down to the first confirmed record.

        A fence answers with this, and recovery decides by it. Slots ascend in entry ids. So the
        walk goes down until a record ends at or below the highest last add confirmed found so far:
        all entries below that are confirmed, and recovery needs none of them. Slots that are gone,
        damaged, or have another file's bytes, and fences below adds, are unreliable. The entries
        that such a slot may have held are in doubt. Only an entry that is neither found nor in
        doubt counts as absent (SLOT-LOG rule R5).

        Args:
            top: the highest slot, -1 if there is none.
            has_copies: whether to search copies as well.

        Raises:
            BookieUnavailableError: no answer.
        """
        found = _Found(self._paths)
        confirmed: int = NO_ENTRY
        is_fenced = False
        number = top
        ahead = _Ahead(self)
        while number >= 0:
            low = number
            ahead.come_to(map(self._paths.slot, range(number, -1, -1)))
            try:
                record, complaint = self._look(number)
            except CorruptEntryError as error:
                found.doubt(number, number, error.message, is_corrupt=True)
            else:
                if record is not None and complaint is not None:
                    found.astray(number, record, complaint)
                elif record is None:  # a misplaced high slot makes a long hole: list to skip it
                    low = max((n for n in self.numbers() if n < number), default=-1) + 1
                    found.doubt(low, number, "it is gone", is_corrupt=False)
                elif record.kind is RecordKind.FENCE:
                    is_fenced = True
                    found.fences.append(number)
                else:
                    found.adds.append((number, record))
                    confirmed = max(confirmed, record.last_add_confirmed)
                    if record.last <= confirmed:  # all slots below are confirmed, too
                        break
            number = low - 1
        self._heads.clear()
        holdings = [
            Holding(self._paths.slot(number), record)
            for number, record in reversed(found.adds)
            if record.last > confirmed
        ]
        copies, copy_doubts = self.copies(confirmed + 1, UNBOUNDED) if has_copies else ([], [])
        holdings += [h for h in found.strays if h.record.last > confirmed]
        entries = EntryIndex(
            self._bookie_id,
            self._key,
            confirmed + 1,
            UNBOUNDED,
            (*holdings, *copies),
            (*found.doubts(), *copy_doubts),
        )
        return Tail(top + 1, is_fenced, confirmed, entries)

    def _bisect(self, numbers: Sequence[int], entry_id: int) -> int:
        """Return the index in ``numbers`` from which to read upwards, to meet every slot with
        entries from ``entry_id`` on.

        A readable slot below these comes first: it limits the entries that damaged ones may have.
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
            record = self.record(number)
        except CorruptEntryError:
            return None
        return record if record is not None and record.kind is RecordKind.ADD else None

    def _collect(
        self, slots: Iterable[tuple[int, int, bool]], first: int, last: int
    ) -> tuple[list[Holding], list[Doubt]]:
        """Return records with entries of a range, and doubts about unusable slots.

        Args:
            slots: runs of slot numbers, ascending, each with whether it is a hole.
            first: the first entry of the range.
            last: its last entry.
        """
        found = _Found(self._paths)
        runs, ahead = list(slots), _Ahead(self)
        for at, (low, high, is_hole) in enumerate(runs):
            if is_hole:
                found.doubt(low, high, "a slot below existing ones is missing", is_corrupt=False)
                continue
            ahead.come_to(
                self._paths.slot(n) for n, _, is_gap in islice(runs, at, None) if not is_gap
            )
            try:
                record, complaint = self._look(low)
            except CorruptEntryError as error:
                found.doubt(low, high, error.message, is_corrupt=True)
                continue
            if record is not None and complaint is not None:
                found.astray(low, record, complaint)
            elif record is None:
                found.doubt(low, high, "it is gone", is_corrupt=False)
            elif record.kind is RecordKind.FENCE:
                found.fences.append(low)
            else:
                found.adds.append((low, record))
                if record.first > last:
                    break
        self._heads.clear()
        holdings = [
            Holding(self._paths.slot(number), record)
            for number, record in found.adds
            if record.first <= last and record.last >= first
        ]
        return [*holdings, *found.strays], found.doubts()

    def copy(self, path: str) -> Record | None:
        """Return the record of a copy, or ``None`` if it is missing or cannot be decoded."""
        with suppress(CorruptEntryError):
            return self._header(path)
        return None

    def copies(self, first: int, last: int) -> tuple[list[Holding], list[Doubt]]:
        """Return copies with entries of a range. If a compaction removed some, list them again."""
        holdings, doubts = self._copies(first, last)
        for _ in range(_LOOKS - 1):
            if not any(doubt.reason == _GONE for doubt in doubts):
                break
            holdings, doubts = self._copies(first, last)
        return holdings, doubts

    def _copies(self, first: int, last: int) -> tuple[list[Holding], list[Doubt]]:
        holdings: list[Holding] = []
        doubts: list[Doubt] = []
        found: list[tuple[str, tuple[int, int]]] = []
        for name in self._storage.list(self._paths.copies):
            held = copy_range(name)
            if held is not None and held[0] <= last and held[1] >= first:
                found.append((self._paths.copy(name), held))
        ahead = _Ahead(self)
        for at, (path, held) in enumerate(found):
            ahead.come_to(other for other, _ in islice(found, at, None))
            try:
                record = self._header(path)
            except CorruptEntryError as error:
                doubts.append(Doubt(*held, path, error.message, True))
                continue
            if record is None:
                doubts.append(Doubt(*held, path, _GONE, False))
                continue
            holdings.append(Holding(path, record))
            if record.kind is not RecordKind.COPY or (record.first, record.last) != held:
                doubts.append(Doubt(*held, path, _astray(record), True))
        return holdings, doubts

    def record(self, number: int) -> Record | None:
        """Return the verified header of a slot, or ``None`` if the file does not exist.

        Raises:
            CorruptEntryError: it cannot be decoded, or is not the record of this slot: another,
            undamaged file may have been copied over it.
        """
        record, complaint = self._look(number)
        if complaint is not None:
            path = self._paths.slot(number)
            raise CorruptEntryError(
                f"{self._bookie_id} {path}: {complaint}; use another replica",
                bookie_id=self._bookie_id,
                path=path,
            )
        return record

    def _look(self, number: int) -> tuple[Record | None, str | None]:
        """Return a slot's header, and why it is not this slot's record (``None``: it is)."""
        record = self._header(self._paths.slot(number))
        if record is None or record.kind is RecordKind.FENCE:  # the same bytes in every slot
            return record, None
        is_ours = record.kind is RecordKind.ADD and record.slot == number
        return record, None if is_ours else _astray(record)

    def _header(self, path: str) -> Record | None:
        record = self._records.get(path)
        if record is None:
            head = self._head(path)
            if head is None:
                return None
            record = decode(head, self._key, self._encoding, bookie_id=self._bookie_id, path=path)
            whole = self._whole
            if whole is not None and len(head) <= min(_WHOLE_BYTES, self._whole_left):
                whole[path] = bytes(head)
                self._whole_left -= len(head)
            if len(self._records) >= _CACHED_RECORDS:
                self._records.clear()
            self._records[path] = record
        return record

    @property
    def reads_at_once(self) -> int:
        """The number of headers that are worth reading in one batch."""
        return self._storage.requests_at_once

    def read_ahead(self, paths: Sequence[str]) -> None:
        """Read the beginnings of these files in one batch. Only successful reads are kept; a file
        that is absent or gave no answer is read again when it is needed.
        """
        unread = [path for path in paths if path not in self._records and path not in self._heads]
        if len(unread) > 1:
            asked = [Request("read_range", path, (0, _HEADER_GUESS_BYTES)) for path in unread]
            answers = zip(unread, self._storage.ask_all(asked), strict=True)
            self._heads = {p: head for p, head in answers if isinstance(head, (bytes, pa.Buffer))}

    def _head(self, path: str) -> bytes | pa.Buffer | None:
        head = self._heads.pop(path, None)
        if head is None:
            head = self._storage.read_range(path, 0, _HEADER_GUESS_BYTES)
        if head is None or len(head) < _HEADER_GUESS_BYTES:
            return head
        with suppress(FrameError):  # ``decode`` reports the error
            if (end := header_end(head) + MARK_BYTES) > len(head):
                # The length may be damaged, and a read allocates memory for all that it requests.
                size = self._storage.size(path)
                if size is not None and end <= size:
                    return self._storage.read_range(path, 0, end)
        return head

    def numbers(self) -> set[int]:
        names = self._storage.list(self._paths.slots)
        return {number for name in names if (number := slot_number(name)) is not None}


class _Ahead:
    """Reads headers ahead of a walk over files, in batches. Each batch is larger than the one
    before, since most walks end soon.
    """

    def __init__(self, reader: SlotReader) -> None:
        self._reader = reader
        self._most = reader.reads_at_once
        self._read: Set[str] = frozenset()
        self._width = 1

    def come_to(self, paths: Iterable[str]) -> None:
        """Read ahead: the walk needs the header of the first path now, perhaps the others later."""
        if self._most == 1:
            return
        following = iter(paths)
        first = next(following)
        if first not in self._read:
            some = [first, *islice(following, min(self._width, self._most) - 1)]
            self._reader.read_ahead(some)
            self._read = frozenset(some)
            self._width *= 2


class _Found:
    """The slots that a walk has read, and the doubts that follow from them."""

    def __init__(self, paths: LedgerPaths) -> None:
        self._paths = paths
        self._useless: list[tuple[int, int, str, bool]] = []
        self.adds: list[tuple[int, Record]] = []
        """Slot numbers with their records, in the order of the walk."""
        self.fences: list[int] = []
        self.strays: list[Holding] = []
        """Records in a slot that is not theirs. Their entries count (R6b), but they do not show
        what that slot held."""

    def doubt(self, low: int, high: int, reason: str, *, is_corrupt: bool) -> None:
        """Note a run of slots that do not show what they held."""
        self._useless.append((low, high, reason, is_corrupt))

    def astray(self, number: int, record: Record, complaint: str) -> None:
        """Note a slot with the bytes of another file, so that its own content is unknown."""
        self.strays.append(Holding(self._paths.slot(number), record))
        self.doubt(number, number, complaint, is_corrupt=True)

    def doubts(self) -> list[Doubt]:
        """Return the doubts: the entries that unreliable slots may have held.

        A fence below another record is such a slot. Every slot, also that of a fence, is put only
        when the one below it is durable (R9b). So the slot had an add. Either the add was lost, and
        its place fenced afterwards (R4b), or a fence was written over it.
        """
        top = max((*(number for number, _ in self.adds), *self.fences), default=-1)
        filled = [
            (number, number, "the add in it was lost, and its place fenced", True, True)
            for number in self.fences
            if number < top
        ]
        useless = [
            (low, high, reason, is_corrupt, not is_corrupt)
            for low, high, reason, is_corrupt in self._useless
        ]
        return [
            Doubt(
                *possible_range(low, high, self.adds),
                self._paths.slot(low),
                reason,
                is_corrupt,
                is_lost,
            )
            for low, high, reason, is_corrupt, is_lost in (*useless, *filled)
        ]


def _astray(record: Record) -> str:
    """Describe the file in a slot that is not the slot's own record."""
    if record.kind is RecordKind.ADD:
        return f"it holds the record of slot {record.slot}"
    return f"it holds a {record.kind.value} of the entries {record.first} to {record.last}"


def _upwards(numbers: Sequence[int], start: int) -> Iterator[tuple[int, int, bool]]:
    """Yield runs ``(low, high, is_hole)`` of slot numbers from an index on, holes included."""
    previous = numbers[start - 1] if start else -1
    for number in numbers[start:]:
        if number > previous + 1:
            yield previous + 1, number - 1, True
        yield number, number, False
        previous = number
