"""pandas data at the door of a ledger: the same values, or a refusal."""

from __future__ import annotations

import datetime
import decimal
import fractions
import itertools
import math
import zoneinfo
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write import pandas_values
from spark_bookkeeper.client.write.pandas_values import first_changed
from spark_bookkeeper.client.write.rows import to_table
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground
from tests.client.every_type import ARRAYS
from tests.worlds import first_of

LEDGER = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
NOON = datetime.datetime(2026, 3, 1, 12)  # noqa: DTZ001  (a wall clock is what the test is about)
UTC_NOON = NOON.replace(tzinfo=datetime.timezone.utc)


def good() -> pd.DataFrame:
    return pd.DataFrame({"id": [1, 2], "text": ["a", None]})


def two_levels() -> pd.DataFrame:
    frame = good()
    frame.columns = pd.MultiIndex.from_tuples([("id", ""), ("text", "")])
    return frame


def test_rows_of_the_ledgers_columns_are_taken_and_the_index_is_left_out() -> None:
    frame = good().set_index(pd.Index([7, 8], name="id"))
    assert to_table(frame, LEDGER).to_pylist() == [
        {"id": 1, "text": "a"},
        {"id": 2, "text": None},
    ]


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        (good().assign(more=3), "['id', 'text', 'more']"),
        (good()[["id"]], "['id']"),
        (good()[["text", "id"]], "the order differs"),
        (good().set_axis(["id", "id"], axis=1), "['id', 'id']"),
        (good().set_axis([0, 1], axis=1), "[0, 1]"),
        (two_levels(), "('id', '')"),
        (good().set_index("id"), "reset_index()"),
        (
            good().assign(id=[True, False]),
            "Expected integer, got bool",
        ),
        (good().assign(id=[1.5, 2]), "1.5"),
        (good().assign(id=[1, "x"]), "x"),
        (good().assign(id=["1", "2"]), "Could not convert '1'"),
        (good().assign(text=[1, 2]), "got a 'int' object"),
        (good().assign(text=[b"a", b"b"]), "b'a' in row 0 is not made into string"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_rows_are_refused_with_both_schemas_and_the_cause(
    frame: pd.DataFrame, cause: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        to_table(frame, LEDGER)
    shown = caught.value.message
    assert cause in shown
    assert "ledger:\n  id: int64 not null\n  text: string\ndata:\n" in shown
    assert all(f"  {label}: {kind}" in shown for label, kind in frame.dtypes.items())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([NOON], pa.timestamp("us", "UTC")),
        (pd.Series([NOON], dtype=object), pa.timestamp("us", "UTC")),
        ([UTC_NOON], pa.timestamp("us")),
        (pd.to_datetime(["2026-03-01 12:00:00.123456789"]), pa.timestamp("us")),
        ([NOON], pa.date32()),
        ([1], pa.timestamp("us")),
        ([2], pa.bool_()),
        (pd.Series([1.5], dtype=object), pa.int64()),
        ([1 << 40], pa.int32()),
        ([(1 << 53) + 1], pa.float64()),
        ([0.1], pa.float32()),
        ([decimal.Decimal("1.25")], pa.decimal128(10, 1)),
        ([[1.5]], pa.list_(pa.int64())),
        ([{"a": 1, "b": 2}], pa.struct([("a", pa.int64())])),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused(values: Any, kind: pa.DataType) -> None:
    with pytest.raises(InvalidArgumentError, match="nothing was appended"):
        to_table(pd.DataFrame({"x": values}), pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, None], pa.int64(), [1, None]),
        ([1], pa.int32(), [1]),
        ([1], pa.float64(), [1.0]),
        ([1], pa.decimal128(38, 6), [decimal.Decimal(1)]),
        ([decimal.Decimal("1.5")], pa.decimal128(38, 6), [decimal.Decimal("1.5")]),
        (pd.array([1, None], dtype="Int64"), pa.int64(), [1, None]),
        (pd.Categorical(["a", "b", "a"]), pa.string(), ["a", "b", "a"]),
        (pd.array(["a", None], dtype="string"), pa.string(), ["a", None]),
        ([NOON], pa.timestamp("us"), [NOON]),
        ([UTC_NOON], pa.timestamp("us", "UTC"), [UTC_NOON]),
        (
            pd.to_datetime([UTC_NOON]).tz_convert("Europe/Berlin"),
            pa.timestamp("us", "UTC"),
            [UTC_NOON],
        ),
        ([NOON.date(), None], pa.date32(), [NOON.date(), None]),
        ([None, None], pa.string(), [None, None]),
        ([[1], None, []], pa.list_(pa.int32()), [[1], None, []]),
        ([{"b": "x", "a": 1}, {}], pa.struct([("a", pa.int64()), ("b", pa.string())]), None),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int64()), [[("k", 1)]]),
        ([b"ab"], pa.binary(2), [b"ab"]),
    ],
    ids=str,
)
def test_a_value_with_an_exact_form_is_taken(values: Any, kind: pa.DataType, expected: Any) -> None:
    table = to_table(pd.DataFrame({"x": values}), pa.schema([("x", kind)]))

    assert table.schema == pa.schema([("x", kind)])
    wanted = [{"a": 1, "b": "x"}, {"a": None, "b": None}] if expected is None else expected
    assert table.column("x").to_pylist() == wanted


TOKYO = datetime.timezone(datetime.timedelta(hours=9))
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
DAY = datetime.date(2026, 3, 1)
FINE = NOON.replace(microsecond=5)
VALUES: list[Any] = [
    *(None, math.nan, pd.NaT, pd.NA, True, 0, 1, 255, 2049, 70_000, (1 << 53) + 1, 1 << 63, 10**30),
    *(-1, 0.5, 0.1, 2.0, math.inf, decimal.Decimal("1.25"), decimal.Decimal("0.1")),
    *(decimal.Decimal(2), "1", "a", "", b"a", b"ab", bytearray(b"ab"), DAY, NOON, FINE, UTC_NOON),
    *(NOON.replace(tzinfo=TOKYO), datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)),
    *(pd.Timestamp(NOON), pd.Timestamp(NOON) + pd.Timedelta(1), pd.Timestamp(UTC_NOON)),
    *(np.datetime64(NOON), np.datetime64(DAY), np.int8(1), np.float32(0.1), np.bool_(True)),
    *(FINE.time(), NOON.time(), UTC_NOON.timetz(), FINE - NOON, pd.Timedelta(1), np.str_("a")),
]
KINDS = [
    *(pa.bool_(), pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32()),
    *(pa.float64(), pa.decimal128(5, 0), pa.decimal128(5, 2), pa.decimal128(38, 0), pa.string()),
    *(pa.large_string(), pa.binary(), pa.binary(2), pa.date32(), pa.date64(), pa.timestamp("s")),
    *(pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.time32("s")),
    *(pa.time64("us"), pa.duration("s"), pa.duration("ns"), pa.null()),
]
WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[pa.DataType], pa.DataType]]] = {
    "alone": (lambda v: v, lambda k: k),
    "in a list": (lambda v: [v], pa.list_),
    "in an array": (lambda v: np.array([v]), pa.list_),
    "in a struct": (lambda v: {"x": v}, lambda k: pa.struct([("x", k)])),
    "in a map": (lambda v: [("a", v)], lambda k: pa.map_(pa.string(), k)),
    "in the map of a struct": (
        lambda v: {"m": {"a": v}},
        lambda k: pa.struct([("m", pa.map_(pa.string(), k))]),
    ),
}


def told(value: Any) -> Any:
    """What a value says, of which kind: the same of two values that are the same."""
    if isinstance(value, dict):
        return [(name, told(inner)) for name, inner in value.items()]
    if isinstance(value, (list, tuple, np.ndarray)):
        return [told(inner) for inner in value]
    if pd.isna(value):
        return None
    if isinstance(value, (np.datetime64, np.timedelta64)):
        value = pd.Timestamp(value) if isinstance(value, np.datetime64) else pd.Timedelta(value)
    if isinstance(value, (bool, np.bool_)):
        return "truth", bool(value)
    if isinstance(value, datetime.datetime):
        zone = value.tzinfo and "instant"
        at = pd.Timestamp(value.astimezone(datetime.timezone.utc) if zone else value)
        return zone or "wall clock", at.as_unit("ns").value
    if isinstance(value, datetime.timedelta):
        return "duration", pd.Timedelta(value).as_unit("ns").value
    if isinstance(value, (datetime.date, datetime.time)):
        return repr(value)
    if isinstance(value, (bytes, bytearray)):
        return "bytes", bytes(value)
    if isinstance(value, str):
        return "text", str(value)
    if isinstance(value, np.generic):
        value = value.item()
    return "number", math.inf if value == math.inf else fractions.Fraction(value)


def of_map(value: Any) -> Any:
    return value if not isinstance(value, dict) else {"m": list(value["m"].items())}


@pytest.mark.parametrize("way", first_of(*WAYS))
def test_every_value_is_read_as_it_was_given_or_refused_in_every_type(way: str) -> None:
    wrap, wrapped = WAYS[way]
    taken = 0
    for given, kind in itertools.product(VALUES, map(wrapped, KINDS)):
        for beside in (
            (NOON, DAY, None) if way == "alone" else (None,)
        ):  # what Arrow infers depends on them, too
            frame = pd.DataFrame({"x": [wrap(given), wrap(beside)]}, dtype=object)
            try:
                table = to_table(frame, pa.schema([("x", kind)]))
            except InvalidArgumentError:
                continue
            values = list(map(of_map, frame["x"])) if "map of" in way else list(frame["x"])
            assert told(table["x"].to_pylist()) == told(values), kind
            taken += 1
    assert taken > 100


def test_typed_columns_are_read_as_they_were_given_or_refused() -> None:
    taken = 0
    for given, kind in itertools.product(VALUES, KINDS):
        frame = pd.DataFrame({"x": [given, None]})
        for dtype in (None, "category"):
            column = frame["x"]
            with suppress(TypeError):  # what has no hash is no category
                column = column if dtype is None else column.astype(dtype)
            try:
                table = to_table(pd.DataFrame({"x": column}), pa.schema([("x", kind)]))
            except InvalidArgumentError:
                continue
            assert told(table["x"].to_pylist()) == told(list(column)), (given, kind)
            taken += 1
    assert taken > 100


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([2**63], pa.uint64(), [2**63]),
        ([10**30], pa.decimal128(38, 0), [decimal.Decimal(10**30)]),
        (pd.Series([123]), pa.decimal128(5, 2), [decimal.Decimal(123)]),
        (pd.Series([0.5]), pa.float32(), [0.5]),
        ([[("a", "b")], [], None], pa.map_(pa.string(), pa.string()), [[("a", "b")], [], None]),
        ([{"a": "b"}], pa.map_(pa.string(), pa.string()), [[("a", "b")]]),
        ([[1, 2]], pa.list_(pa.int64(), 2), [[1, 2]]),
        (pd.arrays.SparseArray([0, 1, 0]), pa.int64(), [0, 1, 0]),
        (pd.Categorical([DAY, NOON]), pa.date32(), None),
        ([[-1]], pa.list_(pa.uint8()), None),
        ([[1.5, decimal.Decimal(2)]], pa.list_(pa.int64()), None),
        ([{"m": [("a", 1)], "z": 5}], pa.struct([("m", pa.map_(pa.string(), pa.int64()))]), None),
        ([{"a": 1, "z": None}], pa.struct([("a", pa.int64())]), None),
        (pd.period_range("2026-01", periods=1, freq="M"), pa.int64(), None),
    ],
    ids=str,
)
def test_what_has_an_exact_form_is_taken_and_nothing_else(
    values: Any, kind: pa.DataType, expected: list[Any] | None
) -> None:
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object if type(values) is list else None)})
    schema = pa.schema([("x", kind)])
    if expected is None:
        with pytest.raises(InvalidArgumentError, match="nothing was appended"):
            to_table(frame, schema)
    else:
        assert to_table(frame, schema)["x"].to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pd.date_range("2026", periods=3, tz="Europe/Berlin"), pa.timestamp("us", "UTC")),
        ([np.ones(2, "f4"), None, np.full(2, np.nan, "f4")], pa.list_(pa.float32())),
        ([np.ones(2, "i8"), np.ones(0, "i8")], pa.large_list(pa.int64())),
        ([np.array([True])], pa.list_(pa.bool_())),
        ([np.array([1, "NaT"], "M8[ns]")], pa.list_(pa.timestamp("ns"))),
    ],
    ids=str,
)
def test_no_value_is_looked_at_where_arrow_checks_all(
    values: Any, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes a hundred times as long, and much memory."""
    frame, schema = pd.DataFrame({"x": values}), pa.schema([("x", kind)])
    compared = pa.array(list(frame["x"]), kind, from_pandas=True).to_pylist()
    assert first_changed(list(frame["x"]), compared) is None
    monkeypatch.setattr(pandas_values, "first_changed", None)

    assert to_table(frame, schema)["x"].to_pylist() == compared


def test_a_value_far_behind_others_is_named_with_its_row() -> None:
    frame = pd.DataFrame({"x": [[1]] * 1500 + [[2.5]]})
    with pytest.raises(InvalidArgumentError, match=r"\[2.5\] in row 1500 .* would be \[2\]"):
        to_table(frame, pa.schema([("x", pa.list_(pa.int64()))]))


def test_what_is_read_as_pandas_can_be_appended_again() -> None:
    refused = []
    for array in ARRAYS:
        # Arrow makes no column of pandas of unions, and dies of runs within other types.
        if not any(word in str(array.type) for word in ("union", "run_end_encoded")):
            rows = pa.table({"x": array})
            with suppress(pa.ArrowNotImplementedError):
                frame = rows.to_pandas()
                try:
                    again = to_table(frame, rows.schema)
                except InvalidArgumentError:
                    refused.append(str(array.type))
                else:
                    assert again.to_pylist() == rows.to_pylist(), array.type
    # pandas has other values there: whole numbers, and clocks without their zone.
    assert all("timestamp[ns]" in kind or "Tokyo" in kind for kind in refused)
    assert len(refused) < 10


@pytest.mark.parametrize("values", [[1, None], [[1], [None]]])
def test_a_null_where_the_ledger_takes_none_is_refused(values: list[Any]) -> None:
    item = pa.field("item", pa.int64(), nullable=False)
    x = item.with_name("x") if values[0] == 1 else pa.field("x", pa.list_(item))
    with pytest.raises(InvalidArgumentError, match="takes no nulls, and 1"):
        to_table(pd.DataFrame({"x": values}), pa.schema([x]))


def test_an_append_that_is_refused_leaves_the_writer_as_it_was(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=LEDGER) as writer:
        with pytest.raises(InvalidArgumentError):
            writer.append(good().assign(more=3))
        assert writer.append(good()) == 0


def test_a_series_is_no_table() -> None:
    with pytest.raises(InvalidArgumentError, match=r"not pandas\..*Series"):
        to_table(good()["id"], LEDGER)
