"""The delay of a lost bookie, in every order of comings and goings."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

import pytest

from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.lost_bookies import NOBODY, LostBookies
from spark_bookkeeper.protocol.task_notes import next_check_at

A, B, C = (BookieId(f"{name}:3181") for name in "abc")
ALL = {A, B, C}


def alive(bookies: Collection[BookieId], incarnation: str = "1") -> dict[BookieId, str]:
    return dict.fromkeys(sorted(bookies), incarnation)


def test_without_a_delay_a_loss_is_audited_at_once_and_only_once() -> None:
    bookies, lost = LostBookies().seen(alive(ALL), 0, 0)
    assert lost == NOBODY

    bookies, lost = bookies.seen(alive({A, B}), 0, 1)
    assert lost == {C}
    bookies, lost = bookies.seen(alive({A, B}), 0, 2)
    assert lost == NOBODY
    bookies, _ = bookies.seen(alive(ALL), 0, 3)
    _, lost = bookies.seen(alive({A, B}), 0, 4)
    assert lost == {C}


def test_another_one_that_goes_while_one_is_waited_for_ends_the_wait() -> None:
    bookies, _ = LostBookies().seen(alive(ALL), 100, 0)
    bookies, lost = bookies.seen(alive({A, B}), 100, 10)
    assert (bookies.waiting, bookies.due_at, lost) == (C, 110, NOBODY)

    bookies, lost = bookies.seen(alive({A}), 100, 20)

    assert lost == {B, C}
    assert bookies.waiting is None


def test_when_another_one_takes_its_place_its_time_begins_anew() -> None:
    bookies, _ = LostBookies().seen(alive(ALL), 100, 0)
    bookies, _ = bookies.seen(alive({A, B}), 100, 10)
    bookies, lost = bookies.seen(alive({A, C}), 100, 50)

    assert (bookies.waiting, bookies.due_at, lost) == (B, 150, NOBODY)


@pytest.mark.parametrize("delay", [0, 100])
def test_one_that_is_back_in_another_incarnation_is_lost_at_once(delay: int) -> None:
    bookies, _ = LostBookies().seen(alive(ALL), delay, 0)

    bookies, lost = bookies.seen({**alive(ALL), B: "2"}, delay, 1)
    assert lost == {B}, "nobody saw that it was away"
    assert bookies.seen({**alive(ALL), B: "2"}, delay, 2)[1] == NOBODY

    bookies, _ = bookies.seen(alive({A, C}), 100, 3)
    bookies, lost = bookies.seen({**alive(ALL), B: "3"}, 100, 4)
    assert lost == {B}, "it was back within its delay"
    assert bookies.waiting is None

    failed = bookies.audit_failed(lost)
    assert failed.seen({**alive(ALL), B: "3"}, 100, 5)[1] == {B}, "and still is to be audited"


def test_an_audit_that_failed_is_news_again() -> None:
    bookies, lost = LostBookies(frozenset(ALL)).seen(alive({A, B}), 0, 0)
    assert bookies.audit_failed(lost).seen(alive({A, B}), 0, 1)[1] == {C}


def test_one_that_was_back_during_its_audit_is_lost_again_when_it_is_away() -> None:
    bookies, lost = LostBookies(frozenset(ALL)).seen(alive({A, B}), 0, 0)
    bookies = bookies.back(lost)
    assert bookies.seen(alive(ALL), 0, 1)[1] == NOBODY, "it stayed"
    assert bookies.seen(alive({A, B}), 0, 1)[1] == {C}
    assert bookies.seen(alive({A, B}), 100, 1)[0].due_at == 101


@pytest.mark.parametrize("delay", [0, 15])
def test_in_every_small_history_nobody_is_forgotten_and_nobody_audited_who_is_there(
    delay: int,
) -> None:
    """Against the slow definition: who is away for longer than the delay is audited once."""
    sets = [frozenset(s) for s in (ALL, {A, B}, {A, C}, {A}, set())]
    for history in product(sets, repeat=4):
        bookies, _ = LostBookies().seen(alive(ALL), delay, 0)
        owed: set[BookieId] = set()
        for step, here in enumerate((*history, history[-1], history[-1]), 1):
            before = bookies.known
            bookies, lost = bookies.seen(alive(here), delay, step * 10)
            assert not lost & here
            assert lost <= before
            owed = (owed | (before - here)) - here - lost
            assert owed <= bookies.known, "a loss that was not audited stays news"
            if delay == 0:
                assert lost == before - here
        assert bookies.known <= here | ({bookies.waiting} if bookies.waiting else set())


def test_when_a_check_is_due() -> None:
    assert next_check_at(None, 10, 100) == 100
    assert next_check_at(95, 10, 100) == 105
    assert next_check_at(50, 10, 100) == 60
    assert next_check_at(500, 10, 100) == 110, "it was done in the future, by another clock"
    assert next_check_at(50, 0, 100) is None
