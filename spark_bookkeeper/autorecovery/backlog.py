"""The tasks that a worker knows of and has not taken: of each as little as its order needs.

A million of them take 32 MB, and three times as much while they are put in order; they are read
from the cluster once, and again when something happens to a bookie that matters to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_bookkeeper.protocol.ids import LedgerId

Ids: TypeAlias = npt.NDArray[np.int64]
"""Ledger ids."""

_FREE: Final[np.dtype[Any]] = np.dtype(
    [
        *(("ledger_id", "i8"), ("live_copies", "i4"), ("marked_at_ms", "i8"), ("dice", "u4")),
        ("heeds", "u8"),
    ]
)
_LEFT: Final[np.dtype[Any]] = np.dtype(
    [
        *(("ledger_id", "i8"), ("until_ms", "i8"), ("is_noted", "?"), ("heeds", "u8")),
        ("mark", "u4"),
    ]
)

TAKES_DATA: Final = 1 << 63
"""What happens: some bookie takes data that did not before."""

GOES: Final = 1 << 62
"""What happens: some bookie is lost. A task that is left may be published again for it, or its
ledger's ensemble may have come to name it since, so whatever is left heeds it."""

_BITS: Final = 62


class BookieBits:
    """What happens to bookies, as bits of a number: one for each bookie.

    With more than 62 bookies some share a bit, and more is read again than need be.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, bookies: Iterable[str]) -> int:
        """The bits of these."""
        bits = 0
        for bookie in bookies:
            bits |= 1 << self._numbers.setdefault(bookie, len(self._numbers)) % _BITS
        return bits


@dataclass(frozen=True, slots=True)
class FreeTask:
    """A task that this worker may take."""

    ledger_id: LedgerId
    live_copies: int
    """Of the entries that have the fewest; 0 of a ledger that cannot be read."""
    marked_at_ms: int
    dice: int
    """Below 2**32."""
    heeds: int = 0
    """What may happen that changes its place in the order, or who may take it (``BookieBits``)."""


class LeftTask(NamedTuple):
    """A task that this worker looks at again later."""

    ledger_id: LedgerId
    until_ms: int
    is_noted: bool
    """Whether a note says so."""
    heeds: int
    """What may happen before that is a reason to look again (``BookieBits``, ``GOES`` always)."""
    mark: int
    """Another one where it is published again; below 2**32."""


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
        rows = [(t.ledger_id, t.live_copies, t.marked_at_ms, t.dice, t.heeds) for t in tasks]
        self._added.append(np.array(rows, _FREE))

    def forget(self, happened: int) -> None:
        """Those that heed any of this (``BookieBits``)."""
        self._ordered = _unmoved(self._ordered, happened)
        self._added = [_unmoved(rows, happened) for rows in self._added]

    def take(self, most: int) -> list[FreeTask]:
        """The first in order, which are there no more."""
        if self._added:
            rows = np.concatenate([self._ordered, *self._added])
            order = np.lexsort((rows["dice"], rows["marked_at_ms"], rows["live_copies"]))
            self._ordered, self._added = rows[order], []
        taken, self._ordered = self._ordered[:most], self._ordered[most:]
        return [FreeTask(*row) for row in taken.tolist()]


class LeftTasks:
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

    def add(self, tasks: Sequence[LeftTask]) -> None:
        """Some more."""
        self._parts.append(np.array(tasks, _LEFT))

    def forget(self, happened: int) -> None:
        """Those that heed any of this (``BookieBits``)."""
        self._parts = [_unmoved(self._rows, happened)]

    def take_due(self, now_ms: int, most_ms: int) -> Ids:
        """Those whose time has come, which are there no more.

        Args:
            most_ms: the longest that anything is left alone; a time further off is another clock's.
        """
        rows = self._rows
        left_ms = rows["until_ms"] - now_ms
        is_left = (left_ms > 0) & (left_ms <= most_ms)
        self._parts = [rows[is_left]]
        due: Ids = rows["ledger_id"][~is_left]
        return due

    def keep(self, there: Ids, noted: Ids) -> None:
        """Forget those that have no task any more, or of which a note said when that is gone.

        Args:
            there: ledgers that have a task, ascending.
            noted: ledgers that have a note, ascending.
        """
        rows = self._rows
        has_note = ~rows["is_noted"] | is_among(rows["ledger_id"], noted)
        self._parts = [rows[has_note & is_among(rows["ledger_id"], there)]]

    def in_turn(self, most: int) -> Mapping[LedgerId, int]:
        """The marks of some of them: each time of others, until it was the turn of all."""
        rows = self._rows
        self._parts = [rows[most:], rows[:most]]
        return {LedgerId(i): mark for i, mark in rows[:most][["ledger_id", "mark"]].tolist()}

    def forget_these(self, ledger_ids: Ids) -> None:
        """Those of them that are there; ascending."""
        rows = self._rows
        self._parts = [rows[~is_among(rows["ledger_id"], ledger_ids)]]


def _unmoved(rows: npt.NDArray[Any], happened: int) -> npt.NDArray[Any]:
    return rows[rows["heeds"] & np.uint64(happened) == 0]


def is_among(asked: Ids, known: Ids) -> npt.NDArray[np.bool_]:
    """For each whether it is one of the known ones, which are ascending."""
    if not len(known):
        return np.zeros(len(asked), np.bool_)
    places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return known[places] == asked
