"""Each bookie's part follows its disk, and moving ends."""

from __future__ import annotations

import itertools
import random

import pytest

from spark_bookkeeper.protocol.balance import Balance, Disk
from spark_bookkeeper.protocol.ids import BookieId

A, B, C = (BookieId(name) for name in "abc")


def test_twice_the_disk_is_twice_the_bytes() -> None:
    balance = Balance({A: Disk(100), B: Disk(200), C: Disk(300)}, {A: 600})

    assert [balance.goal(bookie) for bookie in (A, B, C)] == [100, 200, 300]


def test_a_disk_whose_size_is_not_known_counts_like_the_largest() -> None:
    balance = Balance({A: Disk(100), B: Disk(300), C: Disk()}, {A: 700})

    assert [balance.goal(bookie) for bookie in (A, B, C)] == [100, 300, 300]


def test_what_is_within_the_tolerance_stays() -> None:
    disks = dict.fromkeys((A, B), Disk(1))

    assert not Balance(disks, {A: 54, B: 46}, 10).has_source
    assert Balance(disks, {A: 56, B: 44}, 10).has_source


def test_a_share_that_would_only_turn_it_round_stays() -> None:
    balance = Balance(dict.fromkeys((A, B), Disk(1)), {A: 60, B: 40})

    assert balance.may_leave(A, 19)
    assert not balance.may_leave(A, 20)
    assert not balance.may_leave(B, 1)
    assert list(balance.takers(19)) == [(B, 10)]
    assert list(balance.takers(20)) == []


def test_a_disk_without_room_or_that_takes_nothing_gets_nothing() -> None:
    disks = {A: Disk(100), B: Disk(100, free_bytes=15), C: Disk(100, is_wanted=False)}
    balance = Balance(disks, {A: 300}, spare_bytes=5)

    assert dict(balance.takers(10)) == {B: 100}
    balance.move(A, B, 10)
    assert dict(balance.takers(10)) == {}


def test_a_readonly_bookie_that_has_less_than_its_part_counts_with_what_it_has() -> None:
    disks = {A: Disk(100), B: Disk(100), C: Disk(100, is_readonly=True)}
    balance = Balance(disks, {A: 200, B: 70, C: 30})

    assert [balance.goal(bookie) for bookie in (A, B, C)] == [135, 135, 30]
    assert dict(balance.takers(10)) == {B: 65}


def test_what_one_readonly_bookie_leaves_to_the_others_may_be_more_than_another_has() -> None:
    disks = {A: Disk(1), B: Disk(1, is_readonly=True), C: Disk(1, is_readonly=True)}
    balance = Balance(disks, {A: 260, B: 110, C: 20})  # a third is 130; of what C leaves, 185

    assert [balance.goal(bookie) for bookie in (A, B, C)] == [260, 110, 20]


def test_a_readonly_bookie_that_has_too_much_gives_away() -> None:
    balance = Balance({A: Disk(1, is_readonly=True), B: Disk(1)}, {A: 100})

    assert [balance.goal(bookie) for bookie in (A, B)] == [50, 50]
    assert balance.may_leave(A, 10)
    assert Balance({A: Disk(1, is_readonly=True)}, {A: 100}).goal(A) == 100
    assert Balance({}, {A: 100}).has_source is False


@pytest.mark.parametrize("seed", range(50))
def test_moving_ends_and_every_move_brings_it_nearer(seed: int) -> None:
    dice = random.Random(seed)
    bookies = [BookieId(str(n)) for n in range(dice.randint(2, 6))]
    shares = [(dice.randint(1, 50), dice.choice(bookies)) for _ in range(dice.randint(1, 60))]
    held = {b: sum(size for size, at in shares if at == b) for b in bookies}
    disks = {b: Disk(dice.randint(1, 9), is_readonly=dice.random() < 0.2) for b in bookies}
    balance = Balance(disks, held, tolerance_percent=dice.choice([0, 10, 50]))

    def distance() -> int:
        return sum((balance.held(b) - balance.goal(b)) ** 2 for b in bookies)

    far = distance()
    for _ in itertools.count():
        moved = False
        for number, (size, source) in enumerate(shares):
            takers = dict(balance.takers(size))
            if not balance.may_leave(source, size) or not takers:
                continue
            target = dice.choice(list(takers))
            balance.move(source, target, size)
            shares[number] = size, target
            assert distance() < far
            far, moved = distance(), True
        if not moved:
            break
    assert sum(balance.held(b) for b in bookies) == sum(held.values())
