"""The entries of a ledger on a bookie, and the ranges in doubt.

An ``EntryIndex`` has three answers about an entry: its places; certainly absent; unknown. The third
answer is an error, and never means absent (SLOT-LOG rule R5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.bookie.holdings import Doubtful, Holdings
from spark_bookkeeper.bookie.lazy import given_of, lazy
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.location import Location
from spark_bookkeeper.bookie.messages import Int64Array, int64s, read_only
from spark_bookkeeper.bookie.record import Record
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.errors import BookieUnavailableError, CorruptEntryError, InvalidArgumentError
from spark_bookkeeper.protocol.ids import NO_ENTRY

UNBOUNDED = (1 << 63) - 1
"""Stands for "no last entry"."""

_NOTHING: Int64Array = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Entries that may be in a file that is missing, damaged or cannot be read."""

    first: int
    last: int
    path: str
    reason: str
    is_corrupt: bool
    """Whether the file is damaged. Otherwise it cannot be read now."""
    is_lost: bool = False
    """Whether the file no longer exists: its slot is empty, or was fenced afterwards. A compaction
    or a loss leaves such slots. They have nothing to repair or to remove."""


class Holding(NamedTuple):
    """A record and the path it was read from."""

    path: str
    record: Record


@dataclass(frozen=True)
class EntryIndex:
    """The entries ``first..last`` of one ledger on one bookie. Picklable."""

    bookie_id: str
    key: LedgerKey
    first: int
    last: int
    holdings: tuple[Holding, ...]
    """Slots before copies. The first holding with an entry is used."""

    doubts: tuple[Doubt, ...] = field(default=())

    def __getstate__(self) -> dict[str, Any]:
        return given_of(self)

    @property
    def _paths(self) -> LedgerPaths:
        return LedgerPaths(self.key)

    @lazy
    def _only(self) -> Record | None:
        """The only record, if all its entries are in the range and ascend; else ``None``."""
        if len(self.holdings) != 1:
            return None
        record = self.holdings[0].record
        ids = record.ids
        is_inside = len(ids) and self.first <= ids[0] and ids[-1] <= self.last and record.is_rising
        return record if is_inside else None

    @lazy
    def _table(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Entry ids, ascending, and for each its holding and its index in the record's columns."""
        ids = [holding.record.ids for holding in self.holdings]
        if not ids:
            return _NOTHING, _NOTHING, _NOTHING
        if len(ids) == 1:
            all_ids, positions = ids[0], np.arange(len(ids[0]))
            owners: Int64Array = np.zeros(len(all_ids), dtype=np.int64)
        else:
            all_ids = np.concatenate(ids)
            owners = np.arange(len(ids)).repeat([len(column) for column in ids])
            positions = np.concatenate([np.arange(len(column)) for column in ids])
        inside = ((all_ids >= self.first) & (all_ids <= self.last)).nonzero()[0]
        order = inside[all_ids[inside].argsort(kind="stable")]
        return all_ids[order], owners[order], positions[order]

    @lazy
    def entry_ids(self) -> Int64Array:
        """The ids of the entries that are here, ascending, each once."""
        if (only := self._only) is not None:
            return only.ids
        return read_only(self._table[0][self._is_first])

    @lazy
    def _is_first(self) -> npt.NDArray[np.bool_]:
        """For each row of the table, whether it is the first place of its entry."""
        ids = self._table[0]
        is_first: npt.NDArray[np.bool_] = np.empty(len(ids), dtype=np.bool_)
        is_first[:1] = True
        np.not_equal(ids[1:], ids[:-1], out=is_first[1:])  # they ascend
        return is_first

    def told(self) -> Holdings:
        """Convert the index to the answer for the caller of ``Bookie``."""
        doubts = tuple(Doubtful(d.first, d.last, d.reason) for d in self.doubts)
        if not self.holdings:  # as for a ledger without entries
            none = _NOTHING
            return Holdings(
                self.first, self.last, none, none, none, none, none, doubts, (), places=self
            )
        if (only := self._only) is not None:
            return Holdings(
                self.first,
                self.last,
                only.ids,
                only.sizes,
                only.lengths,
                only.messages,
                only.times_ms,
                doubts,
                only.parts,
                places=self,
            )
        _, owners, positions = self._table
        records = [holding.record for holding in self.holdings]
        bases = list(accumulate((len(record.ids) for record in records), initial=0))[:-1]
        rows = positions if len(records) == 1 else int64s(bases)[owners] + positions
        rows = rows[self._is_first]

        def column(values: list[Int64Array]) -> Int64Array:
            return np.concatenate(values)[rows] if len(values) > 1 else values[0][rows]

        return Holdings(
            first=self.first,
            last=self.last,
            entry_ids=self.entry_ids,
            sizes=column([record.sizes for record in records]),
            lengths_after=column([record.lengths for record in records]),
            messages=column([r.messages + base for r, base in zip(records, bases, strict=True)]),
            appended_at_ms=column([record.times_ms for record in records]),
            doubts=doubts,
            parts=tuple(part for record in records for part in record.parts),
            places=self,
        )

    def only(self, counts: Callable[[str], bool]) -> EntryIndex:
        """Return an index of the files for whose paths ``counts`` is true."""
        return replace(self, holdings=tuple(h for h in self.holdings if counts(h.path)))

    def renamed(
        self, path_of: Callable[[str], str], part_of: Callable[[PartRef], str]
    ) -> EntryIndex:
        """Return an index with other paths of records and names of parts."""
        renamed = []
        for holding in self.holdings:
            parts = holding.record.parts
            refs = (replace(part.ref, name=part_of(part.ref)) for part in parts)
            named = tuple(replace(part, ref=ref) for part, ref in zip(parts, refs, strict=True))
            record = replace(holding.record, parts=named)
            renamed.append(Holding(path_of(holding.path), record))
        return replace(self, holdings=tuple(renamed))

    def __len__(self) -> int:
        return len(self.entry_ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.entry_ids.tolist())

    def __contains__(self, entry_id: int) -> bool:
        start, end = self._rows(entry_id)
        return start < end

    def places(self, entry_id: int) -> list[Location]:
        """Return all places of an entry, slots before copies. An empty list proves nothing."""
        start, end = self._rows(entry_id)
        return [self._location(row) for row in range(start, end)]

    def _rows(self, entry_id: int) -> tuple[int, int]:
        ids = self._table[0]
        start = int(ids.searchsorted(entry_id, side="left"))
        return start, int(ids.searchsorted(entry_id, side="right"))

    def _location(self, row: int) -> Location:
        _, owners, positions = self._table
        holding = self.holdings[int(owners[row])]
        return holding.record.location(int(positions[row]), self._paths, holding.path)

    def check_absent(self, entry_id: int) -> None:
        """Check that an entry without a place here is certainly not on this bookie.

        Raises:
            CorruptEntryError: it may be in a file that is damaged.
            BookieUnavailableError: it may be in a file that is missing or cannot be read.
            InvalidArgumentError: the index does not cover that entry.
        """
        if not self.first <= entry_id <= self.last:
            raise InvalidArgumentError(
                f"this index covers the entries {self.first}..{self.last}, not {entry_id}"
            )
        for doubt in self.doubts:
            if doubt.first <= entry_id <= doubt.last:
                kind = CorruptEntryError if doubt.is_corrupt else BookieUnavailableError
                raise kind(
                    f"bookie {self.bookie_id}: entry {entry_id} of ledger {self.key.ledger_id} "
                    f"may be in {doubt.path}, which cannot be relied on: {doubt.reason}",
                    bookie_id=self.bookie_id,
                    path=doubt.path,
                )

    def first_places(self, entry_ids: Sequence[int]) -> list[Location | None]:
        """Return the first place of each entry, ``None`` if it has none.

        One search serves all entries. With small entries, single searches would dominate a scan.
        """
        if (only := self._only) is not None:
            found = only.few(self._paths, self.holdings[0].path)
            if found and [place.entry_id for place in found] == list(entry_ids):
                return list(found)
        is_here, rows = self._first_rows(entry_ids)
        _, owners, positions = self._table
        places: list[Location | None] = [None] * len(entry_ids)
        wanted = is_here.nonzero()[0]
        wanted = wanted[owners[rows[wanted]].argsort(kind="stable")]
        counts = np.bincount(owners[rows[wanted]], minlength=len(self.holdings)).tolist()
        paths, numbers, end = self._paths, wanted.tolist(), 0
        for holding, count in zip(self.holdings, counts, strict=True):
            if not count:
                continue
            record = holding.record
            if count == len(record.ids) == 1 and (few := record.few(paths, holding.path)):
                places[numbers[end]] = few[0]
                end += 1
                continue
            of_one = wanted[end : end + count]
            end += count
            located = record.locations(positions[rows[of_one]], paths, holding.path)
            for number, place in zip(of_one.tolist(), located, strict=True):
                places[number] = place
        return places

    def _first_rows(self, entry_ids: Sequence[int]) -> tuple[npt.NDArray[np.bool_], Int64Array]:
        """Return whether each entry is here, and the row of its first place (undefined if not)."""
        ids = self._table[0]
        wanted = np.asarray(entry_ids, dtype=np.int64)
        if not len(ids):
            return np.zeros(len(wanted), dtype=np.bool_), np.zeros(len(wanted), dtype=np.int64)
        rows = np.minimum(ids.searchsorted(wanted, side="left"), len(ids) - 1)
        return ids[rows] == wanted, rows


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a slot log."""

    slots: int
    """The number of slots below the fence; without a fence, up to the last slot seen."""

    is_fenced: bool
    last_add_confirmed: int
    """The highest one in the records that were read."""

    entries: EntryIndex
    """All entries after ``last_add_confirmed``."""


def possible_range(low: int, high: int, readable: Sequence[tuple[int, Record]]) -> tuple[int, int]:
    """Return the range of entries that the unreadable slots ``low..high`` may hold.

    Their neighbours limit it: the slots of a ledger on one bookie ascend in entry ids
    (``LedgerLog.add`` checks that).

    Args:
        low, high: the first and last slot of an unreadable run.
        readable: slot numbers with their ADD records, in any order.
    """
    below = max((record.last for number, record in readable if number < low), default=NO_ENTRY)
    above = min((record.first for number, record in readable if number > high), default=UNBOUNDED)
    return below + 1, above if above == UNBOUNDED else above - 1
