"""Rows of every Arrow type, however they lie in memory: what is read is what was appended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.messages import encode_batches
from spark_bookkeeper.client.read.evolution import widen
from spark_bookkeeper.client.write.layouts import check_nulls, in_layout
from spark_bookkeeper.client.write.rows import split_evenly, to_table
from spark_bookkeeper.errors import InvalidArgumentError
from tests.client.every_type import ARRAYS, INSTANT, WRAPPED, lain, runs, struct


def read_back(table: pa.Table) -> list[Any]:
    """What readers get of entries that hold these rows: more entries than rows, too."""
    encoding = LedgerEncoding(table.schema)
    messages = encode_batches(encoding, list(split_evenly(table, 4)))
    batches = [pa.ipc.read_record_batch(message, encoding.schema) for message in messages]
    for batch in batches:
        batch.validate(full=True)
    values: list[Any] = pa.Table.from_batches(batches)["x"].to_pylist()
    return values


def test_rows_of_every_type_are_read_as_they_were_appended() -> None:
    for array in ARRAYS:
        for column in lain(array):
            rows = pa.table({"x": column})
            assert read_back(to_table(rows, rows.schema)) == column.to_pylist(), array.type


@pytest.mark.parametrize("as_data", [pa.Table.to_batches, lambda t: [t.to_reader()]])
def test_batches_and_readers_are_as_tables(as_data: Callable[[pa.Table], list[Any]]) -> None:
    for wrap in WRAPPED.values():
        for column in lain(wrap(pa.nulls(6))):
            rows = pa.table({"x": column})
            tables = [to_table(data, rows.schema) for data in as_data(rows)]
            read = [value for table in tables for value in read_back(table)]
            assert read == column.to_pylist(), column.type


def changed(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """The type with fields that were changed, at every depth but in unions and runs."""

    def inner(field: pa.Field) -> pa.Field:
        return change(field.with_type(changed(field.type, change)))

    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, inner(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    makers = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
    same = [make for make in makers if make(pa.int8()).id == kind.id]
    return same[0](inner(kind.value_field)) if same else kind


def large(field: pa.Field) -> pa.Field:
    forms = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    if pa.types.is_list(field.type):
        return field.with_type(pa.large_list(field.type.value_field))
    return field.with_type(forms.get(field.type, field.type))


def without_nulls(field: pa.Field) -> pa.Field:
    return field.with_nullable(False)


def test_another_layout_has_the_same_values_there_and_back() -> None:
    for array in ARRAYS:
        kind = large(pa.field("x", changed(array.type, large))).type
        for column in lain(array):
            made = in_layout(column, kind)
            assert made.type == kind
            for values in (made, in_layout(made, array.type)):
                values.validate(full=True)
                assert values.to_pylist() == column.to_pylist(), kind


def deep(zone: str, *, is_nullable: bool) -> pa.DataType:
    instant = pa.field("t", pa.timestamp("us", zone), nullable=is_nullable)
    inner = pa.struct([instant, pa.field("l", pa.list_(pa.field("element", instant.type)))])
    return pa.struct(
        [
            pa.field("a", pa.list_(pa.field("element", inner))),
            pa.field("m", pa.map_(pa.string(), pa.field("value", inner))),
        ]
    )


ONE = {"t": INSTANT, "l": [INSTANT, None]}
VALUES: list[Any] = [
    {"a": [ONE, None, ONE], "m": [("k", ONE), ("n", None)]},
    None,
    {"a": None, "m": []},
    {"a": [], "m": None},
    {"a": [None], "m": [("x", {"t": INSTANT, "l": None})]},
]


@pytest.mark.parametrize("start", range(len(VALUES)))
@pytest.mark.parametrize("is_nullable", [True, False])
def test_nested_values_are_the_same_in_another_time_zone(start: int, is_nullable: bool) -> None:
    source = pa.array(VALUES, type=deep("Europe/Berlin", is_nullable=is_nullable)).slice(start)
    kind = deep("UTC", is_nullable=not is_nullable)

    made = in_layout(source, kind)

    made.validate(full=True)
    assert made.type == kind
    assert made.to_pylist() == VALUES[start:]


def test_lists_of_a_fixed_size_become_plain_ones() -> None:
    for item in (pa.nulls(6), struct(pa.nulls(6))):
        for column in lain(WRAPPED["fixed list"](item)):
            made = in_layout(column, pa.list_(item.type))
            made.validate(full=True)
            assert made.to_pylist() == column.to_pylist()


def lacks(value: Any, field: pa.Field) -> bool:
    """By the definition: whether a null is where the field, or one within it, takes none."""
    kind = field.type
    if value is None:
        return not field.nullable
    if pa.types.is_struct(kind):
        return any(lacks(value[inner.name], inner) for inner in kind)
    if pa.types.is_map(kind):
        return any(lacks(item, kind.item_field) for _, item in value)
    return hasattr(kind, "value_field") and any(lacks(v, kind.value_field) for v in value)


def test_nulls_are_found_at_every_depth_and_only_where_none_may_be() -> None:
    refused = 0
    for array in ARRAYS:
        for field in (
            pa.field("x", changed(array.type, without_nulls)),
            pa.field("x", array.type).with_nullable(False),
        ):
            for column in lain(array):
                rows = in_layout(column, field.type)
                expected = any(lacks(value, field) for value in column.to_pylist())
                if expected:
                    with pytest.raises(InvalidArgumentError, match=r"column 'x.*takes no nulls"):
                        check_nulls([rows], pa.schema([field]))
                else:
                    check_nulls([rows], pa.schema([field]))
                refused += expected
    assert refused > len(ARRAYS)


STRICT: Final = pa.struct([pa.field("a", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("array", "path"),
    [
        (runs(pa.array([{"a": 1}, None, {"a": None}], STRICT), pa.int32()), "x.values.a"),
        (
            pa.UnionArray.from_sparse(
                pa.array([0, 0, 1, 1], pa.int8()),
                [pa.array([{"a": 1}, {"a": 1}, {"a": None}, None], STRICT), pa.array([1] * 4)],
            ),
            None,  # the null is of the other one's turn
        ),
        (
            pa.UnionArray.from_dense(
                pa.array([1, 0, 1, 0], pa.int8()),
                pa.array([0, 2, 1, 1], pa.int32()),
                [pa.array([{"a": None}, {"a": None}, {"a": 1}], STRICT), pa.array([1, 2])],
            ),
            "x.0.a",
        ),
    ],
    ids=["runs", "sparse union", "dense union"],
)
def test_nulls_within_runs_and_unions_are_found(array: pa.Array, path: str | None) -> None:
    schema = pa.schema([("x", array.type)])
    check_nulls([array[:2]], schema)  # and the one below is in a slice
    array = array[1:]
    if path is None:
        check_nulls([array], schema)
    else:
        with pytest.raises(InvalidArgumentError, match=f"'{path}' of the ledger takes no nulls"):
            check_nulls([array], schema)


def test_a_null_where_none_may_be_is_refused_and_the_way_to_it_named() -> None:
    item = pa.field("item", pa.int64(), nullable=False)
    strict = pa.schema([("x", pa.list_(pa.field("item", pa.map_(pa.string(), item))))])
    rows = pa.table({"x": [[[("a", 1)], [("b", None)]]]}, pa.schema([("x", LOOSE)]))

    with pytest.raises(InvalidArgumentError, match=r"'x\.item\.item'.* 1 are .*leave these rows"):
        to_table(rows, strict)


LOOSE: Final = pa.list_(pa.map_(pa.string(), pa.int64()))


def test_a_nullable_item_without_a_null_fits_one_that_takes_none() -> None:
    for make in (pa.list_, pa.list_view, lambda kind: pa.list_(kind, 2)):
        rows = pa.table({"x": pa.array([[1, 2], None], make(pa.int64()))})
        strict = pa.schema([("x", make(pa.field("item", pa.int64(), nullable=False)))])

        made = to_table(rows, strict)

        assert made.schema == strict
        assert made.to_pylist() == rows.to_pylist()


def test_dictionaries_of_nested_values_are_decoded() -> None:
    for values in (pa.array([{"a": 1}, None]), pa.array([[1, None], []]), pa.array([b"a", b"b"])):
        for column in (
            pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1]), values)[1:],
            struct(pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1]), values))[1:],
        ):
            rows = pa.table({"x": column})
            schema = LedgerEncoding(rows.schema).schema

            assert read_back(to_table(rows, schema)) == column.to_pylist()


def test_rows_of_an_earlier_ledger_of_a_log_keep_their_values_beside_a_new_column() -> None:
    for array in ARRAYS:
        batch = pa.record_batch([array[1:]], ["x"])
        made = widen(batch, pa.schema([("x", array.type), ("more", pa.int64())]))
        assert made["x"].to_pylist() == batch["x"].to_pylist()
