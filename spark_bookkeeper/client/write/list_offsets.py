"""Lists without values that came without offsets.

Arrow lets a list or map of length 0 have an offsets buffer of no bytes, and Arrow in Java wrote
such ones where they lie within another list or struct (Spark 4.0 does). Arrow in C++ reads the
first offset all the same when it is asked for ``nbytes``: whatever lies behind the buffer is taken
for it, and the process may die of that. So rows get their offsets where they enter.
"""

from __future__ import annotations

import pyarrow as pa


def table_with_list_offsets(table: pa.Table) -> pa.Table:
    """The same rows, safe to measure; the same table where nothing may be missing."""
    for index, column in enumerate(table.columns):
        if any(map(_may_lack_offsets, column.chunks)):
            chunks = [_copied(chunk) for chunk in column.chunks]
            table = table.set_column(
                index, table.schema.field(index), pa.chunked_array(chunks, column.type)
            )
    return table


def batch_with_list_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, safe to measure; the same batch where nothing may be missing."""
    if not any(map(_may_lack_offsets, batch.columns)):
        return batch
    return pa.RecordBatch.from_arrays(list(map(_copied, batch.columns)), schema=batch.schema)


def _may_lack_offsets(column: pa.Array) -> bool:
    """Strings of no bytes look the same from here; a copy of them is small and does no harm."""
    return pa.types.is_nested(column.type) and any(
        buffer is not None and buffer.size == 0 for buffer in column.buffers()
    )


def _copied(column: pa.Array) -> pa.Array:
    """Arrow writes every offset of what it copies."""
    return pa.concat_arrays([column]) if _may_lack_offsets(column) else column
