"""Work in this process: how far it is can be told from the beginning."""

from __future__ import annotations

from collections.abc import Sequence

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground


def test_the_total_is_told_before_the_first_item_is_done(ground: Ground) -> None:
    told: list[tuple[str, int, int, int]] = []

    def work(_: ClientContext, item: int) -> Sequence[Row]:
        assert told == [("checking ledgers", 0, 3, 0)]
        return [Row(item, "check", "healthy")]

    runner = LocalRunner(ground.context)
    rows = list(runner.run("checking ledgers", [7, 8, 9], work, lambda *how: told.append(how)))

    assert [row.ledger_id for row in rows] == [7, 8, 9]
    assert told[-1] == ("checking ledgers", 3, 3, 0)
