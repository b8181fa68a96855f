"""What a bookie has of a ledger: which entries, as its records tell, and where it is in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.bookie.messages import Int64Array


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A range in which a bookie cannot say what else it has, and why."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """Which entries of a range a bookie has, as its records tell; their bytes were not read.

    What is not among them is certainly not on the bookie, unless it is doubtful. It is proven to
    be absent for ever only where the bookie was fenced before (SLOT-LOG rule R5).
    """

    first: int
    last: int
    entry_ids: Int64Array
    """Ascending, each once."""
    sizes: Int64Array
    """Bytes of each."""
    lengths_after: Int64Array
    """Bytes in the ledger up to and including each."""
    messages: Int64Array
    """A number for each; those with the same number are stored as one piece."""
    appended_at_ms: Int64Array
    """When each was appended, in milliseconds since 1970 by its writer's clock, for people; -1
    where that is not known."""
    doubts: tuple[Doubtful, ...]
    parts: tuple[PlacedPart, ...]
    """Parts with entries of the range; a part also has what lies beyond it."""
    places: object = None
    """How a bookie of the same kind finds them. Nobody else looks inside."""

    def __len__(self) -> int:
        return len(self.entry_ids)

    def __contains__(self, entry_id: int) -> bool:
        return self._row(entry_id) is not None

    def length_after(self, entry_id: int) -> int | None:
        """Bytes in the ledger up to and including an entry; ``None`` for one that is not here."""
        row = self._row(entry_id)
        return None if row is None else int(self.lengths_after[row])

    def appended_at(self, entry_id: int) -> int | None:
        """When an entry was appended; ``None`` where that is not known."""
        row = self._row(entry_id)
        time_ms = -1 if row is None else int(self.appended_at_ms[row])
        return None if time_ms < 0 else time_ms

    def lacking(self, entry_ids: Sequence[int]) -> list[int]:
        """Those of many entries that are not among these; some of them may be doubtful."""
        is_here, _ = self._rows(entry_ids)
        return [entry_ids[number] for number in np.flatnonzero(~is_here).tolist()]

    def pieces(self, entry_ids: Sequence[int]) -> tuple[Int64Array, Int64Array]:
        """``messages`` and ``sizes`` of many entries; -1 and 0 for one that is not here."""
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
        """Whether each is here, and its row, meaningless if it is not."""
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
    """The highest that any record here carries."""
    entries: Holdings
    """Everything behind it."""
