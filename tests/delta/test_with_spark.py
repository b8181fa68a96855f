"""What only real Delta in Spark can show: release, conflicts, streams both ways, reports."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import spark_bookkeeper as sbk
from spark_bookkeeper.cli.main import run

pytestmark = [pytest.mark.delta, pytest.mark.timeout(900)]

DOCS = Path(sbk.__file__).parent / "docs" / "delta.md"


def a_log(bk: sbk.BookKeeper, name: str, ledgers: int = 4, rows: int = 10) -> Any:
    log = bk.create_log(name, schema=bk.spark.range(1).schema)
    with log.become_writer() as writer:
        for number in range(ledgers):
            writer.append(bk.spark.range(number * rows, number * rows + rows))
            writer.roll()
    return log


def ids_in(path: Path) -> list[int]:
    """As delta-rs reads them."""
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


# Release


def test_a_released_log_is_read_by_executors_and_stays_after_optimize_and_vacuum(
    bk: sbk.BookKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "lake")
    frame = bk.spark.range(300).selectExpr(
        "id",
        "if(id % 3 = 0, null, concat('row ', id)) text",
        "id % 2 = 0 even",
        "cast(id as decimal(12, 2)) price",
        "timestamp_micros(id) at",
        "timestamp_ntz'2026-01-01 00:00:00' local",
        "array(id, null) several",
        "map('k', id) pairs",
        "named_struct('a', id, 'b', if(id % 5 = 0, null, 'x')) both",
    )
    with bk.create_ledger(schema=frame.schema, entry_target_bytes=2048) as writer:
        writer.append(frame)
    ledger_id = writer.ledger_id
    expected = bk.open_ledger(ledger_id).read_arrow()
    entries = [(e.entry_id, e.batch.num_rows) for e in bk.open_ledger(ledger_id).entries()]

    arguments = [path, str(ledger_id), "--release", "--keep", "0", "--json", "--yes"]
    code = run(["--metadata-uri", bk.metadata_uri, "ledger", "archive", *arguments])
    said = json.loads(capsys.readouterr().out)

    assert (code, [row["status"] for row in said["rows"]]) == (0, ["archived", "released"]), said
    assert bk.ledger(ledger_id).fragments[0].ensemble[0].startswith("archive-")

    def check() -> None:
        with sbk.connect(bk.metadata_uri, bk.spark) as fresh:
            reader = fresh.open_ledger(ledger_id)
            assert reader.read_arrow() == expected
            assert [(e.entry_id, e.batch.num_rows) for e in reader.entries()] == entries
            read = [row.asDict(recursive=True) for row in reader.read().collect()]
            assert read == [row.asDict(recursive=True) for row in frame.collect()]
            assert fresh.check_ledgers([ledger_id], percentage=100).is_complete

    check()
    again = bk.archive_to_delta(path, [ledger_id], release=True, keep=0)
    assert again.is_complete
    bk.spark.sql(f"OPTIMIZE delta.`{path}`")
    bk.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    bk.spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    check()


def test_rows_deleted_by_deletion_vectors_are_missed_once_they_are_gone(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = str(tmp_path / "lake")
    with bk.create_ledger(schema=bk.spark.range(1).schema) as writer:
        for number in range(3):
            writer.append(bk.spark.range(number * 5, number * 5 + 5).toArrow())
    bk.archive_to_delta(path, [writer.ledger_id])
    bk.spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)"
    )
    assert bk.archive_to_delta(path, [writer.ledger_id], release=True, keep=0).is_complete
    bk.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 7")

    assert bk.open_ledger(writer.ledger_id).read_arrow().num_rows == 15  # the file has it still

    bk.spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)")
    bk.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    bk.spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    with sbk.connect(bk.metadata_uri, bk.spark) as fresh:
        reader = fresh.open_ledger(writer.ledger_id)
        with pytest.raises(sbk.EntryUnreadableError, match="was changed since"):
            reader.read_arrow()
        assert reader.read_arrow(skip_lost=True)["id"].to_pylist() == [*range(5), *range(10, 15)]


# Conflicts


def test_archives_and_compactions_at_once_give_each_row_once(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = tmp_path / "lake"
    ledgers = [
        bk.create_ledger(schema=bk.spark.range(1).schema, name=f"conflict {n}") for n in range(4)
    ]
    for number, writer in enumerate(ledgers):
        writer.append(bk.spark.range(number * 10, number * 10 + 10).toArrow())
        writer.close()
    ids = [writer.ledger_id for writer in ledgers]
    bk.archive_to_delta(str(path), ids[:1])
    ended = threading.Event()
    errors: list[Exception] = []

    def compact() -> None:
        for _ in range(3):
            if ended.is_set():
                return
            try:
                bk.spark.sql(f"OPTIMIZE delta.`{path}`")
                bk.spark.sql(f"VACUUM delta.`{path}`")
            except Exception as error:
                errors.append(error)

    def archive(order: list[int]) -> None:
        bk.archive_to_delta(str(path), order)

    compacting = threading.Thread(target=compact)
    archiving = [threading.Thread(target=archive, args=(o,)) for o in (ids, ids[::-1])]
    for thread in (compacting, *archiving):
        thread.start()
    for thread in archiving:
        thread.join()
    ended.set()
    compacting.join()
    final = bk.archive_to_delta(str(path), ids)

    assert final.is_complete, final.unfinished
    assert ids_in(path) == list(range(40))
    assert not errors


# Streams


def undo_last_commit(checkpoint: Path) -> None:
    """As if the query was killed between the sink's commit and the note of it."""
    last = max(
        (p for p in (checkpoint / "commits").iterdir() if p.name.isdigit()),
        key=lambda p: int(p.name),
    )
    last.unlink()
    crc = last.with_name(f".{last.name}.crc")
    crc.unlink(missing_ok=True)


def test_a_log_goes_into_a_table_continuously_each_row_once(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    bk.register_sql(bk.spark)
    log = a_log(bk, "to-table", 2)
    path, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"

    def follow() -> None:
        query = (
            bk.spark.readStream.format("bookkeeper")
            .option("metadataUri", bk.metadata_uri)
            .option("log", "to-table")
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("delta")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(path))
        )
        query.awaitTermination()

    follow()
    assert ids_in(path) == list(range(20))
    undo_last_commit(checkpoint)
    with log.become_writer() as writer:
        writer.append(bk.spark.range(20, 30))
    follow()
    follow()

    assert ids_in(path) == list(range(30))


def test_what_is_appended_to_a_table_goes_into_a_log_each_row_once(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    bk.register_sql(bk.spark)
    log = bk.create_log("from-table", schema=bk.spark.range(1).schema)

    def append(start: int) -> None:
        rows = bk.spark.range(start, start + 10)
        rows.write.format("delta").mode("append").save(str(path))

    def follow() -> None:
        query = (
            bk.spark.readStream.format("delta")
            .load(str(path))
            .writeStream.format("bookkeeper")
            .option("metadataUri", bk.metadata_uri)
            .option("log", "from-table")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    append(0)
    append(10)
    follow()
    undo_last_commit(checkpoint)
    follow()
    append(20)
    follow()

    assert sorted(log.read_arrow()["id"].to_pylist()) == list(range(30))


# Reports


def test_reports_accumulate_and_tell_how_health_has_developed(
    bk: sbk.BookKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "reports")
    with bk.create_ledger() as writer:
        writer.append(b"x")
    ledger = str(writer.ledger_id)
    commands = [
        ["ledger", "check", ledger, "--no-spark"],
        ["ledger", "archive", str(tmp_path / "lake"), ledger],
        ["ledger", "recover", ledger, "--no-spark"],
        ["autorecovery", "audit"],
    ]
    for command in commands:
        run(["--metadata-uri", bk.metadata_uri, *command, "--report-table", path])
    capsys.readouterr()

    table = bk.spark.read.format("delta").load(path)
    runs = table.where("action = 'run'").collect()
    assert [row.job for row in sorted(runs, key=lambda row: row.reported_at)] == [
        *("check_ledgers", "archive_to_delta", "recover_ledgers", "audit")
    ]
    assert {row.cluster for row in runs} == {bk.metadata_uri}
    assert len({row.run for row in runs}) == 4
    table.createOrReplaceTempView("reports")
    (query,) = (text for text in blocks("sql") if "FROM reports" in text)
    found = bk.spark.sql(query).collect()
    assert {row.job for row in found} == {row.job for row in runs}


def blocks(language: str) -> list[str]:
    """Fenced blocks of the page about Delta."""
    text = DOCS.read_text(encoding="utf-8")
    return [part.partition("```")[0] for part in text.split(f"```{language}\n")[1:]]
