"""How one Spark task writes its rows, for ``append`` and for the data source alike."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pyarrow as pa

from spark_bookkeeper.client.write.bulk import BulkPlan, TaskResult, write_task
from spark_bookkeeper.client.write.list_offsets import batch_with_list_offsets
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.spark.schemas import relabelled
from spark_bookkeeper.spark.workers import task_context


def write_partition(
    connection: Connection, plan: BulkPlan, batches: Iterable[pa.RecordBatch]
) -> TaskResult:
    """Write the rows of this task's partition to part files on the bookies of a plan.

    Only results that reach the driver count: an attempt that failed, or lost a race against a
    speculative copy of itself, has written files under names that nothing lists (R15).

    Raises:
        BookieUnavailableError: some part is stored nowhere.
        InvalidArgumentError: a value does not fit the ledger's schema.
    """
    from pyspark import TaskContext

    here = TaskContext.get()
    assert here is not None, "runs in a Spark task"
    number = here.partitionId()
    context = task_context(connection, {bookie: uri for _, bookie, _, uri in plan.targets})
    filled = (
        relabelled(batch_with_list_offsets(b), plan.encoding.schema) for b in batches if b.num_rows
    )
    first = next(filled, None)
    if first is None:
        return TaskResult(number, 0, ())
    return write_task(plan, chain([first], filled), number, context)
