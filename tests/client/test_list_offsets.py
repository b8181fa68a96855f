"""Lists of length 0 whose offsets are a buffer of no bytes, with anything at all behind it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_bookkeeper.client.write.list_offsets import (
    batch_with_list_offsets,
    table_with_list_offsets,
)
from spark_bookkeeper.client.write.rows import to_table

NOTHING = pa.py_buffer(bytes(64)).slice(0, 0)
INNER = pa.map_(pa.string(), pa.date32())


def null_without_inner_offsets() -> pa.Array:
    """One null list of maps, as Arrow in Java may write it."""
    keys = pa.Array.from_buffers(pa.string(), 0, [None, NOTHING, NOTHING])
    dates = pa.Array.from_buffers(pa.date32(), 0, [None, NOTHING])
    pairs = pa.StructArray.from_arrays([keys, dates], fields=[INNER.key_field, INNER.item_field])
    maps = pa.Array.from_buffers(INNER, 0, [None, NOTHING], children=[pairs])
    return pa.Array.from_buffers(
        pa.list_(INNER), 1, [pa.py_buffer(b"\0"), pa.py_buffer(bytes(8))], children=[maps]
    )


def offsets(column: pa.Array) -> pa.Buffer:
    buffer = column.values.buffers()[1]
    assert buffer is not None
    return buffer


def test_a_batch_gets_the_offsets_that_its_lists_lack() -> None:
    batch = pa.record_batch({"n": [1], "lists": null_without_inner_offsets()})
    assert offsets(batch["lists"]).size == 0

    made = batch_with_list_offsets(batch)

    assert made.schema == batch.schema
    assert offsets(made["lists"]).to_pybytes() == bytes(4)
    assert made.to_pylist() == [{"n": 1, "lists": None}]


def test_rows_that_are_appended_get_them_in_every_chunk() -> None:
    lists = pa.chunked_array([null_without_inner_offsets(), null_without_inner_offsets()])
    table = pa.table({"lists": lists})

    made = to_table(table, table.schema)

    assert [offsets(chunk).size for chunk in made["lists"].chunks] == [4, 4]
    assert made.to_pylist() == [{"lists": None}] * 2


@pytest.mark.parametrize(
    "column",
    [[1, 2], ["", ""], [[1], []], [{"a": "x"}, None], [None, None]],
    ids=["numbers", "texts", "lists", "structs", "nulls"],
)
def test_what_has_its_offsets_is_not_copied(column: list[object]) -> None:
    table = pa.table({"column": column})
    (batch,) = table.to_batches()

    assert table_with_list_offsets(table) is table
    assert batch_with_list_offsets(batch) is batch
