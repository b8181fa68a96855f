"""``spark.read.format("bookkeeper")``: ledgers and logs read as Spark reads anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.source.older_spark import REPLACES_SOURCES
from spark_bookkeeper.source.options import OF_LEDGERS, VIEWS
from spark_bookkeeper.source.registration import register_source
from tests.spark.variants import in_full
from tests.support.rows import wait_for_every_copy

pytestmark = [pytest.mark.spark, pytest.mark.integration]

Read = Callable[..., DataFrame]


@pytest.fixture
def read(bk: BookKeeper) -> Read:
    """Read with options; the cluster is given with each read."""

    def load(**options: Any) -> DataFrame:
        reader = bk.spark.read.format("bookkeeper").option("metadataUri", bk.metadata_uri)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return load


def rows(count: int, first: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"row {n}" for n in ids]})


@pytest.fixture(scope="module")
def ledger(bk: BookKeeper) -> int:
    """100 rows in 10 entries of 10 rows, closed."""
    with bk.create_ledger(schema=rows(1).schema) as writer:
        for start in range(0, 100, 10):
            writer.append(rows(10, start))
    return writer.ledger_id


def test_a_ledger_is_read_with_its_own_columns(bk: BookKeeper, read: Read, ledger: int) -> None:
    frame = read(ledger=ledger)

    assert frame.schema == bk.open_ledger(ledger).read().schema
    assert [tuple(row) for row in frame.collect()] == [(n, f"row {n}") for n in range(100)]


def test_only_wanted_columns_come_in_the_order_asked_for(read: Read, ledger: int) -> None:
    frame = read(ledger=ledger, columns="name")

    assert frame.columns == ["name"]
    assert [row.name for row in frame.limit(2).collect()] == ["row 0", "row 1"]
    turned = read(ledger=ledger, columns="name,id").first()
    assert turned is not None
    assert turned.asDict() == {"name": "row 0", "id": 0}


def test_tasks_are_as_many_as_the_hints_say(read: Read, ledger: int) -> None:
    many = read(ledger=ledger, minPartitions=5)
    few = read(ledger=ledger, maxEntriesPerPartition=3)

    assert many.rdd.getNumPartitions() == 5
    assert few.rdd.getNumPartitions() == 4
    assert [row.id for row in many.collect()] == list(range(100))
    assert read(ledger=ledger).rdd.getNumPartitions() == 1


def test_metadata_says_where_each_row_was_read(bk: BookKeeper, read: Read, ledger: int) -> None:
    frame = read(ledger=ledger, includeMetadata="true", columns="id")

    found = frame.select("id", "_metadata.*").where("id in (0, 41)").collect()

    assert [(r.id, r.ledger_id, r.entry_id, r.row) for r in found] == [
        (0, ledger, 0, 0),
        (41, ledger, 4, 1),
    ]
    bookies = bk.open_ledger(ledger).metadata.bookies()
    assert all(r.bookie in bookies and len(r.digest) == 8 for r in found)
    assert all(r.last_add_confirmed < r.entry_id for r in found)


def test_several_ledgers_of_compatible_schemas_are_one_frame(bk: BookKeeper, read: Read) -> None:
    narrow = pa.table({"id": pa.array([1, 2], pa.int32())})
    with bk.create_ledger(schema=narrow.schema) as writer:
        writer.append(narrow)
    with bk.create_ledger(schema=rows(1).schema) as wide:
        wide.append(rows(2, 3))
    with bk.create_ledger(schema=pa.schema([("id", pa.string())])) as foreign:
        pass

    both = read(ledgers=f"{writer.ledger_id},{wide.ledger_id}")
    assert [tuple(row) for row in both.collect()] == [
        (1, None),
        (2, None),
        (3, "row 3"),
        (4, "row 4"),
    ]
    with pytest.raises(PySparkException, match="cannot be read as one"):
        read(ledgers=f"{writer.ledger_id},{foreign.ledger_id}")


@pytest.mark.full
def test_an_open_ledger_is_read_without_or_with_recovery(bk: BookKeeper, read: Read) -> None:
    writer = bk.create_ledger()
    for number in range(3):
        writer.append(b"%d" % number)
    wait_for_every_copy(writer)

    assert read(ledger=writer.ledger_id, openMode="noRecovery").count() >= 2
    writer.append(b"still mine")
    assert read(ledger=writer.ledger_id).count() == 4
    assert bk.ledger(writer.ledger_id).state == "CLOSED"


def test_a_log_is_read_across_its_ledgers(bk: BookKeeper, read: Read) -> None:
    log = bk.create_log("read-by-source", schema=rows(1).schema)
    with log.become_writer() as writer:
        writer.append(rows(5))
        writer.roll()
        place = writer.append(rows(5, 5))
        writer.roll()
        writer.append(rows(5, 10))
    first = log.ledgers()[0]

    assert [row.id for row in read(log="read-by-source").collect()] == list(range(15))
    later = read(log="read-by-source", startingOffsets=str(place).rsplit(":", 1)[0])
    assert [row.id for row in later.collect()] == list(range(5, 15))
    log.truncate(place)
    assert [row.id for row in read(log="read-by-source").collect()] == list(range(5, 15))
    with pytest.raises(PySparkException, match=r"\[BOOKKEEPER_DATA_LOSS\].*was truncated"):
        read(log="read-by-source", startingOffsets=f"{first}:0").count()
    lenient = read(log="read-by-source", startingOffsets=f"{first}:0", failOnDataLoss="false")
    assert lenient.count() == 10


@pytest.mark.parametrize(
    ("options", "said"),
    in_full(
        ({"legder": "7"}, "did you mean 'ledger'"),
        ({}, "exactly one of ledger, ledgers, log and view"),
        ({"log": "nobody"}, r"\[BOOKKEEPER_NO_SUCH_LOG\] there is no log 'nobody'"),
        ({"ledger": "987654"}, r"\[BOOKKEEPER_NO_SUCH_LEDGER\]"),
        ({"view": "colours"}, "it is none of"),
    ),
)
def test_what_is_wrong_is_told_when_it_is_loaded(
    read: Read, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        read(**options)


@pytest.mark.parametrize("view", in_full(*sorted(VIEWS, key="entries".__ne__)))
def test_metadata_is_rows_too(bk: BookKeeper, read: Read, ledger: int, view: str) -> None:
    with bk.create_log(f"with-{view}").become_writer() as writer:
        writer.append(b"an entry of another ledger")
    frame = read(view=view)

    found = frame.collect()
    assert found or view == "underreplicated", "nothing is"
    if view not in OF_LEDGERS:
        assert frame.schema == getattr(bk, view)().schema
    if view == "logs":
        assert {row.log for row in read(view=view, log="with-logs").collect()} == {"with-logs"}
        assert len({row.log for row in found}) > 1
    if view == "entries":
        own = read(view=view, ledger=ledger).collect()
        assert [row.entry_id for row in own] == list(range(10))
        assert all(len(row.replicas) == 3 for row in own)
        assert len(own) < len(found)


def test_a_view_of_sql_has_its_options(bk: BookKeeper, ledger: int) -> None:
    spark = bk.spark
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW seen USING bookkeeper "
        f"OPTIONS (metadataUri '{bk.metadata_uri}', ledger '{ledger}')"
    )

    (row,) = spark.sql("SELECT sum(id) AS s FROM seen WHERE id < 10").collect()
    assert row.s == 45


@pytest.mark.full
def test_lost_replicas_cost_a_look_at_the_next_and_lost_entries_are_passed_over_if_asked(
    own_bk: BookKeeper,
) -> None:
    bk = own_bk
    with bk.create_ledger(schema=rows(1).schema) as writer:
        for start in range(0, 30, 10):
            writer.append(rows(10, start))
    ensemble = writer.metadata.last_fragment.ensemble
    reader = (
        bk.spark.read.format("bookkeeper")
        .option("metadataUri", bk.metadata_uri)
        .option("ledger", writer.ledger_id)
    )
    assert bk.cluster is not None
    for bookie in ensemble[:2]:
        bk.cluster.stop_bookie(bookie, destroy=True)
    assert [row.id for row in reader.load().collect()] == list(range(30))

    bk.cluster.stop_bookie(ensemble[2], destroy=True)
    with pytest.raises(PySparkException, match=r"\[BOOKKEEPER_ENTRY_UNREADABLE\]"):
        reader.load().count()
    assert reader.option("failOnDataLoss", "false").load().count() == 0
    opened = bk.open_ledger(writer.ledger_id)
    assert opened.read(skip_lost=True, columns=["name"]).count() == 0
    told = bk.lost_entries().collect()
    assert {(row.first_entry_id, row.last_entry_id, row.bookie_id) for row in told} == {
        (0, 2, bookie) for bookie in ensemble
    }


@pytest.mark.full
def test_sql_has_a_table_function_for_each_view(bk: BookKeeper, ledger: int) -> None:
    spark = bk.spark.newSession()
    names = bk.register_sql(spark)

    assert "bk_ledgers" in names
    assert spark.sql(f"SELECT state FROM bk_ledgers() WHERE ledger_id = {ledger}").collect()
    entries = spark.sql(f"SELECT entry_id FROM bk_entries(ledger => '{ledger}')").collect()
    assert [row.entry_id for row in entries] == list(range(10))
    uri = bk.metadata_uri
    assert spark.sql(f"SELECT * FROM bk_bookies(uri => '{uri}')").count() == 6
    log = bk.create_log("consumed-in-sql")
    with log.become_writer() as writer:
        log.publish("etl", writer.append(b"a"))
    (row,) = spark.sql("SELECT * FROM bk_consumers('consumed-in-sql')").collect()
    assert (row.consumer, row.entries_behind) == ("etl", 1)
    for call, said in (
        ("bk_bookies(ledger => '7')", "no ledger"),
        ("bk_consumers()", "a log"),
        ("bk_entries(ledgr => 7)", "did you mean 'ledger'"),
        ("bk_entries(1, 2, 3)", "3 arguments were given"),
        ("bk_entries((SELECT max(id) FROM range(0)))", "ledger as NULL"),
    ):
        with pytest.raises(PySparkException, match=rf"\[BOOKKEEPER_INVALID_ARGUMENT\].*{said}"):
            spark.sql(f"SELECT * FROM {call}").collect()
    # The session knows its cluster, so that it is not named with each read.
    knowing = spark.read.format("bookkeeper").option("ledger", ledger)
    if REPLACES_SOURCES:
        assert knowing.load().count() == 100
    else:
        with pytest.raises(PySparkException, match="option metadataUri is missing"):
            knowing.load()
        with pytest.raises(MissingRequirementError, match=r"option\(\"metadataUri\""):
            register_source(spark, uri)
