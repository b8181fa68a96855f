"""Which columns may follow others, against a slower definition, and rows under the wider ones."""

from __future__ import annotations

import itertools
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from spark_bookkeeper.client.read.evolution import evolved, widen, widen_all
from spark_bookkeeper.client.write.columns import is_wider
from spark_bookkeeper.errors import InvalidArgumentError
from tests.examples import drawn

NUMBERS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-(2**7), 2**7 - 1],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.uint8(): [0, 2**8 - 1],
    pa.uint16(): [0, 2**16 - 1],
    pa.uint32(): [0, 2**32 - 1],
    pa.uint64(): [0, 2**64 - 1],
    pa.float32(): [0.5, 2.0**100, 1 + 2.0**-23],
    pa.float64(): [0.5, 2.0**1000, 1 + 2.0**-52],
    pa.decimal128(3, 1): [Decimal("99.9"), Decimal("-0.1")],
    pa.decimal128(5, 1): [Decimal("9999.9")],
    pa.decimal128(5, 3): [Decimal("99.999")],
    pa.decimal256(40, 3): [Decimal(10) ** 36],
}
"""Values at the ends of what a type holds."""

OTHERS = [pa.string(), pa.binary(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("ms")]

POSSIBLE = [*NUMBERS, *OTHERS]


@cache
def holds(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of a type, written in the other one, is the same value."""
    if (
        old not in NUMBERS
        or new not in NUMBERS
        or pa.types.is_decimal(old) != pa.types.is_decimal(new)
    ):
        return bool(old == new)
    if pa.types.is_floating(old) and not pa.types.is_floating(new):
        return False
    try:
        there = pa.array(NUMBERS[old], old).cast(new).to_pylist()
    except pa.ArrowInvalid:
        return False
    if not pa.types.is_floating(old) and pa.types.is_floating(new):
        bits = 24 if new == pa.float32() else 53
        return all(abs(value) <= 2**bits for value in NUMBERS[old])
    return bool(there == NUMBERS[old])


@pytest.mark.parametrize("old", POSSIBLE, ids=str)
def test_a_type_is_wider_when_it_holds_every_value(old: pa.DataType) -> None:
    for new in POSSIBLE:
        assert is_wider(old, new) == holds(old, new), f"{old} to {new}"


FIELD_TYPES = st.recursive(
    st.sampled_from([pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda kinds: pa.struct([(f"f{n}", kind) for n, kind in enumerate(kinds)])
        ),
    ),
    max_leaves=4,
)


def wider_types(kind: pa.DataType) -> list[pa.DataType]:
    """Some that ``kind`` may become, itself among them."""
    if pa.types.is_struct(kind):
        inner = [wider_types(field.type) for field in kind]
        names = [field.name for field in kind]
        made = [
            pa.struct(list(zip(names, each, strict=True))) for each in itertools.product(*inner)
        ]
        return [*made[:4], pa.struct([*kind, ("added", pa.string())])]
    if pa.types.is_list(kind):
        return [pa.list_(each) for each in wider_types(kind.value_type)]
    if pa.types.is_map(kind):
        return [pa.map_(kind.key_type, each) for each in wider_types(kind.item_type)]
    return [each for each in (*NUMBERS, *OTHERS) if holds(kind, each)]


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, None among them."""
    some: st.SearchStrategy[Any]
    if pa.types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_list(kind):
        some = st.lists(values(kind.value_type), max_size=2)
    elif pa.types.is_map(kind):
        some = st.lists(st.tuples(st.text(max_size=1), values(kind.item_type)), max_size=2)
    elif pa.types.is_string(kind):
        some = st.text(max_size=3)
    elif pa.types.is_floating(kind):
        some = st.floats(width=32, allow_nan=False)
    else:
        some = st.integers(-128, 127)
    return st.none() | some


def with_added(value: Any, kind: pa.DataType) -> Any:
    """What a value is under a wider type: the same, with nulls for what was added to structs."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: with_added(value.get(f.name), f.type) for f in kind}
    if pa.types.is_list(kind):
        return [with_added(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(key, with_added(each, kind.item_type)) for key, each in value]
    return value


@drawn(st.data(), plain=4, full=60)
def test_rows_keep_their_values_under_the_wider_columns(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(FIELD_TYPES, min_size=1, max_size=3))
    old = pa.schema([(f"c{n}", kind) for n, kind in enumerate(kinds)])
    wider = [data.draw(st.sampled_from(wider_types(kind))) for kind in kinds]
    added = data.draw(st.lists(FIELD_TYPES, max_size=2))
    new = pa.schema([(f"c{n}", kind) for n, kind in enumerate([*wider, *added])])
    columns = [data.draw(st.lists(values(kind), min_size=3, max_size=3)) for kind in kinds]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=old).slice(data.draw(st.integers(0, 2)))

    found = widen(batch, evolved(old, new))

    assert found.schema == new
    found.validate(full=True)
    for number, field in enumerate(new):
        shown = found.column(number).to_pylist()
        if number < len(kinds):
            before = batch.column(number).to_pylist()
            assert shown == [with_added(value, field.type) for value in before]
        else:
            assert shown == [None] * batch.num_rows


@drawn(st.lists(FIELD_TYPES, min_size=1, max_size=3), st.data(), plain=15, full=40)
def test_what_may_follow_may_follow_in_two_steps(kinds: list[pa.DataType], data: Any) -> None:
    schemas = [pa.schema([(f"c{n}", kind) for n, kind in enumerate(kinds)])]
    for _ in range(2):
        wider = [data.draw(st.sampled_from(wider_types(field.type))) for field in schemas[-1]]
        schemas.append(pa.schema([(f"c{n}", kind) for n, kind in enumerate(wider)]))
        evolved(schemas[-2], schemas[-1])

    assert evolved(schemas[0], schemas[2]) == schemas[2]
    assert evolved(schemas[0], schemas[0]) == schemas[0]


A = pa.field("a", pa.int32())
B = pa.field("b", pa.string())


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ([B], "column 'a' must stay, as number 1"),
        ([B, A], "column 'a' must stay, as number 1"),
        ([A], "column 'b' must stay, as number 2"),
        ([A, B, pa.field("c", pa.int8(), nullable=False)], "'c' is new and must be nullable"),
        ([pa.field("a", pa.int16()), B], "not every int32 is a int16"),
        ([pa.field("a", pa.string()), B], "not every int32 is a string"),
        ([A.with_nullable(False), B], "'a' may have nulls"),
        ([A, B, B], "several columns"),
    ],
)
def test_anything_else_is_refused_with_both_shown(new: list[pa.Field], why: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        evolved(pa.schema([A, B]), pa.schema(new))

    assert why in caught.value.message
    assert "a: " in caught.value.message or "b: " in caught.value.message
    assert "othing was c" in caught.value.message


def test_a_column_without_nulls_may_come_to_have_some() -> None:
    strict = pa.schema([A.with_nullable(False)])

    assert evolved(strict, pa.schema([A])) == pa.schema([A])


def test_tables_of_several_ledgers_are_one() -> None:
    tables = [pa.table({"a": pa.array([1], pa.int32())}), pa.table({"a": [2], "b": ["x"]})]
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])

    assert widen_all(tables, schema).to_pydict() == {"a": [1, 2], "b": [None, "x"]}
    assert widen_all([], schema).schema == schema
