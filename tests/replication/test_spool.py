"""A list that may become long keeps little of itself in memory."""

from __future__ import annotations

import gc
import pickle
import random
import weakref

import pytest

from spark_bookkeeper.runtime.spool import Spool


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 41])
def test_it_is_what_a_plain_list_would_be(length: int) -> None:
    plain = list(range(length))
    spool = Spool(plain, in_memory=4)

    assert list(spool) == plain
    assert spool == plain
    assert len(spool) == length
    assert bool(spool) == bool(plain)
    assert spool.is_in_memory == (length < 4)
    for start, stop, step in [(0, 3, 1), (2, 40, 7), (-3, None, 1), (None, None, -1), (5, 2, 1)]:
        assert spool[start:stop:step] == plain[start:stop:step]
    if plain:
        at = random.Random(length).randrange(length)
        assert (spool[at], spool[-1]) == (plain[at], plain[-1])
    with pytest.raises(IndexError):
        spool[length]
    assert pickle.loads(pickle.dumps(spool)) == plain


def test_two_read_it_at_once_and_it_grows_afterwards() -> None:
    spool = Spool(range(10), in_memory=3)

    assert [a + b for a, b in zip(spool, spool, strict=True)] == [2 * n for n in range(10)]
    spool.append(10)
    assert list(spool) == list(range(11))


class _Item:
    def __init__(self, number: int) -> None:
        self.number = number


def test_what_is_in_the_file_is_not_in_memory() -> None:
    alive: weakref.WeakSet[_Item] = weakref.WeakSet()
    spool: Spool[_Item] = Spool(in_memory=10)

    def add(number: int) -> None:
        item = _Item(number)
        alive.add(item)
        spool.append(item)

    for number in range(1000):
        add(number)
    gc.collect()

    assert len(alive) < 10
    assert [item.number for item in spool] == list(range(1000))
