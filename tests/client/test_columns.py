"""Which columns a ledger may have, and data that have others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.projection import present_in, projected, under
from spark_bookkeeper.client.write.columns import check_columns, check_schema
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

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


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        (pa.schema([("id", pa.int64())]), "missing: 'text'"),
        (pa.schema([*LEDGER, ("more", pa.int64())]), "not in the ledger: 'more'"),
        (pa.schema(list(reversed(list(LEDGER)))), ".select(['id', 'text']) has the ledger's"),
        (pa.schema([("id", pa.int32()), ("text", pa.string())]), "'id' is int32 and not int64"),
        (
            pa.schema([("ID", pa.int64()), ("text", pa.string())]),
            "missing: 'id'; not in the ledger: 'ID'",
        ),
        (pa.schema([*LEDGER, LEDGER.field("id")]), ".select(['id', 'text'])"),
    ],
    ids=["missing", "more", "reordered", "narrower", "another case", "twice"],
)
def test_other_columns_are_refused_and_both_schemas_shown(found: pa.Schema, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_schema(found, LEDGER)
    shown = caught.value.message
    assert remedy in shown
    assert all(f"  {f.name}: {f.type}" in shown for schema in (found, LEDGER) for f in schema)


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
