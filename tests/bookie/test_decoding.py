"""Rows out of messages that match their digest, and were made to point elsewhere."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.decoding import physical_type, read_batch
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.framing import UNDECODABLE
from spark_bookkeeper.bookie.messages import encode_batches
from tests.client.every_type import ARRAYS

TEXT = ["abcdef", None, "ghi"]

COLUMNS: dict[str, pa.Array] = {
    "ints": pa.array([1, None, 3]),
    "booleans": pa.array([True, None, False]),
    "nulls": pa.nulls(3),
    "floats": pa.array([1.5, None, 2.5]),
    "string": pa.array(TEXT),
    "large string": pa.array(TEXT, pa.large_string()),
    "binary": pa.array([b"abcdef", None, b"ghi"]),
    "view": pa.array(["more than twelve bytes", None, "few"], pa.string_view()),
    "times": pa.array([datetime.time(1), None, datetime.time(2)]),
    "dates": pa.array([datetime.date(2020, 1, 1), None, datetime.date(2021, 1, 1)]),
    "timestamps": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    "decimals": pa.array([Decimal("1.25"), None, Decimal("2.5")], pa.decimal128(9, 2)),
    "lists": pa.array([["a", "b"], None, []]),
    "large lists": pa.array([[1], None, [2, 3]], pa.large_list(pa.int64())),
    "list views": pa.array([["a"], None, ["b"]], pa.list_view(pa.string())),
    "fixed lists": pa.array([["a", "b"], None, ["c", "d"]], pa.list_(pa.string(), 2)),
    "structs": pa.array([{"a": "b", "c": [1]}, None, {"a": None, "c": []}]),
    "maps": pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string())),
}


def message_of(column: pa.Array, compression: str | None = None) -> tuple[bytes, pa.Schema]:
    batch = pa.record_batch([column, pa.array([7, 8, 9])], ["a", "b"])
    (message,) = encode_batches(LedgerEncoding(batch.schema, compression=compression), [batch])
    return bytes(message), batch.schema


def pointing_elsewhere(message: bytes, good: Sequence[int], bad: Sequence[int]) -> bytes:
    """The message with other offsets."""
    before, after = (struct.pack(f"<{len(each)}i", *each) for each in (good, bad))
    assert message.count(before) == 1
    return message.replace(before, after)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_are_read_as_they_were_written(kind: str, compression: str | None) -> None:
    message, schema = message_of(COLUMNS[kind], compression)
    is_compressed = compression is not None
    whole = pa.record_batch([COLUMNS[kind], pa.array([7, 8, 9])], schema=schema)

    for columns in (None, ["a"], ["b", "a"], []):
        batch = read_batch(message, schema, columns, is_compressed=is_compressed)
        assert batch.equals(whole if columns is None else whole.select(columns))
        assert batch.num_rows == 3


def test_rows_within_others_are_read_when_they_are_compressed() -> None:
    """Of a column without buffers Arrow's view within a list has as many values as the list."""
    for array in ARRAYS:
        texts = pa.array(["text"] * len(array))
        inner = pa.StructArray.from_arrays([texts, array], ["a", "b"])
        column = pa.ListArray.from_arrays(pa.array([0, 0, len(array)], pa.int32()), inner)
        whole = pa.record_batch([column], ["a"])
        encoding = LedgerEncoding(whole.schema, compression="lz4")
        (message,) = encode_batches(encoding, [whole])

        for columns in (None, ["a"]):
            batch = read_batch(bytes(message), whole.schema, columns, is_compressed=True)
            assert batch.equals(whole) or batch.to_pylist() == whole.to_pylist(), array.type


OFFSETS = [
    [0, 2_000_000_000, 6, 9],
    [0, 400, 6, 9],
    [0, -5, 6, 9],
    [0, 6, 3, 9],
    [-1, 6, 6, 9],
    [0, 6, 6, 2_000_000_000],
]


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("kind", ["string", "binary"])
def test_a_value_that_lies_beside_its_message_is_refused(
    kind: str, is_compressed: bool, offsets: list[int]
) -> None:
    """No value of it may be asked for: the process would end."""
    message, schema = message_of(COLUMNS[kind])
    bad = pointing_elsewhere(message, [0, 6, 6, 9], offsets)

    with pytest.raises(UNDECODABLE, match=r"[Oo]ffset"):
        read_batch(bad, schema, is_compressed=is_compressed)
    with pytest.raises(UNDECODABLE, match=r"[Oo]ffset"):
        read_batch(bad, schema, ["a"])
    assert read_batch(bad, schema, ["b"]).column(0).to_pylist() == [7, 8, 9]


@pytest.mark.parametrize("offsets", [[0, 2_000_000_000, 2, 2], [0, -1, 2, 2], [0, 3, 2, 2]])
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("kind", ["lists", "maps", "structs"])
def test_so_is_an_item_of_a_nested_column(
    kind: str, is_compressed: bool, offsets: list[int]
) -> None:
    values: Any = {
        "lists": pa.array([["ab", "c"], [], []]),
        "maps": pa.array([[("ab", 1), ("c", 2)], [], []], pa.map_(pa.string(), pa.int64())),
        "structs": pa.array([{"x": ["ab", "c"]}, {"x": []}, {"x": []}]),
    }[kind]
    message, schema = message_of(values)

    with pytest.raises(UNDECODABLE, match=r"[Oo]ffset"):
        read_batch(
            pointing_elsewhere(message, [0, 2, 2, 2], offsets), schema, is_compressed=is_compressed
        )


@pytest.mark.parametrize("is_compressed", [False, True])
def test_what_points_nowhere_else_is_read_whatever_it_means(is_compressed: bool) -> None:
    """Spark makes text of any bytes; it was acknowledged, so it is readable."""
    text = pa.array([b"\xff\xfe", b"\xc3", b"a"]).view(pa.string())
    late = pa.array([1 << 60, -1, 0]).view(pa.time64("us"))
    wide = pa.array([(99).to_bytes(16, "little")] * 3, pa.binary(16)).view(pa.decimal128(1, 0))
    for column in (text, late, wide):
        message, schema = message_of(column)

        batch = read_batch(message, schema, is_compressed=is_compressed)

        assert (
            batch.column(0)
            .view(physical_type(column.type))
            .equals(column.view(physical_type(column.type)))
        )
