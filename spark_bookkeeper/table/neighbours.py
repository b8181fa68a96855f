"""Batches of small ledgers whose rows are in the same files of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

WINDOW_BYTES: Final = 32 << 20
"""Approximate size of the ledgers that are in memory at once."""

TOGETHER_ENTRIES: Final = 4096
"""From this number of entries on, a ledger is read by itself, even if it has few bytes."""


class Neighbour(Protocol):
    """A piece of a ledger that is to be read from a table."""

    @property
    def may_go_with_others(self) -> bool:
        """Whether it is the whole of a small ledger."""

    @property
    def size_bytes(self) -> int:
        """Its approximate size."""


NeighbourT = TypeVar("NeighbourT", bound=Neighbour)


def together(pieces: Sequence[NeighbourT]) -> Iterator[list[tuple[int, NeighbourT]]]:
    """Yield batches of small ledgers, each with its number, as many as fit in memory. Other pieces
    are left out.
    """
    some: list[tuple[int, NeighbourT]] = []
    size = 0
    for number, piece in enumerate(pieces):
        if not piece.may_go_with_others:
            continue
        if some and size + piece.size_bytes > WINDOW_BYTES:
            yield some
            some, size = [], 0
        some.append((number, piece))
        size += piece.size_bytes
    if some:
        yield some
