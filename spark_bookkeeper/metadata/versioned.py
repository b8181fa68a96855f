"""A value of the metadata store with the version that a change of it must give."""

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
    """For a ledger: how often this library wrote it, including its creation, as the store counts.

    0 if only other tools wrote it. The count distinguishes the ledger that was read from one that
    another tool deleted and made again, because the version of the new one also began at 0.
    """
    created: int = 0
    """For a task: the store's number for its creation, never given twice. It distinguishes the task
    that was read from a later one, because the version of the later one also began at 0."""
