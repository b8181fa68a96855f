"""``spark.readStream.format("bookkeeper")``: logs and ledgers followed by Structured Streaming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.source.older_spark import HAS_LIMITS
from tests.spark.starting import started

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def rows(count: int, first: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


class Stream:
    """A query that is started again and again from its checkpoint, and what it wrote."""

    def __init__(self, bk: BookKeeper, directory: Path, **options: Any) -> None:
        self.bk = bk
        self.directory = directory
        self.options = {"metadataUri": bk.metadata_uri, **options}

    def catch_up(self, **more: Any) -> Any:
        """Read what is there now, and end."""
        reader = self.bk.spark.readStream.format("bookkeeper")
        for name, value in {**self.options, **more}.items():
            reader = reader.option(name, str(value))
        query = started(
            reader.load()
            .writeStream.format("parquet")
            .option("path", str(self.directory / "out"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
        )
        query.awaitTermination()
        return query

    @property
    def ids(self) -> list[int]:
        frame = self.bk.spark.read.schema("id long").parquet(str(self.directory / "out"))
        return sorted(row.id for row in frame.collect())

    @property
    def offsets(self) -> list[dict[str, Any]]:
        files = (self.directory / "checkpoint" / "offsets").glob("[0-9]*")
        return [json.loads(f.read_text().splitlines()[-1]) for f in sorted(files, key=_number)]


def _number(path: Path) -> int:
    return int(path.name)


def test_a_log_is_read_once_through_rolls_takeovers_and_restarts(
    bk: BookKeeper, tmp_path: Path
) -> None:
    log = bk.create_log("streamed", schema=rows(1).schema)
    stream = Stream(bk, tmp_path, log="streamed", startingOffsets="earliest")
    old = log.become_writer()
    for number in range(5):
        old.append(rows(10, number * 10))
    query = stream.catch_up(**({"maxEntriesPerTrigger": 2} if HAS_LIMITS else {}))
    batches = len(stream.offsets)
    if HAS_LIMITS:  # how far behind a batch is can be seen in its progress
        seen = [progress["sources"][0] for progress in query.recentProgress]
        ends = [json.loads(s["endOffset"]) for s in seen if s["numInputRows"]]
        assert ends[0]["entry"] < json.loads(seen[0]["latestOffset"])["entry"]
    old.roll()
    old.append(rows(10, 50))
    with log.become_writer() as new:  # whoever wrote before is fenced
        new.append(rows(10, 60))
        new.roll()
    stream.catch_up()

    assert stream.ids == list(range(70))
    assert batches >= (2 if HAS_LIMITS else 1)
    assert stream.offsets[0]["version"] == 1
    assert stream.offsets[-1]["log"] == "streamed"


@pytest.mark.full
@pytest.mark.parametrize("trigger", ["0 seconds", "300 milliseconds"])
def test_a_running_query_sees_what_comes_after_it_was_idle(bk: BookKeeper, trigger: str) -> None:
    name = f"awaited_{trigger.partition(' ')[0]}"
    log = bk.create_log(name, schema=rows(1).schema)
    reader = bk.spark.readStream.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    frame = reader.option("log", name).option("startingOffsets", "earliest").load()
    write = frame.writeStream.format("memory").queryName(name).trigger(processingTime=trigger)
    query = started(write)

    def until_seen(count: int) -> None:
        while bk.spark.table(name).count() < count:
            assert query.isActive, query.exception()

    try:
        for number in range(3):  # each by a writer of its own, and the log is closed between them
            while "Waiting" not in query.status["message"]:
                assert not query.awaitTermination(0.05)
            with log.become_writer() as writer:
                writer.append(rows(5, number * 10))
                until_seen(number * 10 + 5)  # while it is open, or with its end
                writer.append(rows(5, number * 10 + 5))
            until_seen(number * 10 + 10)
    finally:
        query.stop()
    assert sorted(row.id for row in bk.spark.table(name).collect()) == list(range(30))


@pytest.mark.full
def test_a_continuous_trigger_is_refused_by_spark(bk: BookKeeper, tmp_path: Path) -> None:
    bk.create_log("never-continuous", schema=rows(1).schema)
    reader = bk.spark.readStream.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    write = reader.option("log", "never-continuous").load().writeStream.format("console")
    write = write.option("checkpointLocation", str(tmp_path / "checkpoint"))

    with pytest.raises(PySparkException, match=r"(?i)continuous"):
        write.trigger(continuous="1 second").start().processAllAvailable()
