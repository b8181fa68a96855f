"""Work in this process: how far it is can be told from the beginning."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.pieces import Done, Piece, step


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
