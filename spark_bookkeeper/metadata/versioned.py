"""A value of the metadata store, and the version by which it is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value with the store's counters for compare-and-swap."""

    value: T
    version: int
    own_writes: int = 0
    """Of a ledger: how often this library wrote it, its creation included, as the store counts.

    0 where only other tools did. It tells a ledger that another tool deleted and made again,
    whose version began at 0 again as well, from the one that was read.
    """
    created: int = 0
    """Of a task: the store's number for its creation, never given twice, which tells one that went
    and came, whose version began at 0 again as well, from the one that was read."""
