"""What newer Sparks bring, with a log at either end: types, ANSI, state, pipelines."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, types

from spark_bookkeeper.session import BookKeeper
from tests.spark.starting import started

pytestmark = [pytest.mark.spark, pytest.mark.integration]

HAS_TIME = hasattr(types, "TimeType")
"""From Spark 4.1 on."""


def options(bk: BookKeeper, log: str) -> dict[str, str]:
    return {"metadataUri": bk.metadata_uri, "log": log}


def read(bk: BookKeeper, log: str) -> DataFrame:
    return bk.spark.read.format("bookkeeper").options(**options(bk, log)).load()


def write(bk: BookKeeper, frame: DataFrame, log: str) -> None:
    made = frame.write.format("bookkeeper").mode("append").options(**options(bk, log))
    made.option("createLog", "true").save()


def test_variants_times_wall_clocks_and_intervals_come_back_as_they_were(bk: BookKeeper) -> None:
    columns = [
        """parse_json('{"a": [1, "x"]}') AS v""",
        "named_struct('v', parse_json('2')) AS s",
        "TIMESTAMP_NTZ '2026-03-29 02:30:00' AS n",
        "INTERVAL '1 02:03:04.5' DAY TO SECOND AS d",
        *(["TIME '12:34:56.123456' AS t"] if HAS_TIME else []),
    ]
    frame = bk.spark.sql(f"SELECT {', '.join(columns)}")
    write(bk, frame, "types")

    back = read(bk, "types")
    found = back.selectExpr("variant_get(v, '$.a[1]', 'string') AS x", "s.v::int AS y", "*").first()

    assert back.schema == frame.schema
    assert found is not None
    assert (found.x, found.y) == ("x", 2)
    assert found.n == dt.datetime(2026, 3, 29, 2, 30), "an hour that Berlin does not have"  # noqa: DTZ001
    assert found.d == dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5)
    assert not HAS_TIME or found.t == dt.time(12, 34, 56, 123456)


@pytest.mark.full
def test_a_value_that_a_column_cannot_hold_is_refused_with_ansi_and_without(bk: BookKeeper) -> None:
    spark = bk.spark
    bk.create_log("narrow", schema=spark.range(1).selectExpr("CAST(id AS INT) AS id").schema)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW narrow USING bookkeeper "
        f"OPTIONS (log 'narrow', metadataUri '{bk.metadata_uri}')"
    )
    try:
        for is_ansi in ("true", "false"):
            spark.conf.set("spark.sql.ansi.enabled", is_ansi)
            with pytest.raises(PySparkException, match="CAST_OVERFLOW_IN_TABLE_INSERT"):
                spark.sql("INSERT INTO narrow SELECT 3000000000L")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")

    assert read(bk, "narrow").count() == 0


@pytest.mark.slow  # and not for Spark 4.0, which has none of this
def test_state_of_a_stream_between_two_logs_goes_on_where_it_was(
    bk: BookKeeper, tmp_path: Path
) -> None:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803
            before = self.count.get()[0] if self.count.exists() else 0
            self.count.update((before + sum(1 for _ in rows),))
            yield Row(shop=key[0], n=self.count.get()[0])

        def close(self) -> None: ...

    spark, provider = bk.spark, "spark.sql.streaming.stateStore.providerClass"
    log = bk.create_log("state-in", schema=spark.range(1).schema)
    package = "org.apache.spark.sql.execution.streaming.state"
    spark.conf.set(provider, f"{package}.RocksDBStateStoreProvider")
    try:
        for _ in range(2):
            log.write(spark.range(10))
            stream = spark.readStream.format("bookkeeper").options(**options(bk, "state-in"))
            counts = (
                stream.option("startingOffsets", "earliest")
                .load()
                .selectExpr("id % 2 AS shop")
                .groupBy("shop")
                .transformWithState(Counting(), "shop long, n long", "Append", "None")
            )
            sink = counts.writeStream.format("bookkeeper").options(**options(bk, "state-out"))
            sink = sink.option("createLog", "true").option("checkpointLocation", str(tmp_path))
            query = started(sink.outputMode("append").trigger(availableNow=True))
            assert query.awaitTermination() is None, query.exception()
    finally:
        spark.conf.unset(provider)

    found = sorted((row.shop, row.n) for row in read(bk, "state-out").collect())
    assert found == [(0, 5), (0, 10), (1, 5), (1, 10)]


PIPELINE = """
from pyspark import pipelines
from pyspark.sql import SparkSession

options = {"metadataUri": %(uri)r, "log": "visits"}
to_shop3 = {**options, "log": "shop3", "createLog": "true"}
pipelines.create_sink("shop3", format="bookkeeper", options=to_shop3)


@pipelines.append_flow(target="shop3")
def of_shop3():
    stream = SparkSession.active().readStream.format("bookkeeper").options(**options)
    return stream.option("startingOffsets", "earliest").load().where("shop = 3")


@pipelines.materialized_view
def per_shop():
    log = SparkSession.active().read.format("bookkeeper").options(**options).load()
    return log.groupBy("shop").count()
"""


@pytest.mark.slow  # and not for Spark 4.0, which has none of this
def test_a_log_is_the_source_of_a_view_and_the_sink_of_a_flow_in_a_pipeline(
    bk: BookKeeper, tmp_path: Path, python_path: str
) -> None:
    visits = bk.spark.range(1000).selectExpr("id", "id % 7 AS shop")
    bk.create_log("visits", schema=visits.schema).write(visits)
    (tmp_path / "flows.py").write_text(PIPELINE % {"uri": bk.metadata_uri})
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: shops\nstorage: file://{tmp_path}/state\n"
        "libraries:\n  - glob:\n      include: flows.py\n"
    )

    done = subprocess.run(
        [str(Path(sys.executable).parent / "spark-pipelines"), "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": python_path, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )

    assert done.returncode == 0, done.stdout
    assert read(bk, "shop3").count() == 143
    view = bk.spark.read.parquet(str(tmp_path / "spark-warehouse" / "per_shop"))
    assert {row["count"] for row in view.collect()} == {142, 143}
