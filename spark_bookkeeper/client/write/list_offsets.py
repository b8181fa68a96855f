"""Add the missing offsets of lists without values.

A list or map of length 0 may have an offsets buffer of no bytes in Arrow. Arrow in Java wrote such
lists within another list or struct (Spark 4.0 does). But for ``nbytes``, Arrow in C++ reads the
first offset: it takes the bytes behind the buffer, and the process may die of that. So rows get
their offsets when they enter.
"""

from __future__ import annotations

import pyarrow as pa


def table_with_list_offsets(table: pa.Table) -> pa.Table:
    """Return the same rows, safe to measure; the same table if no offsets can be missing."""
    for index, column in enumerate(table.columns):
        if any(map(_may_lack_offsets, column.chunks)):
            chunks = [_copied(chunk) for chunk in column.chunks]
            table = table.set_column(
                index, table.schema.field(index), pa.chunked_array(chunks, column.type)
            )
    return table


def batch_with_list_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, safe to measure; the same batch if no offsets can be missing."""
    if not any(map(_may_lack_offsets, batch.columns)):
        return batch
    return pa.RecordBatch.from_arrays(list(map(_copied, batch.columns)), schema=batch.schema)


def _may_lack_offsets(column: pa.Array) -> bool:
    """Whether offsets may be missing. Strings of no bytes look the same; a copy is harmless."""
    return pa.types.is_nested(column.type) and any(
        buffer is not None and buffer.size == 0 for buffer in column.buffers()
    )


def _copied(column: pa.Array) -> pa.Array:
    """Return a copy, in which Arrow writes every offset, if offsets may be missing."""
    return pa.concat_arrays([column]) if _may_lack_offsets(column) else column
