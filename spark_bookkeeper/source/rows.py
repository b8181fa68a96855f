"""Rows of ledgers as Spark was told that they come: its types, its columns, ``_metadata``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa

from spark_bookkeeper.bookie.reading import ScannedRows
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.lost import warn_of_lost
from spark_bookkeeper.client.write.bulk import EntryRange
from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.protocol.ids import LedgerId, parse_bookie_id
from spark_bookkeeper.source.metadata_column import METADATA_COLUMN, metadata_column
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.spark.batches import joined
from spark_bookkeeper.spark.schemas import delivered

_log = logging.getLogger(__name__)


def delivered_rows(
    context: ClientContext,
    options: SourceOptions,
    schema: pa.Schema,
    ranges: Iterable[EntryRange],
    spread: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The rows of ranges in their order, each batch under the schema that Spark was told.

    Raises:
        EntryUnreadableError: an entry can be read from no bookie; with ``failOnDataLoss=false``
            it is passed over, and the log of the task says which.
        InvalidArgumentError: a value that Spark has no type for.
    """
    only = None if options.bookie is None else parse_bookie_id(options.bookie)
    for each in ranges:
        columns = [f.name for f in schema if f.name != METADATA_COLUMN or not _has(options)]
        wanted = _columns(each.ledger.schema, columns)
        fetcher = Fetcher(
            context,
            each.ledger,
            spread,
            columns=wanted,
            only=only,
            skip_lost=not options.fail_on_data_loss,
        )
        try:
            for scanned in fetcher.scan(each.first, each.last):
                yield _delivered(each.ledger.ledger_id, scanned, schema, _has(options))
        except NoSuchLedgerError as error:
            if options.fail_on_data_loss:
                raise
            _log.warning("entries %d to %d are passed over: %s", each.first, each.last, error)
        warn_of_lost(each.ledger.ledger_id, fetcher.lost)


def sent(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth sending to Spark."""
    return joined(batches, schema)


def _has(options: SourceOptions) -> bool:
    return options.include_metadata


def _columns(ledger: pa.Schema, wanted: list[str]) -> list[int] | None:
    """The places of columns in a ledger's schema; ``None`` is all of them, in its order."""
    if ledger.names == wanted:
        return None
    found = [ledger.get_field_index(name) for name in wanted]
    return [place for place in found if place >= 0]


def _delivered(
    ledger_id: LedgerId, scanned: ScannedRows, schema: pa.Schema, has_metadata: bool
) -> pa.RecordBatch:
    batch = scanned.batch
    names = batch.schema.names
    data = pa.schema(list(schema)[:-1]) if has_metadata else schema
    if names != data.names:
        columns = [
            batch.column(names.index(field.name))
            if field.name in names
            else pa.nulls(batch.num_rows, field.type)
            for field in data
        ]
        fields = [
            batch.schema.field(names.index(field.name)) if field.name in names else field
            for field in data
        ]
        batch = _batch(columns, pa.schema(fields), batch.num_rows)
    made = delivered(batch, data)
    if not has_metadata:
        return made
    return _batch([*made.columns, metadata_column(ledger_id, scanned)], schema, made.num_rows)


def _batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, schema=schema)
