"""What tasks count, on its way to the client whose work they do.

A task that returns results sends what it counted with them. One that returns rows to Spark has an
accumulator for it, which Spark brings to the driver when the task has succeeded; Spark Connect has
none, so there it is lost.
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
"""Called in a task with what it counted."""


class TaskCounts:
    """All that tasks have counted so far, in the process of the driver."""

    def __init__(self, metrics: Metrics) -> None:
        self._returned = Counter[str]()
        self._accumulators: dict[Any, Any] = {}
        """Of each Spark context."""
        metrics.include(self._all)

    def add(self, counts: Counts) -> None:
        """What came back with a task's results."""
        self._returned.update(counts)

    def accumulator(self, spark: SparkSession) -> Tell | None:
        """For tasks that return rows; ``None`` where Spark has none. Picklable to tasks."""
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
    """How Spark adds up what tasks counted."""

    def zero(self, value: dict[str, float]) -> dict[str, float]:
        return {}

    def addInPlace(  # noqa: N802  (the name that Spark calls)
        self, value1: dict[str, float], value2: dict[str, float]
    ) -> dict[str, float]:
        return {name: value1.get(name, 0) + value2.get(name, 0) for name in value1 | value2}


@contextmanager
def counted(metrics: Metrics, tell: Tell | None) -> Iterator[None]:
    """Tell what is counted meanwhile, also when it fails in the middle."""
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
