"""Replace the many small files of a closed ledger on one bookie by few large ones.

Entries are read, written into copies, read back from the copies and compared with their digests.
Only then are their old files removed. So every entry can be read here at any time; a reader that
misses a file looks the entry up again and finds it.

Any number of processes may compact one ledger at once. Each removes only files that it found when
it began. It trusts only files that it wrote itself since, under names never used before, and large
files, which no process removes. So the newest file of an entry is never removed: a process that
removed it would have written a newer one [compact_own].

Source: SLOT-LOG "Compact", rule R20.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from spark_bookkeeper.bookie.bookie import Compacted, Compaction
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart
from spark_bookkeeper.bookie.index import EntryIndex, Holding
from spark_bookkeeper.bookie.location import NO_ROW, Location
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import Record, RecordKind
from spark_bookkeeper.bookie.reserve import Reserve
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.schema import slot_number

FILE_BYTES: Final = 64 << 20
"""Approximate size of a new file. A part of at least a quarter of this size stays as it is."""

ROW_BYTES: Final = 8 << 20
"""The most bytes of payload entries in one file; they share a message, which is read whole."""

ROWS: Final = 16_384
"""The most payload entries in one file."""

SLOTS: Final = 2 * ROWS
"""The most slots of one call, lowest first: each header takes a few KiB of memory until its end."""

_PARTS_LISTED: Final = 64
"""The most parts that one new copy lists; its header has all their entries."""


def is_full(record: Record) -> bool:
    """Whether a file stays as it is. This depends on the file alone, so that all processes that
    compact agree on it [compact_own].
    """
    if record.kind is not RecordKind.COPY:
        return False
    if record.parts and not record.inline_count:
        return all(is_large(part.ref) for part in record.parts)
    batches = int(record.sizes[record.row_count : record.inline_count].sum())
    return (
        record.row_count >= ROWS // 2
        or record.row_extent >= ROW_BYTES // 2
        or record.row_extent + batches >= FILE_BYTES // 2
    )


def is_large(part: PartRef) -> bool:
    """Whether a part stays a file of its own."""
    return part.size_bytes >= FILE_BYTES // 4


class _Group(NamedTuple):
    """Entries of one new file."""

    entries: list[int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Survey:
    """The work of one call, derived from the headers of the files."""

    index: EntryIndex
    staying: tuple[Holding, ...]
    leaving: tuple[Holding, ...]
    slots: tuple[str, ...]
    """Slots of adds without an entry of the ledger: explicit LACs, and entries beyond its end."""
    moved: tuple[_Group, ...]
    """The entries that each new file will hold."""
    parts: tuple[PlacedPart, ...]
    """Parts that stay and that a new file must list."""
    is_partial: bool
    """Whether there are more slots than one call takes."""

    @property
    def files_written(self) -> int:
        return len(self.moved) + -(-len(self.parts) // _PARTS_LISTED)

    @property
    def files_removed(self) -> int:
        small = {part.ref.name for part in _parts(self.leaving) if not is_large(part.ref)}
        return len(self.leaving) + len(self.slots) + len(small)


class Compactor:
    """Compacts one ledger. The ledger's slots on this bookie are fenced before any change."""

    def __init__(self, log: LedgerLog, wanted: Compaction, reserve: Reserve) -> None:
        self._log = log
        self._reserve = reserve
        self._wanted = wanted
        self._paths = log.paths

    def run(self) -> Compacted:
        """See ``Bookie.compact``."""
        directories = (self._paths.slots, self._paths.copies, self._paths.parts)
        # One listing. An add that lands after it may hold an entry, and is left alone.
        names = [self._log.storage.list(directory) for directory in directories]
        if sum(map(len, names)) < self._wanted.files_least:
            return Compacted()
        self._log.check()
        self._log.look_again()
        self._log.keep_whole(FILE_BYTES)  # so that each small file is read once
        survey = self._survey(names[0])
        read = self._log.take_whole()
        if isinstance(survey, str):
            return Compacted(reason=survey)
        if not self._is_worth_it(survey):
            return Compacted()
        moved = sum(group.size_bytes for group in survey.moved)
        if self._wanted.dry_run:
            entries = sum(len(group.entries) for group in survey.moved)
            return Compacted(
                survey.files_removed, survey.files_written, entries, moved, survey.is_partial
            )
        # Reserve all of it first: a copy that cannot replace its sources only takes space.
        size_bytes = min(moved, self._wanted.bytes_most + FILE_BYTES)
        with self._reserve.spent(size_bytes, frees_inodes=True):
            # Slots of the listing are below the fence; later ones are left alone [compact_fence].
            has_slots = survey.slots or any(self._is_slot(h.path) for h in survey.leaving)
            if has_slots and not self._log.ends_in_fence():
                self._log.fence()
            return self._move(survey, read)

    def _is_worth_it(self, survey: _Survey) -> bool:
        removed = survey.files_removed
        return removed >= self._wanted.files_least and 2 * survey.files_written <= removed

    def _survey(self, names: Sequence[str]) -> _Survey | str:
        """Return the work, or why there is none. ``names`` are those in the directory of slots."""
        numbers = sorted(number for name in names if (number := slot_number(name)) is not None)
        some = numbers[:SLOTS]
        index = self._log.locate_in(set(some), self._wanted.last)
        # A lost slot has no file to remove. Only the present places of its entries count, and no
        # file is removed before all its entries were read from files that stay. An earlier
        # compaction leaves such slots, and a late fence fills them.
        damaged = next((d for d in index.doubts if d.is_corrupt and not d.is_lost), None)
        if damaged is not None:
            return f"{damaged.path} is damaged ({damaged.reason}); repair the ledger first"
        staying = tuple(h for h in index.holdings if is_full(h.record))
        is_partial = len(numbers) > SLOTS
        # Another slot may list the parts of a copy, too; that is not known yet.
        leaving = tuple(
            h
            for h in index.holdings
            if not is_full(h.record)
            and not (is_partial and h.record.parts and not self._is_slot(h.path))
        )
        listed = {part.ref.name for part in _parts(staying)}
        parts = {
            part.ref.name: part
            for part in _parts(leaving)
            if is_large(part.ref) and part.ref.name not in listed
        }
        there = {*_ids(staying), *(e for part in parts.values() for e in part.entry_ids)}
        wanted = sorted({e for e in _ids(leaving) if e <= self._wanted.last} - there)
        return _Survey(
            index=index,
            staying=staying,
            leaving=leaving,
            slots=tuple(self._other_adds(index, some)),
            moved=tuple(self._grouped(index, wanted)),
            parts=tuple(parts.values()),
            is_partial=is_partial,
        )

    def _other_adds(self, index: EntryIndex, numbers: Sequence[int]) -> Iterator[str]:
        """Return the slots of adds that the index lacks, since they hold no entry of the ledger."""
        known = {holding.path for holding in index.holdings}
        for number in numbers:
            path = self._paths.slot(number)
            if path not in known and self._log.is_add(number):
                yield path

    @staticmethod
    def _grouped(index: EntryIndex, wanted: Sequence[int]) -> Iterator[_Group]:
        group: list[int] = []
        rows = row_bytes = size_bytes = 0
        for place in index.first_places(wanted):
            assert place is not None, "it was found by its record"
            is_row = place.row != NO_ROW
            if group and (
                size_bytes + place.size > FILE_BYTES
                or (is_row and (rows >= ROWS or row_bytes + place.size > ROW_BYTES))
            ):
                yield _Group(group, size_bytes)
                group, rows, row_bytes, size_bytes = [], 0, 0, 0
            group.append(place.entry_id)
            size_bytes += place.size
            rows += is_row
            row_bytes += place.size if is_row else 0
        if group:
            yield _Group(group, size_bytes)

    def _move(self, survey: _Survey, read: Mapping[str, bytes]) -> Compacted:
        written: set[str] = set()
        moved = size_bytes = 0
        is_partial = survey.is_partial
        for group in survey.moved:
            if size_bytes >= self._wanted.bytes_most:
                is_partial = True
                break
            delivery = Retrieval(self._log, group.entries, survey.index).read(read)
            if delivery.refused:
                entry, reason = next(iter(delivery.refused.items()))
                return Compacted(reason=f"entry {entry} cannot be read ({reason}); repair it first")
            entries = sorted(delivery.found, key=lambda entry: entry.entry_id)
            written.add(self._log.write_copy(entries, token=self._wanted.token))
            moved += len(group.entries)
            size_bytes += group.size_bytes
        for at in range(0, len(survey.parts), _PARTS_LISTED):
            listed = survey.parts[at : at + _PARTS_LISTED]
            self._log.storage.sync(*(self._paths.part(part.ref.name) for part in listed))
            written.add(self._log.write_copy((), listed, token=self._wanted.token))
        # The files that stay: full ones, and those that this run has written.
        stay = written | {holding.path for holding in survey.staying}
        removed = self._removable(survey, self._log.kept_copies(stay, self._wanted.last))
        self._log.check()  # the partition is the same, and the ledger was not deleted meanwhile
        for some in removed:
            self._log.storage.delete(*some)
        self._log.look_again()
        return Compacted(sum(map(len, removed)), len(written), moved, size_bytes, is_partial)

    def _removable(self, survey: _Survey, kept: EntryIndex) -> tuple[list[str], list[str]]:
        """Return the files that may be removed: records, then the parts that they list. Every entry
        of theirs was read from a file that stays, and matches its digest [compact_verified].
        """
        last = self._wanted.last
        small = {p.ref.name: p for p in _parts(survey.leaving) if not is_large(p.ref)}
        wanted = {e for part in small.values() for e in part.entry_ids}
        for holding in survey.leaving:
            wanted.update(holding.record.ids[: holding.record.inline_count].tolist())
        there = set(kept)
        good = self._verified(survey.index, kept, sorted(wanted & there))
        listed = {e for part in _parts(kept.holdings) for e in part.entry_ids} & there
        safe = good | (listed - wanted)

        def can_go(ids: Sequence[int]) -> bool:
            return all(e in safe or e > last for e in ids)

        leaving = [h for h in survey.leaving if can_go(h.record.ids.tolist())]
        going = dict.fromkeys(holding.path for holding in leaving)
        remaining = [h for h in survey.index.holdings if h.path not in going]
        needed = {part.ref.name for part in _parts([*remaining, *kept.holdings])}
        parts = [n for n, p in small.items() if n not in needed and can_go(p.entry_ids)]
        return [*survey.slots, *going], [self._paths.part(name) for name in parts]

    def _verified(self, before: EntryIndex, kept: EntryIndex, ids: list[int]) -> set[int]:
        """Return those entries that are durable and undamaged in files that stay."""
        if not ids:
            return set()
        verdict = Retrieval(self._log, ids, kept, looks=0).verify()
        was: list[Location | None] = before.first_places(ids)
        return {
            place.entry_id
            for place in was
            if place is not None
            and (found := verdict.good.get(place.entry_id)) is not None
            and (found.size_bytes, found.digest) == (place.size, place.digest)
        }

    def _is_slot(self, path: str) -> bool:
        return path.startswith(f"{self._paths.slots}/")


def _ids(holdings: Sequence[Holding]) -> list[int]:
    if not holdings:
        return []
    found: list[int] = np.concatenate([holding.record.ids for holding in holdings]).tolist()
    return found


def _parts(holdings: Sequence[Holding]) -> Iterator[PlacedPart]:
    for holding in holdings:
        yield from holding.record.parts
