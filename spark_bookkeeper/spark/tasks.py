"""Numbered tasks of one Spark job, and what they answer.

A DataFrame is planned before it runs, and a Python worker prepares for rows. Together that costs
about twice the processor time of an RDD, before the tasks begin. Spark Connect has no RDDs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_bookkeeper.spark.job import Tasks, collect, is_connect, run_jobs

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

Answer = tuple[int, bytes]
"""A number that says what it is about, and a pickled value."""

Work = Callable[[int], Iterable[Answer]]
"""What the task of that number does. Picklable to tasks."""

_SCHEMA: Final = "number int, value binary"


def run_tasks(
    spark: SparkSession, count: int, work: Work, description: str, on_tasks: Tasks
) -> list[Answer]:
    """Run so many tasks as a job of that description; all that they answer, in their order.

    Args:
        on_tasks: as by ``run_jobs``.

    Raises what ``spark_errors`` names.
    """
    if is_connect(spark):
        frame = spark.range(0, count, 1, count).mapInArrow(_of_rows(work), _SCHEMA)
        return [(row.number, bytes(row.value)) for row in collect(frame, description, on_tasks)]

    def collected() -> list[Answer]:  # where Ctrl-C meets nobody who talks with the JVM
        tasks: RDD[Any] = spark.sparkContext.parallelize([], count)
        return tasks.mapPartitionsWithIndex(_of_partition(work)).collect()

    return run_jobs(spark, collected, description, on_tasks)


def _of_partition(work: Work) -> Callable[[int, Iterable[Any]], Iterable[Answer]]:
    def run(number: int, nothing: Iterable[Any]) -> Iterable[Answer]:
        for _ in nothing:  # read to its end, or Spark does not use this process again
            raise AssertionError("the partitions are empty")
        return work(number)

    return run


def _of_rows(work: Work) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for number, value in work(task):
                    columns = [pa.array([number], pa.int32()), pa.array([value], pa.binary())]
                    yield pa.RecordBatch.from_arrays(columns, names=["number", "value"])

    return run
