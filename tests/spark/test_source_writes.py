"""``df.write`` and ``df.writeStream``: all of a write is in the log, once, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter

from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.session import BookKeeper
from tests.spark.starting import started
from tests.spark.variants import in_full

pytestmark = [pytest.mark.spark, pytest.mark.integration]

SCHEMA = pa.schema([("id", pa.int64())])

To = Callable[..., DataFrameWriter]


@pytest.fixture
def log(bk: BookKeeper, request: pytest.FixtureRequest) -> Log:
    return bk.create_log(f"writes-{abs(hash(request.node.name))}", schema=SCHEMA)


@pytest.fixture
def to(bk: BookKeeper) -> To:
    def writer(frame: DataFrame, **options: Any) -> DataFrameWriter:
        made = frame.write.format("bookkeeper").mode("append")
        made = made.option("metadataUri", bk.metadata_uri)
        for name, value in options.items():
            made = made.option(name, value)
        return made

    return writer


def ids(bk: BookKeeper, first: int, end: int, tasks: int = 3) -> DataFrame:
    frame: DataFrame = bk.spark.range(first, end, 1, tasks)
    return frame


def found(log: Log) -> list[int]:
    values: list[int] = log.read_arrow().column("id").to_pylist()
    return values


def staged(bk: BookKeeper) -> list[int]:
    """Ledgers that were written for logs and are in none."""
    in_logs = set(bk.logs_arrow().column("ledger_id").to_pylist())
    ledgers = bk.ledgers_arrow().to_pylist()
    return [
        row["ledger_id"]
        for row in ledgers
        if row["ledger_id"] not in in_logs
        and "spark-bookkeeper.staged" in dict(row["custom_metadata"])
        and "log" in dict(row["custom_metadata"])
    ]


def test_a_frame_is_written_to_a_log_as_one_ledger_in_its_order(
    bk: BookKeeper, to: To, log: Log
) -> None:
    to(ids(bk, 0, 1000), log=log.name).save()
    to(ids(bk, 1000, 1100, 1), log=log.name).save()
    done = log.write(ids(bk, 1100, 1110))

    assert found(log) == list(range(1110))
    assert len(log.ledgers()) == 3
    assert (done.rows, done.is_new) == (10, True)
    assert staged(bk) == []


def test_a_write_with_a_number_is_done_once(bk: BookKeeper, to: To, log: Log) -> None:
    for _ in range(2):
        to(ids(bk, 0, 10), log=log.name, txnAppId="job", txnVersion=4).save()
    to(ids(bk, 0, 10), log=log.name, txnAppId="job", txnVersion=3).save()
    to(ids(bk, 10, 20), log=log.name, txnAppId="job", txnVersion=5).save()

    assert found(log) == list(range(20))
    assert log.last_transaction("job") == 5


@pytest.mark.full
def test_rows_are_inserted_through_a_view(bk: BookKeeper, log: Log) -> None:
    bk.spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW sink_view USING bookkeeper "
        f"OPTIONS (log '{log.name}', metadataUri '{bk.metadata_uri}')"
    )
    bk.spark.sql("INSERT INTO sink_view VALUES (1), (2)")
    bk.spark.sql("INSERT INTO sink_view SELECT id + 2 FROM sink_view")

    assert sorted(found(log)) == [1, 2, 3, 4]
    for statement, said in (
        ("INSERT OVERWRITE sink_view VALUES (1)", "never overwritten"),
        ("INSERT INTO sink_view VALUES (1, 2)", "TOO_MANY_DATA_COLUMNS"),
        ("INSERT INTO sink_view VALUES (array(1))", "CANNOT_SAFELY_CAST"),
        ("DELETE FROM sink_view WHERE id = 1", "does not support deletes"),
    ):
        with pytest.raises(PySparkException, match=said):
            bk.spark.sql(statement)
    assert len(found(log)) == 4


@pytest.mark.full
def test_a_new_ledger_is_written_with_an_id_or_a_name(bk: BookKeeper, to: To) -> None:
    frame = bk.spark.createDataFrame([(1, "a"), (2, None)], "id int, text string")
    sizes = {"ensembleSize": 4, "writeQuorumSize": 2, "ackQuorumSize": 1, "entryTargetBytes": "1k"}
    to(frame, ledgerId=4_000_000_017, compression="zstd", **sizes).save()
    places = {"zk.randomize_hosts": "false", "storage.endpoint_url": "http://no.bucket.here"}
    to(frame, name="by name", password="secret", digestType="MAC", **places).save()

    info = bk.ledger(4_000_000_017)
    assert (info.state, info.ensemble_size, info.write_quorum_size) == ("CLOSED", 4, 2)
    assert info.ack_quorum_size == 1
    assert bk.open_ledger(4_000_000_017).read().collect() == frame.collect()
    named = [
        row["ledger_id"]
        for row in bk.ledgers_arrow().to_pylist()
        if dict(row["custom_metadata"]).get("name") == b"by name"
    ]
    assert bk.open_ledger(named[0], b"secret").read().collect() == frame.collect()
    with pytest.raises(PySparkException, match="BOOKKEEPER_LEDGER_EXISTS"):
        to(frame, ledgerId=4_000_000_017).save()


@pytest.mark.parametrize(
    ("options", "message"),
    in_full(
        ({}, "it was not said where the rows go"),
        ({"log": "none"}, r"\[BOOKKEEPER_NO_SUCH_LOG\].*there is no log 'none'"),
        ({"log": "none", "ensembleSize": 4}, "ensembleSize means nothing beside log"),
        ({"log": "none", "txnAppId": "a"}, "txnAppId was given without txnVersion"),
        ({"log": "none", "txnVersion": 1}, "txnVersion was given without txnAppId"),
        ({"ledgerId": 9, "txnAppId": "a", "txnVersion": 1}, "are for logs"),
        ({"log": "none", "startingOffsets": "latest"}, "startingOffsets means nothing to df.write"),
        ({"logg": "none"}, "did you mean 'log'"),
        ({"ledgerId": 9, "ensembleSize": 99}, "BOOKKEEPER_NOT_ENOUGH_BOOKIES"),
    ),
)
def test_what_cannot_be_meant_is_refused_before_any_task_runs(
    bk: BookKeeper, to: To, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        to(ids(bk, 0, 1), **options).save()


@pytest.mark.full
def test_rows_of_every_kind_come_back_as_they_were(bk: BookKeeper, to: To) -> None:
    frame = bk.spark.sql(
        """
        SELECT * FROM VALUES
          (1, 'ä😀', CAST('12345678901234567890.123456789012345678' AS DECIMAL(38, 18)),
           TIMESTAMP '1500-01-01 00:00:00', TIMESTAMP_NTZ '9999-12-31 23:59:59.999999',
           MAP('k', ARRAY(1, null)),
           NAMED_STRUCT('a.b', 1, 'c', ARRAY(MAP('x', DATE '0001-01-01'))),
           REPEAT('x', 9000000), X'00ff', DOUBLE('NaN'), null),
          (null, null, null, null, null, null, null, null, null, null, null)
        AS rows(`a.b`, `c``d`, `x,y`, ` `, ``, `smörgås`, A, a, `_c`, `select`, nothing)
        """
    )
    to(frame, ledgerId=4_000_000_020, entryTargetBytes="1m").save()
    to(frame.limit(0), ledgerId=4_000_000_021).save()
    loaded = bk.spark.read.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    back = loaded.option("ledger", 4_000_000_020).load()
    empty = loaded.option("ledger", 4_000_000_021).load()

    assert (back.schema, empty.schema) == (frame.schema, frame.schema)
    assert sorted(map(repr, back.collect())) == sorted(map(repr, frame.collect()))
    assert (empty.count(), back.select().count(), len(back.limit(1).collect())) == (0, 2, 1)
    joined = back.alias("one").join(back.alias("other"), "x,y", "left")
    assert joined.count() == 2
    kept = back.select("`a.b`").cache()
    assert (kept.count(), kept.sample(1.0).count()) == (2, 2)
    kept.unpersist()


@pytest.mark.parametrize(
    ("query", "said"),
    in_full(
        ("SELECT 1 AS a, 2 AS a", "several columns of the name 'a'"),
        ("SELECT INTERVAL '2-3' YEAR TO MONTH AS y", "a type that Spark cannot hand over"),
        ("SELECT make_interval(1) AS i", 'Cannot use "INTERVAL" type'),
        (  # the one is said by Spark, the other by us about what Spark 4.0 made of it
            "SELECT named_struct('a', 1, 'a', 2) AS s",
            "DUPLICATED_FIELD_NAME_IN_ARROW_STRUCT|struct<a_0: .*> has other fields than struct<a:",
        ),
        (None, "the schema has no columns"),
    ),
)
def test_rows_that_no_ledger_can_hold_leave_none(
    bk: BookKeeper, to: To, query: str | None, said: str
) -> None:
    frame = bk.spark.range(3).select() if query is None else bk.spark.sql(query)

    with pytest.raises(PySparkException, match=said):
        to(frame, ledgerId=4_000_000_022).save()
    with pytest.raises(NoSuchLedgerError):
        bk.ledger(4_000_000_022)


@pytest.mark.full
def test_a_table_of_the_catalog_is_told_its_options_with_each_read(
    bk: BookKeeper, log: Log, to: To
) -> None:
    spark, options = bk.spark, f"(log '{log.name}', metadataUri '{bk.metadata_uri}')"
    to(ids(bk, 0, 3), log=log.name).save()
    spark.sql(f"CREATE TABLE of_the_catalog USING bookkeeper OPTIONS {options}")
    try:
        with pytest.raises(PySparkException, match=r"none was given.*Spark keeps no options.*WITH"):
            spark.sql("SELECT * FROM of_the_catalog").collect()
        with pytest.raises(PySparkException, match="option metadataUri is missing"):
            spark.sql("INSERT INTO of_the_catalog VALUES (1)")
        given = options.replace("(log ", "(log = ").replace("metadataUri ", "metadataUri = ")
        assert spark.sql(f"SELECT * FROM of_the_catalog WITH {given}").count() == 3
        table = spark.read.option("metadataUri", bk.metadata_uri).option("log", log.name)
        assert table.table("of_the_catalog").count() == 3
    finally:
        spark.sql("DROP TABLE of_the_catalog")


def test_rows_that_do_not_fit_the_log_are_refused_with_both_schemas(
    bk: BookKeeper, to: To, log: Log
) -> None:
    frame = bk.spark.createDataFrame([(1, "a")], "id int, text string")

    with pytest.raises(PySparkException, match=r"(?s)ledger:\n  id: int64.*data:\n  id: int32"):
        to(frame, log=log.name).save()

    assert staged(bk) == []


def test_modes_other_than_append_are_refused(bk: BookKeeper, to: To, log: Log) -> None:
    with pytest.raises(PySparkException, match=r'never overwritten.*mode\("append"\)'):
        to(ids(bk, 0, 1), log=log.name).mode("overwrite").save()
    for mode in ("error", "ignore"):
        with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            to(ids(bk, 0, 1), log=log.name).mode(mode).save()
    assert found(log) == []


def test_a_write_of_which_a_task_fails_leaves_nothing(bk: BookKeeper, to: To, log: Log) -> None:
    failing = ids(bk, 0, 100).selectExpr("if(id = 77, raise_error('no luck'), id) as id")
    with pytest.raises(PySparkException, match="no luck"):
        to(failing.selectExpr("cast(id as bigint) as id"), log=log.name).save()

    to(ids(bk, 0, 0), log=log.name).save()

    assert (found(log), log.ledgers(), staged(bk)) == ([], [], [])
    with pytest.raises(PySparkException, match="no luck"):
        to(failing.selectExpr("cast(id as bigint) as id"), ledgerId=4_000_000_018).save()
    with pytest.raises(NoSuchLedgerError):
        bk.ledger(4_000_000_018)


def test_a_task_that_is_repeated_counts_once(
    bk: BookKeeper, to: To, log: Log, tmp_path: Path
) -> None:
    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch.column(0)[0].as_py() == 0 and not marker.exists():
                marker.touch()
                raise RuntimeError("behind all rows of the first attempt")

    marker = tmp_path / "failed"
    frame = ids(bk, 0, 100, 2).mapInArrow(fail_once, "id bigint")
    to(frame, log=log.name).save()

    assert marker.exists()
    assert found(log) == list(range(100))


# Streams


@pytest.fixture
def stream(bk: BookKeeper, tmp_path: Path) -> Callable[..., Any]:
    """Run a query from one log into another until it has come to the end."""

    def run(source: Log, sink: Log, checkpoint: str = "checkpoint", **options: Any) -> Any:
        read = bk.spark.readStream.format("bookkeeper").option("metadataUri", bk.metadata_uri)
        read = read.option("log", source.name).option("startingOffsets", "earliest")
        write = read.load().writeStream.format("bookkeeper").trigger(availableNow=True)
        write = write.option("metadataUri", bk.metadata_uri).option("log", sink.name)
        write = write.option("checkpointLocation", str(tmp_path / checkpoint))
        for name, value in options.items():
            write = write.option(name, value)
        query = started(write)
        query.awaitTermination()
        return query

    return run


@pytest.mark.full
def test_every_batch_of_a_stream_is_one_ledger_once_also_when_spark_repeats_it(
    bk: BookKeeper, log: Log, stream: Callable[..., Any], tmp_path: Path
) -> None:
    source = bk.create_log(f"{log.name}-source", schema=SCHEMA)
    source.write(ids(bk, 0, 10))
    stream(source, log)

    # The driver ended when the log had the batch and before Spark noted it.
    (last,) = (tmp_path / "checkpoint" / "commits").glob("[0-9]*")
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    source.write(ids(bk, 10, 20))
    stream(source, log)
    query = stream(source, log)  # before 4.2 Spark ends behind the batch that it repeats

    assert found(log) == list(range(20))
    assert len(log.ledgers()) == 2
    assert log.last_transaction(query.id) is not None
    assert staged(bk) == []


@pytest.mark.full
def test_a_stream_whose_checkpoint_is_older_than_the_log_leaves_nothing_out_in_silence(
    bk: BookKeeper, log: Log, stream: Callable[..., Any], tmp_path: Path
) -> None:
    source = bk.create_log(f"{log.name}-source", schema=SCHEMA)
    for number in range(3):
        source.write(ids(bk, 10 * number, 10 * number + 10))
        stream(source, log)
        shutil.copytree(tmp_path / "checkpoint", tmp_path / f"after-{number}")
    source.write(ids(bk, 30, 40))

    # Batch 2 has other rows now, and batch 1 has all.
    for older, said in (("after-1", "has 10 rows of batch 2"), ("after-0", "this is batch 1")):
        with pytest.raises(PySparkException, match=rf"\[BOOKKEEPER_INVALID_ARGUMENT\].*{said}"):
            stream(source, log, older)
    assert found(log) == list(range(30))
    stream(source, log)
    assert found(log) == list(range(40))


@pytest.mark.full
def test_two_queries_and_a_writer_share_a_log(
    bk: BookKeeper, log: Log, stream: Callable[..., Any]
) -> None:
    source = bk.create_log(f"{log.name}-source", schema=SCHEMA)
    source.write(ids(bk, 0, 10))
    stream(source, log, "one")
    with log.become_writer() as writer:
        writer.append(pa.table({"id": [100]}))
    stream(source, log, "two", txnAppId="second")

    assert found(log) == [*range(10), 100, *range(10)]
    assert log.last_transaction("second") == 0


@pytest.mark.full
def test_a_stream_is_told_what_it_cannot_do(
    bk: BookKeeper, log: Log, stream: Callable[..., Any], tmp_path: Path
) -> None:
    read = bk.spark.readStream.format("rate").load().selectExpr("value as id")
    for options, message in (
        ({}, "a stream is written to a log"),
        ({"log": log.name, "txnVersion": "1"}, "txnVersion means nothing to df.writeStream"),
        ({"log": "none"}, "there is no log 'none'"),
    ):
        write = read.writeStream.format("bookkeeper").trigger(once=True)
        write = write.option("metadataUri", bk.metadata_uri).options(**options)
        with pytest.raises(PySparkException, match=message):
            write.option("checkpointLocation", str(tmp_path / "none")).start().processAllAvailable()


@pytest.mark.full
def test_a_stream_is_appended_and_replaces_nothing(
    bk: BookKeeper, log: Log, tmp_path: Path
) -> None:
    source = bk.create_log(f"{log.name}-source", schema=SCHEMA)
    source.write(ids(bk, 0, 10))
    read = bk.spark.readStream.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    frame = read.option("log", source.name).option("startingOffsets", "earliest").load()

    def run(mode: str, frame: Any) -> None:
        write = frame.writeStream.format("bookkeeper").trigger(availableNow=True).outputMode(mode)
        write = write.option("metadataUri", bk.metadata_uri).option("log", log.name)
        started(write.option("checkpointLocation", str(tmp_path / mode))).awaitTermination()

    with pytest.raises(PySparkException, match=r'never overwritten.*outputMode\("append"\)'):
        run("complete", frame.groupBy().count().selectExpr("count as id"))
    with pytest.raises(PySparkException, match="does not support Update mode"):  # Spark's own
        run("update", frame)
    assert found(log) == []
    run("append", frame)
    assert found(log) == list(range(10))


@pytest.mark.full
def test_foreach_batch_writes_each_batch_once(bk: BookKeeper, log: Log, tmp_path: Path) -> None:
    source = bk.create_log(f"{log.name}-source", schema=SCHEMA)
    source.write(ids(bk, 0, 10))

    def write(batch: DataFrame, number: int) -> None:
        for _ in range(2):  # as after a crash
            log.write(batch, txn_app_id="foreach", txn_version=number)

    read = bk.spark.readStream.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    frame = read.option("log", source.name).option("startingOffsets", "earliest").load()
    query = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    started(query.option("checkpointLocation", str(tmp_path / "checkpoint"))).awaitTermination()

    assert found(log) == list(range(10))
