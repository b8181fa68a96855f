"""How the columns of a log may change from one ledger to the next, and its rows under one schema.

A column may be added behind the others, if it may be null: rows from before have null there. A
type may become one that holds every value of the old one, exactly. A column without nulls may
come to have some. The same holds within structs, lists and maps. Nothing else: what is there
keeps its name, its place and its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_bookkeeper.client.write.columns import check_new_columns, complaints, describe
from spark_bookkeeper.client.write.layouts import in_layout
from spark_bookkeeper.errors import InvalidArgumentError


def evolved(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The schema ``new``, if a log with the columns ``old`` can go on with it.

    Raises:
        InvalidArgumentError: it cannot; both are shown, and what is amiss. Nothing was changed.
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
    """Rows of an earlier ledger under the schema of their log; ``evolved`` said that they fit."""
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
    """The rows of tables, one after the other, under one schema."""
    return pa.Table.from_batches(
        [widen(batch, schema) for table in tables for batch in table.to_batches()], schema=schema
    )
