"""Reads of an archive that take long in a task: their names reach whoever waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.delta.sums import PLACE_COLUMNS
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.replication import slow_notes, under_way
from spark_bookkeeper.replication.slow_notes import slowest_of
from spark_bookkeeper.spark import frames
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.lake import bytes_ledger


@pytest.mark.parametrize("job", ["this", None])
def test_a_task_notes_the_ledger_and_the_entry_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str | None
) -> None:
    ground = Ground(tmp_path / "cluster")
    monkeypatch.setattr(under_way, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(slow_notes, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(frames, "task_context", lambda *_: ground.context)
    is_noted, change = threading.Event(), slow_notes._change

    def change_and_tell(*arguments: Any) -> None:
        change(*arguments)
        is_noted.set()

    monkeypatch.setattr(slow_notes, "_change", change_and_tell)
    ledger, _ = ground.context.ledger(bytes_ledger(ground, entries=9))
    cuts = [EntryRange(ledger, EntryId(4), EntryId(8))]
    connection = cast(Any, None)  # which only ``task_context`` wants
    task = frames._read_task(connection, ledger.schema, cuts, {}, False, PLACE_COLUMNS, None, job)

    rows = task([pa.RecordBatch.from_pydict({"id": [0]})])
    first = next(rows)  # it is at its first piece until it is asked for more
    if job is not None:
        assert is_noted.wait(60)
        (slow,) = slowest_of(ground.context, job)
        assert slow.what == f"ledger {ledger.ledger_id} from entry 4"
    found = pa.Table.from_batches([first, *rows])

    assert found["_entry_id"].to_pylist() == [4, 5, 6, 7, 8]
    assert is_noted.is_set() == (job is not None), "nobody writes what nobody asks for"
    assert slowest_of(ground.context, "this") == []
