"""A cluster in a table that Spark's Delta writes, and back; what only real Delta can show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_bookkeeper as sbk
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.jobs import run_job
from spark_bookkeeper.delta.archive import OWNER

pytestmark = [pytest.mark.delta, pytest.mark.timeout(900)]


@pytest.fixture
def old(spark: Any) -> Iterator[sbk.BookKeeper]:
    """A cluster of its own: all of it is saved."""
    with sbk.local(bookies=3, spark=spark) as bookkeeper:
        yield bookkeeper


@pytest.fixture
def new(spark: Any) -> Iterator[sbk.BookKeeper]:
    with sbk.local(bookies=4, spark=spark) as bookkeeper:
        yield bookkeeper


def ledger_of(bk: sbk.BookKeeper, rows: Any, **options: Any) -> int:
    with bk.create_ledger(schema=rows.schema, **options) as writer:
        writer.append(rows)
    return int(writer.ledger_id)


def payloads(bk: sbk.BookKeeper, name: str) -> list[tuple[int, int, bytes]]:
    return [(e.ledger_id, e.entry_id, e.payload) for e in bk.open_log(name).entries()]


def test_a_cluster_comes_back_from_a_table_after_optimize_and_vacuum(
    old: sbk.BookKeeper, new: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = str(tmp_path / "lake")
    frame = old.spark.range(300).selectExpr(
        "id",
        "if(id % 3 = 0, null, concat('row ', id)) text",
        "cast(id as decimal(12, 2)) price",
        "timestamp_micros(id) at",
        "array(id, null) several",
        "map('k', id) pairs",
        "named_struct('a', id, 'b', if(id % 5 = 0, null, 'x')) both",
    )
    taken = [ledger_of(old, frame, entry_target_bytes=2048, password=b"secret")]
    with old.create_ledger(digest_type="MAC", password=b"secret") as writer:
        for number in range(20):
            writer.append(b"entry %d" % number)
    taken.append(writer.ledger_id)
    fine = pa.table({"fine": pa.array([1_001], pa.timestamp("ns", "UTC"))})
    beside = [ledger_of(old, fine), ledger_of(old, pa.table({"id": ["a text"]}))]
    log = old.create_log("orders")
    with log.become_writer() as log_writer:
        for number in range(4):
            log_writer.append(b"%d" % number)
            if number % 2:
                log_writer.roll()
        log_writer.append(b"confirmed")
        log_writer.append(b"not known to be")
        places = payloads(old, "orders")

        first = old.backup(path, in_table=True)
        again = old.backup(path, in_table=True)

    assert first.is_complete, first.unfinished
    stands = {row.ledger_id for row in first.rows if row.target == path}
    assert stands == {*taken, *log.ledgers()[:2]}
    told = {row.ledger_id: str(row.reason) for row in first.rows}
    assert all("does not stand for it" in told[ledger_id] for ledger_id in beside)
    assert {row.entries for row in again.rows if row.ledger_id != log.ledgers()[-1]} == {0}
    (owner,) = [f for f in DeltaTable(path).schema().fields if f.name == "_ledger_id"]
    assert OWNER in owner.metadata

    third = ledger_of(old, old.spark.range(10))
    assert old.backup(path, in_table=True).is_complete
    old.spark.sql(f"OPTIMIZE delta.`{path}`")
    old.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    old.spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    verified = old.backup(path, in_table=True, verify=True)
    assert verified.is_complete, verified.unfinished
    old.spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")

    report = new.restore(path)

    assert report.is_complete, report.unfinished
    for ledger_id in (*taken, *beside, third):
        mine, theirs = (
            (bk.open_ledger(ledger_id, b"secret") for bk in (old, new))
            if (ledger_id in taken)
            else (bk.open_ledger(ledger_id) for bk in (old, new))
        )
        assert mine.read_arrow() == theirs.read_arrow()
        found = [[(e.entry_id, e.batch) for e in each.entries()] for each in (mine, theirs)]
        assert found[0] == found[1]
    assert payloads(new, "orders")[: len(places)] == places
    assert new.check_ledgers(percentage=100).is_complete


def test_commands_and_jobs_back_up_to_a_table_and_restore_from_it(
    old: sbk.BookKeeper, new: sbk.BookKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "lake")
    ledger_id = ledger_of(old, old.spark.range(100))

    def done(code: int) -> dict[str, Any]:
        captured = capsys.readouterr()
        assert code == 0, captured.err
        report: dict[str, Any] = json.loads(captured.out)
        return report

    command = ["--metadata-uri", old.metadata_uri, "--json", "cluster", "backup", path, "--table"]
    planned = done(run([*command, "--dry-run"]))
    assert (planned["rows"][0]["target"], Path(path).exists()) == (path, False)
    assert done(run(command))["entries"] > 0
    assert done(run_job("backup", [old.metadata_uri, path, "--table", "--json"]))["entries"] == 0
    other = ["--metadata-uri", new.metadata_uri, "--json", "cluster", "restore", path]
    assert [row["status"] for row in done(run([*other, "--dry-run"]))["rows"]] == ["planned"]
    assert done(run_job("restore", [new.metadata_uri, path, "--json"]))["complete"]

    assert new.open_ledger(ledger_id).read().count() == 100
    assert run([*command[:-1]]) == 2
    assert "--table" in capsys.readouterr().err
