"""Which ledgers share a commit of a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client.ledger import EntryRange, Ledger
from spark_bookkeeper.client.read.splits import SMALL_PIECE_BYTES, tasks_for
from spark_bookkeeper.delta.pieces import BATCH_BYTES, BATCH_LEDGERS, SMALL_BYTES, Batch, batches
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.support.lake import bytes_ledger, rows_ledger

SMALL, LARGE, OTHER = 1000, SMALL_BYTES + 1, -1


@pytest.fixture
def kinds(tmp_path: Path) -> dict[int, Ledger]:
    ground = Ground(tmp_path / "cluster", runtime=InlineRuntime())
    of_bytes, _ = ground.context.ledger(bytes_ledger(ground, 1))
    of_rows, _ = ground.context.ledger(rows_ledger(ground, pa.table({"id": [1]}), 1))
    return {
        size: ledger.with_metadata(replace(ledger.metadata, length_bytes=abs(size)))
        for size, ledger in ((SMALL, of_bytes), (LARGE, of_bytes), (OTHER, of_rows))
    }


def sizes(found: list[Batch | Row], kinds: dict[int, Ledger]) -> list[list[int] | str]:
    names = {id(ledger): size for size, ledger in kinds.items()}
    return [
        str(each.status) if isinstance(each, Row) else [names[id(ledger)] for ledger in each]
        for each in found
    ]


def test_small_ledgers_of_one_schema_go_together(kinds: dict[int, Ledger]) -> None:
    given = [kinds[kind] for kind in (SMALL, OTHER, SMALL, LARGE, SMALL, OTHER)]

    found = sizes(list(batches(given, in_order=False)), kinds)

    assert found == [[LARGE], [SMALL, SMALL, SMALL], [OTHER, OTHER]]


def test_nothing_of_a_log_comes_before_what_is_before_it(kinds: dict[int, Ledger]) -> None:
    pending = Row(7, "archive", Outcome.PENDING)
    given = [kinds[kind] for kind in (SMALL, SMALL, OTHER, SMALL, LARGE, SMALL)]

    found = sizes(list(batches([*given, pending, kinds[SMALL]], in_order=True)), kinds)

    assert found == [
        *([SMALL, SMALL], [OTHER], [SMALL], [LARGE], [SMALL]),
        *("pending", [SMALL]),
    ]


def test_a_batch_ends_at_its_bounds(kinds: dict[int, Ledger]) -> None:
    many = [kinds[SMALL]] * (BATCH_LEDGERS + 3)
    metadata = replace(kinds[SMALL].metadata, length_bytes=SMALL_BYTES)
    wide = kinds[SMALL].with_metadata(metadata)

    by_count = [len(batch) for batch in batches(many, in_order=True) if isinstance(batch, tuple)]
    by_size = [
        len(batch) for batch in batches([wide] * 70, in_order=False) if isinstance(batch, tuple)
    ]

    assert by_count == [BATCH_LEDGERS, 3]
    assert by_size == [BATCH_BYTES // SMALL_BYTES, 70 - BATCH_BYTES // SMALL_BYTES]


def test_a_read_of_many_small_ledgers_shares_tasks(kinds: dict[int, Ledger]) -> None:
    def ranges(size_bytes: int, count: int) -> list[EntryRange]:
        metadata = replace(kinds[SMALL].metadata, length_bytes=size_bytes)
        ledger = kinds[SMALL].with_metadata(metadata)
        return [EntryRange(ledger, EntryId(0), EntryId(0))] * count

    assert tasks_for(ranges(1000, 200), 4) == 4
    assert tasks_for(ranges(1000, 3), 4) == 3
    assert tasks_for(ranges(SMALL_PIECE_BYTES, 200), 4) == 200  # as they were cut
