"""What a counter gives next: guessed where nobody else asks, and seldom where somebody does."""

from __future__ import annotations

import random

import pytest

from spark_bookkeeper.metadata.zookeeper.counting import Count
from spark_bookkeeper.metadata.zookeeper.grouping import UnnumberedError


class Counter:
    """The counter itself, which answers requests in order."""

    def __init__(self) -> None:
        self.next = 0

    def given(self) -> int:
        self.next += 1
        return self.next - 1


def ask(count: Count, counter: Counter) -> None:
    expected = count.ask()
    count.told(expected, counter.given())


def test_the_next_number_is_known_once_one_was_as_expected() -> None:
    count, counter = Count(), Counter()
    known = [count.is_known]
    for _ in range(2):
        ask(count, counter)
        known.append(count.is_known)

    assert known == [False, False, True]
    assert [count.take() for _ in range(3)] == [2, 3, 4]


def test_numbers_that_were_asked_for_together_are_no_proof() -> None:
    count, counter = Count(), Counter()
    sent = [count.ask() for _ in range(5)]
    for expected in sent:
        count.told(expected, counter.given())

    assert not count.is_known
    ask(count, counter)
    assert count.take() == 6


def test_requests_on_their_way_are_counted() -> None:
    count, counter = Count(), Counter()
    for _ in range(2):
        ask(count, counter)

    assert [count.take(), count.ask(), count.take()] == [2, 3, 4]


def test_a_number_of_somebody_else_begins_the_count_anew() -> None:
    count, counter = Count(), Counter()
    for _ in range(2):
        ask(count, counter)
    counter.given()
    ask(count, counter)

    assert not count.is_known
    with pytest.raises(UnnumberedError):
        count.take()
    ask(count, counter)
    assert count.take() == 5


def test_each_wrong_guess_doubles_what_the_next_wants_and_right_ones_take_it_back() -> None:
    count, counter = Count(), Counter()

    def asked_until_known() -> int:
        asked = 0
        while not count.is_known:
            ask(count, counter)
            asked += 1
        return asked

    wanted = []
    for _ in range(4):
        wanted.append(asked_until_known())
        count.take()
        count.refused()
    assert wanted == [2, 3, 5, 9]

    assert asked_until_known() == 17
    for _ in range(15):
        assert count.take() == counter.given()
        count.taken()
    count.forget()
    assert asked_until_known() == 2


@pytest.mark.parametrize("seed", range(20))
def test_where_others_ask_all_the_time_few_guesses_are_made(seed: int) -> None:
    count, counter = Count(), Counter()
    dice = random.Random(seed)
    wrong = 0
    for _ in range(2_000):
        if dice.random() < 0.5:
            counter.given()  # somebody else's
        if count.is_known:
            if count.take() == counter.next:
                counter.given()
                count.taken()
            else:
                count.refused()
                wrong += 1
        else:
            ask(count, counter)

    assert wrong < 60
