"""Columns of every type that Arrow has, alone and within one another, and how they may lie."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

DAY: Final = datetime.date(2024, 2, 29)
INSTANT: Final = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc)
NOON: Final = datetime.datetime(2024, 2, 29, 12)  # noqa: DTZ001  (a wall clock)
TEXTS: Final = ["a", None, "c" * 20, "d", "", "f"]
NUMBERS: Final = [1, None, 3, 4, 5, 6]
BYTES: Final = [b"a", None, b"c" * 20, b"d", b"", b"f"]
DECIMALS: Final = [decimal.Decimal("1.25"), None, *map(decimal.Decimal, (3, 4, 5, 6))]
LEAVES: Final[Mapping[pa.DataType, list[Any]]] = {
    pa.null(): [None] * 6,
    pa.bool_(): [True, False, None, True, False, True],
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), NUMBERS),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), NUMBERS),
    **dict.fromkeys((pa.float32(), pa.float64()), NUMBERS),
    pa.float16(): [number and np.float16(number) for number in NUMBERS],
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), TEXTS),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), BYTES),
    pa.binary(2): [b"aa", None, b"cc", b"dd", b"ee", b"ff"],
    pa.binary(0): [b"", None, b"", b"", b"", b""],
    pa.decimal128(5, 2): DECIMALS,
    pa.decimal256(50, 2): DECIMALS,
    **{kind: [DAY, None] * 3 for kind in (pa.date32(), pa.date64())},
    **{kind: [NOON.time(), None] * 3 for kind in (pa.time32("s"), pa.time64("ns"))},
    **{kind: [NOON, None] * 3 for kind in (pa.timestamp("s"), pa.timestamp("ns"))},
    pa.timestamp("us", "Asia/Tokyo"): [None, INSTANT] * 3,
    pa.duration("ms"): [datetime.timedelta(days=1), None] * 3,
    pa.month_day_nano_interval(): [pa.MonthDayNano([1, 2, 3]), None] * 3,
}


def struct(a: pa.Array) -> pa.Array:
    mask = pa.array([i == 4 for i in range(len(a))])
    return pa.StructArray.from_arrays([a, pa.array(range(len(a)))], ["a", "n"], mask=mask)


def offsets(a: pa.Array, kind: pa.DataType) -> pa.Array:
    n = len(a)
    return pa.array([0, 1, 1, min(2, n), None, min(3, n), n], kind)


def views(a: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    n = len(a)  # they overlap, and are in no order
    return pa.array([n - 2, 0, 0, n - 2, 1, n], kind), pa.array([2, 1, min(3, n), 2, 0, 0], kind)


def runs(a: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4, 6, 7, 9][: len(a)], kind), a)


def turns(a: pa.Array) -> list[pa.Array]:
    return [pa.array([i % 2 for i in range(len(a))], pa.int8())]


WRAPPED: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    "struct": struct,
    "list": lambda a: pa.ListArray.from_arrays(offsets(a, pa.int32()), a),
    "large list": lambda a: pa.LargeListArray.from_arrays(offsets(a, pa.int64()), a),
    "list view": lambda a: pa.ListViewArray.from_arrays(*views(a, pa.int32()), a),
    "large list view": lambda a: pa.LargeListViewArray.from_arrays(*views(a, pa.int64()), a),
    "fixed list": lambda a: pa.FixedSizeListArray.from_arrays(
        a[len(a) % 2 :], 2, mask=pa.array([i == 1 for i in range(len(a) // 2)], pa.bool_())
    ),
    "map": lambda a: pa.MapArray.from_arrays(
        offsets(a, pa.int32()), pa.array(map(str, range(len(a)))), a
    ),
    "runs of 16 bits": lambda a: runs(a, pa.int16()),
    "runs of 32 bits": lambda a: runs(a, pa.int32()),
    "runs of 64 bits": lambda a: runs(a, pa.int64()),
    "sparse union": lambda a: pa.UnionArray.from_sparse(*turns(a), [a, pa.array(range(len(a)))]),
    "dense union": lambda a: pa.UnionArray.from_dense(
        *turns(a), pa.array([i // 2 for i in range(len(a))], pa.int32()), [a, pa.array([7] * 5)]
    ),
}
ONE_LEVEL: Final = [
    (leaf, wrap(pa.array(values, leaf)))
    for leaf, values in LEAVES.items()
    for wrap in (lambda a: a, *WRAPPED.values())
]
TWO_LEVELS: Final = [
    (leaf, wrap(array))
    for leaf, array in ONE_LEVEL
    if leaf in (pa.null(), pa.string()) and array.type != leaf
    for wrap in WRAPPED.values()
]
ARRAYS: Final = [array for _, array in ONE_LEVEL + TWO_LEVELS]


def lain(a: pa.Array) -> Iterator[pa.ChunkedArray]:
    """As a whole, sliced, and in chunks of which some are slices."""
    n = len(a)
    for start, stop in ((0, n), (1, n), (2, 4), (n - 1, n), (1, 1)):
        yield pa.chunked_array([a[start:stop]])
    yield pa.chunked_array([a[1:3], a, a[1:][1:]])
