"""DataFrames in and out of ledgers: the session's door to Spark.

Only DataFrames are used, no RDDs and nothing of the JVM, so that Spark Connect works too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.splits import cut
from spark_bookkeeper.client.write import rows
from spark_bookkeeper.client.write.bulk import BulkPlan, EntryRange, TaskResult, write_task
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.replication.runner import Runner
from spark_bookkeeper.session import SparkDoor
from spark_bookkeeper.spark.job import collect, is_stopped, parallelism, task_bar
from spark_bookkeeper.spark.runner import SparkRunner
from spark_bookkeeper.spark.schemas import (
    arrow_schema,
    delivered,
    delivered_schema,
    relabelled,
    spark_schema,
)
from spark_bookkeeper.spark.session import spark_session
from spark_bookkeeper.spark.workers import task_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT_SCHEMA: Final = "task int, result binary"

_SENT_BYTES: Final = 4 << 20
"""Small batches are joined until they have this size, or this many rows."""

_SENT_ROWS: Final = 65_536

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]


class SparkFrames(SparkDoor):
    """Appends and reads DataFrames, and runs work as Spark jobs.

    Args:
        spark: the session to use; ``None`` takes the active one, or starts one, when a DataFrame
            or a job is asked for and not before.
        connection: how tasks reach the cluster.
        conf: settings of a session that has to be started.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        connection: Connection,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._conf: dict[str, Any] = dict(conf or {})
        self._spark = spark
        self._connection = connection

    @property
    @override
    def session(self) -> SparkSession:
        return spark_session(**self._conf) if self._spark is None else self._spark

    @override
    def runner(self, job: str) -> Runner:
        return SparkRunner(lambda: self.session, self._connection, job)

    @override
    def is_frame(self, data: Any) -> bool:
        # By name: neither pyspark nor its Connect client is imported to ask.
        return any(
            cls.__name__ == "DataFrame" and cls.__module__.startswith("pyspark.sql.")
            for cls in type(data).__mro__
        )

    @override
    def schema(self, frame: Any) -> pa.Schema:
        if is_stopped(frame.sparkSession):
            raise InvalidArgumentError(
                "the Spark session of the DataFrame was stopped, and its rows went with it; "
                "nothing was appended. Make the DataFrame again in a session that runs"
            )
        if frame.isStreaming:
            raise InvalidArgumentError(
                "the DataFrame is a stream, which has no last row; nothing was appended. Append "
                "its batches: df.writeStream.foreachBatch(lambda batch, _: writer.append(batch))"
            )
        return arrow_schema(frame.schema)

    @override
    def arrow_schema(self, schema: Any) -> pa.Schema:
        return arrow_schema(schema)

    @override
    def from_arrow(self, table: pa.Table) -> DataFrame:
        return self.session.createDataFrame(table, schema=spark_schema(table.schema))

    @override
    def write_parts(self, frame: Any, plan: BulkPlan) -> Sequence[TaskResult]:
        """Write the rows of every partition to part files; one pass, one result for each.

        Only what is collected counts: an attempt that failed, or lost a race against a
        speculative copy of itself, has written files under names that nobody lists (R15).

        Raises:
            BookKeeperError: a task could not store its rows anywhere, or they do not fit.
                Whatever Spark raises for the frame itself goes through as it is.
        """
        described = f"append to ledger {plan.key.ledger_id}"
        # mapInArrow asks for its columns by name, and finds none that has a dot in it or differs
        # from another only in case. Tasks go by position.
        numbered = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
        job = numbered.mapInArrow(_write_task(self._connection, plan), RESULT_SCHEMA)
        with task_bar(described) as on_tasks:
            collected = collect(job, described, on_tasks)
        results: list[TaskResult] = []
        for row in sorted(collected, key=lambda row: row.task):
            result = pickle.loads(bytes(row.result))
            if isinstance(result, BookKeeperError):
                raise result
            results.append(result)
        return results

    @override
    def read(
        self, context: ClientContext, schema: pa.Schema, ranges: Sequence[EntryRange]
    ) -> DataFrame:
        """The rows of ranges, in their order; each is fixed now, and its rows are read whenever
        Spark runs the DataFrame.
        """
        spark = self.session
        pieces = 2 * parallelism(spark)
        cuts = tuple(
            EntryRange(each.ledger, first, last)
            for each in ranges
            for first, last in cut(context, each.ledger, each.first, each.last, pieces)
        )
        if not cuts:
            return spark.createDataFrame([], spark_schema(schema))
        named = {bookie for each in ranges for bookie in each.ledger.metadata.bookies()}
        roots = context.bookies.known_roots(sorted(named))
        task = _read_task(self._connection, schema, cuts, roots)
        return spark.range(0, len(cuts), 1, len(cuts)).mapInArrow(task, spark_schema(schema))


def _write_task(connection: Connection, plan: BulkPlan) -> Task:
    """What a task of an append does with the rows of its partition."""
    roots = {bookie: uri for _, bookie, _, uri in plan.targets}

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        here = TaskContext.get()
        assert here is not None, "runs in a Spark task"
        number = here.partitionId()
        context = task_context(connection, roots)
        result: TaskResult | BookKeeperError
        filled = (relabelled(b, plan.encoding.schema) for b in batches if b.num_rows)
        try:
            first = next(filled, None)
            if first is None:
                result = TaskResult(number, 0, ())
            else:
                result = write_task(plan, _with(first, filled), number, context)
        except BookKeeperError as error:
            result = error
        yield pa.RecordBatch.from_arrays(
            [pa.array([number], pa.int32()), pa.array([pickle.dumps(result)], pa.binary())],
            names=["task", "result"],
        )

    return write


def _with(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _read_task(
    connection: Connection,
    ledger_schema: pa.Schema,
    cuts: Sequence[EntryRange],
    roots: dict[Any, str],
) -> Task:
    """What a task of a read does: its rows are the numbers of the pieces to read."""
    schema = delivered_schema(ledger_schema)

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        context = task_context(connection, roots)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                piece = cuts[number]
                fetcher = Fetcher(context, piece.ledger, spread=number)
                scanned = fetcher.scan(piece.first, piece.last)
                found = (delivered(rows_of.batch, schema) for rows_of in scanned)
                try:
                    yield from joined(found, schema)
                except BookKeeperError as error:  # of a task, only the text reaches the driver
                    raise type(error)(error.for_worker(), **error.facts) from error

    return read


def joined(batches: Batches, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth sending; large ones pass as they are."""
    gathered: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if size >= _SENT_BYTES or count >= _SENT_ROWS:
            yield from rows.few_batches(pa.Table.from_batches(gathered, schema=schema))
            gathered, count, size = [], 0, 0
    if gathered:
        yield from rows.few_batches(pa.Table.from_batches(gathered, schema=schema))
