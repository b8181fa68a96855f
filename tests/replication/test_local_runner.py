"""Work in this process: how far it is can be told from the beginning."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground


def test_the_total_is_told_before_the_first_item_is_done(ground: Ground) -> None:
    told: list[tuple[str, int, int, int]] = []

    def work(_: ClientContext, item: int) -> Sequence[Row]:
        assert told[0] == ("checking ledgers", 0, 3, 0)
        return [Row(item, "check", "healthy")]

    runner = LocalRunner(ground.context)
    rows = list(runner.run("checking ledgers", [7, 8, 9], work, lambda *how: told.append(how)))

    assert [row.ledger_id for row in rows] == [7, 8, 9]
    assert told[-1] == ("checking ledgers", 3, 3, 0)


def test_progress_does_not_wait_for_the_items_beside_it(ground: Ground) -> None:
    is_told = threading.Event()

    def work(_: ClientContext, item: int) -> Sequence[Row]:
        if item == 8:
            assert is_told.wait(20)
        return [Row(item, "check", "healthy")]

    def tell(_: str, done: int, total: int, size_bytes: int) -> None:
        if done == 1:
            is_told.set()

    rows = list(LocalRunner(ground.context).run("checking ledgers", [7, 8], work, tell))

    assert [row.ledger_id for row in rows] == [7, 8]
