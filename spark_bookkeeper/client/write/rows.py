"""Rows at the door of a ledger: are they of its schema, and how do they become entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_bookkeeper.bookie.messages import Int64Array, check_entry_size
from spark_bookkeeper.client.write.columns import check_schema, describe, schema_mismatch
from spark_bookkeeper.client.write.pandas_rows import is_pandas, pandas_table
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

if TYPE_CHECKING:
    from spark_bookkeeper.client.write.adds import SlotAck

STORED_AT = pa.timestamp("us", tz="UTC")
ACKS_SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("stored_at", STORED_AT),
        pa.field("waited_ms", pa.float64()),
        pa.field("acknowledged", pa.bool_(), nullable=False),
    ]
)


def to_table(data: Any, schema: pa.Schema) -> pa.Table:
    """Arrow or pandas data as a table of exactly the ledger's schema.

    Raises:
        InvalidArgumentError: other data, or another schema; both are shown.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if is_pandas(data):
        return pandas_table(data, schema)
    if not isinstance(data, pa.Table):
        raise InvalidArgumentError(
            "append takes bytes, a Spark DataFrame, a pyarrow Table or RecordBatch or a pandas "
            f"DataFrame, not {type(data).__module__}.{type(data).__qualname__}; nothing was "
            f"appended{_instead(data)}"
        )
    check_schema(data.schema, schema)
    try:
        return data.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgumentError(schema_mismatch(describe(data.schema), schema, error)) from error


_INSTEAD: Final[Mapping[str, str]] = {
    "pyspark.Column": "a column is an expression, without rows: append df.select(column)",
    "pyspark.RDD": "make a DataFrame of it: spark.createDataFrame(rdd, schema)",
    "pyspark.GroupedData": "aggregate it first, for example with .count()",
    "pandas.Series": "make a DataFrame of it: series.to_frame(name)",
    "numpy.ndarray": "make a table of it: pa.table([array], schema=writer.schema)",
    "builtins.str": "encode it: text.encode()",
    "builtins.dict": "make a table of it: pa.Table.from_pylist([row], schema=writer.schema)",
    "builtins.list": "make a table of rows: pa.Table.from_pylist(rows, schema=writer.schema); "
    "append several payloads one by one",
}
"""What to write for what people try, by the top package and the name of its class."""


def _instead(data: object) -> str:
    """By name: none of these libraries is imported to ask."""
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
    """``count`` entries of as equal numbers of rows as can be, in order; some may be empty.

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
    """A table of less than 2 GiB as a single record batch."""
    if table.num_rows == 0:
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in table.schema], schema=table.schema
        )
    (batch,) = few_batches(table)
    return batch


def few_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """A table as one record batch, or more where a column is too large for that."""
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches if len(batches) == 1 else table.combine_chunks().to_batches()


def acks_table(
    slots: Sequence[SlotAck],
    metadata: LedgerMetadata,
    confirmed: EntryId,
    pushed: EntryId,
) -> pa.Table:
    """Who stored which entry, from the slots that a writer remembers.

    Worked out column by column: a slot may hold thousands of small entries.
    """
    quorum = metadata.quorum
    width = quorum.write_quorum_size
    first = min((slot.first for slot in slots), default=EntryId(0))
    # A row for each entry and each of its write set.
    ids: Int64Array = np.repeat(np.arange(first, pushed + 1), width)
    positions = (ids + np.arange(len(ids)) % width) % quorum.ensemble_size
    bookies = sorted(metadata.bookies())
    numbers = {bookie: number for number, bookie in enumerate(bookies)}
    holders: Int64Array = np.zeros(len(ids), dtype=np.int64)
    for fragment in metadata.fragments:
        start = max(0, fragment.first_entry_id - first) * width
        ensemble = np.array([numbers[bookie] for bookie in fragment.ensemble])
        holders[start:] = ensemble[positions[start:]]
    acks = np.full(len(ids), -1)
    for number, slot in enumerate(slots):
        entries = np.arange(slot.first, slot.last + 1)
        turns: Int64Array = (slot.position - entries) % quorum.ensemble_size
        own = ((entries - first) * width + turns)[turns < width]
        acks[own[holders[own] == numbers.get(slot.bookie, -1)]] = number
    told = pa.array(acks, mask=acks < 0)
    columns = [
        ids,
        pa.array(bookies, pa.string()).take(pa.array(holders)),
        positions.astype(np.int32),
        pa.array(["pending", "stored"]).take(pa.array((acks >= 0).astype(np.int8))),
        pa.array([slot.stored_at_ms * 1000 for slot in slots], STORED_AT).take(told),
        pa.array([slot.waited_ms for slot in slots], pa.float64()).take(told),
        ids <= confirmed,
    ]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=ACKS_SCHEMA)
