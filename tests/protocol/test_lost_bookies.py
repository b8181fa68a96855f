"""The delay of a lost bookie, in every order of comings and goings."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

import pytest

from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.lost_bookies import NOBODY, LostBookies
from spark_bookkeeper.protocol.task_notes import next_check_at

A, B, C, D, E = (BookieId(f"{name}:3181") for name in "abcde")
ALL = {A, B, C}
FIVE = {A, B, C, D, E}
SESSION = 10.0


def alive(bookies: Collection[BookieId], incarnation: str = "1") -> dict[BookieId, str]:
    return dict.fromkeys(sorted(bookies), incarnation)


class Watch:
    """What an auditor sees, look by look."""

    def __init__(self, delay: float, first: Collection[BookieId] = ALL, at: float = 0) -> None:
        self.delay = delay
        self.bookies = LostBookies(frozenset(first))
        assert self.sees(first, at) == NOBODY

    def sees(
        self, here: Collection[BookieId] | dict[BookieId, str], now: float
    ) -> frozenset[BookieId]:
        """Whom it takes for lost."""
        available = here if isinstance(here, dict) else alive(here)
        self.bookies, lost = self.bookies.seen(available, self.delay, SESSION, now)
        return lost


def test_without_a_delay_a_loss_is_audited_at_once_and_only_once() -> None:
    watch = Watch(0)

    assert watch.sees({A, B}, 1) == {C}
    assert watch.sees({A, B}, 2) == NOBODY
    assert watch.sees(ALL, 3) == NOBODY
    assert watch.sees({A, B}, 4) == {C}


@pytest.mark.parametrize(
    ("delay", "due"),
    [(0, 30), (5, 30), (50, 30), (100, 30), (600, 80), (6_000, 620)],
)
def test_two_that_are_away_have_a_tenth_of_the_delay_and_a_session_at_least(
    delay: float, due: float
) -> None:
    watch = Watch(delay, FIVE)

    assert watch.sees({A, B, C}, 20) == NOBODY
    assert (set(watch.bookies.away), watch.bookies.due_at) == ({D, E}, due)
    assert watch.sees({A, B, C}, due - 1) == NOBODY
    assert watch.sees({A, B, C}, due) == {D, E}


def test_one_that_goes_within_a_session_of_another_has_a_session_also_without_a_delay() -> None:
    """Sessions that are cut off by one switch end one after the other."""
    watch = Watch(0, FIVE)
    assert watch.sees(FIVE - {E}, 20) == {E}, "nobody can know yet"

    assert watch.sees(FIVE - {D, E}, 21) == NOBODY
    assert watch.sees(FIVE - {C, D, E}, 22) == NOBODY
    assert watch.sees(FIVE - {C, D, E}, 30.9) == NOBODY
    assert watch.sees(FIVE - {C, D, E}, 31) == {D}
    assert (watch.sees(FIVE - {C, D, E}, 31.5), watch.bookies.due_at) == (NOBODY, 32)
    assert watch.sees(FIVE - {D, E}, 31.9) == NOBODY, "it is back in time"
    assert watch.sees(FIVE - {C, D, E}, 32) == {C}, "alone, long after the others went"

    assert watch.sees(FIVE - {B, D}, 41.9) == NOBODY, "C went at 32, and is back"
    assert watch.sees(FIVE - {B, D}, 51.9) == {B}
    assert type(watch.bookies.known) is frozenset


def test_another_one_that_goes_while_one_is_waited_for_shortens_the_wait_of_both() -> None:
    watch = Watch(600, FIVE)
    assert watch.sees(FIVE - {E}, 10) == NOBODY
    assert watch.bookies.due_at == 610

    assert watch.sees(FIVE - {D, E}, 200) == NOBODY
    assert watch.bookies.due_at == 260
    assert watch.sees(FIVE - {D, E}, 260) == {D, E}
    assert watch.bookies.due_at is None


def test_one_that_comes_and_goes_all_the_time_puts_the_others_off_no_longer() -> None:
    watch = Watch(100, FIVE)
    lost: frozenset[BookieId] = NOBODY
    now = 0
    while not lost:
        now += 1
        lost = watch.sees(FIVE - {D, E} - ({C} if now % 2 else set()), now)

    assert {D, E} <= lost
    assert now == 11, "a session after they were seen to be away"


def test_one_that_goes_just_before_the_others_time_is_over_has_its_own() -> None:
    watch = Watch(600, FIVE)
    assert watch.sees(FIVE - {E}, 10) == NOBODY
    assert watch.sees(FIVE - {D, E}, 609) == NOBODY

    assert watch.sees(FIVE - {D, E}, 610) == {E}
    assert watch.bookies.away == {D: 609}
    assert watch.sees(FIVE - {D, E}, 1208) == NOBODY
    assert watch.sees(FIVE - {D, E}, 1209) == {D}, "alone, it has all of the delay"


def test_when_another_one_takes_its_place_its_time_begins_anew() -> None:
    watch = Watch(100)
    assert watch.sees({A, B}, 10) == NOBODY
    assert watch.sees({A, C}, 50) == NOBODY

    assert (watch.bookies.away, watch.bookies.due_at) == ({B: 50}, 150)


def test_where_all_but_one_are_away_a_session_is_waited_for_also_without_a_delay() -> None:
    watch = Watch(0)
    assert watch.sees({A}, 20) == NOBODY
    assert watch.sees({A}, 29) == NOBODY
    assert watch.sees(ALL, 29.5) == NOBODY, "they were cut off for a moment"
    assert watch.sees({A}, 40) == NOBODY
    assert watch.sees({A, B}, 41) == NOBODY, "they come back one after the other"
    assert watch.bookies.due_at == 50
    assert watch.sees({B}, 42) == NOBODY
    assert watch.sees({A, B}, 50) == {C}

    all_of_them = Watch(0)
    for now in (20, 25, 29):
        assert all_of_them.sees((), now) == NOBODY
    assert all_of_them.sees((), 30) == ALL


@pytest.mark.parametrize("delay", [0, 5, 100])
@pytest.mark.parametrize("here", [frozenset({A, B}), frozenset({A}), frozenset()])
def test_a_new_auditor_waits_a_session_for_whom_it_does_not_find(
    delay: float, here: frozenset[BookieId]
) -> None:
    for first in range(20, 30):  # one look, or many
        bookies = LostBookies(frozenset(ALL))
        for now in (20, *range(first, 30)):
            bookies, lost = bookies.seen(alive(here), delay, SESSION, now)
            assert lost == NOBODY
        bookies, lost = bookies.seen(alive(here), delay, SESSION, 30 if delay < 100 else 120)
        assert lost == ALL - here


@pytest.mark.parametrize("delay", [0, 100])
def test_one_that_is_back_in_another_incarnation_is_lost_at_once(delay: int) -> None:
    watch = Watch(delay)

    assert watch.sees({**alive(ALL), B: "2"}, 1) == {B}, "nobody saw that it was away"
    assert watch.sees({**alive(ALL), B: "2"}, 2) == NOBODY

    watch.delay = 100
    watch.sees(alive({A, C}), 3)
    lost = watch.sees({**alive(ALL), B: "3"}, 4)
    assert lost == {B}, "it was back within its delay"
    assert not watch.bookies.away

    watch.bookies = watch.bookies.audit_failed(lost)
    assert watch.sees({**alive(ALL), B: "3"}, 5) == {B}, "and still is to be audited"


@pytest.mark.parametrize(("delay", "here"), [(0, {A, B}), (0, {A}), (100, {A, B}), (100, {A})])
def test_an_audit_that_failed_is_done_again_at_once(delay: float, here: set[BookieId]) -> None:
    watch = Watch(delay)
    watch.sees(here, 1)
    lost = watch.sees(here, 101) or ALL - here
    watch.bookies = watch.bookies.audit_failed(lost)
    assert watch.sees(here, 102) == ALL - here
    assert watch.sees(here, 103) == NOBODY


def test_one_that_was_back_during_its_audit_is_lost_again_when_it_is_away() -> None:
    watch = Watch(0)
    bookies = watch.bookies = watch.bookies.back(watch.sees({A, B}, 1))
    assert watch.sees(ALL, 2) == NOBODY, "it stayed"
    watch.bookies = bookies
    assert watch.sees({A, B}, 2) == {C}
    watch.bookies, watch.delay = bookies, 100
    assert watch.sees({A, B}, 2) == NOBODY
    assert watch.bookies.due_at == 102


def test_another_delay_is_given_from_now_on() -> None:
    watch = Watch(100)
    watch.sees({A, B}, 10)
    watch.bookies, watch.delay = watch.bookies.delay_changed(50), 30

    assert watch.sees({A, B}, 79) == NOBODY
    assert watch.sees({A, B}, 80) == {C}


@pytest.mark.parametrize("delay", [0, 15])
def test_in_every_small_history_nobody_is_forgotten_and_nobody_audited_who_is_there(
    delay: int,
) -> None:
    """Against the slow definition: who is away for longer than the delay is audited once."""
    sets = [frozenset(s) for s in (ALL, {A, B}, {A, C}, {A}, set())]
    for history in product(sets, repeat=4):
        watch = Watch(delay)
        owed: set[BookieId] = set()
        for step, here in enumerate((*history, history[-1], history[-1]), 1):
            before = watch.bookies.known
            lost = watch.sees(here, step * 10)
            assert not lost & here
            assert lost <= before
            owed = (owed | (before - here)) - here - lost
            assert owed <= watch.bookies.known, "a loss that was not audited stays news"
            if delay == 0 and len(before - here) == 1:
                assert lost == before - here
        assert watch.bookies.known <= here, "two looks later all of it is over"


def test_when_a_check_is_due() -> None:
    assert next_check_at(None, 10, 100) == 100
    assert next_check_at(95, 10, 100) == 105
    assert next_check_at(50, 10, 100) == 60
    assert next_check_at(500, 10, 100) == 110, "it was done in the future, by another clock"
    assert next_check_at(50, 0, 100) is None
