"""pandas data at the door of a ledger: the same values, or a refusal."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.rows import to_table
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

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
        (good().assign(id=[1, None]), "'id' takes no nulls, and 1"),
        (good().assign(id=[True, False]), "bool is not made into int64"),
        (good().assign(id=[1.5, 2]), "1.5"),
        (good().assign(id=[1, "x"]), "x"),
        (good().assign(id=["1", "2"]), "string is not made into int64"),
        (good().assign(text=[1, 2]), "int64 is not made into string"),
        (good().assign(text=[b"a", b"b"]), "binary is not made into string"),
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


def test_an_append_that_is_refused_leaves_the_writer_as_it_was(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=LEDGER) as writer:
        with pytest.raises(InvalidArgumentError):
            writer.append(good().assign(more=3))
        assert writer.append(good()) == 0


def test_a_series_is_no_table() -> None:
    with pytest.raises(InvalidArgumentError, match=r"not pandas\.core\.series\.Series"):
        to_table(good()["id"], LEDGER)
