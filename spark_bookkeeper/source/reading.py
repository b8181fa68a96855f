"""Batch reads: the driver plans them, and tasks read without ZooKeeper.

A task receives the ledgers' metadata and the roots of their bookies. It reads the metadata store
only when one of these turns out to be out of date.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from spark_bookkeeper.bookie.bookie import Rows
from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.projection import present_in, under
from spark_bookkeeper.client.read.unreadable import warn_of_lost
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId, parse_bookie_id
from spark_bookkeeper.source.conditions import told
from spark_bookkeeper.source.metadata_column import metadata_column
from spark_bookkeeper.source.options import OF_LEDGERS, SourceOptions
from spark_bookkeeper.spark.frames import joined
from spark_bookkeeper.spark.schemas import arrow_schema, delivered
from spark_bookkeeper.spark.workers import task_context

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_bookkeeper.client.context import ClientContext

_log = logging.getLogger(__name__)

VIEW_TASK_LEDGERS = 200
"""Number of ledgers for which one task of a view queries the bookies."""


@dataclass
class TaskShare(InputPartition):
    """The entries that one task reads. Picklable."""

    connection: Connection
    schema: pa.Schema
    """The columns of the rows, with the types that ledgers use."""
    ranges: Sequence[EntryRange]
    roots: Mapping[BookieId, str]
    """The storage root of each bookie."""
    number: int
    """Number of the task; tasks begin with different replicas."""


@dataclass
class ViewShare(InputPartition):
    """The ledgers that one task of a view shows; ``None``: all, or the view has no ledgers."""

    connection: Connection
    ledgers: Sequence[LedgerId] | None
    log: str | None = None
    """The only log that the view ``logs`` shows."""


class RowsReader(DataSourceReader):
    """Reads rows of ledgers. It is pickled to every task, so it holds no open connection."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @override
    def partitions(self) -> Sequence[InputPartition]:
        # Imported here, since tasks do not need them, and each task's process imports this module.
        from spark_bookkeeper.source.planning import plan
        from spark_bookkeeper.source.schema import wanted_columns
        from spark_bookkeeper.source.selection import open_selection

        with told():
            connection = self._options.connection()
            context = task_context(connection)
            selection = open_selection(context, self._options)
            schema = wanted_columns(selection.schema, self._schema, self._options)
            hints = self._options.min_partitions, self._options.max_entries_per_partition
            planned = plan(context, selection.ranges(), *hints)
            return shares(connection, context, schema, planned)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_share(self._options, self._schema, partition)


class ViewReader(DataSourceReader):
    """Reads rows of a view."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        assert options.view is not None
        self._options = options
        self._view = options.view
        self._schema = schema

    @override
    def partitions(self) -> Sequence[InputPartition]:
        with told():
            connection = self._options.connection()
            chosen = self._chosen(task_context(connection))
            if self._view not in OF_LEDGERS:
                return [ViewShare(connection, chosen, self._options.log)]
            if chosen is None:
                chosen = list(task_context(connection).store.ledger_ids())
            starts = range(0, max(1, len(chosen)), VIEW_TASK_LEDGERS)
            parts = [chosen[start : start + VIEW_TASK_LEDGERS] for start in starts]
            return [ViewShare(connection, part) for part in parts]

    def _chosen(self, context: ClientContext) -> list[LedgerId] | None:
        if self._options.log is not None:
            from spark_bookkeeper.logs.logs import open_log

            return open_log(context, self._options.log).ledgers()
        from spark_bookkeeper.source.selection import viewed_ledgers

        return viewed_ledgers(context, self._options)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from spark_bookkeeper.source.metadata_tables import view_table

        assert isinstance(partition, ViewShare)
        with told():
            context = task_context(partition.connection)
            for table in view_table(context, self._view, partition.ledgers, partition.log):
                for batch in table.select(self._schema.names).to_batches():
                    yield delivered(batch, self._schema)


def batch_reader(options: SourceOptions, schema: StructType) -> DataSourceReader:
    """Return the reader of a batch read; ``schema`` is what Spark expects from it.

    Raises:
        InvalidArgumentError: the caller gave a schema that the view's columns do not match.
    """
    if options.view is not None:
        from spark_bookkeeper.source.metadata_tables import VIEW_SCHEMAS
        from spark_bookkeeper.source.schema import wanted_columns

        told_of = arrow_schema(schema)
        wanted_columns(VIEW_SCHEMAS[options.view], told_of, options)
        return ViewReader(options, told_of)
    return RowsReader(options, arrow_schema(schema))


def shares(
    connection: Connection,
    context: ClientContext,
    schema: pa.Schema,
    planned: Iterable[Sequence[EntryRange]],
) -> list[InputPartition]:
    """Return the shares of the tasks: the ranges of each, and the roots of its bookies."""
    made: list[InputPartition] = []
    for number, runs in enumerate(planned):
        named = {bookie for run in runs for bookie in run.ledger.metadata.bookies()}
        roots = context.bookies.known_roots(sorted(named))
        made.append(TaskShare(connection, schema, runs, roots, number))
    return made


def read_share(
    options: SourceOptions, schema: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, under the schema that Spark expects."""
    if not isinstance(partition, TaskShare):  # Spark's own partition, when there are no rows
        return
    with told():
        context = task_context(partition.connection, partition.roots)
        rows = _delivered_rows(
            context, options, partition.schema, schema, partition.ranges, partition.number
        )
        yield from joined(rows, schema)


def _delivered_rows(
    context: ClientContext,
    options: SourceOptions,
    wanted: pa.Schema,
    schema: pa.Schema,
    ranges: Iterable[EntryRange],
    spread: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges in order; each batch has the schema that Spark expects.

    Args:
        context: the cluster.
        options: options of the read.
        wanted: the columns of the rows, with the types that ledgers use.
        schema: the same columns with Spark's types, and ``_metadata`` if it was requested.
        ranges: the entries to read.
        spread: a number that lets tasks begin with different replicas.

    Raises:
        EntryUnreadableError: no bookie can deliver an entry. With ``failOnDataLoss=false`` the
            entry is skipped, and the task's log names it.
        InvalidArgumentError: a value that Spark has no type for.
    """
    only = None if options.bookie is None else parse_bookie_id(options.bookie)
    for each in ranges:
        fetcher = Fetcher(
            context,
            each.ledger,
            spread,
            columns=present_in(each.ledger.schema, wanted),
            only=only,
            skip_lost=not options.fail_on_data_loss,
            has_details=options.include_metadata,
        )
        try:
            for scanned in fetcher.scan(each.first, each.last):
                yield _delivered(
                    each.ledger.ledger_id, scanned, wanted, schema, options.include_metadata
                )
        except NoSuchLedgerError as error:
            if options.fail_on_data_loss:
                raise
            _log.warning("entries %d to %d are passed over: %s", each.first, each.last, error)
        warn_of_lost(each.ledger.ledger_id, fetcher.lost)


def _delivered(
    ledger_id: LedgerId, scanned: Rows, wanted: pa.Schema, schema: pa.Schema, has_metadata: bool
) -> pa.RecordBatch:
    rows = under(scanned.batch, wanted)
    if not has_metadata:
        return delivered(rows, schema)
    rows = delivered(rows, pa.schema(list(schema)[:-1]))
    columns = [*rows.columns, metadata_column(ledger_id, scanned)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
