"""DataFrames into ledgers and out of them: every row, in order, of every type."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.record import RecordKind
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.splits import cut
from spark_bookkeeper.client.write.bulk import BulkPlan, write_task
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.spark.schemas import relabelled
from tests.support.slotlog import log_of

pytestmark = pytest.mark.spark

QUORUMS = [
    (4, 3, 2),  # stripes and replicas; the others show the same once more
    pytest.param((3, 3, 2), marks=pytest.mark.full),
    pytest.param((5, 2, 2), marks=pytest.mark.full),
]

EVERY_TYPE = [
    "id",
    "if(id % 3 = 0, null, cast(id as string)) as text",
    "timestamp_seconds(id * 100000) as instant",
    "if(id % 2 = 0, null, timestamp_ntz'2020-02-29 23:59:59.123456') as wall_clock",
    "date_add(date'1969-12-30', cast(id as int)) as day",
    "cast(id as decimal(38,6)) / 7 as exact",
    "array(struct(id as a, if(id % 3 = 0, null, array(timestamp_seconds(id))) as t), null) as deep",
    "if(id % 5 = 0, null, map('k', id, 'nothing', null)) as pairs",
    "cast(cast(id as string) as binary) as bytes",
    "id % 2 = 0 as flag",
    "if(id % 5 = 0, double('NaN'), id * 1.5D) as real",
    "cast(id as float) as narrow",
    "cast(id % 100 as tinyint) as tiny",
    "cast(id % 100 as smallint) as small",
    "make_dt_interval(0, cast(id as int)) as span",
    "cast(null as void) as nothing",
    "struct(struct(array(map(1, named_struct('x', id)))) as inner) as outer",
    "array(array(struct(if(id % 7 = 0, null, 'v') as version), null), null, array()) as lists",
]


def create(bk: sbk.BookKeeper, quorum: tuple[int, int, int], schema: Any) -> sbk.LedgerWriter:
    ensemble, write, ack = quorum
    return bk.create_ledger(
        ensemble_size=ensemble,
        write_quorum_size=write,
        ack_quorum_size=ack,
        schema=schema,
        entry_target_bytes=64 << 10,
    )


def in_utc(frame: Any) -> pa.Table:
    """The rows as Spark itself gives them as Arrow, instants labelled as in ledgers."""
    table = frame.toArrow()
    utc = pa.schema([with_utc(field) for field in table.schema])
    return pa.Table.from_batches([relabelled(b, utc) for b in table.to_batches()], schema=utc)


def with_utc(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain(field.type), field.nullable)


def plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(kind):
        return pa.list_(with_utc(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([with_utc(kind.field(i)) for i in range(kind.num_fields)])
    return kind


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_every_type_comes_back_in_order(
    bk: sbk.BookKeeper, spark: Any, quorum: tuple[int, int, int]
) -> None:
    frame = spark.range(0, 600, 1, 5).selectExpr(*EVERY_TYPE)

    with create(bk, quorum, frame.schema) as writer:
        first = writer.append(frame)
        last = writer.append(frame.limit(3))
    reader = bk.open_ledger(writer.ledger_id)
    read = reader.read()

    assert first < last == reader.last_add_confirmed
    assert read.schema == frame.schema
    expected = pa.concat_tables([in_utc(frame), in_utc(frame.limit(3))])
    assert same(in_utc(read), expected)
    assert same(reader.read_arrow(), expected)
    assert reader.read_arrow().schema.field("instant").type == pa.timestamp("us", "UTC")


def same(found: pa.Table, expected: pa.Table) -> bool:
    # NaN equals NaN here, and the order of rows counts.
    if found.num_rows != expected.num_rows or found.schema.names != expected.schema.names:
        return False
    return repr(found.to_pylist()) == repr(expected.to_pylist())


def test_a_session_in_another_time_zone_reads_the_same_instants(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    frame = spark.sql("select timestamp'2021-07-01 12:00:00 UTC' as t")
    with create(bk, (3, 3, 2), frame.schema) as writer:
        writer.append(frame)
    zone = spark.conf.get("spark.sql.session.timeZone")

    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        text = bk.open_ledger(writer.ledger_id).read().selectExpr("string(t)").first()[0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    assert text == "2021-07-01 21:00:00"


def test_columns_without_nulls_fit_a_ledger_that_takes_nulls(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    frame = spark.range(10).selectExpr("id", "array('a') as tags")
    assert not frame.schema["id"].nullable

    with create(bk, (3, 3, 2), schema) as writer:
        writer.append(frame)

    assert bk.open_ledger(writer.ledger_id).read_arrow().column("id").to_pylist() == [*range(10)]


def test_a_null_in_a_column_without_nulls_is_refused_and_nothing_is_appended(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with create(bk, (3, 3, 2), schema) as writer:
        with pytest.raises(sbk.InvalidArgumentError, match="takes no nulls"):
            writer.append(spark.range(10).selectExpr("if(id = 7, null, id) as id"))

        assert writer.append(spark.range(2)) == 1


def test_another_schema_is_refused_and_both_are_shown(bk: sbk.BookKeeper, spark: Any) -> None:
    with create(bk, (3, 3, 2), spark.range(1).schema) as writer:
        with pytest.raises(sbk.InvalidArgumentError) as refused:
            writer.append(spark.range(1).selectExpr("cast(id as double) as id"))

    assert "int64" in str(refused.value)
    assert "double" in str(refused.value)


AWKWARD_NAMES = ["a.b", "c d", "x", "X", "`", "a`.`b", "", " ", "c1", "c0", "struct.x"]


def test_columns_may_have_any_name_as_long_as_no_two_are_the_same(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    columns = [f"id * {number} as c{number}" for number in range(len(AWKWARD_NAMES))]
    frame = spark.range(0, 100, 1, 3).selectExpr(*columns).toDF(*AWKWARD_NAMES)
    with create(bk, (3, 3, 2), frame.schema) as writer:
        writer.append(frame)

    read = bk.open_ledger(writer.ledger_id).read()

    assert read.schema == frame.schema
    assert read.collect() == frame.collect()


@pytest.mark.full
def test_names_inside_of_a_column_may_be_awkward_too(bk: sbk.BookKeeper, spark: Any) -> None:
    frame = spark.range(10).selectExpr("named_struct('a.b', id, 'x', 1, 'X', 2) as `s.t`")
    with create(bk, (3, 3, 2), frame.schema) as writer:
        writer.append(frame)
    assert bk.open_ledger(writer.ledger_id).read().collect() == frame.collect()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (None, "no columns"),
        ("select 1 as a, 2 as a, 3 as b", "several columns of the name 'a'"),
        ("select make_ym_interval(1, 2) as months", "months"),
    ],
)
def test_rows_that_no_ledger_can_hold_make_none(
    bk: sbk.BookKeeper, spark: Any, query: str | None, said: str
) -> None:
    frame = spark.range(1_000).select() if query is None else spark.sql(query)

    with pytest.raises(sbk.InvalidArgumentError, match=said):
        bk.create_ledger(schema=frame.schema)


@pytest.mark.full
def test_empty_arrays_and_maps_of_nothing_come_back(bk: sbk.BookKeeper, spark: Any) -> None:
    frame = spark.range(7).selectExpr(
        "id", "array() as a", "map() as m", "array(map(), map()) as d", "map('k', array()) as n",
        "if(id = 3, null, named_struct('a', array(), 'm', map())) as s",
    )  # fmt: skip
    with create(bk, (4, 3, 2), frame.schema) as writer:
        writer.append(frame)
    read = bk.open_ledger(writer.ledger_id).read()

    assert read.collect() == frame.collect()
    with create(bk, (3, 3, 2), read.schema) as again:
        again.append(read)
    assert bk.open_ledger(again.ledger_id).read().collect() == frame.collect()


def test_a_ledger_of_a_type_that_spark_lacks_is_read_as_arrow_alone(bk: sbk.BookKeeper) -> None:
    exact = pa.array([decimal.Decimal("1500")], pa.decimal128(5, -2))
    rows = pa.table({"exact": exact})
    with create(bk, (3, 3, 2), rows.schema) as writer:
        writer.append(rows)
    reader = bk.open_ledger(writer.ledger_id)

    with pytest.raises(sbk.InvalidArgumentError, match=r"'exact' .* decimal128\(5, -2\)"):
        reader.read()
    assert reader.read_arrow() == rows


@pytest.mark.full
def test_nanoseconds_that_spark_cannot_hold_are_told_of_the_read(bk: sbk.BookKeeper) -> None:
    rows = pa.table({"at": pa.array([1], pa.timestamp("ns"))})
    with create(bk, (3, 3, 2), rows.schema) as writer:
        writer.append(rows)
    reader = bk.open_ledger(writer.ledger_id)

    with pytest.raises(Exception, match=r"'at' of the ledger .* microsecond.*read_arrow") as told:
        reader.read().collect()
    assert "nothing was appended" not in str(told.value)
    assert reader.read_arrow() == rows


@pytest.mark.full
def test_a_stream_is_refused_with_what_appends_its_batches(bk: sbk.BookKeeper, spark: Any) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    with create(bk, (3, 3, 2), stream.schema) as writer:
        with pytest.raises(sbk.InvalidArgumentError, match="foreachBatch"):
            writer.append(stream)

        assert writer.last_add_pushed == -1
        writing = stream.writeStream.foreachBatch(lambda batch, _: writer.append(batch))
        query = writing.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        assert writer.length_bytes > 0


@pytest.mark.parametrize("way_in", [sbk.local, sbk.connect], ids=["local", "connect"])
def test_what_is_no_session_is_refused_before_anything_is_started(way_in: Any) -> None:
    with pytest.raises(sbk.InvalidArgumentError, match=r"spark=5 .*SparkSession"):
        way_in(spark=5)


def test_empty_partitions_and_empty_frames_make_no_entries(bk: sbk.BookKeeper, spark: Any) -> None:
    with create(bk, (4, 3, 2), spark.range(1).schema) as writer:
        assert writer.append(spark.range(0)) == -1
        last = writer.append(spark.range(0, 100, 1, 8).where("id >= 50 and id < 60"))

    reader = bk.open_ledger(writer.ledger_id)
    assert last == reader.last_add_confirmed
    assert (last + 1) % 4 == 0, "each task makes a multiple of E entries"
    assert [row.id for row in reader.read().collect()] == [*range(50, 60)]


def test_a_ledger_without_entries_reads_as_an_empty_frame(bk: sbk.BookKeeper, spark: Any) -> None:
    frame = spark.range(1)
    create(bk, (3, 3, 2), frame.schema).close()

    read = bk.open_ledger(max(r.ledger_id for r in bk.ledgers().collect())).read()

    assert read.schema == frame.schema
    assert read.count() == 0


def test_bytes_frames_and_arrow_tables_share_one_ledger(bk: sbk.BookKeeper, spark: Any) -> None:
    with bk.create_ledger() as writer:
        writer.append(b"first")
        writer.append(spark.sql("select cast('second' as binary) as payload"))
        writer.append_async(b"third").result()
        writer.append(pa.table({"payload": pa.array([b"fourth"])}))

    rows = bk.open_ledger(writer.ledger_id).read().collect()
    assert [bytes(row.payload) for row in rows] == [b"first", b"second", b"third", b"fourth"]


def test_a_range_beyond_the_end_is_refused(bk: sbk.BookKeeper) -> None:
    with bk.create_ledger() as writer:
        writer.append(b"only")

    with pytest.raises(sbk.NoSuchEntryError):
        bk.open_ledger(writer.ledger_id).read(0, 1)


@pytest.mark.full
def test_tasks_of_a_read_take_whole_files_of_one_writing_task(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    frame = spark.range(0, 8, 1, 8).selectExpr("id", "repeat(uuid(), 110000) as filling")
    with bk.create_ledger(schema=frame.schema, entry_target_bytes=1 << 20) as writer:
        writer.append(frame)
    reader = bk.open_ledger(writer.ledger_id)

    pieces = cut(bk.context, reader.ledger, EntryId(0), reader.last_add_confirmed, 4)

    spans = written_spans(bk, reader.ledger)
    assert len(pieces) == 4
    assert {first for first, _ in pieces} <= {first for first, _ in spans}
    assert [row.id for row in reader.read().select("id").collect()] == [*range(8)]


def written_spans(bk: sbk.BookKeeper, ledger: Ledger) -> list[tuple[int, int]]:
    bookie = ledger.metadata.last_fragment.ensemble[0]
    records = log_of(bk.context, bookie, ledger).records()
    return [span for record in records if record.kind is RecordKind.ADD for span in record.spans]


def test_a_task_that_fails_once_is_retried_and_its_rows_are_there_once(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    def fails_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        here = TaskContext.get()
        assert here is not None
        for batch in batches:
            yield batch
            # After rows were handed on, so that the lost attempt has written something.
            if here.attemptNumber() == 0 and here.partitionId() == 1:
                raise ValueError("the first attempt is meant to fail")

    frame = spark.range(0, 3_000, 1, 3)
    with create(bk, (4, 3, 2), frame.schema) as writer:
        writer.append(frame.mapInArrow(fails_first, frame.schema))
    reader = bk.open_ledger(writer.ledger_id)

    assert reader.read_arrow().column("id").to_pylist() == [*range(3_000)]


def test_a_loser_of_a_speculation_that_writes_on_changes_nothing(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    seen: list[BulkPlan] = []
    frame = spark.range(0, 1_000, 1, 2)
    with create(bk, (4, 3, 2), frame.schema) as writer:
        begin: Callable[..., BulkPlan] = writer._pipeline.begin_bulk

        def remembered(bulk: object, expected: int | None) -> BulkPlan:
            seen.append(begin(bulk, expected))
            return seen[-1]

        writer._pipeline.begin_bulk = remembered  # type: ignore[method-assign]
        writer.append(frame)
        # The same partition once more, by an attempt that nobody waits for: before and after
        # the next append.
        batch = pa.record_batch({"id": pa.array(range(500), pa.int64())}, schema=writer.schema)
        write_task(seen[0], [batch], 0, bk.context)
        writer.append(frame)
        write_task(seen[0], [batch], 0, bk.context)
    write_task(seen[0], [batch], 0, bk.context)
    reader = bk.open_ledger(writer.ledger_id)

    assert reader.read().toArrow().column("id").to_pylist() == [*range(1_000)] * 2
    assert set(bk.check_ledgers([writer.ledger_id], percentage=100).counts) == {"healthy"}


@pytest.mark.parametrize("quorum", QUORUMS[:2], ids=str)
def test_a_bookie_is_destroyed_while_tasks_write_and_the_append_goes_on(
    own_bk: sbk.BookKeeper, spark: Any, tmp_path: Path, quorum: tuple[int, int, int]
) -> None:
    started, gone = tmp_path / "started", tmp_path / "gone"

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            yield batch
            started.touch()
            while not gone.exists():
                time.sleep(0.05)

    frame = spark.range(0, 200_000, 1, 4).selectExpr("id", "repeat('x', 50) as filling")
    cluster = own_bk.cluster
    assert cluster is not None
    with create(own_bk, quorum, frame.schema) as writer:
        writer.append(frame.limit(100))
        before = writer.metadata.last_fragment.ensemble

        def destroy() -> None:
            while not started.exists():
                own_bk.context.runtime.sleep(0.05)
            cluster.stop_bookie(before[1], destroy=True)
            gone.touch()

        helper = own_bk.context.runtime.spawn("destroy", destroy)
        writer.append(frame.mapInArrow(waits, frame.schema))
        helper.join()
        writer.append(frame.limit(10))
        after = writer.metadata.last_fragment.ensemble
    reader = own_bk.open_ledger(writer.ledger_id)

    assert before[1] not in after
    ids = reader.read().toArrow().column("id").to_pylist()
    assert ids == [*range(100), *range(200_000), *range(10)]


def test_metadata_frames_have_rows(bk: sbk.BookKeeper) -> None:
    with bk.create_ledger(name="for the table") as writer:
        writer.append(b"x")

    rows = bk.ledgers().where(f"ledger_id = {writer.ledger_id}").collect()

    assert rows[0].state == "CLOSED"
    assert bytes(rows[0].custom_metadata["name"]) == b"for the table"
    assert bk.bookies().where("state = 'writable'").count() == 6
    assert json.dumps(rows[0].bookies)
    assert isinstance(rows[0].ctime, datetime.datetime)
    assert decimal.Decimal(rows[0].length_bytes) == 1
    assert (rows[0].writer_state, rows[0].last_add_confirmed) == (None, 0)


def test_an_open_ledger_shows_the_spark_application_that_writes_it(
    bk: sbk.BookKeeper, spark: Any
) -> None:
    writer = bk.create_ledger()
    writer.append(b"x")

    (row,) = bk.ledgers(ask_bookies=True).where(f"ledger_id = {writer.ledger_id}").collect()
    shown = bk.ledger(writer.ledger_id)

    assert row.writer_state == shown.writer_state == "lives"
    assert shown.writer is not None
    assert shown.writer.application == spark.sparkContext.appName
    assert row.writer == str(shown.writer)
    assert isinstance(row.newest_entry_at, datetime.datetime)
    writer.close()


def test_the_slots_of_a_ledger_are_a_frame(bk: sbk.BookKeeper) -> None:
    with bk.create_ledger() as writer:
        writer.append(b"first")
        writer.append(b"second")

    slots = bk.ledger(writer.ledger_id).slots_df().orderBy("bookie_id", "slot").collect()

    ensemble = sorted(writer.metadata.last_fragment.ensemble)
    assert [(s.bookie_id, s.slot) for s in slots] == [(b, n) for b in ensemble for n in (0, 1)]
    assert {(s.kind, s.first_entry_id, s.last_entry_id) for s in slots} == {
        ("ADD", 0, 0),
        ("ADD", 1, 1),
    }


def test_a_read_that_fails_in_a_task_begins_with_its_condition(own_bk: sbk.BookKeeper) -> None:
    bk = own_bk
    with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        writer.append(b"on one bookie alone")
    (lost,) = writer.metadata.last_fragment.ensemble
    frame = bk.open_ledger(writer.ledger_id).read()
    assert bk.cluster is not None
    bk.cluster.stop_bookie(lost, destroy=True)

    with pytest.raises(Exception, match=r"\[BOOKKEEPER_ENTRY_UNREADABLE\] entry 0") as failure:
        frame.collect()

    assert lost in str(failure.value)
