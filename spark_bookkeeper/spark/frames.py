"""DataFrames in and out of ledgers, and jobs: all that a session needs of Spark.

Only DataFrames are used, no RDDs and nothing of the JVM, so that Spark Connect works too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.bookie.bookie import Rows
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.projection import present_in, under
from spark_bookkeeper.client.read.splits import cut, tasks_for
from spark_bookkeeper.client.read.unreadable import warn_of_lost
from spark_bookkeeper.client.write import rows
from spark_bookkeeper.client.write.bulk import BulkPlan, Frames, TaskResult
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.metrics import Counts, Metrics
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.runner import Runner
from spark_bookkeeper.spark.counts import TaskCounts, Tell, counted
from spark_bookkeeper.spark.job import collect, is_stopped, parallelism, task_bar
from spark_bookkeeper.spark.runner import SparkRunner
from spark_bookkeeper.spark.schemas import arrow_schema, delivered, delivered_schema, spark_schema
from spark_bookkeeper.spark.session import spark_session
from spark_bookkeeper.spark.workers import task_context
from spark_bookkeeper.spark.write_task import write_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT_SCHEMA: Final = "task int, result binary"

Batches = Iterable[pa.RecordBatch]
Task = Callable[[Batches], Iterator[pa.RecordBatch]]


class SparkFrames(Frames):
    """Appends and reads DataFrames, and runs work as Spark jobs.

    Args:
        spark: the session to use. ``None`` takes the active one, or starts one, when the first
            DataFrame or job needs it.
        connection: how tasks reach the cluster.
        conf: settings of a session that has to be started.
        metrics: the metrics that show what tasks count.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        connection: Connection,
        conf: Mapping[str, str] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._counts = TaskCounts(metrics or Metrics())
        self._conf: dict[str, Any] = dict(conf or {})
        self._spark = spark
        self._connection = connection

    @property
    def session(self) -> SparkSession:
        """The Spark session; started when there is none."""
        return spark_session(**self._conf) if self._spark is None else self._spark

    def runner(self, job: str, hosts: Callable[[], Mapping[BookieId, str]] = dict) -> Runner:
        """Return a runner of Spark jobs; ``job`` names them in Spark's own pages."""
        return SparkRunner(lambda: self.session, self._connection, job, self._counts.add, hosts)

    @override
    def is_frame(self, data: Any) -> bool:
        # By name, so that neither pyspark nor its Connect client is imported.
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
        """Write the rows of every partition to part files, in one pass; return the tasks' results.

        Only collected results count: an attempt that failed, or lost a race against a speculative
        copy of itself, has written files under names that nothing lists (R15).

        Raises:
            BookKeeperError: a task could not store its rows anywhere, or they do not fit. Errors
                that Spark raises for the frame itself pass unchanged.
        """
        described = f"append to ledger {plan.key.ledger_id}"
        # mapInArrow finds columns by name, and fails for a name with a dot or one that differs from
        # another only in case. Tasks use positions.
        numbered = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
        job = numbered.mapInArrow(_write_task(self._connection, plan), RESULT_SCHEMA)
        with task_bar(described) as on_tasks:
            collected = collect(job, described, on_tasks)
        results: list[TaskResult] = []
        for row in sorted(collected, key=lambda row: row.task):
            result, counts = pickle.loads(bytes(row.result))
            self._counts.add(counts)
            if isinstance(result, BookKeeperError):
                raise result
            results.append(result)
        return results

    @override
    def read(
        self,
        context: ClientContext,
        schema: pa.Schema,
        ranges: Sequence[EntryRange],
        *,
        skip_lost: bool = False,
        places: tuple[str, ...] = (),
    ) -> DataFrame:
        """Return the rows of ranges as a DataFrame, in order. The ranges are fixed now; Spark reads
        the rows each time it runs the DataFrame.

        Args:
            places: names of leading columns with the position of each row: ledger id, entry id
                (both long), number within the entry (int).
        """
        spark = self.session
        pieces = 2 * parallelism(spark)
        cuts = tuple(
            EntryRange(each.ledger, first, last)
            for each in ranges
            for first, last in cut(context, each.ledger, each.first, each.last, pieces)
        )
        of_frame = spark_schema(pa.schema([*_place_fields(places), *schema], schema.metadata))
        if not cuts:
            return spark.createDataFrame([], of_frame)
        named = {bookie for each in ranges for bookie in each.ledger.metadata.bookies()}
        roots = context.bookies.known_roots(sorted(named))
        tell = self._counts.accumulator(spark)
        task = _read_task(self._connection, schema, cuts, roots, skip_lost, places, tell)
        tasks = tasks_for(cuts, pieces)
        return spark.range(0, len(cuts), 1, tasks).mapInArrow(task, of_frame)


def _write_task(connection: Connection, plan: BulkPlan) -> Task:
    """Return the function with which a task of an append writes the rows of its partition."""

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        result: TaskResult | BookKeeperError
        told: list[Counts] = []
        with counted(task_context(connection).metrics, told.append):
            try:
                result = write_partition(connection, plan, batches)
            except BookKeeperError as error:
                result = error
        number = result.task if isinstance(result, TaskResult) else -1
        answer = pickle.dumps((result, told[0]))
        yield pa.RecordBatch.from_arrays(
            [pa.array([number], pa.int32()), pa.array([answer], pa.binary())],
            names=["task", "result"],
        )

    return write


def _read_task(
    connection: Connection,
    wanted: pa.Schema,
    cuts: Sequence[EntryRange],
    roots: dict[Any, str],
    skip_lost: bool,
    places: tuple[str, ...] = (),
    tell: Tell | None = None,
) -> Task:
    """Return the function of a read's tasks; its input rows are the numbers of ``cuts``."""
    schema = delivered_schema(wanted)
    sent = pa.schema([*_place_fields(places), *schema])

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        context = task_context(connection, roots)
        with counted(context.metrics, tell):
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read_piece(context, number)

    def read_piece(context: ClientContext, number: int) -> Iterator[pa.RecordBatch]:
        piece = cuts[number]
        fetcher = Fetcher(
            context,
            piece.ledger,
            spread=number,
            columns=present_in(piece.ledger.schema, wanted),
            skip_lost=skip_lost,
        )
        scanned = fetcher.scan(piece.first, piece.last)
        found = (
            _placed(rows_of, piece, delivered(batch, schema), sent)
            if places
            else delivered(batch, schema)
            for rows_of in scanned
            for batch in [under(rows_of.batch, wanted)]
        )
        try:
            yield from joined(found, sent)
        except BookKeeperError as error:  # only the text of a task's error reaches the driver
            raise type(error)(error.for_worker(), **error.facts) from error
        warn_of_lost(piece.ledger.ledger_id, fetcher.lost)

    return read


def _place_fields(names: tuple[str, ...]) -> list[pa.Field]:
    kinds = (pa.int64(), pa.int64(), pa.int32())
    return [pa.field(n, kind, nullable=False) for n, kind in zip(names, kinds, strict=bool(names))]


def _placed(
    rows_of: Rows, piece: EntryRange, batch: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows with leading columns that say where each row was."""
    ledgers = np.full(batch.num_rows, piece.ledger.ledger_id, dtype=np.int64)
    places = [ledgers, rows_of.entry_ids, rows_of.positions.astype(np.int32)]
    return pa.RecordBatch.from_arrays([*map(pa.array, places), *batch.columns], schema=schema)


_SENT_BYTES: Final = 4 << 20
"""Small batches are joined until they have this size, or ``_SENT_ROWS`` rows."""

_SENT_ROWS: Final = 65_536


def joined(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches that are worth sending; large batches pass unchanged."""
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
