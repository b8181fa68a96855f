"""Quorum arithmetic against second, slower definitions, for every small case."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from tests.support.describe import describe_answers, describe_prefixes

QUORUMS = [
    Quorum(e, qw, qa) for e in range(1, 6) for qw in range(1, e + 1) for qa in range(1, qw + 1)
]


def every_set(size: int) -> Iterator[frozenset[int]]:
    positions = range(size)
    picked = chain.from_iterable(combinations(positions, n) for n in range(size + 1))
    return (frozenset(chosen) for chosen in picked)


def test_the_table_of_write_sets_of_the_bookkeeper_protocol() -> None:
    # The BookKeeper protocol, "Write quorums": E=4, Qw=3.
    quorum = Quorum(4, 3, 2)

    assert [quorum.write_set(EntryId(e)) for e in range(6)] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 0),
        (3, 0, 1),
        (0, 1, 2),
        (1, 2, 3),
    ]


@pytest.mark.parametrize("sizes", [(3, 4, 2), (3, 3, 4), (3, 3, 0), (0, 0, 0), (2, 3, 1)])
def test_sizes_that_break_the_rule_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="ensemble_size >= write_quorum_size"):
        Quorum(*sizes)


def test_sizes_of_any_make_of_whole_number_are_ints_afterwards() -> None:
    sizes: list[Any] = [np.int64(3), np.int32(3), np.uint8(2)]
    quorum = Quorum(*sizes)
    assert quorum == Quorum(3, 3, 2)
    assert type(quorum.ensemble_size) is type(quorum.ack_quorum_size) is int


@pytest.mark.parametrize("sizes", [(True, 1, 1), (3.0, 3, 2), ("3", 3, 2)])
def test_sizes_that_are_no_whole_numbers_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="whole numbers"):
        Quorum(*sizes)


def test_a_position_holds_exactly_the_entries_striped_to_it() -> None:
    for quorum in QUORUMS:
        for entry_id in map(EntryId, range(3 * quorum.ensemble_size)):
            write_set = quorum.write_set(entry_id)
            assert len(set(write_set)) == quorum.write_quorum_size
            for position in range(quorum.ensemble_size):
                assert quorum.holds(position, entry_id) == (position in write_set), (
                    f"{quorum}: entry {entry_id} has the write set {write_set}"
                )


def test_every_write_set_that_occurs_is_listed() -> None:
    for quorum in QUORUMS:
        occurring = {frozenset(quorum.write_set(EntryId(e))) for e in range(quorum.ensemble_size)}

        assert {frozenset(w) for w in quorum.write_sets()} == occurring
        assert quorum.is_striped == (len(quorum.write_sets()) > 1)


def test_coverage_means_that_the_silent_can_acknowledge_no_entry() -> None:
    for quorum in QUORUMS:
        for answered in every_set(quorum.ensemble_size):
            silent_could_acknowledge = any(
                len(set(quorum.write_set(EntryId(e))) - answered) >= quorum.ack_quorum_size
                for e in range(quorum.ensemble_size)
            )

            assert quorum.has_coverage(answered) == (not silent_could_acknowledge), (
                describe_answers(quorum, answered)
            )


def test_coverage_asks_every_write_set_and_not_only_how_many_answered() -> None:
    quorum = Quorum(5, 2, 2)

    assert quorum.has_coverage({0, 2, 4})
    assert not quorum.has_coverage({0, 1, 2})


def slow_confirmed(quorum: Quorum, stored_through: tuple[int, ...], pushed: int) -> int:
    """Walk up entry by entry, and count who stores each."""
    confirmed = -1
    for entry_id in range(pushed + 1):
        holders = [p for p in quorum.write_set(EntryId(entry_id)) if stored_through[p] >= entry_id]
        if len(holders) < quorum.ack_quorum_size:
            break
        confirmed = entry_id
    return confirmed


def test_confirmed_through_is_what_walking_up_entry_by_entry_finds() -> None:
    for quorum in QUORUMS:
        pushed = 5 if quorum.ensemble_size < 5 else 4
        for vector in product(range(-1, pushed + 1), repeat=quorum.ensemble_size):
            fast = quorum.confirmed_through([EntryId(s) for s in vector], EntryId(pushed))

            assert fast == slow_confirmed(quorum, vector, pushed), describe_prefixes(
                quorum, vector, pushed
            )


def test_confirmed_through_far_from_the_beginning() -> None:
    quorum = Quorum(5, 3, 2)
    base = 1_000_000
    for vector in product(range(3), repeat=5):
        stored = [EntryId(base + s) for s in vector]
        near = [EntryId(s) for s in vector]

        found = quorum.confirmed_through(stored, EntryId(base + 2))

        assert found - base == quorum.confirmed_through(near, EntryId(2))
