"""Check changes of a log's columns from ledger to ledger, and convert rows to one schema.

A nullable column may be added behind the others; earlier rows have null in it. A type may change to
one that holds every value of the old one exactly. A column without nulls may become nullable. The
same holds within structs, lists and maps. No other change is allowed: an existing column keeps its
name, its position and its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_bookkeeper.client.write.columns import check_new_columns, complaints, describe
from spark_bookkeeper.client.write.layouts import in_layout
from spark_bookkeeper.errors import InvalidArgumentError


def evolved(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema ``new`` if a log with the columns ``old`` may change to it.

    Raises:
        InvalidArgumentError: it may not; shows both schemas and the reasons. Nothing was changed.
    """
    check_new_columns(new)
    causes = complaints(list(old), list(new), "column ")
    if causes:
        raise InvalidArgumentError(
            "a log's columns may only be added to (behind the others, nullable) and widened; "
            f"nothing was changed.\nlog:\n{describe(old)}\nwanted:\n{describe(new)}\n"
            + "\n".join(causes)
        )
    return new


def widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of an earlier ledger under their log's schema, which ``evolved`` checked."""
    if batch.schema.equals(schema, check_metadata=False):
        return batch
    columns = [
        in_layout(batch.column(number), field.type)
        if number < batch.num_columns
        else pa.nulls(batch.num_rows, field.type)
        for number, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def widen_all(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of tables, one table after the other, under one schema."""
    return pa.Table.from_batches(
        [widen(batch, schema) for table in tables for batch in table.to_batches()], schema=schema
    )
