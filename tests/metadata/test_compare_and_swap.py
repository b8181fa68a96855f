"""The one loop, for any value: the same situations for a ledger, a deletion and a register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from spark_bookkeeper.errors import (
    MetadataFormatError,
    MetadataUnavailableError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.compare_and_swap import ABSENT, CONFLICTS_MAX, UNKNOWN_MAX, change
from spark_bookkeeper.metadata.store import Versioned


@dataclass
class Tally:
    """A list of names under compare-and-swap, and what the world does to it."""

    names: tuple[str, ...] | None = None
    version: int = ABSENT
    happenings: list[Callable[[Tally], None]] = field(default_factory=list)
    """One is taken from the front at every write; it may change the tally, or raise."""
    reads: int = 0
    writes: int = 0

    def put(self, *names: str) -> None:
        self.names, self.version = names, self.version + 1

    def read(self) -> Versioned[tuple[str, ...]]:
        self.reads += 1
        return Versioned(self.names or (), self.version)

    def write(
        self, new: tuple[str, ...], old: Versioned[tuple[str, ...]]
    ) -> Versioned[tuple[str, ...]]:
        self.writes += 1
        happen = self.happenings.pop(0) if self.happenings else lambda tally: None
        if happen is answer_lost:
            self.put(*new)
        happen(self)
        if old.version != self.version:
            raise VersionConflictError("somebody else was faster")
        self.put(*new)
        return Versioned(new, self.version)


def answer_lost(tally: Tally) -> None:
    raise MetadataUnavailableError("no answer to the write")


def request_lost(tally: Tally) -> None:
    raise MetadataUnavailableError("no answer to the write")


def ann(names: tuple[str, ...]) -> tuple[str, ...]:
    return (*names, "ann")


def nothing(names: tuple[str, ...]) -> tuple[str, ...] | None:
    return None


def test_a_value_that_is_not_there_yet_is_begun_even_when_the_step_changes_nothing() -> None:
    tally = Tally()

    stored = change(tally, lambda names: names)

    assert (stored, tally.names) == (Versioned((), 0), ())


def test_a_step_that_changes_nothing_writes_nothing() -> None:
    tally = Tally(("bob",), 0)

    assert change(tally, lambda names: names) == Versioned(("bob",), 0)
    assert change(tally, nothing) == Versioned(("bob",), 0)
    assert tally.writes == 0


def test_somebody_who_was_faster_is_seen_by_the_next_step() -> None:
    tally = Tally(happenings=[lambda tally: tally.put("bob")])

    assert change(tally, ann).value == ("bob", "ann")


def test_a_change_whose_answer_was_lost_is_made_once() -> None:
    tally = Tally(happenings=[answer_lost])

    assert change(tally, ann) == Versioned(("ann",), 0)
    assert (tally.names, tally.writes) == (("ann",), 1)


def test_a_change_that_was_lost_on_the_way_is_made_again() -> None:
    tally = Tally(happenings=[request_lost, request_lost])

    assert change(tally, ann) == Versioned(("ann",), 0)


def test_an_old_value_that_the_caller_knows_costs_one_more_read_and_nothing_else() -> None:
    tally = Tally(("bob",), 3)
    old: Versioned[tuple[str, ...]] = Versioned((), 1)

    assert change(tally, ann, known=old) == Versioned(("bob", "ann"), 4)
    assert tally.reads == 1
    assert change(tally, ann, known=tally.read()).value == ("bob", "ann", "ann")
    assert tally.reads == 2


@pytest.mark.parametrize(
    ("happening", "error", "most"),
    [
        (request_lost, MetadataUnavailableError, UNKNOWN_MAX),
        (lambda tally: tally.put(f"{tally.writes}"), VersionConflictError, CONFLICTS_MAX),
    ],
)
def test_the_loop_ends(
    happening: Callable[[Tally], None], error: type[Exception], most: int
) -> None:
    tally = Tally(happenings=[happening] * 1000)

    with pytest.raises(error):
        change(tally, ann)

    assert tally.writes == most


def test_what_reading_or_the_step_raises_goes_to_the_caller_and_nothing_is_written() -> None:
    def refuse(names: tuple[str, ...]) -> tuple[str, ...]:
        raise MetadataFormatError("junk")

    tally = Tally()

    with pytest.raises(MetadataFormatError):
        change(tally, refuse)
    assert (tally.names, tally.writes) == (None, 0)
