"""Batch writes: ``df.write.format("bookkeeper")``, to a log or to a new ledger.

The driver side creates the ledger, and sends its plan to every task. Each task returns its result
in its commit message. The driver side, perhaps in another process, then commits or aborts the
write. Tasks, including speculative and repeated ones, share only the ledger's directory on each
bookie, where names are never used twice (SLOT-LOG rule R15).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from typing_extensions import override

from spark_bookkeeper.client import staging
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES
from spark_bookkeeper.client.write.bulk import BulkPlan, TaskResult
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import InvalidArgumentError, LogExistsError
from spark_bookkeeper.logs import atomic
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.staged_writes import StagedWrite, abort
from spark_bookkeeper.metadata.logs import find_log
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.placement import choose_ensemble
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.transactions import Transaction, transaction_of
from spark_bookkeeper.source.conditions import told
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.spark.schemas import arrow_schema
from spark_bookkeeper.spark.workers import task_context
from spark_bookkeeper.spark.write_task import write_partition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_GIVEN_UP = "nothing was written to %s: Spark gave the write up, and its error says why"

_OF_LEDGERS = (
    "ledgerId",
    "name",
    "ensembleSize",
    "writeQuorumSize",
    "ackQuorumSize",
    "digestType",
    "password",
    "compression",
    "entryTargetBytes",
)
"""Options that have no effect on a log, whose options define how its ledgers are made."""


@dataclass
class Written(WriterCommitMessage):
    """The result of a task's successful attempt."""

    result: TaskResult


class LogSink(DataSourceArrowWriter):
    """Adds the rows to a log as one ledger, or adds none. Pickled to tasks and back."""

    def __init__(
        self,
        connection: Connection,
        log: str,
        staged: StagedWrite | None,
        transaction: Transaction | None,
    ) -> None:
        self._connection = connection
        self._log = log
        self._staged = staged
        """``None``: the transaction is in the log already, and nothing is written."""
        self._transaction = transaction

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._staged is None:
            for _ in iterator:  # Spark requires that the iterator is read to its end
                pass
            return Written(TaskResult(0, 0, ()))
        with told():
            return Written(write_partition(self._connection, self._staged.plan, iterator))

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._staged is None:
            _log.info("%s is in log %s already; nothing was written", self._transaction, self._log)
            return
        with told():
            context = task_context(self._connection)
            done = atomic.commit(context, self._staged, results(messages), self._transaction)
            _log.info("write to log %s: %s", self._log, done)

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the write. Spark also calls it when ``commit`` raised: added rows stay added."""
        if self._staged is not None:
            with told():
                if abort(task_context(self._connection), self._staged):
                    _log.warning(_GIVEN_UP, f"log {self._log}")


class LedgerSink(DataSourceArrowWriter):
    """Writes the rows to a new ledger, and closes it. Pickled as ``LogSink`` is."""

    def __init__(self, connection: Connection, plan: BulkPlan) -> None:
        self._connection = connection
        self._plan = plan

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with told():
            return Written(write_partition(self._connection, self._plan, iterator))

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with told():
            staging.seal(task_context(self._connection), self._plan, results(messages))

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the ledger. Spark also calls it when ``commit`` raised: a closed ledger stays."""
        ledger_id = LedgerId(self._plan.key.ledger_id)
        with told():
            if staging.discard(task_context(self._connection), ledger_id):
                _log.warning(_GIVEN_UP, f"ledger {ledger_id}")


def batch_writer(
    options: SourceOptions, schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of a batch write. Checks everything, and then creates the ledger.

    Raises:
        InvalidArgumentError: options that exclude each other, or columns that do not fit.
        NoSuchLogError, LedgerExistsError, NotEnoughBookiesError, MetadataUnavailableError.
    """
    check_appending(overwrite)
    connection = options.connection()
    columns = arrow_schema(schema)
    if options.log is not None:
        check_log_options(options)
        transaction = transaction_of(options.txn_app_id, options.txn_version)
        context = task_context(connection)
        if options.create_log:
            make_log(context, options.log, columns)
        staged = None
        if transaction is None or not atomic.is_done(context, options.log, transaction):
            staged = atomic.stage(context, options.log, transaction, schema=columns)
        return LogSink(connection, options.log, staged, transaction)
    if options.ledger_id is None and options.name is None:
        raise InvalidArgumentError(
            "it was not said where the rows go: "
            '.option("log", "orders") adds them to a log, .option("ledgerId", 7) or '
            '.option("name", "orders-2024") makes a new ledger of them; in SQL: '
            "CREATE TEMPORARY VIEW v USING bookkeeper OPTIONS (log 'orders', ...), then INSERT "
            "INTO v"
        )
    if options.create_log:
        raise InvalidArgumentError(
            "option createLog makes the log that is written to, and none was named. Leave it out"
        )
    if options.txn_app_id is not None or options.txn_version is not None:
        raise InvalidArgumentError(
            "options txnAppId and txnVersion are for logs, which remember them; a ledger id is used"
            " once, so a repeated write to it is refused anyway. Leave them out"
        )
    return LedgerSink(connection, _staged_ledger(connection, options, columns))


def make_log(context: ClientContext, log: str, columns: pa.Schema) -> None:
    """Create a log with these columns unless it exists; an existing log is checked later.

    Raises:
        NotEnoughBookiesError: too few bookies for a ledger of the log. No log was created.
    """
    if find_log(context.store.registers, log) is not None:
        return
    quorum, alive = Quorum(3, 3, 2), context.bookies.registrations()
    reasons = context.bookies.ineligible(alive, quorum.ensemble_size)
    choose_ensemble(quorum, context.bookies.candidates(alive), reasons)
    with suppress(LogExistsError):  # another client was faster
        create_log(context, log, LogOptions(quorum, columns))


def results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Return the result of each task, in order of tasks."""
    found = [message.result for message in messages if isinstance(message, Written)]
    assert len(found) == len(messages), "Spark commits when every task has succeeded"
    return found


def check_appending(overwrite: bool) -> None:
    """Raise ``InvalidArgumentError`` for a write that is to overwrite existing rows."""
    if overwrite:
        raise InvalidArgumentError(
            "ledgers and logs are appended to and never overwritten; nothing was written. Use "
            '.mode("append"), of a stream .outputMode("append"). To remove what is old, truncate '
            "the log, or delete the ledger"
        )


def check_log_options(options: SourceOptions) -> None:
    """Raise ``InvalidArgumentError`` for an option that only new ledgers use."""
    given = options.given()
    for name in _OF_LEDGERS:
        if name in given:
            raise InvalidArgumentError(
                f"option {name} means nothing beside log={options.log!r}: its ledgers are made as "
                "was said when the log was created. Leave it out"
            )


def _staged_ledger(connection: Connection, options: SourceOptions, schema: pa.Schema) -> BulkPlan:
    labels: dict[str, bytes] = {} if options.name is None else {"name": options.name.encode()}
    form: dict[str, Any] = {"schema": schema, "labels": labels, "ledger_id": options.ledger_id}
    form["password"] = options.password
    form["digest_type"] = DigestType[options.digest_type or "CRC32C"]
    form["compression"] = options.compression
    form["entry_target_bytes"] = options.entry_target_bytes or DEFAULT_ENTRY_TARGET_BYTES
    size = options.ensemble_size or max(3, options.write_quorum_size or 3)
    write = options.write_quorum_size or min(3, size)
    quorum = Quorum(size, write, options.ack_quorum_size or min(2, write))
    return staging.stage(task_context(connection), quorum, b'{"writer":"spark"}', **form)
