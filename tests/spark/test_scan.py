"""A scan of all ledgers as a Spark job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.autorecovery import scan
from spark_bookkeeper.autorecovery import scan_batches as lots
from spark_bookkeeper.autorecovery.auditor import Auditor
from spark_bookkeeper.autorecovery.checks import check_all_ledgers, check_placement
from spark_bookkeeper.autorecovery.publishing import report_of_scan
from spark_bookkeeper.autorecovery.replica_count import check_replicas
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.spark.runner import SparkRunner

pytestmark = pytest.mark.spark

IDS = [3, 20_003, 40_003, 1 << 40]
"""Each in a lot of its own."""


def not_here(context: ClientContext) -> None:
    raise AssertionError("the driver did it")


@pytest.fixture
def scanned(own_bk: sbk.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> sbk.BookKeeper:
    """A cluster of some ledgers that name all bookies, which are taken for many."""
    monkeypatch.setattr(scan, "LEDGERS_FOR_SPARK", 1)
    monkeypatch.setattr(scan, "BATCH_LEDGERS", 1)
    monkeypatch.setattr(scan, "LocalRunner", not_here)
    for ledger_id in IDS:
        with own_bk.create_ledger(
            ensemble_size=6, write_quorum_size=2, ack_quorum_size=2, ledger_id=ledger_id
        ) as writer:
            writer.append(b"x")
    return own_bk


def runner(bk: sbk.BookKeeper) -> SparkRunner:
    return SparkRunner(lambda: bk.spark, bk.connection, "audit")


def published(bk: sbk.BookKeeper) -> dict[int, list[str]]:
    rows = bk.underreplicated_arrow().to_pylist()
    return {row["ledger_id"]: row["missing_replicas"] for row in rows}


def test_the_ledgers_of_a_lost_bookie_are_published_by_tasks(scanned: sbk.BookKeeper) -> None:
    bk = scanned
    lost = bk.bookies_arrow()["bookie_id"][0].as_py()
    auditor = Auditor(bk.context, runner(bk), AutorecoveryConfig())
    auditor.step(lambda: None)
    assert published(bk) == {}
    assert bk.cluster is not None
    bk.cluster.stop_bookie(lost)
    planned = bk.audit(dry_run=True)
    assert [(row.ledger_id, row.source, row.status) for row in planned.rows] == [
        (ledger_id, lost, Outcome.PLANNED) for ledger_id in IDS
    ]
    assert published(bk) == {}

    auditor.step(lambda: None)

    assert published(bk) == {ledger_id: [lost] for ledger_id in IDS}
    before = [bk.context.store.underreplication.read(LedgerId(i)) for i in IDS]
    again = bk.audit()
    assert (again.marked_ledgers, again.to_df().count()) == (4, 4)
    after = [bk.context.store.underreplication.read(LedgerId(i)) for i in IDS]
    assert after == before, "nothing is published twice"
    assert check_placement(bk.context, runner(bk)).rows == ()


@dataclass(frozen=True, slots=True)
class Dying:
    """Publishes, and ends the process that does it for the first time."""

    flag: str
    action: str = "mark"

    def __call__(self, context: ClientContext, ledger_ids: Sequence[LedgerId]) -> Sequence[Row]:
        for ledger_id in ledger_ids:
            context.store.underreplication.mark(ledger_id, ["lost:1"], 7)
        if LedgerId(IDS[1]) in ledger_ids and not Path(self.flag).exists():
            Path(self.flag).touch()
            os._exit(1)
        return [Row(i, self.action, Outcome.PUBLISHED) for i in ledger_ids]


@pytest.mark.full
def test_all_ledgers_are_read_and_counted_by_tasks(
    scanned: sbk.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lots, "LocalRunner", not_here)

    read = check_all_ledgers(scanned.context, runner(scanned), 100, bytes_per_second=10**6)
    counted = check_replicas(scanned.context, runner(scanned))

    for report in (read, counted):
        assert report.result is not None
        assert (report.result.ledgers, report.result.found) == (len(IDS), {})


@pytest.mark.full
def test_a_lot_whose_task_was_killed_is_done_again(scanned: sbk.BookKeeper, tmp_path: Path) -> None:
    report = report_of_scan(scanned.context, runner(scanned), "audit", Dying(str(tmp_path / "f")))

    assert (tmp_path / "f").exists()
    assert report.is_complete
    assert [row.ledger_id for row in report.rows] == IDS
    assert published(scanned) == {ledger_id: ["lost:1"] for ledger_id in IDS}
