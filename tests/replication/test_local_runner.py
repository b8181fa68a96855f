"""Work in this process: how far it is can be told from the beginning."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.replication.runner import (
    ITEMS_TOGETHER,
    Bounds,
    LocalRunner,
    carry_out_many,
    no_progress,
)
from spark_bookkeeper.replication.stragglers import RunningItems
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground
from tests.support.interrupts import functions_of
from tests.support.pieces import Done, Piece, step


def test_the_total_is_told_before_the_first_item_is_done(ground: Ground) -> None:
    told: list[tuple[str, int, int, int]] = []

    def work(_: ClientContext, item: Piece) -> Sequence[Done]:
        assert told[0] == ("checking ledgers", 0, 3, 0)
        return [Done(item.number)]

    runner = LocalRunner(ground.context)
    items = [Piece(number) for number in (7, 8, 9)]
    checking = step(work, "checking ledgers")
    rows = list(runner.run(checking, items, lambda *how: told.append(how)))

    assert [row.number for row in rows] == [7, 8, 9]
    assert told[-1] == ("checking ledgers", 3, 3, 0)


def test_progress_does_not_wait_for_the_items_beside_it(ground: Ground) -> None:
    is_told = threading.Event()

    def work(_: ClientContext, item: Piece) -> Sequence[Done]:
        if item.number == 8:
            assert is_told.wait(20)
        return [Done(item.number)]

    def tell(_: str, done: int, total: int, size_bytes: int) -> None:
        if done == 1:
            is_told.set()

    rows = list(LocalRunner(ground.context).run(step(work), [Piece(7), Piece(8)], tell))

    assert [row.number for row in rows] == [7, 8]


def test_what_cannot_be_done_together_is_done_by_itself(ground: Ground) -> None:
    batches: list[int] = []
    alone: list[int] = []
    told: list[tuple[int, int, int]] = []

    def work(_: ClientContext, item: Piece) -> Sequence[Done]:
        alone.append(item.number)
        return [Done(item.number)]

    def some(
        _: ClientContext, items: Sequence[Piece], __: Bounds
    ) -> Sequence[Sequence[Done] | None]:
        batches.append(len(items))
        if any(item.number == 200 for item in items):
            raise ZeroDivisionError
        return [None if item.number % 10 == 7 else [Done(item.number)] for item in items]

    working = replace(step(work), do_many=some)
    items = [Piece(number) for number in range(300)]
    runner = LocalRunner(ground.context)
    rows = list(runner.run(working, items, lambda _, *how: told.append(how)))

    assert [row.number for row in rows] == list(range(300))
    assert sum(batches) == 300
    assert max(batches) == ITEMS_TOGETHER
    failed = range(ITEMS_TOGETHER, 2 * ITEMS_TOGETHER)
    assert sorted(alone) == [n for n in range(300) if n in failed or n % 10 == 7]
    assert told[0] == (0, 300, 0)
    assert sorted(done for done, _, _ in told) == list(range(301))


@pytest.mark.parametrize(("width", "items"), [(16, 300), (16, 40), (16, 5), (3, 300), (1, 300)])
def test_batches_share_what_a_limit_gives_to_the_items_in_whose_place_they_are(
    ground: Ground, width: int, items: int
) -> None:
    """However many batches are under way at once, they have no more than these items would."""
    counting = threading.Lock()
    under_way: list[int] = []
    most: list[int] = []

    def some(
        _: ClientContext, items: Sequence[Piece], bounds: Bounds
    ) -> Sequence[Sequence[Done] | None]:
        with counting:
            under_way.append(bounds.shares)
            most.append(sum(under_way))
        met.wait(60)
        with counting:
            under_way.remove(bounds.shares)
        return [[Done(item.number)] for item in items]

    met = threading.Barrier(2 if width > 1 and items > ITEMS_TOGETHER else 1)
    working = replace(step(lambda *_: ()), do_many=some)
    pieces = [Piece(number) for number in range(min(items, 2 * ITEMS_TOGETHER))]

    carry_out_many(working, ground.context, pieces, width, RunningItems(ground.runtime))

    assert min(width, items) - 1 <= max(most) <= min(width, items)


def test_a_batch_hears_that_the_one_beside_it_was_interrupted(ground: Ground) -> None:
    met = threading.Barrier(2)
    heard: list[bool] = []

    def some(
        _: ClientContext, items: Sequence[Piece], bounds: Bounds
    ) -> Sequence[Sequence[Done] | None]:
        met.wait(60)
        if items[0].number == 0:
            raise KeyboardInterrupt
        ground.until(bounds.is_ending)
        heard.append(bounds.is_ending())
        return [None] * len(items)

    working = replace(step(lambda *_: ()), do_many=some)
    items = [Piece(number) for number in range(2 * ITEMS_TOGETHER)]

    with pytest.raises(KeyboardInterrupt):
        carry_out_many(working, ground.context, items, 4, RunningItems(ground.runtime))

    assert heard == [True]


def test_ctrl_c_while_another_batch_is_waited_for_ends_that_batch(ground: Ground) -> None:
    met = threading.Barrier(2)
    main = threading.current_thread()
    heard: list[bool] = []

    def some(
        _: ClientContext, items: Sequence[Piece], bounds: Bounds
    ) -> Sequence[Sequence[Done] | None]:
        met.wait(60)
        if threading.current_thread() is not main:
            ground.until(lambda: "join" in functions_of(main))
            os.kill(os.getpid(), signal.SIGINT)  # main hears it while it waits
            ground.until(bounds.is_ending)
            heard.append(bounds.is_ending())
        return [None] * len(items)

    working = replace(step(lambda *_: ()), do_many=some)
    items = [Piece(number) for number in range(2 * ITEMS_TOGETHER)]
    context = replace(ground.context, runtime=ThreadRuntime())

    with pytest.raises(KeyboardInterrupt):
        carry_out_many(working, context, items, 4, RunningItems(context.runtime))

    assert heard == [True], "it was waited for"


def test_items_are_side_by_side_also_when_each_is_to_do_one_thing_after_the_other(
    ground: Ground,
) -> None:
    """As in a task of Spark, where many items share what an item could use alone."""
    met = threading.Barrier(4)

    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        met.wait(60)
        assert (
            context.runtime.map(lambda _: threading.get_ident(), [1, 2])
            == [threading.get_ident()] * 2
        )
        return [Done(item.number)]

    narrow = replace(ground.context, runtime=ThreadRuntime(map_width=1))
    items = [Piece(number) for number in range(4)]
    found = carry_out_many(
        step(work), narrow, items, 4, RunningItems(ground.runtime), runtime=ground.runtime
    )

    assert [done.status for (done,) in found] == ["replicated"] * 4


def test_as_many_items_are_done_at_once_as_is_configured_and_no_more(ground: Ground) -> None:
    config = replace(ground.context.config, job_items_at_once=3)
    context = replace(ground.context, runtime=ThreadRuntime(), config=config)
    counting, three = threading.Lock(), threading.Barrier(3)
    now = most = 0

    def work(_: ClientContext, item: Piece) -> Sequence[Done]:
        nonlocal now, most
        with counting:
            now += 1
            most = max(most, now)
        three.wait()  # fewer would wait for ever
        with counting:
            now -= 1
        return [Done(item.number)]

    items = [Piece(number) for number in range(9)]
    rows = list(LocalRunner(context).run(step(work), items, no_progress))

    assert [row.number for row in rows] == list(range(9))
    assert most == 3


def test_what_computes_is_done_one_after_the_other(ground: Ground) -> None:
    threads: list[int] = []

    def work(_: ClientContext, item: Piece) -> Sequence[Done]:
        threads.append(threading.get_ident())
        return [Done(item.number)]

    computing = replace(step(work), is_computing=True)
    items = [Piece(number) for number in range(40)]
    context = replace(ground.context, runtime=ThreadRuntime())

    assert [row.number for row in LocalRunner(context).run(computing, items, no_progress)] == [
        *range(40)
    ]
    assert set(threads) == {threading.get_ident()}
