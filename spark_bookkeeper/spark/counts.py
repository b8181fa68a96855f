"""How metrics that tasks count reach the client whose work they do.

A task that returns results returns its counts with them. A task that returns rows to Spark adds its
counts to an accumulator, which Spark sends to the driver when the task has succeeded. Spark Connect
has no accumulators: there these counts are lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from spark_bookkeeper.metrics import Counts, Metrics
from spark_bookkeeper.spark.job import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[Counts], None]
"""Called in a task with its counts."""


class TaskCounts:
    """The sum of all counts of tasks so far, in the driver's process."""

    def __init__(self, metrics: Metrics) -> None:
        self._returned = Counter[str]()
        self._accumulators: dict[Any, Any] = {}
        """The accumulator of each Spark context."""
        metrics.include(self._all)

    def add(self, counts: Counts) -> None:
        """Add counts that came back with a task's results."""
        self._returned.update(counts)

    def accumulator(self, spark: SparkSession) -> Tell | None:
        """Return a picklable accumulator for tasks with rows; ``None`` on Spark Connect."""
        if is_connect(spark):
            return None
        context = spark.sparkContext
        found = self._accumulators.get(context)
        if found is None:
            found = self._accumulators[context] = context.accumulator({}, cast("Any", _Sums()))
        return _Adding(found)

    def _all(self) -> Counts:
        everything = Counter(self._returned)
        for accumulator in self._accumulators.values():
            everything.update(accumulator.value)
        return everything


class _Adding:
    def __init__(self, accumulator: Any) -> None:
        self._accumulator = accumulator

    def __call__(self, counts: Counts) -> None:
        self._accumulator.add(dict(counts))


class _Sums:
    """Defines for Spark how to add up counts."""

    def zero(self, value: dict[str, float]) -> dict[str, float]:
        return {}

    def addInPlace(  # noqa: N802  (the name that Spark calls)
        self, value1: dict[str, float], value2: dict[str, float]
    ) -> dict[str, float]:
        return {name: value1.get(name, 0) + value2.get(name, 0) for name in value1 | value2}


@contextmanager
def counted(metrics: Metrics, tell: Tell | None) -> Iterator[None]:
    """Pass the counts of the block to ``tell``, also when the block raises."""
    if tell is None:
        yield
        return
    before = metrics.counts()
    try:
        yield
    finally:
        now = metrics.counts()
        grown = {name: value - before.get(name, 0) for name, value in now.items()}
        tell({name: value for name, value in grown.items() if value})
