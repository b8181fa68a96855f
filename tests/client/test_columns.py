"""Which columns a ledger may have, and data that have others."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.encoding import plain_schema
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.projection import present_in, projected, under
from spark_bookkeeper.client.write.columns import check_columns, check_new_columns, check_schema
from spark_bookkeeper.client.write.rows import to_table
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground
from tests.client.every_type import ARRAYS, WRAPPED

LEDGER = pa.schema([("id", pa.int64()), ("text", pa.string())])


def test_a_ledger_without_columns_is_refused_before_rows_vanish_in_it(ground: Ground) -> None:
    with pytest.raises(InvalidArgumentError, match="no columns"):
        lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=pa.schema([]))
    assert list(ground.context.store.ledger_ids()) == []


def test_a_name_that_is_there_twice_is_refused_by_name() -> None:
    twice = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("x", pa.string())])
    with pytest.raises(InvalidArgumentError, match="several columns of the name 'x'"):
        check_columns(twice)


def test_names_may_differ_only_in_case_and_hold_any_character() -> None:
    check_columns(pa.schema([("x", pa.int64()), ("X", pa.int64()), ("a.b `c`", pa.int64())]))


VOID = pa.field("n", pa.null()).with_nullable(False)
RUNS = pa.field("x", pa.run_end_encoded(pa.int32(), pa.null()), nullable=False)
WORDS = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (VOID, r"'n' is null and takes no nulls.*with_nullable\(True\)"),
        (pa.field("x", pa.struct([VOID]), nullable=False), "'x' is struct<n: null not null>"),
        (pa.field("x", pa.list_(VOID, 2), nullable=False), "'x' is fixed_size_list<n: null not"),
        (RUNS, "'x' is run_end_encoded<run_ends: int32, values: null> and takes no nulls"),
        (pa.field("x", pa.sparse_union([pa.field("n", pa.null())]), nullable=False), "'x' is sp"),
        (pa.field("x", pa.opaque(pa.null(), "a", "b"), nullable=False), "'x' is ext"),
        (pa.field("x", pa.struct([("u", pa.dense_union([]))]), nullable=False), "union a member"),
        (pa.field("x", pa.list_view(WORDS)), "'x'.*without dictionaries"),
        (pa.field("x", pa.run_end_encoded(pa.int16(), WORDS)), "'x'.*without dictionaries"),
        (pa.field("x", pa.dense_union([pa.field("a", WORDS)])), "'x'.*without dictionaries"),
        (pa.field("x", pa.opaque(WORDS, "a", "b")), "'x'.*without dictionaries"),
        (
            pa.field("x", pa.dictionary(pa.int8(), pa.run_end_encoded(pa.int32(), pa.string()))),
            "'x'.*without dictionaries",
        ),
    ],
    ids=str,
)
def test_columns_that_no_row_can_have_are_refused_before_anything_is_made(
    ground: Ground, field: pa.Field, said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        check_new_columns(pa.schema([("id", pa.int64()), field]))
    with pytest.raises(InvalidArgumentError, match="Nothing was created"):
        lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=pa.schema([field]))
    assert list(ground.context.store.ledger_ids()) == []


def test_a_ledger_takes_the_table_of_which_it_has_the_schema() -> None:
    for array in ARRAYS:
        words = pa.array(["a", None] * (len(array) // 2) + ["b"] * (len(array) % 2))
        inner = pa.StructArray.from_arrays([array, words.dictionary_encode()], ["a", "d"])
        for column in (array, words.dictionary_encode(), inner, WRAPPED["fixed list"](inner)):
            rows = pa.table({"x": column})
            check_new_columns(rows.schema)
            assert to_table(rows, plain_schema(rows.schema)).to_pylist() == rows.to_pylist()


def test_what_may_be_null_or_empty_may_have_nulls_alone() -> None:
    for kind in (pa.list_(VOID), pa.list_(VOID, 0), pa.map_(pa.string(), VOID)):
        check_new_columns(pa.schema([pa.field("x", kind, nullable=False)]))
    for kind in (pa.struct([VOID]), RUNS.type, pa.sparse_union([pa.field("n", pa.null())])):
        check_new_columns(pa.schema([pa.field("x", kind)]))


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        (pa.schema([("id", pa.int64())]), "missing: 'text'"),
        (pa.schema([*LEDGER, ("more", pa.int64())]), "not in the ledger: 'more'"),
        (pa.schema(list(reversed(list(LEDGER)))), ".select(['id', 'text']) has the ledger's"),
        (pa.schema([("id", pa.uint64()), ("text", pa.string())]), "'id' is uint64 and not int64"),
        (
            pa.schema([("ID", pa.int64()), ("text", pa.string())]),
            "missing: 'id'; not in the ledger: 'ID'",
        ),
        (pa.schema([*LEDGER, LEDGER.field("id")]), ".select(['id', 'text'])"),
    ],
    ids=["missing", "more", "reordered", "wider", "another case", "twice"],
)
def test_other_columns_are_refused_and_both_schemas_shown(found: pa.Schema, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_schema(found, LEDGER)
    shown = caught.value.message
    assert remedy in shown
    assert all(f"  {f.name}: {f.type}" in shown for schema in (found, LEDGER) for f in schema)


def test_narrower_types_are_taken_whose_values_the_ledger_holds_exactly(ground: Ground) -> None:
    price = Decimal("1.25")
    wide = pa.schema(
        [
            ("n", pa.int64()),
            ("x", pa.float64()),
            ("price", pa.decimal128(12, 3)),
            ("all", pa.list_(pa.struct([("n", pa.int64())]))),
        ]
    )
    narrow = pa.schema(
        [
            ("n", pa.int32()),
            ("x", pa.float32()),
            ("price", pa.decimal128(5, 2)),
            ("all", pa.list_(pa.struct([("n", pa.int16())]))),
        ]
    )
    rows = pa.Table.from_pylist([{"n": 7, "x": 0.5, "price": price, "all": [{"n": 8}]}], narrow)
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=wide) as writer:
        writer.append(rows)
        with pytest.raises(InvalidArgumentError, match="'x' is double and not float: cast it"):
            check_schema(wide.remove(0), narrow.remove(0))
    read = lifecycle.open_ledger(ground.context, writer.ledger_id).read_arrow()
    assert read == rows.cast(wide)


def test_a_struct_that_lacks_a_field_is_refused_as_a_column_is_that_is_missing() -> None:
    whole = pa.struct([("a", pa.int64()), ("b", pa.string())])
    part = pa.struct([("a", pa.int64())])
    for wrap in (lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)):
        check_schema(pa.schema([("s", wrap(whole))]), pa.schema([("s", wrap(whole))]))
        with pytest.raises(InvalidArgumentError, match="cast it"):
            check_schema(pa.schema([("s", wrap(part))]), pa.schema([("s", wrap(whole))]))


def test_of_wide_schemas_an_error_shows_what_differs() -> None:
    wide = pa.schema([(f"c{n}", pa.int64()) for n in range(50)])
    with pytest.raises(InvalidArgumentError) as caught:
        check_schema(wide.set(7, pa.field("c7", pa.string())), wide)

    assert caught.value.message.splitlines()[1:] == [
        "ledger:",
        "  c7: int64",
        "  and 49 that are the same",
        "data:",
        "  c7: string",
        "  and 49 that are the same",
        "column 'c7' is string and not int64: cast it",
    ]


def test_rows_for_a_ledger_of_bytes_and_bytes_for_one_of_rows_are_told_where_they_go(
    ground: Ground,
) -> None:
    usual = Quorum(3, 3, 2)
    with lifecycle.create_ledger(ground.context, usual) as of_bytes:
        with pytest.raises(InvalidArgumentError, match=r"for bytes.*schema=df\.schema"):
            of_bytes.append(pa.table({"id": [1]}))
    with lifecycle.create_ledger(ground.context, usual, schema=LEDGER) as of_rows:
        with pytest.raises(InvalidArgumentError, match="Bytes go into a ledger or log that is"):
            of_rows.append(b"one")


def test_layouts_and_nullability_may_differ() -> None:
    dictionary = pa.dictionary(pa.int8(), pa.large_string())
    check_schema(
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", dictionary)]), LEDGER
    )


@pytest.mark.parametrize("columns", [7, [0], b"id", ["id", None], {"id": 1}.values()])
def test_what_are_no_names_of_columns_is_refused(columns: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"for example columns=\['id'\]"):
        projected(LEDGER, columns)


def test_columns_may_be_named_by_whatever_gives_their_names() -> None:
    for columns in ("id", ["id"], ("id",), iter(["id"]), {"id": 1}):
        assert projected(LEDGER, columns).names == ["id"]


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_rows_of_a_ledger_that_lacks_the_wanted_column_are_there_as_nulls(
    ground: Ground, compression: str | None
) -> None:
    rows = pa.table({"n": range(900), "text": [f"row {n}" for n in range(900)]})
    with lifecycle.create_ledger(
        ground.context,
        Quorum(3, 3, 2),
        schema=rows.schema,
        compression=compression,
        entry_target_bytes=1_000,
    ) as writer:
        last = writer.append(rows)
    ledger, _ = ground.context.ledger(writer.ledger_id)
    wanted = pa.schema([("why", pa.string())])

    found = Fetcher(ground.context, ledger, columns=present_in(rows.schema, wanted))
    batches = [under(piece.batch, wanted) for piece in found.scan(EntryId(0), last)]

    assert sum(batch.num_rows for batch in batches) == 900
    assert {value for batch in batches for value in batch["why"].to_pylist()} == {None}
