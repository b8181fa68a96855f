"""Appends of DataFrames that are refused, fail or are stopped: what is said, and what goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, functions

import spark_bookkeeper as sbk
from tests.worlds import first_of

pytestmark = pytest.mark.spark

NOTE = "Nothing of it was appended to ledger {}; its writer goes on."


@pytest.fixture(scope="module")
def writer(bk: sbk.BookKeeper, spark: Any) -> Iterator[sbk.LedgerWriter]:
    with bk.create_ledger(schema=spark.range(1).schema) as created:
        yield created


def goes_on(writer: sbk.LedgerWriter, spark: Any) -> bool:
    """Whether the next append gets the next id, and nothing else is in the ledger."""
    before = writer.last_add_pushed
    assert writer.append(spark.range(3).coalesce(1)) == before + 1
    return "writing" in repr(writer)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "column": (lambda spark: functions.col("id"), r"append df\.select\(column\)"),
    "column of a frame": (lambda spark: spark.range(3).id, r"append df\.select\(column\)"),
    "RDD": (lambda spark: spark.range(3).rdd, r"spark\.createDataFrame\(rdd, schema\)"),
    "grouped": (lambda spark: spark.range(3).groupBy("id"), "aggregate it first"),
    "list": (lambda spark: [1, 2], r"pa\.Table\.from_pylist\(rows, schema=writer\.schema\)"),
    "rows": (lambda spark: spark.range(3).collect(), r"pa\.Table\.from_pylist\(rows"),
    "text": (lambda spark: "text", r"text\.encode\(\)"),
    "dict": (lambda spark: {"id": 1}, r"pa\.Table\.from_pylist\(\[row\]"),
    "array": (lambda spark: np.arange(3), r"pa\.table\(\[array\], schema=writer\.schema\)"),
    "series": (lambda spark: pd.Series([1]), r"series\.to_frame\(name\)"),
    "row": (lambda spark: Row(id=1), "not pyspark.sql.types.Row; nothing was appended"),
    "nothing": (lambda spark: None, "not NoneType; nothing was appended"),
    "number": (lambda spark: 7, "not int; nothing was appended"),
    "reader": (lambda spark: spark.read, "DataFrameReader; nothing was appended"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_data_is_refused_with_what_to_write(
    spark: Any, writer: sbk.LedgerWriter, what: str
) -> None:
    make, remedy = WRONG[what]
    before = writer.last_add_pushed
    for append in (writer.append, writer.append_async):
        with pytest.raises(sbk.InvalidArgumentError, match=remedy):
            append(make(spark))
    assert writer.last_add_pushed == before
    assert "writing" in repr(writer)


@pytest.mark.full
def test_the_remedies_work(spark: Any, bk: sbk.BookKeeper, writer: sbk.LedgerWriter) -> None:
    schema = writer.schema
    frame = spark.range(3)
    writer.append(spark.createDataFrame(frame.rdd, frame.schema))
    writer.append(pa.Table.from_pylist([{"id": 1}], schema=schema))
    writer.append(pa.table([np.arange(3)], schema=schema))
    writer.append(pd.Series([1]).to_frame("id"))
    writer.append(spark.newSession().range(3))
    with bk.create_ledger() as other:
        other.append(b"text")


def test_a_stream_is_refused_before_its_columns(spark: Any, writer: sbk.LedgerWriter) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    with pytest.raises(sbk.InvalidArgumentError, match="foreachBatch"):
        writer.append(stream)


def _dies(batches: Any) -> Any:
    import os

    for batch in batches:
        os.kill(os.getpid(), 9)
        yield batch


FAILING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "UDF": (
        lambda frame: frame.select(functions.udf(lambda _: 1 // 0, "long")("id").alias("id")),
        "ZeroDivisionError",
    ),
    "cast": (
        lambda frame: frame.select(functions.lit("x").cast("long").alias("id")),
        "CAST_INVALID_INPUT",
    ),
    "worker": (lambda frame: frame.mapInArrow(_dies, "id long"), "exited unexpectedly"),
}


@pytest.mark.parametrize("what", first_of("cast", "UDF", "worker"))
def test_an_error_of_spark_stays_what_it_is_and_says_what_became_of_the_append(
    spark: Any, writer: sbk.LedgerWriter, what: str
) -> None:
    break_it, said = FAILING[what]
    rows = spark.range(1_000).coalesce(1)  # one task: each attempt is slow to fail
    with pytest.raises(Exception, match=said) as alone:
        break_it(rows).collect()
    with pytest.raises(type(alone.value), match=said) as told:
        writer.append(break_it(rows))
    assert getattr(told.value, "__notes__", None) == [NOTE.format(writer.ledger_id)]
    assert isinstance(told.value, PySparkException) == isinstance(alone.value, PySparkException)
    assert goes_on(writer, spark)


def test_what_cannot_travel_into_a_udf_says_so(
    spark: Any, bk: sbk.BookKeeper, writer: sbk.LedgerWriter, capfd: pytest.CaptureFixture[str]
) -> None:
    reader = bk.open_ledger_no_recovery(writer.ledger_id)
    info = bk.ledger(writer.ledger_id)
    uses: dict[str, Callable[[Any], Any]] = {
        f"a writer of ledger {writer.ledger_id} belongs": lambda _: writer.append(b"x"),
        f"a reader of ledger {writer.ledger_id} belongs": lambda _: reader.last_add_confirmed,
        f"a look at ledger {writer.ledger_id} belongs": lambda _: info.state,
        "a BookKeeper belongs": lambda _: bk.metadata_uri,
    }
    for words, use in uses.items():
        with pytest.raises(Exception, match=words) as told:
            spark.range(3).select(functions.udf(use, "string")("id")).collect()
        assert f"spark_bookkeeper.connect({bk.metadata_uri!r})" in str(told.value)
        with pytest.raises(Exception, match=words):
            spark.range(3).foreachPartition(use)
    capfd.readouterr()  # pyspark writes the traceback too


STOPPING = """
import sys, threading
import pyarrow as pa
import spark_bookkeeper as sbk

spark = sbk.spark_session("local[2]")
threading.excepthook = lambda raised: print("uncaught:", raised.exc_value)

def forever(batches):
    import time
    while True:
        time.sleep(0.1)
    yield

def append(batch, number):
    # Of no row, so that every batch is the same to it.
    writer.append(batch.sparkSession.range(3).mapInArrow(forever, "value long"))

def started():
    tracker = spark.sparkContext.statusTracker()
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None and info.numActiveTasks:
            return True
    return False

with sbk.local(bookies=3, spark=spark) as bk:
    frame = spark.range(3).toDF("value")
    with bk.create_ledger(schema=frame.schema) as writer:
        for _ in range(2):
            source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
            query = source.writeStream.foreachBatch(append).start()
            while not started():
                threading.Event().wait(0.05)
            query.stop()
            assert query.exception() is None, query.exception()
            assert not query.isActive
            assert writer.last_add_pushed == -1
        writer.append(frame)
        pushed = writer.last_add_pushed
        spark.stop()
        try:
            writer.append(frame)
        except sbk.InvalidArgumentError as error:
            assert "was stopped" in str(error), error
        else:
            raise AssertionError
        check = bk.check_ledgers()
        assert all("was stopped" in row.reason for row in check.unfinished), check.unfinished
        assert check.unfinished
        writer.append(pa.table({"value": [7]}).cast(writer.schema))
        assert writer.last_add_pushed == pushed + 1
    rows = bk.open_ledger(writer.ledger_id).read_arrow()["value"].to_pylist()
    assert rows == [0, 1, 2, 7], rows
print("all of it")
"""


@pytest.mark.full
def test_a_stopped_stream_ends_cleanly_and_a_stopped_session_is_named(python_path: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STOPPING], capture_output=True, text=True, timeout=500, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "all of it\n"), ended.stderr
    # Spark's workers show a stack trace when Spark ends them early, and that is no fault, so only
    # what nobody caught counts: the script prints what it was in Python, this is what it is in the
    # JVM and on the way between both.
    for uncaught in ("StackOverflowError", "Exception in thread", "py4j.protocol"):
        assert uncaught not in ended.stderr, ended.stderr
