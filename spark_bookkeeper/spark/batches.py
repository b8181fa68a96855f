"""Record batches on their way to Spark: none too small to be worth sending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from spark_bookkeeper.client.write import rows

_SENT_BYTES: Final = 4 << 20
"""Small batches are joined until they have this size, or this many rows."""

_SENT_ROWS: Final = 65_536


def joined(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth sending; large ones pass as they are."""
    gathered: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if size >= _SENT_BYTES or count >= _SENT_ROWS:
            yield from rows.few_batches(pa.Table.from_batches(gathered, schema=schema))
            gathered, count, size = [], 0, 0
    if gathered:
        yield from rows.few_batches(pa.Table.from_batches(gathered, schema=schema))
