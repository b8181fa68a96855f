"""Who holds what of a ledger, as tables that can be drawn."""

from __future__ import annotations

from itertools import product

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger_info import (
    PLACEMENT,
    STRIPES,
    LedgerInfo,
    placement_table,
    stripes_table,
)
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

A, B, C, D, X = (BookieId(f"{name}:3181") for name in "abcdx")
QUORUM = Quorum(4, 3, 2)


def metadata(*fragments: Fragment) -> LedgerMetadata:
    return LedgerMetadata(QUORUM, LedgerState.OPEN, fragments)


LOST_ONE = metadata(Fragment(EntryId(0), (A, B, C, D)), Fragment(EntryId(8), (A, X, C, D)))


def test_entries_are_counted_as_they_are_striped() -> None:
    for size, first, count in product(range(1, 6), range(4), range(9)):
        for write in range(1, size + 1):
            quorum = Quorum(size, write, 1)
            last = EntryId(first + count - 1)
            for position in range(size):
                slow = sum(position in quorum.write_set(EntryId(e)) for e in range(first, last + 1))
                assert quorum.entries_held(position, EntryId(first), last) == slow


def test_a_lost_bookie_keeps_its_place_in_the_earlier_fragment() -> None:
    table = placement_table(7, LOST_ONE, {A, C, D, X}, EntryId(9))
    rows = table.to_pylist()

    assert table.schema == PLACEMENT
    assert [r["bookie_id"] for r in rows if r["is_missing"]] == [B]
    assert [r["fragment"] for r in rows] == [0] * 4 + [1] * 4
    assert sum(r["entries"] for r in rows) == 10 * QUORUM.write_quorum_size


def test_how_much_is_in_an_open_fragment_is_unknown_without_an_answer() -> None:
    rows = placement_table(7, LOST_ONE, {A, C, D, X}, None).to_pylist()

    assert [r["entries"] for r in rows] == [6] * 4 + [None] * 4


def test_stripes_follow_the_write_sets_from_fragment_to_fragment() -> None:
    table = stripes_table(7, LOST_ONE, {A, C, D, X}, EntryId(6), EntryId(9))
    rows = table.to_pylist()

    assert table.schema == STRIPES
    for entry in range(6, 10):
        ensemble = (A, B, C, D) if entry < 8 else (A, X, C, D)
        holders = [r["bookie_id"] for r in rows if r["entry_id"] == entry]
        assert holders == [ensemble[p] for p in QUORUM.write_set(EntryId(entry))]
    assert [r["copy"] for r in rows] == [0, 1, 2] * 4
    assert {r["bookie_id"] for r in rows if r["is_missing"]} == {B}


def test_beyond_the_end_there_is_nothing(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)) as writer:
        for _ in range(3):
            writer.append(b"x")
    found = ground.context.store.read_ledger(writer.ledger_id).value
    info = LedgerInfo.of(writer.ledger_id, found, ground.context, lambda table: table)

    assert {r["entry_id"] for r in info.stripes_df().to_pylist()} == {0, 1, 2}
    assert info.stripes_arrow(5, 9).num_rows == 0
    assert {r["entries"] for r in info.placement_df().to_pylist()} == {3}
    with pytest.raises(InvalidArgumentError, match="first"):
        info.stripes_arrow(-1)
