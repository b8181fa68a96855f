"""Reports say what was done and what is left."""

from __future__ import annotations

import json
import pickle

import pytest

from spark_bookkeeper.agent.decommission import DecommissionReport
from spark_bookkeeper.backup.saving import BackupReport
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.rebalance import RebalanceReport
from spark_bookkeeper.replication.report import ROW_SCHEMA, Outcome, RecoveryReport, Report, Row
from spark_bookkeeper.runtime.throttle import LOOK_SECONDS, Throttle
from spark_bookkeeper.testing.ground import InlineRuntime, StandingStill

ROWS = (
    Row(1, "copy", Outcome.REPLICATED, None, 0, 9, "a:1", "b:1", 10, 100),
    Row(1, "copy", Outcome.LEFT, "no <bookie> is free", 10, 19, "a:1"),
    Row(2, "recover", Outcome.CLOSED, None, 0, 3, None, None, 4, 40),
)


def test_what_is_left_makes_a_report_incomplete() -> None:
    report = RecoveryReport("recover_bookie", ROWS)

    assert not report.is_complete
    assert report.unfinished == [ROWS[1]]
    assert report.counts == {"closed": 1, "left": 1, "replicated": 1}
    assert RecoveryReport("recover_bookie", ()).is_complete


def test_outcomes_are_the_words_that_reports_show() -> None:
    """Wherever a text is wanted, and in what is written."""
    assert {outcome.value for outcome in Outcome if outcome.is_done} == {
        *("replicated", "closed", "archived", "published", "healthy", "gone", "no longer needed"),
        *("deleted", "compacted", "released", "saved", "restored", "given up"),
        "there already",
    }
    assert {outcome.value for outcome in Outcome if not outcome.is_done} == {
        *("planned", "pending", "missing", "damaged", "unreadable", "unavailable"),
        *("unrecoverable", "misplaced", "left"),
    }
    for outcome in Outcome:
        report = RecoveryReport("recover_bookie", (Row(1, "copy", outcome),))
        assert outcome == outcome.value
        assert f"{outcome} {outcome!s} {outcome:>3}" == " ".join([outcome.value] * 3)
        assert json.loads(json.dumps(report.to_dict()))["rows"][0]["status"] == outcome.value
        assert report.to_arrow()["status"].to_pylist() == [outcome.value]
        assert report.counts == {outcome.value: 1}
        assert pickle.loads(pickle.dumps(report)).rows[0].status is outcome


def test_a_plan_is_not_complete_and_nothing_of_it_is_left_but_what_a_run_would_leave() -> None:
    planned = Row(2, "copy", Outcome.PLANNED, "2 live copies", 0, 3, "a:1")

    plan = RecoveryReport("recover_bookie", (planned, ROWS[1]), dry_run=True)

    assert not plan.is_complete
    assert plan.unfinished == [ROWS[1]]
    assert not RecoveryReport("recover_bookie", (planned,), dry_run=True).to_dict()["complete"]
    assert RecoveryReport("recover_bookie", (), dry_run=True).is_complete


def test_programs_get_the_keys_they_were_promised() -> None:
    whole = Row(-1, "copy", Outcome.LEFT, "a bookie gave no answer", source=BookieId("a:1"))
    found = RecoveryReport("recover_bookie", (*ROWS, whole), duration_ms=7).to_dict()

    assert {k: v for k, v in found.items() if k != "rows"} == {
        "job": "recover_bookie",
        "dry_run": False,
        "ledgers": 2,
        "ledgers_complete": 1,
        "fragments": 3,
        "entries": 14,
        "bytes": 140,
        "duration_ms": 7,
        "complete": False,
    }
    assert list(found["rows"][0]) != []


@pytest.mark.parametrize(
    "kind", [RecoveryReport, RebalanceReport, DecommissionReport, BackupReport]
)
def test_a_report_that_is_printed_is_one_line(kind: type[Report]) -> None:
    rows = [Row(n, "copy", Outcome.PLANNED) for n in range(2_000)]

    assert repr(kind("a_job", rows)) == f"{kind.__name__}(a_job: planned 2,000)"
    assert repr(kind("a_job", (), dry_run=True)) == (
        f"{kind.__name__}(a_job (dry run): nothing to do)"
    )


def test_rows_are_a_table_and_a_picture() -> None:
    report = RecoveryReport("recover_bookie", ROWS)

    assert report.to_arrow().schema == ROW_SCHEMA
    assert report.to_arrow().num_rows == 3
    assert "no &lt;bookie&gt; is free" in report._repr_html_()


@pytest.mark.parametrize("piece", [1_000, 100_000, 5_000_000])
def test_a_throttle_keeps_to_its_rate_over_time(piece: int) -> None:
    runtime = StandingStill()
    throttle = Throttle(runtime, 1_000_000)

    for _ in range(20_000_000 // piece):
        throttle(piece)

    assert runtime.slept == pytest.approx(20)


def test_without_a_limit_nobody_waits() -> None:
    runtime = InlineRuntime()
    Throttle(runtime, None)(1 << 50)

    assert runtime.slept == 0


def test_a_limit_that_is_raised_lets_go_who_waits_because_of_it() -> None:
    runtime = InlineRuntime()
    limit: list[int | None] = [10]
    throttle = Throttle(runtime, 10, lambda _: limit[0])
    throttle(0)
    limit[0] = 1_000_000

    throttle(1_000_000)

    assert LOOK_SECONDS <= runtime.slept <= LOOK_SECONDS + 1.1, "and not for a day"
    limit[0] = None
    runtime.sleep(LOOK_SECONDS)
    before = runtime.slept
    throttle(1 << 50)
    assert runtime.slept == before


def test_a_limit_that_is_set_holds_who_had_none() -> None:
    runtime = InlineRuntime()
    limit: list[int | None] = [None]
    throttle = Throttle(runtime, None, lambda _: limit[0])
    throttle(1 << 50)
    assert runtime.slept == 0
    limit[0] = 1_000
    runtime.sleep(LOOK_SECONDS)

    throttle(20_000)

    assert 19 <= runtime.slept - LOOK_SECONDS <= 20.1
