"""Streams into a log: every micro-batch is one atomic write, in the log exactly once.

Its transaction consists of the query's id, which restarts keep, and the number of the batch. When
Spark repeats a batch, because the driver ended between our commit and its own, the log has the
number already, and the second write is dropped. Only the last batch may be repeated: for any other
one the query fails.

Spark creates one writer for the tasks of a batch and another one for its commit, and passes the
query to neither. So the ledger of a batch is created when the first writer is pickled for the
tasks. The tasks' messages carry the ledger and the query to the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from typing_extensions import override

from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.logs import atomic
from spark_bookkeeper.logs.staged_writes import StagedWrite, abort, remove_leftovers
from spark_bookkeeper.protocol.transactions import MicroBatch
from spark_bookkeeper.source.conditions import told
from spark_bookkeeper.source.older_spark import DataSourceStreamArrowWriter
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.writing import (
    Written,
    check_appending,
    check_log_options,
    make_log,
    results,
)
from spark_bookkeeper.spark.schemas import arrow_schema
from spark_bookkeeper.spark.workers import task_context
from spark_bookkeeper.spark.write_task import write_partition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""A task's property with the id of its query, which restarts from a checkpoint keep."""


@dataclass
class WrittenInBatch(Written):
    """The result of a task's successful attempt, with its staged write and its query."""

    staged: StagedWrite
    query_id: str | None


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Adds every micro-batch to a log as one ledger."""

    def __init__(
        self,
        connection: Connection,
        log: str,
        schema: pa.Schema,
        app_id: str | None,
        checkpoint: str | None,
        *,
        makes_log: bool,
    ) -> None:
        self._connection = connection
        self._log = log
        self._schema = schema
        self._app_id = app_id
        """The application of the transactions, instead of the query's id."""
        self._owner = app_id or checkpoint
        """The owner whose leftovers are removed; ``None`` if no checkpoint is known here."""
        self._makes_log = makes_log
        """Whether a missing log is created before tasks start, and never later, at a commit."""
        self._staged: StagedWrite | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Stage a ledger: a writer is pickled only for tasks, which need a ledger to write to."""
        if self._staged is None:
            with told():
                context = task_context(self._connection)
                if self._makes_log:
                    make_log(context, self._log, self._schema)
                self._staged = atomic.stage(
                    context, self._log, schema=self._schema, owner=self._owner
                )
        return self.__dict__

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        here = TaskContext.get()
        assert here is not None, "runs in a Spark task"
        assert self._staged is not None, "made when this was sent here"
        with told():
            result = write_partition(self._connection, self._staged.plan, iterator)
        return WrittenInBatch(result, self._staged, here.getLocalProperty(QUERY_ID))

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        first = next((m for m in messages if isinstance(m, WrittenInBatch)), None)
        with told():
            context = task_context(self._connection)
            if first is None:  # a batch without partitions
                self._remove_leftovers()
                return
            app_id = self._app_id or first.query_id
            if not app_id:
                raise InvalidArgumentError(
                    f"Spark did not tell the tasks for which query they write (property {QUERY_ID}"
                    " is not set), so a repeated batch could not be known. Give the stream an id "
                    'of its own: .option("txnAppId", "orders-to-totals")'
                )
            written = results(messages)
            transaction = MicroBatch(app_id, batchId, sum(result.rows for result in written))
            done = atomic.commit(context, first.staged, written, transaction)
            _log.info("batch %d to log %s: %s", batchId, self._log, done)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Discard the batch. Spark also calls it when ``commit`` raised: added rows stay added."""
        with told():
            told_of = (m.staged for m in messages if isinstance(m, WrittenInBatch))
            staged = next(told_of, None)
            if staged is not None:
                abort(task_context(self._connection), staged)
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove ledgers that no message names: every task failed, or the batch had none."""
        if self._owner is not None:
            remove_leftovers(task_context(self._connection), self._log, self._owner)


def stream_writer(
    options: SourceOptions, schema: StructType, overwrite: bool, checkpoint: str | None
) -> DataSourceStreamArrowWriter:
    """Return the writer of a micro-batch, or of its commit.

    Raises:
        InvalidArgumentError: options that exclude each other.
    """
    check_appending(overwrite)
    if options.log is None:
        raise InvalidArgumentError(
            'a stream is written to a log, and none was named: .option("log", "orders"); '
            'create_log("orders", schema=...) makes one, and so does .option("createLog", "true")'
        )
    check_log_options(options)
    return LogStreamWriter(
        options.connection(),
        options.log,
        arrow_schema(schema),
        options.txn_app_id,
        checkpoint,
        makes_log=options.create_log,
    )
