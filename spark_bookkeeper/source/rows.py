"""Rows of ledgers as Spark was told that they come: its types, its columns, ``_metadata``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa

from spark_bookkeeper.bookie.bookie import Rows
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.lost import warn_of_lost
from spark_bookkeeper.client.read.projection import present_in, under
from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.protocol.ids import LedgerId, parse_bookie_id
from spark_bookkeeper.source.metadata_column import metadata_column
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.spark.batches import joined
from spark_bookkeeper.spark.schemas import delivered

_log = logging.getLogger(__name__)


def delivered_rows(
    context: ClientContext,
    options: SourceOptions,
    wanted: pa.Schema,
    schema: pa.Schema,
    ranges: Iterable[EntryRange],
    spread: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The rows of ranges in their order, each batch under the schema that Spark was told.

    Args:
        context: the cluster.
        options: of the read.
        wanted: the columns of the rows, as ledgers have them.
        schema: the same as Spark has them, with ``_metadata`` where that was asked for.
        ranges: what to read.
        spread: lets tasks begin with different replicas.

    Raises:
        EntryUnreadableError: an entry can be read from no bookie; with ``failOnDataLoss=false``
            it is passed over, and the log of the task says which.
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


def sent(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth sending to Spark."""
    return joined(batches, schema)


def _delivered(
    ledger_id: LedgerId,
    scanned: Rows,
    wanted: pa.Schema,
    schema: pa.Schema,
    has_metadata: bool,
) -> pa.RecordBatch:
    rows = under(scanned.batch, wanted)
    if not has_metadata:
        return delivered(rows, schema)
    rows = delivered(rows, pa.schema(list(schema)[:-1]))
    columns = [*rows.columns, metadata_column(ledger_id, scanned)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
