"""Check that rows have a ledger's schema, and cut them into entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.bookie.messages import check_entry_size
from spark_bookkeeper.client.write.columns import check_schema, describe, schema_mismatch
from spark_bookkeeper.client.write.layouts import check_nulls, in_layout
from spark_bookkeeper.client.write.list_offsets import table_with_list_offsets
from spark_bookkeeper.client.write.pandas_rows import is_pandas, pandas_table
from spark_bookkeeper.errors import InvalidArgumentError


def to_table(data: Any, schema: pa.Schema) -> pa.Table:
    """Return Arrow or pandas data as a table of exactly the ledger's schema.

    Objects that other libraries export as Arrow data (``__arrow_c_stream__``) count too: frames of
    Polars, results of DuckDB, a ``RecordBatchReader``. All of their rows are read into memory.

    Raises:
        InvalidArgumentError: other data, or another schema; both are shown.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if is_pandas(data):
        return pandas_table(data, schema)
    if not isinstance(data, pa.Table):
        data = _table_of_stream(data)
    check_schema(data.schema, schema)
    try:
        found = table_with_list_offsets(data).columns
        columns = [
            in_layout(column, kind) for column, kind in zip(found, schema.types, strict=True)
        ]
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgumentError(schema_mismatch(describe(data.schema), schema, error)) from error
    check_nulls(columns, schema)
    return pa.Table.from_arrays(columns, schema=schema)


def _table_of_stream(data: Any) -> pa.Table:
    """Return the rows of an object that exports them as an Arrow stream, from any library.

    Checks the class, not the object: a Spark column seems to have every attribute.
    """
    instead = _instead(data)
    if instead or not hasattr(type(data), "__arrow_c_stream__"):
        raise _no_rows(data, instead)
    try:
        stream = pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _no_rows(data, f". What it hands out as Arrow data is no table: {error}") from error
    try:
        return stream.read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"the rows of {type(data).__module__}.{type(data).__qualname__} could not be read, and "
            f"nothing was appended: {error}"
        ) from error


def _no_rows(data: object, more: str) -> InvalidArgumentError:
    kind = f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("builtins.")
    return InvalidArgumentError(
        "append takes bytes, a Spark DataFrame, a pandas DataFrame, a pyarrow Table or RecordBatch "
        "or what else has rows in Arrow's form (as frames of Polars), not "
        f"{kind}; nothing was appended{more}"
    )


_INSTEAD: Final[Mapping[str, str]] = {
    "pyspark.Column": "a column is an expression, without rows: append df.select(column)",
    "pyspark.RDD": "make a DataFrame of it: spark.createDataFrame(rdd, schema)",
    "pyspark.GroupedData": "aggregate it first, for example with .count()",
    "pyspark.DataFrame": "make a Spark DataFrame of it: df.to_spark()",
    "pandas.Series": "make a DataFrame of it: series.to_frame(name)",
    "numpy.ndarray": "make a table of it: pa.table([array], schema=writer.schema)",
    "pyarrow.Array": "make a table of it: pa.table([array], schema=writer.schema)",
    "pyarrow.ChunkedArray": "make a table of it: pa.table([array], schema=writer.schema)",
    "pyarrow.Dataset": "read it: dataset.to_table(), or its batches one by one",
    "polars.LazyFrame": "carry it out: frame.collect()",
    "builtins.str": "encode it: text.encode()",
    "builtins.dict": "make a table of it: pa.Table.from_pylist([row], schema=writer.schema)",
    "builtins.list": "make a table of rows: pa.Table.from_pylist(rows, schema=writer.schema); "
    "append several payloads one by one",
    "builtins.generator": "append what it yields, one by one",
}
"""Advice for wrong data that people try, by the top package and the name of its class."""


def _instead(data: object) -> str:
    """Return advice by the names of classes, without importing any of these libraries."""
    kinds = (f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(data).__mro__)
    found = next((_INSTEAD[kind] for kind in kinds if kind in _INSTEAD), None)
    return "" if found is None else f". Instead: {found}"


def entry_batches(table: pa.Table, target_bytes: int) -> list[pa.RecordBatch]:
    """Cut a table into entries of about ``target_bytes``; none for a table without rows.

    Raises:
        InvalidArgumentError: an entry would be too large.
    """
    if table.num_rows == 0:
        return []
    count = max(1, min(table.num_rows, round(table.nbytes / target_bytes)))
    return list(split_evenly(table, count))


def split_evenly(table: pa.Table, count: int) -> Iterator[pa.RecordBatch]:
    """Yield ``count`` entries with about equally many rows, in order; some may be empty.

    Raises:
        InvalidArgumentError: an entry would be too large.
    """
    start = 0
    for index in range(count):
        stop = (table.num_rows * (index + 1)) // count
        rows = table.slice(start, stop - start)
        check_entry_size(rows.nbytes)
        yield one_batch(rows)
        start = stop


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table of less than 2 GiB as a single record batch."""
    if table.num_rows == 0:
        nothing = [c.chunk(0) if c.num_chunks else pa.nulls(0, c.type) for c in table.columns]
        return pa.RecordBatch.from_arrays(nothing, schema=table.schema)
    (batch,) = few_batches(table)
    return batch


def few_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return a table as one record batch, or as several if a column is too large for that."""
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches if len(batches) == 1 else table.combine_chunks().to_batches()
