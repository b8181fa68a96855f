"""Replication work as Spark jobs: items go out, rows come back.

Items are pickled values, and what to do with them is a function of this package. Work waits for
syncs and for ZooKeeper far more than it computes, so every task does several items side by side.

A task costs Spark some 50 ms, whatever it does: as much as a dozen small ledgers. So there are
few, unless there is much to do.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.runner import Item, Progress, Runner, Work, carry_out, left
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.spark.job import collect, first_line, parallelism, spark_errors
from spark_bookkeeper.spark.workers import task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITEMS_AT_ONCE: Final = 16
"""Within one task. With so many, what an item could do side by side it does in turn: more threads
would only wait for each other."""

ITEMS_PER_JOB: Final = 4096
"""The items of a job travel in its closure, which must stay small."""

ITEMS_PER_TASK: Final = 256
"""With more items there are more tasks than cores, so that progress can be seen."""

BYTES_PER_TASK: Final = 256 << 20
"""The same for items that say how large they are (``size_bytes``)."""

RESULT_SCHEMA: Final = "item int, rows binary"


class SparkRunner(Runner):
    """Runs work over items in the tasks of Spark jobs.

    An item whose task died is run again by Spark, as every piece of work allows. When a job
    fails in the end, its items are ``left`` with the reason: what they did is done, and running
    the same again does the rest.

    Args:
        session: gives the Spark session, when there is something to run and not before; a wrong
            call is refused in less time than Spark needs to start.
        job: named in Spark's pages together with the phase, ``recover_bookie: copying fragments``.
    """

    def __init__(
        self, session: Callable[[], SparkSession], connection: Connection, job: str
    ) -> None:
        self._session = session
        self._connection = connection
        self._job = job

    @cached_property
    def _spark(self) -> SparkSession:
        return self._session()

    @property
    @override
    def width(self) -> int:
        """As many as there are when no more tasks run at once than Spark's default parallelism."""
        return parallelism(self._spark) * ITEMS_AT_ONCE

    @override
    def run(
        self, phase: str, items: Sequence[Item], work: Work[Item], progress: Progress
    ) -> Iterator[Row]:
        """The rows of all items.

        ``progress`` is called while a job runs, every few seconds, perhaps from another thread.
        """
        done = size = 0
        progress(phase, 0, len(items), 0)
        for start in range(0, len(items), ITEMS_PER_JOB):
            some = items[start : start + ITEMS_PER_JOB]
            before = done, size, _size_bytes(some)

            def on_tasks(
                tasks: int, of: int, before: tuple[int, int, int] = before, count: int = len(some)
            ) -> None:
                share = tasks / of if of else 0
                progress(
                    phase,
                    before[0] + int(count * share),
                    len(items),
                    before[1] + int(before[2] * share),  # about, until the rows are there
                )

            found = self._run_job(phase, some, work, on_tasks)
            done += len(some)
            size += sum(row.bytes for row in found)
            progress(phase, done, len(items), size)
            yield from found

    def _run_job(
        self,
        phase: str,
        items: Sequence[Item],
        work: Work[Item],
        on_tasks: Callable[[int, int], None],
    ) -> list[Row]:
        tasks = task_count(items, parallelism(self._spark))
        packs = [
            [(i, pickle.dumps(items[i])) for i in numbers] for numbers in dealt(len(items), tasks)
        ]
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(
            _task(self._connection, packs, work), RESULT_SCHEMA
        )
        try:
            collected = collect(frame, f"{self._job}: {phase}", on_tasks)
        except spark_errors() as error:
            reason = f"the Spark job failed: {first_line(error)}; run it again to do the rest"
            return [left(item, reason) for item in items]
        found: list[Row] = []
        for answer in sorted(collected, key=lambda answer: answer.item):
            found += pickle.loads(bytes(answer.rows))
        return found


def task_count(items: Sequence[Any], cores: int) -> int:
    """How many tasks share these items: one for each core, and more only where it pays."""
    by_size = _size_bytes(items) // BYTES_PER_TASK
    return min(len(items), max(cores, len(items) // ITEMS_PER_TASK, by_size))


def dealt(items: int, tasks: int) -> list[range]:
    """The numbers of the items of each task, dealt out in turn: the first items are the urgent
    ones, and every task begins with some of them.
    """
    return [range(first, items, tasks) for first in range(tasks)]


def _size_bytes(items: Sequence[Any]) -> int:
    """About, of those that say it."""
    return sum(getattr(item, "size_bytes", 0) for item in items)


def _task(
    connection: Connection, packs: Sequence[Sequence[tuple[int, bytes]]], work: Work[Any]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does: its rows are the numbers of the packs to work on."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = task_context(connection)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                pack = list(packs[number])
                inside = context
                if len(pack) >= ITEMS_AT_ONCE:
                    inside = replace(context, runtime=ThreadRuntime(map_width=1))
                rows = context.runtime.map(
                    partial(_pickled, work, inside),
                    pack,
                    ITEMS_AT_ONCE,
                )
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([index for index, _ in pack], pa.int32()),
                        pa.array(rows, pa.binary()),
                    ],
                    names=["item", "rows"],
                )

    return run


def _pickled(work: Work[Any], context: ClientContext, pair: tuple[int, bytes]) -> bytes:
    return pickle.dumps(carry_out(work, context, pickle.loads(pair[1])))
