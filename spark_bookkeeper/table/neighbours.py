"""Small ledgers whose rows are read from a table together: they lie in the same files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

WINDOW_BYTES: Final = 32 << 20
"""About how much of ledgers is in memory at once."""

TOGETHER_ENTRIES: Final = 4096
"""A ledger with more entries is read by itself, however small they are."""


class Neighbour(Protocol):
    """A piece of a ledger that is to be read from a table."""

    @property
    def may_go_with_others(self) -> bool:
        """Whether it is all of a small ledger."""

    @property
    def size_bytes(self) -> int:
        """About how much it is."""


NeighbourT = TypeVar("NeighbourT", bound=Neighbour)


def together(pieces: Sequence[NeighbourT]) -> Iterator[list[tuple[int, NeighbourT]]]:
    """Small ledgers with their numbers, as many at a time as fit in memory. The others are left
    out.
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
