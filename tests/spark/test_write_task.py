"""What a task of a write does with its rows, in this process: no Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_bookkeeper.client import lifecycle, staging
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.spark import schemas, write_task
from spark_bookkeeper.testing.ground import Ground


class ThisTask:
    """What Spark would say of the task."""

    @staticmethod
    def partitionId() -> int:
        return 0


class Fits:
    """Counts how often rows, and how often columns, are fitted to a schema.

    Whoever casts an array, a batch or a table in Python comes through ``pyarrow.compute.cast``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches = self.columns = 0
        cast, converted = pc.cast, schemas._converted

        def count_column(*arguments: Any, **named: Any) -> Any:
            self.columns += 1
            return cast(*arguments, **named)

        def count_batch(*arguments: Any) -> pa.RecordBatch:
            self.batches += 1
            return converted(*arguments)

        monkeypatch.setattr(pc, "cast", count_column)
        monkeypatch.setattr(schemas, "_converted", count_batch)


def test_rows_are_fitted_to_the_ledgers_schema_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("name", pa.string())])
    plan = staging.stage(ground.context, Quorum(3, 3, 2), b"{}", schema=schema)
    batches = [
        pa.record_batch({"n": [n], "name": pa.array([f"row {n}"], pa.large_string())})
        for n in range(3)
    ]
    monkeypatch.setattr("pyspark.TaskContext.get", ThisTask)
    monkeypatch.setattr(write_task, "task_context", lambda *_: ground.context)
    fits = Fits(monkeypatch)
    connection: Any = None  # the cluster is that of ``ground``

    result = write_task.write_partition(connection, plan, batches)

    assert (fits.batches, fits.columns) == (3, 1 * 3), "one of two columns has another layout"
    pa.Table.from_batches(batches).cast(schema)
    assert fits.columns == 1 * 3 + 2, "a cast further down would have been seen"
    staging.seal(ground.context, plan, [result])
    reader = lifecycle.open_ledger(ground.context, LedgerId(plan.key.ledger_id))
    assert reader.read_arrow().equals(pa.Table.from_batches(batches).cast(schema))
