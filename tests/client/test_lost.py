"""Reading some columns, and reading on past what is lost."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.errors import EntryUnreadableError, InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.lost_entries import lost_entries
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"row {n}" for n in range(10)]})


def reader_of(
    ground: Ground, quorum: Quorum, entries: int = 6, compression: str | None = None
) -> LedgerReader:
    writer = lifecycle.create_ledger(
        ground.context, quorum, schema=ROWS.schema, compression=compression
    )
    for _ in range(entries):
        writer.append(ROWS)
    writer.close()
    return lifecycle.open_ledger(ground.context, writer.ledger_id)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_only_the_columns_that_are_wanted_are_decoded(
    ground: Ground, compression: str | None
) -> None:
    reader = reader_of(ground, Quorum(3, 3, 2), compression=compression)

    assert reader.read_arrow(0, 0, columns=["name"]).equals(ROWS.select(["name"]))
    assert reader.read_arrow(0, 0, columns=["name", "id"]).equals(ROWS.select(["name", "id"]))
    with pytest.raises(InvalidArgumentError, match="the columns are id, name"):
        reader.read_arrow(columns=["colour"])
    with pytest.raises(InvalidArgumentError, match="no column was named"):
        reader.read_arrow(columns=[])


def test_what_is_lost_everywhere_is_passed_over_and_told(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(4, 2, 2))  # entry n is on the bookies n and n + 1
    ensemble = reader.metadata.last_fragment.ensemble
    for bookie in ensemble[1:3]:
        ground.stop(bookie, destroy=True)

    with pytest.raises(EntryUnreadableError):
        reader.read_arrow()
    found = reader.read_arrow(skip_lost=True)

    assert found.num_rows == 40
    told = reader.skipped.to_pylist()
    assert [(row["first_entry_id"], row["entries"], row["bookie_id"]) for row in told] == [
        (entry, 1, bookie) for entry in (1, 5) for bookie in sorted(ensemble[1:3])
    ]
    assert all(row["reason"] for row in told)
    everywhere = lost_entries(ground.context, LocalRunner(ground.context))
    assert everywhere.equals(reader.skipped)
    assert reader.read_arrow(0, 0, skip_lost=True).num_rows == 10
    assert reader.skipped.num_rows == 0


def test_a_loss_names_what_it_is_and_the_ways_on(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(4, 2, 2), log="orders")
    for number in range(8):
        writer.append(b"%d" % number)
    writer.close()
    ledger, ensemble = writer.ledger_id, writer.metadata.last_fragment.ensemble
    for bookie in ensemble[1:3]:
        ground.stop(bookie, destroy=True)

    with pytest.raises(EntryUnreadableError) as told:
        list(lifecycle.open_ledger(ground.context, ledger).entries(0, 6))

    named = (
        f"entry 1 of ledger {ledger} of log 'orders'",
        *(f"{bookie}: " for bookie in ensemble[1:3]),
        "Entries 1 to 6",
        f"bk.lost_entries([{ledger}])",
        "skip_lost=True",
        "failOnDataLoss=false",
    )
    assert [each for each in named if each not in told.value.message] == []


def test_when_all_is_lost_a_long_run_is_one_row_for_each_bookie(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(3, 3, 2), 40)
    for bookie in reader.metadata.last_fragment.ensemble:
        ground.stop(bookie, destroy=True)

    assert reader.read_arrow(skip_lost=True).num_rows == 0
    assert sum(row["entries"] for row in reader.skipped.to_pylist()) == 3 * 40
    assert reader.skipped.num_rows == 3


def test_nothing_is_lost_where_all_can_be_read(ground: Ground) -> None:
    reader_of(ground, Quorum(3, 3, 2))

    assert lost_entries(ground.context, LocalRunner(ground.context)).num_rows == 0


def test_a_ledger_that_is_not_there_is_told(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(3, 3, 2))
    lifecycle.delete_ledger(ground.context, reader.ledger_id)

    (row,) = lost_entries(
        ground.context, LocalRunner(ground.context), [reader.ledger_id]
    ).to_pylist()

    assert (row["ledger_id"], row["bookie_id"]) == (reader.ledger_id, None)
    assert "deleted" in row["reason"]


def test_one_bookie_alone_is_read_or_not_at_all(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(4, 2, 2))
    chosen = reader.metadata.last_fragment.ensemble[0]

    fetcher = Fetcher(ground.context, reader.ledger, only=chosen)
    own = [entry.entry_id for entry in fetcher.fetch(EntryId(0), EntryId(5))]
    assert own == [0, 3, 4]  # position 0 has the entries n and n - 1 of each stripe of 4

    ground.stop(chosen, destroy=True)
    with pytest.raises(EntryUnreadableError, match="only this one was to be read"):
        list(Fetcher(ground.context, reader.ledger, only=chosen).scan(EntryId(0), EntryId(5)))
