"""Bulk appends: rows in part files, and what happens when bookies go meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client import ledgers
from spark_bookkeeper.client.bulk import write_local
from spark_bookkeeper.errors import BookieFullError, BookieUnavailableError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

SIZES = [(3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 1), (5, 2, 2)]


def table(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "text": [None if i % 7 == 0 else f"{i}" * 9 for i in ids]}
    )


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_keep_their_order_and_their_striping(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=5)
    quorum = Quorum(*sizes)
    whole = table(20_000)
    with ledgers.create_ledger(
        ground.context, quorum, schema=whole.schema, entry_target_bytes=20_000
    ) as writer:
        writer.append(whole.slice(0, 10))
        last = writer.append(whole.slice(10, 9990))
        assert writer.append(whole.slice(10_000)) > last > 5
        assert writer.append(whole.slice(0, 1)) == writer.last_add_confirmed

    reader = ledgers.open_ledger(ground.client(), writer.ledger_id)
    assert reader.read_arrow().equals(pa.concat_tables([whole, whole.slice(0, 1)]))
    ensemble = writer.metadata.last_fragment.ensemble
    for position, bookie in enumerate(ensemble):
        log = ground.context.bookies.log(bookie, reader.ledger)
        held = log.locate(0).entry_ids.tolist()
        assert held == [
            e for e in range(reader.last_add_confirmed + 1) if quorum.holds(position, EntryId(e))
        ]


def test_a_bulk_append_waits_for_the_entries_before_it(ground: Ground) -> None:
    whole = table(5000)
    with ledgers.create_ledger(
        ground.context, Quorum(3, 3, 2), schema=whole.schema, entry_target_bytes=10_000
    ) as writer:
        small = [writer.append_async(whole.slice(0, 1)) for _ in range(50)]
        assert writer.append(whole, expected_entry_id=50) > 50
        assert [f.result(10) for f in small] == list(range(50))


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize("moment", ["create", "write", "finish", "slot"])
def test_a_bookie_destroyed_during_a_bulk_append(
    tmp_path: Path, sizes: tuple[int, int, int], moment: str
) -> None:
    ground = Ground(tmp_path, bookies=6)
    whole = table(20_000)
    writer = ledgers.create_ledger(
        ground.context, Quorum(*sizes), schema=whole.schema, entry_target_bytes=20_000
    )
    writer.append(whole.slice(0, 5))
    victim = writer.metadata.last_fragment.ensemble[1]
    struck: list[str] = []

    def strike(place: str, operation: str, path: str) -> None:
        at_slot = moment == "slot" and operation == "put_if_absent"
        if place == victim and not struck and (operation == moment or at_slot):
            struck.append(path)
            ground.stop(victim, destroy=True)

    ground.before.append(strike)
    writer.append(whole)
    ground.until(lambda: victim not in writer.metadata.last_fragment.ensemble)
    writer.append(whole.slice(5, 5))
    writer.close()

    assert struck
    survivors = ledgers.open_ledger(ground.client(), writer.ledger_id)
    assert survivors.read_arrow().equals(
        pa.concat_tables([whole.slice(0, 5), whole, whole.slice(5, 5)])
    )
    for fragment in writer.metadata.fragment_ranges():
        if not fragment.is_last:
            continue
        for position, bookie in enumerate(fragment.ensemble):
            held = set(
                ground.context.bookies.log(bookie, survivors.ledger)
                .locate(fragment.first_entry_id)
                .entry_ids.tolist()
            )
            wanted = {
                e
                for e in range(fragment.first_entry_id, survivors.last_add_confirmed + 1)
                if writer.metadata.quorum.holds(position, EntryId(e))
            }
            assert wanted <= held, f"{bookie} has its copies of the block"


def test_a_bulk_append_that_no_bookie_can_store_fails_and_claims_nothing(ground: Ground) -> None:
    whole = table(20_000)
    writer = ledgers.create_ledger(
        ground.context, Quorum(3, 3, 2), schema=whole.schema, entry_target_bytes=20_000
    )
    writer.append(whole.slice(0, 1))

    def full(place: str, operation: str, path: str) -> None:
        if operation == "write":
            raise BookieFullError(f"bookie {place}: no space left", bookie_id=place)

    ground.before.append(full)
    with pytest.raises(BookieUnavailableError, match="nothing of it is in the ledger"):
        writer.append(whole)
    ground.before.clear()

    assert writer.append(whole.slice(1, 1)) == 1
    writer.close()
    read = ledgers.open_ledger(ground.client(), writer.ledger_id).read_arrow()
    assert read.equals(whole.slice(0, 2))


def test_r15_parts_that_no_slot_lists_are_not_in_the_ledger(ground: Ground) -> None:
    whole = table(20_000)
    writer = ledgers.create_ledger(
        ground.context, Quorum(3, 3, 2), schema=whole.schema, entry_target_bytes=20_000
    )
    writer.append(whole.slice(0, 1))
    plan = writer._adds.begin_bulk(None)
    loser = write_local(plan, whole, ground.context)
    winner = write_local(plan, whole, ground.context)
    writer._adds.end_bulk(plan, winner).result(10)
    writer.close()

    assert loser[0].parts[0].ref.name != winner[0].parts[0].ref.name
    read = ledgers.open_ledger(ground.client(), writer.ledger_id).read_arrow()
    assert read.equals(pa.concat_tables([whole.slice(0, 1), whole]))
