"""What a recovery of a bookie would do, also where copies are removed (SLOT-LOG rule R19)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.agent.decommission import decommission_bookie
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger import incarnations_of
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.collection import COLLECTED, with_collection
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.rebalance import Rebalance, rebalance
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.report import ROW_SCHEMA, RecoveryReport, Report
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from tests.replication.recovering import recovered, with_fragments
from tests.worlds import written

PLAN_COLUMNS = ("sources", "live_copies", "live_copies_after", "only_if_read")


def test_a_dry_run_shows_what_the_run_then_does(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = with_fragments(ground)
    written(ground, count=0)
    lost = writer.metadata.last_fragment.ensemble[2]
    ground.stop(lost, destroy=True)
    client = ground.client()
    wish = BookieRecovery((lost,))
    ground.forget()

    plan = recover_bookie(client, LocalRunner(client), wish, dry_run=True)

    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0
    assert plan.dry_run
    assert not plan.is_complete
    assert plan.unfinished == []
    assert {row.status for row in plan.rows} == {"planned"}
    done = recover_bookie(client, LocalRunner(client), wish)

    def shares(report: RecoveryReport) -> list[tuple[object, ...]]:
        return [
            (
                *(r.ledger_id, r.action, r.first_entry_id, r.last_entry_id),
                *(r.source, r.target, r.entries),
            )
            for r in report.rows
        ]

    assert shares(plan) == shares(done)
    assert {row.target for row in plan.rows} <= set(ground.bookie_ids) - {lost}
    assert plan.to_arrow()["target"].null_count == 0
    assert all(row["target"] for row in plan.to_dict()["rows"])


def test_a_plan_promises_no_copies_of_an_open_ledger_that_nobody_has(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    writer = lifecycle.create_ledger(ground.context, Quorum(1, 1, 1))
    writer.append(b"0")
    (lost,) = writer.metadata.last_fragment.ensemble
    ground.stop(lost, destroy=True)

    (row,) = [
        row.to_dict() for row in recovered(ground, lost, dry_run=True).rows if row.action == "copy"
    ]

    assert (row["live_copies"], row["live_copies_after"]) == (0, 0)
    assert (row["sources"], row["only_if_read"]) == ((lost,), ((lost,),))
    assert f"only if the storage of {lost} can still be read" in row["reason"]


def test_a_plan_has_sources_and_live_copies_now_and_after_as_data(tmp_path: Path) -> None:
    """One bookie is to be recovered, one is down besides, and the ensemble is striped."""
    ground = Ground(tmp_path, bookies=6)
    writer = written(ground, 8, Quorum(4, 2, 2))
    lost, down, *others = writer.metadata.last_fragment.ensemble
    for bookie in (lost, down):
        ground.stop(bookie)

    plan = recovered(ground, lost, dry_run=True)
    both = recovered(ground, lost, down, dry_run=True)

    (row,) = plan.to_arrow().to_pylist()
    assert list(row) == [*ROW_SCHEMA.names, *PLAN_COLUMNS]
    assert row["source"] == lost
    assert row["sources"] == [lost, down, others[-1]], "some entries were on those that are down"
    assert row["reason"].endswith(f"only if the storage of {lost} or {down} can still be read")
    assert row["only_if_read"] == [[lost, down]]
    assert (row["live_copies"], row["live_copies_after"]) == (0, 0), "nobody can promise more"
    assert (row["entries"], row["bytes"]) == (4, (writer.metadata.length_bytes or 0) // 2)
    ground.stop(others[-1])
    (row,) = recovered(ground, lost, dry_run=True).to_arrow().to_pylist()
    assert row["sources"] == [lost, down, others[-1]]
    needed = f"the storage of {lost} or {down}, and of {others[-1]} or {lost}"
    assert row["reason"].endswith(f"only if {needed} can still be read")
    assert row["only_if_read"] == [[lost, down], [others[-1], lost]]
    assert [(r["live_copies"], r["live_copies_after"]) for r in both.to_dict()["rows"]] == [
        (0, 0)
    ] * 2
    alone = written(ground, 2, Quorum(1, 1, 1))
    kept = written(ground, 2, Quorum(3, 3, 2))
    gone = alone.metadata.last_fragment.ensemble[0]
    ground.stop(gone)
    ids = (alone.ledger_id, kept.ledger_id)
    rows = {r["ledger_id"]: r for r in recovered(ground, gone, dry_run=True).to_dict()["rows"]}
    assert list(rows[ids[0]]["sources"]) == [gone]
    assert (rows[ids[0]]["live_copies"], rows[ids[0]]["live_copies_after"]) == (0, 0)
    if ids[1] in rows:
        assert gone not in rows[ids[1]]["sources"], "others have all of it"
        assert "only if" not in rows[ids[1]]["reason"]
        assert rows[ids[1]]["only_if_read"] is None
    assert "<th>live_copies_after</th>" in plan._repr_html_()
    assert recovered(ground, lost).to_arrow().schema == ROW_SCHEMA


def test_a_plan_without_work_has_the_columns_of_a_plan(ground: Ground) -> None:
    lost = ground.bookie_ids[0]
    ground.stop(lost)

    plan = recovered(ground, lost, dry_run=True)

    assert plan.to_arrow().schema.names[len(ROW_SCHEMA) :] == list(PLAN_COLUMNS)
    assert plan.to_arrow().num_rows == 0


def test_a_dry_run_shows_the_target_of_what_is_still_open(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = written(ground, close=False)
    lost = writer.metadata.last_fragment.ensemble[1]
    ground.stop(lost)

    plan = recovered(ground, lost, dry_run=True)
    done = recovered(ground, lost)

    def rows(report: RecoveryReport) -> list[tuple[object, ...]]:
        return [(r.action, r.first_entry_id, r.source, r.target) for r in report.rows]

    (recover, copy) = plan.rows
    assert (recover.action, recover.status, copy.status) == ("recover", "planned", "planned")
    assert "known when it is closed" in str(copy.reason)
    assert copy.target is not None
    assert rows(plan)[1:] == rows(done)[1:]


def test_without_a_fit_bookie_the_share_is_left_with_a_table(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    writer = written(ground)
    lost, *others = writer.metadata.last_fragment.ensemble
    ground.stop(lost, destroy=True)

    plan = recovered(ground, lost, dry_run=True)
    report = recovered(ground, lost)

    (row,) = report.unfinished
    assert row.status == "left"
    assert str(row.reason).startswith(f"1 bookie is needed to take the place of {lost}, 0 can be")
    assert f"{lost}  to be recovered" in str(row.reason)
    for other in others:
        assert f"{other}  already in the ensemble" in str(row.reason)
    shared = ROW_SCHEMA.names
    assert plan.to_arrow().select(shared).equals(report.to_arrow()), (
        "a plan does not promise what the run cannot do"
    )


def test_a_plan_gives_a_bookie_to_one_lost_member_of_a_fragment_and_not_to_two(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = written(ground, quorum=Quorum(3, 3, 1))
    one, other, last = writer.metadata.last_fragment.ensemble
    ground.stop(one, destroy=True)
    ground.stop(other, destroy=True)

    plan = recovered(ground, one, other, dry_run=True)
    only_one = recovered(ground, one, dry_run=True, target=None)

    assert sorted(row.status for row in plan.rows) == ["left", "planned"]
    assert [row.status for row in only_one.rows] == ["planned"]
    assert f"{last}  already in the ensemble" in str(plan.unfinished[0].reason)


def test_who_is_in_the_ensemble_and_down_is_said_to_be_so(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    writer = written(ground, quorum=Quorum(3, 3, 1))
    lost, down, up = writer.metadata.last_fragment.ensemble
    ground.stop(lost, destroy=True)
    ground.stop(down)

    (row,) = recovered(ground, lost, dry_run=True).rows

    assert f"{down}  in the ensemble, and not registered: down or lost" in str(row.reason)
    assert f"{up}  already in the ensemble" in str(row.reason)


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
