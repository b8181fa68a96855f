"""The entries of a ledger on a bookie, according to its records, and the ranges in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.bookie.messages import Int64Array


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A range in which a bookie may have more entries, and the reason for this doubt."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """The entries of a range that a bookie has, by its records. The entries were not read.

    An entry that is neither here nor in a doubt is certainly not on the bookie now. Only if the
    bookie was fenced before is it proven absent for ever (SLOT-LOG rule R5).
    """

    first: int
    last: int
    entry_ids: Int64Array
    """Entry ids, ascending, each once."""
    sizes: Int64Array
    """The bytes of each entry."""
    lengths_after: Int64Array
    """The bytes of the ledger up to and including each entry."""
    messages: Int64Array
    """A number for each entry; entries with the same number are stored as one piece."""
    appended_at_ms: Int64Array
    """When each entry was appended, in milliseconds since 1970 by its writer's clock, for display;
    -1 if unknown."""
    doubts: tuple[Doubtful, ...]
    parts: tuple[PlacedPart, ...]
    """Parts with entries of the range; such a part may also have entries outside it."""
    places: object = None
    """The places of the entries, for bookies of the same kind only."""

    def __len__(self) -> int:
        return len(self.entry_ids)

    def __contains__(self, entry_id: int) -> bool:
        return self._row(entry_id) is not None

    def length_after(self, entry_id: int) -> int | None:
        """Return the ledger's bytes up to and including an entry; ``None`` if it is not here."""
        row = self._row(entry_id)
        return None if row is None else int(self.lengths_after[row])

    def appended_at(self, entry_id: int) -> int | None:
        """Return when an entry was appended; ``None`` if unknown."""
        row = self._row(entry_id)
        time_ms = -1 if row is None else int(self.appended_at_ms[row])
        return None if time_ms < 0 else time_ms

    def lacking(self, entry_ids: Sequence[int]) -> list[int]:
        """Return the given entries that are not here. Some of them may be in doubt."""
        is_here, _ = self._rows(entry_ids)
        return [entry_ids[number] for number in np.flatnonzero(~is_here).tolist()]

    def pieces(self, entry_ids: Sequence[int]) -> tuple[Int64Array, Int64Array]:
        """Return ``messages`` and ``sizes`` of entries; -1 and 0 for an entry that is not here."""
        is_here, rows = self._rows(entry_ids)
        numbers: Int64Array = np.full(len(entry_ids), -1, dtype=np.int64)
        sizes: Int64Array = np.zeros(len(entry_ids), dtype=np.int64)
        numbers[is_here] = self.messages[rows[is_here]]
        sizes[is_here] = self.sizes[rows[is_here]]
        return numbers, sizes

    def _row(self, entry_id: int) -> int | None:
        row = int(np.searchsorted(self.entry_ids, entry_id))
        is_here = row < len(self.entry_ids) and self.entry_ids[row] == entry_id
        return row if is_here else None

    def _rows(self, entry_ids: Sequence[int]) -> tuple[npt.NDArray[np.bool_], Int64Array]:
        """Return whether each entry is here, and its row (undefined if it is not)."""
        wanted = np.asarray(entry_ids, dtype=np.int64)
        if not len(self.entry_ids):
            return np.zeros(len(wanted), dtype=np.bool_), np.zeros(len(wanted), dtype=np.int64)
        rows = np.minimum(np.searchsorted(self.entry_ids, wanted), len(self.entry_ids) - 1)
        return self.entry_ids[rows] == wanted, rows


@dataclass(frozen=True, slots=True)
class LedgerTail:
    """The end of a ledger on one bookie."""

    is_fenced: bool
    last_add_confirmed: int
    """The highest value in any record read."""
    entries: Holdings
    """All entries after ``last_add_confirmed``."""
