"""The tasks that a worker knows of and has not taken: of each as little as its order needs.

A million of them take 24 MB, and three times as much while they are put in order; they are read
from the cluster once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_bookkeeper.protocol.ids import LedgerId

Ids: TypeAlias = npt.NDArray[np.int64]
"""Ledger ids."""

_FREE: Final = np.dtype(
    [("ledger_id", "i8"), ("live_copies", "i4"), ("marked_at_ms", "i8"), ("dice", "u4")]
)
_LEFT: Final = np.dtype([("ledger_id", "i8"), ("until_ms", "i8"), ("is_noted", "?")])


@dataclass(frozen=True, slots=True)
class FreeTask:
    """A task that this worker may take."""

    ledger_id: LedgerId
    live_copies: int
    """Of the entries that have the fewest; 0 of a ledger that cannot be read."""
    marked_at_ms: int
    dice: int
    """Below 2**32."""


class Backlog:
    """Free tasks: the fewest live copies first, then the oldest, then by the dice."""

    def __init__(self) -> None:
        self._ordered: npt.NDArray[Any] = np.empty(0, _FREE)
        self._added: list[npt.NDArray[Any]] = []

    def __len__(self) -> int:
        return len(self._ordered) + sum(map(len, self._added))

    @property
    def ledger_ids(self) -> Ids:
        """Of all of them, in no order."""
        return np.concatenate([self._ordered, *self._added])["ledger_id"]

    def add(self, tasks: Sequence[FreeTask]) -> None:
        """Some more; none that is there."""
        if not tasks:
            return  # what is there is in order already
        rows = [(t.ledger_id, t.live_copies, t.marked_at_ms, t.dice) for t in tasks]
        self._added.append(np.array(rows, _FREE))

    def take(self, most: int) -> list[FreeTask]:
        """The first in order, which are there no more."""
        if self._added:
            rows = np.concatenate([self._ordered, *self._added])
            order = np.lexsort((rows["dice"], rows["marked_at_ms"], rows["live_copies"]))
            self._ordered, self._added = rows[order], []
        taken, self._ordered = self._ordered[:most], self._ordered[most:]
        return [FreeTask(*row) for row in taken.tolist()]


class LeftAlone:
    """Tasks that this worker looks at again later."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[Any]] = []

    @property
    def _rows(self) -> npt.NDArray[Any]:
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, _LEFT), *self._parts])]
        return self._parts[0]

    @property
    def ledger_ids(self) -> Ids:
        """Of all of them, in no order."""
        ids: Ids = self._rows["ledger_id"]
        return ids

    @property
    def until_ms(self) -> int | None:
        """When the first is to be looked at; ``None`` where there are none."""
        return int(self._rows["until_ms"].min()) if len(self._rows) else None

    def add(self, tasks: Sequence[tuple[LedgerId, int, bool]]) -> None:
        """Some more: each with the time until which it is left, and whether a note says so."""
        self._parts.append(np.array(tasks, _LEFT))

    def forget(self, now_ms: int, noted: Ids) -> None:
        """Those whose time has come, and those whose note is gone.

        Args:
            noted: ledgers that have a note, ascending.
        """
        rows = self._rows
        is_left = rows["until_ms"] > now_ms
        is_left &= ~rows["is_noted"] | is_among(rows["ledger_id"], noted)
        self._parts = [rows[is_left]]


def is_among(asked: Ids, known: Ids) -> npt.NDArray[np.bool_]:
    """For each whether it is one of the known ones, which are ascending."""
    if not len(known):
        return np.zeros(len(asked), np.bool_)
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return known[places] == asked
