"""Which bookies are chosen, and what a person is told about the others."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_bookkeeper.errors import NotEnoughBookiesError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.placement import (
    Candidate,
    choose,
    choose_ensemble,
    drawn,
    replace_bookies,
)
from spark_bookkeeper.protocol.quorum import Quorum

A, B, C, D, E = (BookieId(f"{name}:3181") for name in "abcde")


def test_the_order_of_preference_decides() -> None:
    candidates = [Candidate(C), Candidate(A), Candidate(B), Candidate(D)]

    assert choose_ensemble(Quorum(3, 3, 2), candidates, {}) == (C, A, B)


def test_read_only_and_excluded_bookies_are_passed_over() -> None:
    candidates = [Candidate(A, is_readonly=True), Candidate(B), Candidate(C), Candidate(D)]

    assert choose_ensemble(Quorum(2, 2, 2), candidates, {B: "lost"}) == (C, D)


def test_too_few_bookies_are_told_with_a_table_of_all_of_them() -> None:
    candidates = [Candidate(A, is_readonly=True), Candidate(B), Candidate(C)]
    excluded = {B: "formatted again", D: "not registered"}

    with pytest.raises(NotEnoughBookiesError) as caught:
        choose_ensemble(Quorum(3, 3, 2), candidates, excluded)

    error = caught.value
    assert (error.needed, error.available) == (3, 1)
    assert error.causes == {A: "read-only", B: "formatted again", D: "not registered"}
    for line in (f"{C}  usable", f"{A}  read-only", f"{D}  not registered", "for the ensemble"):
        assert line in error.message


def test_with_no_bookie_at_all_the_table_says_so() -> None:
    with pytest.raises(NotEnoughBookiesError, match="no bookie is registered"):
        choose([], {}, "for the ensemble")


def test_a_replacement_is_never_a_member_already() -> None:
    candidates = [Candidate(A), Candidate(B), Candidate(C), Candidate(D), Candidate(E)]

    assert replace_bookies(Quorum(3, 3, 2), (A, B, C), {1}, candidates, {}) == (A, D, C)
    assert replace_bookies(Quorum(3, 3, 2), (A, B, C), {2, 0}, candidates, {}) == (D, B, E)


def test_the_bookie_that_is_replaced_is_not_chosen_again() -> None:
    candidates = [Candidate(A), Candidate(B), Candidate(C)]

    with pytest.raises(NotEnoughBookiesError) as caught:
        replace_bookies(Quorum(3, 3, 2), (A, B, C), {1}, candidates, {B: "lost to this writer"})

    assert caught.value.causes[B] == "lost to this writer"
    assert caught.value.causes[A] == "already in the ensemble"


def test_shares_are_drawn_by_free_space_and_the_same_again() -> None:
    free = {"a:1": 100, "b:1": 200, "c:1": 100, "d:1": None, "full:1": 0, "readonly:1": 5}

    def order(share: int, used: int = 0) -> list[str]:
        sizes = {
            name: None if gib is None else max(0, gib - used) << 30 for name, gib in free.items()
        }
        candidates = [
            Candidate(BookieId(name), name == "readonly:1", free_bytes=size)
            for name, size in sizes.items()
        ]
        return [each.bookie_id for each in drawn(f"share {share}", candidates[:: 1 - 2 * used])]

    firsts = Counter(order(n)[0] for n in range(4000))
    for name, part in (("a:1", 0.2), ("b:1", 0.4), ("c:1", 0.2), ("d:1", 0.2), ("full:1", 0)):
        assert abs(firsts[name] / 4000 - part) < 0.05
    same = sum(order(n) == order(n, used=1) for n in range(1000))
    assert same > 700, "some space was used meanwhile, and few choices changed"


def test_a_rack_that_has_a_copy_comes_last() -> None:
    candidates = [Candidate(BookieId(name)) for name in ("a:1", "b:1", "c:1")]
    avoided = [BookieId("a:1"), BookieId("c:1")]
    for n in range(50):
        assert drawn(f"share {n}", candidates, avoided)[0].bookie_id == "b:1"


def racked(*racks: str) -> list[Candidate]:
    """Bookies in order of preference, by the racks they stand in."""
    return [Candidate(BookieId(f"{n}:3181"), rack=rack) for n, rack in enumerate(racks)]


def ids(*numbers: int) -> tuple[BookieId, ...]:
    return tuple(BookieId(f"{n}:3181") for n in numbers)


def test_an_ensemble_is_spread_over_racks_before_preference_decides() -> None:
    quorum = Quorum(3, 3, 2)

    assert choose_ensemble(quorum, racked("x", "x", "x", "y", "z"), {}) == ids(0, 3, 4)
    assert choose_ensemble(quorum, racked("x", "x", "x", "y"), {}) == ids(0, 1, 3)
    assert choose_ensemble(quorum, racked("x", "x", "x", "x"), {}) == ids(0, 1, 2)


def test_every_write_set_of_a_striped_ensemble_is_spread() -> None:
    """Entries are on two neighbours: with two racks, neighbours are never on the same one."""
    chosen = choose_ensemble(Quorum(4, 2, 2), racked("x", "x", "y", "y", "x"), {})

    assert chosen == ids(0, 2, 1, 3)


def test_a_replacement_stands_where_its_write_sets_have_no_copy() -> None:
    candidates = racked("x", "y", "x", "x", "y", "z")

    assert replace_bookies(Quorum(3, 3, 2), ids(0, 1, 2), {2}, candidates, {}) == ids(0, 1, 5)
    assert replace_bookies(Quorum(2, 2, 2), ids(0, 1), {1}, candidates[:5], {}) == ids(0, 4)
    assert replace_bookies(Quorum(2, 2, 2), ids(0, 1), {1}, candidates[:4], {}) == ids(0, 2)


def test_a_silent_bookie_is_not_chosen_for_its_rack() -> None:
    silent = Candidate(BookieId("9:3181"), rack="y", is_silent=True)

    assert choose_ensemble(Quorum(2, 2, 2), [*racked("x", "x"), silent], {}) == ids(0, 1)
    assert choose_ensemble(Quorum(2, 2, 2), [*racked("x"), silent], {}) == ids(0, 9)
