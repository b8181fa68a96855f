"""Copies that are released to a table: what is read stays the same, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.collection import COLLECTED, TOKENS_MOST, collections_of
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from spark_bookkeeper.testing.lake import (
    USUAL,
    archive,
    bytes_ledger,
    entries_of,
    holders,
    metadata_of,
    release,
    rows_ledger,
)


def archived(ground: Ground, lake: Path) -> LedgerId:
    """A closed ledger of 20 entries, and its rows in the table."""
    ledger_id = bytes_ledger(ground)
    archive(ground.context, lake, [ledger_id])
    return ledger_id


# Reading


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_released_ledger_reads_back_byte_for_byte(ground: Ground, lake: Path, keep: int) -> None:
    ledger_id = archived(ground, lake)
    before = entries_of(ground.context, ledger_id)

    (row,) = release(ground.context, lake, [ledger_id], keep=keep)

    assert (row.status, row.entries) == (Outcome.RELEASED, 20)
    assert len(holders(ground, ledger_id)) == keep
    assert entries_of(ground.client(), ledger_id) == before


FORMS = list(product(DigestType, [None, "lz4", "zstd"]))
EACH = [FORMS[0], FORMS[4], FORMS[8], FORMS[9]]
"""Each type and each compression once."""


@pytest.mark.parametrize(
    ("digest_type", "compression"),
    [*EACH, *(pytest.param(*form, marks=pytest.mark.full) for form in FORMS if form not in EACH)],
)
def test_every_digest_type_and_compression_reads_back(
    ground: Ground, lake: Path, digest_type: DigestType, compression: str | None
) -> None:
    form: dict[str, Any] = {
        "digest_type": digest_type,
        "password": b"secret",
        "compression": compression,
    }
    rows = pa.table({"id": pa.array(range(50)), "text": [f"row {n}" for n in range(50)]})
    ledgers = [bytes_ledger(ground, **form), rows_ledger(ground, rows, **form)]
    before = [entries_of(ground.context, ledger_id) for ledger_id in ledgers]
    for path, ledger_id in zip((lake / "bytes", lake / "rows"), ledgers, strict=True):
        archive(ground.context, path, [ledger_id])
        (row,) = release(ground.context, path, [ledger_id], keep=0)
        assert row.status is Outcome.RELEASED, row.reason

    assert [entries_of(ground.client(), ledger_id) for ledger_id in ledgers] == before


NULLS = [None, 1, None]

KINDS: dict[str, pa.Array] = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array(NULLS, pa.int8()),
    "int64": pa.array(NULLS, pa.int64()),
    "float": pa.array([1.5, None, float("nan")], pa.float32()),
    "double": pa.array([-0.0, None, float("inf")]),
    "text": pa.array(["", None, "ö"]),
    "binary": pa.array([b"", None, b"\0"]),
    "date": pa.array(NULLS, pa.date32()),
    "timestamp": pa.array(NULLS, pa.timestamp("us", "UTC")),
    "local time": pa.array(NULLS, pa.timestamp("us")),
    "decimal": pa.array(NULLS, pa.decimal128(20, 3)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "nested": pa.array([[{"a": [1, 2]}], None, [None]]),
    # What a table has another type for is cast back.
    "uint8": pa.array([255, None, 0], pa.uint8()),
    "uint16": pa.array([65535, None, 0], pa.uint16()),
    "large text": pa.array(["a", None, "b"], pa.large_string()),
    "seconds": pa.array(NULLS, pa.timestamp("s", "UTC")),
    # Bytes that are no value: under a null, and beside a slice.
    "garbage": pa.Array.from_buffers(
        pa.int32(), 3, [pa.py_buffer(b"\x02"), pa.py_buffer(b"\x07\x00\x00\x00" * 3)], 2
    ),
    "sliced": pa.array([True] * 9 + [None, True, False])[9:],
}


def test_entries_of_every_kind_of_column_are_made_again_byte_for_byte(
    ground: Ground, lake: Path
) -> None:
    rows = pa.table({"first": [1, 2, 3], **KINDS})
    ledger_id = rows_ledger(ground, rows)
    before = entries_of(ground.context, ledger_id)
    archive(ground.context, lake, [ledger_id])

    (row,) = release(ground.context, lake, [ledger_id], keep=0)

    assert row.status is Outcome.RELEASED, row.reason
    assert entries_of(ground.client(), ledger_id) == before
    found = lifecycle.open_ledger(ground.client(), ledger_id).read_arrow()
    for kind, values in KINDS.items():  # as texts, since no number equals itself
        assert repr(found.column(kind).to_pylist()) == repr(values.to_pylist() * 3), kind


def test_what_a_table_cannot_hold_is_not_released(ground: Ground, lake: Path) -> None:
    finest = pa.table({"at": pa.array([1_001], pa.timestamp("ns", "UTC"))})
    ledger_id = rows_ledger(ground, finest)
    archive(ground.context, lake, [ledger_id])  # Delta has microseconds

    (row,) = release(ground.context, lake, [ledger_id], keep=0)

    assert row.status is Outcome.LEFT
    assert "'at'" in str(row.reason)
    assert len(holders(ground, ledger_id)) == 3
    assert archived_of(metadata_of(ground, ledger_id)) is None


# What holds it up


@pytest.mark.parametrize(
    ("lacking", "said"), [(None, "has no rows of it"), ("_entry_id = 7", "entry 7")]
)
def test_a_ledger_of_which_the_table_lacks_a_row_is_not_released(
    ground: Ground, lake: Path, lacking: str | None, said: str
) -> None:
    other, ledger_id = bytes_ledger(ground), bytes_ledger(ground)
    table = archive(ground.context, lake, [other, ledger_id] if lacking else [other])
    if lacking:
        table.delete(f"_ledger_id = {ledger_id} AND {lacking}")

    (row,) = release(ground.context, lake, [ledger_id], keep=0)

    assert row.status is Outcome.LEFT
    assert said in str(row.reason)
    assert len(holders(ground, ledger_id)) == 3


def test_copies_that_are_to_stay_are_verified_first(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    first = metadata_of(ground, ledger_id).fragments[0].ensemble[0]
    shutil.rmtree(ground.root(first) / "ledgers" / ground.files(first)[0].parts[-3])

    (row,) = release(ground.context, lake, [ledger_id], keep=1)

    assert row.status is Outcome.LEFT
    assert str(first) in str(row.reason)
    assert len(holders(ground, ledger_id)) == 2


def test_an_open_ledger_an_empty_one_and_one_that_is_gone(ground: Ground, lake: Path) -> None:
    opened = lifecycle.create_ledger(ground.context, USUAL)
    opened.append(b"x")
    empty = bytes_ledger(ground, entries=0)
    archive(ground.context, lake, [bytes_ledger(ground)])

    rows = release(ground.context, lake, [opened.ledger_id, empty, LedgerId(99)], keep=0)

    assert [row.status for row in rows] == [Outcome.PENDING, Outcome.RELEASED, Outcome.GONE]
    opened.close()


def test_a_plan_changes_nothing(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    before = metadata_of(ground, ledger_id)

    (row,) = release(ground.context, lake, [ledger_id], keep=1, dry_run=True)

    assert row.status is Outcome.PLANNED
    assert metadata_of(ground, ledger_id) == before
    assert len(holders(ground, ledger_id)) == 3


def test_a_striped_ledger_keeps_a_copy_of_every_entry(tmp_path: Path, lake: Path) -> None:
    ground = Ground(tmp_path / "cluster", bookies=6, runtime=InlineRuntime())
    ledger_id = bytes_ledger(ground, quorum=Quorum(5, 3, 2))
    before = entries_of(ground.context, ledger_id)
    archive(ground.context, lake, [ledger_id])

    (row,) = release(ground.context, lake, [ledger_id], keep=1)

    assert row.status is Outcome.RELEASED, row.reason
    kept = holders(ground, ledger_id)
    assert len(kept) == 2  # of five: no three neighbours are without one
    shutil.rmtree(lake)
    assert entries_of(ground.client(), ledger_id) == before


def test_less_is_kept_later_and_nothing_is_made_again(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    before = entries_of(ground.context, ledger_id)
    kept = []
    for keep in (2, 1, 1, 0, 2):
        (row,) = release(ground.client(), lake, [ledger_id], keep=keep)
        assert row.status is Outcome.RELEASED, row.reason
        kept.append(len(holders(ground, ledger_id)))
        assert entries_of(ground.client(), ledger_id) == before

    assert kept == [2, 1, 1, 0, 0]


def test_a_reader_that_was_opened_before_reads_on(ground: Ground, lake: Path) -> None:
    ledger_id = bytes_ledger(ground)
    reader = lifecycle.open_ledger(ground.client(), ledger_id)
    expected = [entry.payload for entry in reader.entries()]
    following = reader.entries()
    begun = [next(following).payload]
    archive(ground.context, lake, [ledger_id])

    release(ground.context, lake, [ledger_id], keep=0)

    assert begun + [entry.payload for entry in following] == expected


# Bookies that are away


def test_a_bookie_that_is_away_drops_its_copy_when_it_is_back(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    last = metadata_of(ground, ledger_id).fragments[0].ensemble[-1]
    ground.stop(last)

    (first,) = release(ground.client(), lake, [ledger_id], keep=1)
    ground.start(last)
    (second,) = release(ground.client(), lake, [ledger_id], keep=1)

    assert (first.status, second.status) == (Outcome.PENDING, Outcome.RELEASED)
    assert len(holders(ground, ledger_id)) == 1


@pytest.mark.parametrize("how", ["stopped", "unreachable", "formatted"])
def test_a_bookie_that_gives_no_sign_of_life_is_not_said_to_be_removed_from(
    ground: Ground, lake: Path, how: str
) -> None:
    """Nobody would ever take that word back (rule R19): it takes no more copies of the ledger."""
    ledger_id = archived(ground, lake)
    last = metadata_of(ground, ledger_id).fragments[0].ensemble[-1]

    def away(place: str, operation: str, path: str) -> None:
        if how == "unreachable" and place == last:
            raise BookieUnavailableError("no route", bookie_id=last)

    if how != "unreachable":
        ground.stop(last, destroy=how == "formatted")
    if how == "formatted":
        ground.start(last)
    for _ in range(TOKENS_MOST + 1):
        release(ground.client(None, away), lake, [ledger_id], keep=1)

    assert tokens_of(ground, ledger_id, last) == ()
    if how != "formatted":
        if how == "stopped":
            ground.start(last)
        (row,) = release(ground.client(), lake, [ledger_id], keep=1)
        assert row.status is Outcome.RELEASED, row.reason
    assert len(holders(ground, ledger_id)) == 1


def test_a_bookie_that_goes_away_while_it_drops_takes_no_more_copies_of_the_ledger(
    ground: Ground, lake: Path
) -> None:
    """What remains: what it was asked for may be done at any time."""
    ledger_id = archived(ground, lake)
    last = metadata_of(ground, ledger_id).fragments[0].ensemble[-1]

    def lost(place: str, operation: str, path: str) -> None:
        if place == last and operation.startswith("delete"):
            raise BookieUnavailableError("no route", bookie_id=last)

    (first,) = release(ground.client(None, lost), lake, [ledger_id], keep=1)
    (second,) = release(ground.client(), lake, [ledger_id], keep=1)

    assert (first.status, second.status) == (Outcome.PENDING, Outcome.RELEASED)
    assert len(tokens_of(ground, ledger_id, last)) == 1
    assert len(holders(ground, ledger_id)) == 1


def tokens_of(ground: Ground, ledger_id: LedgerId, bookie: BookieId) -> tuple[str, ...]:
    """Of those who have said that they remove from a bookie, and not that they have ended."""
    metadata = metadata_of(ground, ledger_id)
    said = json.loads(metadata.custom_metadata.get(COLLECTED, b"{}"))
    keys = [key for key in said if key.startswith(f"{bookie}/")]
    return tuple(
        token
        for key in keys
        for token in collections_of(metadata, bookie, key.rpartition("/")[2]).tokens
    )
