"""Delta tables without Spark: what an archive of ledgers comes to, written by delta-rs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.protocol.ids import EntryId, LedgerId


def archived_rows(context: ClientContext, ledger_id: LedgerId) -> pa.Table:
    """The rows of a closed ledger behind their places, as ``archive_to_delta`` reads them."""
    ledger, found = context.ledger(ledger_id)
    last = found.value.last_entry_id
    assert last is not None, "only closed ledgers are archived"
    pieces = []
    for rows in Fetcher(context, ledger).scan(EntryId(0), last):
        table = _as_spark_has_it(pa.Table.from_batches([rows.batch]))
        for name, values in (("_row", rows.positions), ("_entry_id", rows.entry_ids)):
            table = table.add_column(0, name, pa.array(values))
        pieces.append(table.add_column(0, "_ledger_id", pa.array([ledger_id] * len(table))))
    return pa.concat_tables(pieces)


def archive(context: ClientContext, path: Path, ledger_ids: Iterable[LedgerId]) -> DeltaTable:
    """A commit for each ledger."""
    for ledger_id in ledger_ids:
        rows = archived_rows(context, ledger_id)
        write_deltalake(str(path), rows, mode="append", schema_mode="merge")
    return DeltaTable(str(path))


def _as_spark_has_it(rows: pa.Table) -> pa.Table:
    """Spark has no unsigned types: it takes the next wider ones."""
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    fields = [field.with_type(wider.get(field.type, field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))
