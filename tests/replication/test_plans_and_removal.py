"""Plans look whether copies of a ledger are being removed from a bookie (SLOT-LOG rule R19): a run
would not name it, so neither does the plan, which says why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.client.ledger import incarnations_of
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.cluster.decommission import decommission_bookie
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.collection import COLLECTED, with_collection
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.rebalance import Rebalance, rebalance
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from tests.worlds import written

Run = Callable[..., Report]


def begin_removal(ground: Ground, writer: LedgerWriter, bookie: BookieId) -> None:
    """Somebody removes copies from a bookie, and was killed, or has not ended yet."""
    ground.forget()
    incarnation = ground.client().bookies.registrations()[bookie].incarnation
    update_ledger(
        ground.client().store,
        writer.ledger_id,
        lambda old: with_collection(old, bookie, incarnation, "t1"),
    )


def rows_of(report: Report) -> list[tuple[Any, ...]]:
    return sorted((r.ledger_id, r.status.is_done, r.source, r.target) for r in report.rows)


@pytest.mark.parametrize("job", ["recover", "decommission"])
def test_who_may_not_be_named_is_not_planned(tmp_path: Path, job: str) -> None:
    """Of two bookies that could take the share only one remains, and then none."""
    ground = Ground(tmp_path, bookies=5)
    writer = written(ground, 4)
    lost, *_ = writer.metadata.last_fragment.ensemble
    first, second = sorted(set(ground.bookie_ids) - writer.metadata.bookies())
    ground.stop(lost)

    def run(*, dry_run: bool) -> Report:
        client = ground.client()
        if job == "decommission":
            return decommission_bookie(client, LocalRunner(client), lost, dry_run=dry_run)
        return recover_bookie(client, LocalRunner(client), BookieRecovery((lost,)), dry_run=dry_run)

    begin_removal(ground, writer, first)
    (planned,) = run(dry_run=True).rows
    assert (planned.status, planned.target) == ("planned", second)

    begin_removal(ground, writer, second)
    (left,) = run(dry_run=True).rows
    assert (left.status, left.target) == ("left", None)
    assert "copies of this ledger are being removed from it" in str(left.reason)
    done = run(dry_run=False)
    assert [row.reason for row in done.rows] == [left.reason]


def test_what_stays_in_limbo_is_planned_as_left(ground: Ground) -> None:
    writer, other = written(ground, 4), written(ground, 4)
    bookie, *_ = writer.metadata.bookies() & other.metadata.bookies()
    former = incarnations_of(ground.client().store.read_ledger(writer.ledger_id).value)[bookie]
    ground.format(bookie)
    text = f'{{"{bookie}/{former}": [["t1"], 0]}}'.encode()
    update_ledger(
        ground.client().store, writer.ledger_id, lambda old: old.with_custom(**{COLLECTED: text})
    )

    def run(*, dry_run: bool) -> Report:
        client = ground.client()
        return refill_bookie(client, LocalRunner(client), Refill(bookie), dry_run=dry_run)

    planned, done = run(dry_run=True), run(dry_run=False)

    for report in (planned, done):
        (left,) = [row for row in report.rows if row.status == "left"]
        assert left.ledger_id == writer.ledger_id
        assert "removed from" in str(left.reason)
    assert {row.status for row in planned.rows} == {"left", "planned"}
    assert {row.status for row in done.rows} == {"left", "replicated"}


def test_nothing_is_moved_to_where_it_is_removed_from(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    writers = [written(ground, 4) for _ in range(4)]
    new = ground.add_bookie()
    begin_removal(ground, writers[0], new)

    def run(*, dry_run: bool) -> Report:
        client = ground.client()
        wish = Rebalance(targets=(new,), spare_bytes=0, tolerance_percent=0)
        return rebalance(client, LocalRunner(client), wish, dry_run=dry_run)

    planned, done = run(dry_run=True), run(dry_run=False)

    assert len(planned.rows) >= 1
    assert writers[0].ledger_id not in {row.ledger_id for row in planned.rows}
    assert done.is_complete
    assert [row[2:] for row in rows_of(done)] == [row[2:] for row in rows_of(planned)]
