"""Streams into a log: every micro-batch is one atomic write, in the log exactly once.

Its transaction is the query's id, which stays over restarts, and the number of the batch. When
Spark repeats a batch, because the driver ended between our commit and its own, the log has its
number already, and the second write is dropped. That is only ever the last batch: another one ends
the query.

Spark makes a writer of its own for the tasks of a batch and another one for its commit, and tells
neither of them for which query it is. So the ledger of a batch is made when the first of them is
sent to the tasks, and its commit is told of it, and of the query, by their messages.
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
"""Property of a task: the id of its query, the same over restarts from one checkpoint."""


@dataclass
class WrittenInBatch(Written):
    """What the attempt of a task wrote that counts, where, and for which query."""

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
        """Of the transactions, in place of the query's id."""
        self._owner = app_id or checkpoint
        """Whose leftovers are looked for; without a checkpoint that is known here, nobody's."""
        self._makes_log = makes_log
        """Before tasks are sent, and never at a commit: a log that was deleted stays so then."""
        self._staged: StagedWrite | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Whoever is pickled is sent to tasks, and these need a ledger to write to."""
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
            if first is None:  # a batch without a single partition
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
        """Also called when ``commit`` raised: what is in the log stays there."""
        with told():
            told_of = (m.staged for m in messages if isinstance(m, WrittenInBatch))
            staged = next(told_of, None)
            if staged is not None:
                abort(task_context(self._connection), staged)
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """What no message tells of: every task of the batch failed, or there was none."""
        if self._owner is not None:
            remove_leftovers(task_context(self._connection), self._log, self._owner)


def stream_writer(
    options: SourceOptions, schema: StructType, overwrite: bool, checkpoint: str | None
) -> DataSourceStreamArrowWriter:
    """The writer of a micro-batch, or of its commit.

    Raises:
        InvalidArgumentError: options that do not go together.
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
