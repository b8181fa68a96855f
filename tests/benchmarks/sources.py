"""S1 to S5: the data source, beside tasks that only do the IO, Delta, and a source that is idle."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.source.data_source import BookKeeperSource
from tests.benchmarks.appending import MB
from tests.benchmarks.frames import PARTITIONS, consume, noise_frame, read_files, write_copies
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import RAW, Against, Line, at_least, at_most

SCHEMA: Final = pa.schema([("id", pa.int64())])
IDLE: Final = "an empty Python source"
_numbers = count()


def writing(lab: Lab) -> Iterator[Line]:
    """S1: P2 through ``df.write``."""
    size = lab.sizes.spark_bytes
    frame = noise_frame(lab.spark, size)
    plain, delta = lab.directory / "raw-writes", lab.directory / "delta-writes"

    def timed(write: Callable[[], object]) -> float:
        started = time.perf_counter()
        write()
        return size / (time.perf_counter() - started) / MB

    def to_log(save: Callable[[Log], object]) -> float:
        log = new_log(lab, pa.schema([("payload", pa.binary())]))
        figure = timed(lambda: save(log))
        (ledger,) = log.ledgers()
        lab.bk.delete_log(log.name)
        for path in lab.cluster_directory.glob(f"bookies/*/ledgers/{ledger}-*"):
            shutil.rmtree(path)
        return figure

    def copies() -> float:
        lab.scratch(plain.name)
        figure = timed(lambda: write_copies(frame, plain))
        shutil.rmtree(plain)
        return figure

    def as_delta() -> float:
        figure = timed(lambda: frame.write.format("delta").save(str(delta)))
        shutil.rmtree(delta)
        return figure

    refusal = lab.delta_refusal()
    yield Line(
        "S1",
        "df.write of incompressible 1 KB rows to a log",
        "MB/s",
        f"{size >> 20} MiB in {PARTITIONS} partitions, cached in Spark",
        lambda: to_log(lambda log: sink(lab, frame.write, log).mode("append").save()),
        [
            Against(RAW, copies, at_least(0.9)),
            Against("log.write(df)", lambda: to_log(lambda log: log.write(frame))),
            Against("Delta, not synced", None if refusal else as_delta, at_least(1), refusal),
        ],
        rounds=lab.sizes.rounds,
        warm_up=2,
    )
    frame.unpersist()


def scanning(lab: Lab) -> Iterator[Line]:
    """S2: P5 through ``spark.read``."""
    size = lab.sizes.spark_bytes
    frame = noise_frame(lab.spark, size)
    with lab.bk.create_ledger(schema=frame.schema) as writer:
        writer.append(frame)
    directory = lab.scratch("raw-reads")
    write_copies(frame, directory)
    frame.unpersist()
    paths = sorted(str(path) for path in directory.glob("*-0.arrows"))

    def through(make: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            started = time.perf_counter()
            consume(make())
            return size / (time.perf_counter() - started) / MB

        return run

    yield Line(
        "S2",
        "spark.read of 1 KB rows",
        "MB/s",
        f"{size >> 20} MiB in {PARTITIONS} parts",
        through(lambda: source(lab, lab.spark.read).option("ledger", writer.ledger_id).load()),
        [
            Against(RAW, through(lambda: read_files(lab.spark, paths)), at_least(0.8)),
            Against("reader.read()", through(lab.bk.open_ledger(writer.ledger_id).read)),
        ],
        rounds=lab.sizes.rounds,
        warm_up=2,
    )
    lab.forget(writer.ledger_id)
    shutil.rmtree(directory)


def batches(lab: Lab) -> Iterator[Line]:
    """S3: what a micro-batch of one row costs, from a log and to a log."""
    number = lab.sizes.micro_batches
    lab.spark.dataSource.register(idle_source())
    log = new_log(lab)
    with log.become_writer() as writer:
        for value in range(number):
            writer.append(pa.table([pa.array([value])], schema=SCHEMA))

    def from_log() -> Any:
        read = source(lab, lab.spark.readStream).option("log", log.name)
        return read.option("startingOffsets", "earliest").option("maxEntriesPerTrigger", 1).load()

    def idle() -> Any:
        return lab.spark.readStream.format("idle").option("rows", number).load()

    def to_log(frame: Any) -> Any:
        return sink(lab, frame.writeStream, new_log(lab))

    def to_idle(frame: Any) -> Any:
        return frame.writeStream.format("idle")

    sizes = f"{number} micro-batches of one row; median of their triggerExecution"
    for what, ours in (
        ("from a log", lambda: run_query(to_idle(from_log()), number)),
        ("to a log", lambda: run_query(to_log(idle()), number)),
        ("from a log to a log", lambda: run_query(to_log(from_log()), number)),
    ):
        yield Line(
            "S3",
            f"a micro-batch {what}",
            "ms",
            sizes,
            ours,
            [Against(f"{IDLE} and sink", lambda: run_query(to_idle(idle()), number), at_most(2))],
            rounds=lab.sizes.rounds,
        )
    lab.bk.delete_log(log.name)


def first_row(lab: Lab) -> Iterator[Line]:
    """S4: from ``read`` to the first row, as a person waits for it."""
    lab.spark.dataSource.register(idle_source())
    log = new_log(lab)
    with log.become_writer() as writer:
        writer.append(pa.table([pa.array([1])], schema=SCHEMA))

    def timed(load: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            started = time.perf_counter()
            assert load().first() is not None
            return (time.perf_counter() - started) * 1000

        return run

    yield Line(
        "S4",
        "from read to the first row",
        "ms",
        "a log with one row",
        timed(lambda: source(lab, lab.spark.read).option("log", log.name).load()),
        [
            Against(IDLE, timed(lab.spark.read.format("idle").load), at_most(2)),
            Against("log.read()", timed(log.read)),
        ],
        rounds=lab.sizes.rounds,
        warm_up=2,
    )
    lab.bk.delete_log(log.name)


def latency(lab: Lab) -> Iterator[Line]:
    """S5: from an append to the end of the micro-batch with its row."""
    log = new_log(lab)
    writer = log.become_writer()
    seen = set[int]()
    read = source(lab, lab.spark.readStream).option("log", log.name)
    frame = read.option("startingOffsets", "earliest").load()
    query = frame.writeStream.foreachBatch(
        lambda batch, _: seen.update(row.id for row in batch.collect())
    ).start()
    values = count()

    def ours() -> float:
        value = next(values)
        writer.append(pa.table([pa.array([value])], schema=SCHEMA))
        started = time.perf_counter()
        while value not in seen:
            assert query.isActive, query.exception()
            time.sleep(0.005)
        return (time.perf_counter() - started) * 1000

    yield Line(
        "S5",
        "from an append to its row in foreachBatch",
        "ms",
        "a writer that pauses between two appends",
        ours,
        rounds=lab.sizes.rounds,
        warm_up=2,
    )
    query.stop()
    writer.close()
    lab.bk.delete_log(log.name)


# What they share


def source(lab: Lab, reader: Any) -> Any:
    """A reader of the data source; it need not be installed."""
    lab.spark.dataSource.register(BookKeeperSource)
    return reader.format("bookkeeper").option("metadataUri", lab.bk.metadata_uri)


def sink(lab: Lab, writer: Any, log: Log) -> Any:
    """A writer of the data source."""
    return source(lab, writer).option("log", log.name)


def new_log(lab: Lab, schema: pa.Schema = SCHEMA) -> Log:
    """An empty log."""
    return lab.bk.create_log(f"bench-{next(_numbers)}", schema=schema)


def run_query(writer: Any, number: int) -> float:
    """Run a query to its end; milliseconds of the median micro-batch."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        took = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
        assert len(took) == number, "a row in each"
    return float(statistics.median(took[1:]))  # the first one starts the processes


def idle_source() -> type[DataSource]:
    """A source of a row for each micro-batch, and a sink that drops all: what Spark itself costs.

    Made here, so that it travels to processes that cannot import this module.
    """

    class IdleReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_arrays([pa.array([1])], names=["id"])

    class IdleStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, rows: int) -> None:
            self.rows = rows

        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxRows(1)

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            most = self.rows if isinstance(limit, ReadAllAvailable) else start["at"] + 1
            return {"at": min(self.rows, most)}

        def prepareForTriggerAvailableNow(self) -> None: ...

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_arrays([pa.array([1])], names=["id"])

    class IdleWriter(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: Any, batchId: int) -> None: ...  # noqa: N803

        def abort(self, messages: Any, batchId: int) -> None: ...  # noqa: N803

    class IdleSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "idle"

        def schema(self) -> str:
            return "id long"

        def reader(self, schema: Any) -> DataSourceReader:
            return IdleReader()

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return IdleStreamReader(int(self.options.get("rows", "1")))

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
            return IdleWriter()

    return IdleSource
