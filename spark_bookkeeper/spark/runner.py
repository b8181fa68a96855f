"""Replication work as Spark jobs: items go out, results come back.

Items are pickled values, and the work on them is a function of this package. Work waits for syncs
and for ZooKeeper far more than it computes, so every task works on several items at once.

A task costs Spark some 50 ms, whatever it does: as much as a dozen small ledgers. So a job has few
tasks, unless there is much to do.

A DataFrame is planned before it runs, and a Python worker prepares for rows. Both cost about twice
the processor time of an RDD. So jobs are RDDs, except on Spark Connect, which has none.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.connection import Connection
from spark_bookkeeper.metrics import Counts
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.runner import (
    Failure,
    Item,
    ItemT,
    Progress,
    ResultT,
    Runner,
    Step,
    carry_out_many,
)
from spark_bookkeeper.replication.stragglers import RunningItems, Straggler
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.spark.counts import Tell, counted
from spark_bookkeeper.spark.job import (
    Tasks,
    collect,
    first_line,
    is_connect,
    is_stopped,
    parallelism,
    run_jobs,
    spark_errors,
)
from spark_bookkeeper.spark.workers import seldom_collected, task_context

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

ITEMS_AT_ONCE: Final = 16
"""From this many items in one task on, each item does its steps one after the other: more threads
would only wait for each other. The configuration limits how many items run at once."""

ITEMS_PER_TASK: Final = 256
"""With more items there are more tasks than cores, so that progress is visible."""

BYTES_PER_TASK: Final = 1 << 30
"""With more bytes likewise, for items that know their size (``size_bytes``)."""

LARGE_BYTES: Final = 16 << 20
"""From this size on, an item is best done on a host that has its bytes."""

_OF_STOPPED: Final = "the Spark session was stopped, and its jobs with it"

_STOPPED: Final = Failure(
    f"{_OF_STOPPED}; connect() with one that runs, and run it again to do the rest",
    of_job=_OF_STOPPED,
)

_COUNTS: Final = -1
"""Takes the place of a pack's number for the counts of a task."""

_ANSWER_SCHEMA: Final = "number int, value binary"

_Answer = tuple[int, bytes]
"""The number of a pack, or ``_COUNTS``, and a pickled value."""

Wish = Counter[str]
"""The bytes that a task reads, by the host that has them."""

_Work = Callable[[int], Iterable[_Answer]]
"""The function of a job's tasks; it takes the task's number. Picklable to tasks."""


class SparkRunner(Runner):
    """Carries out items in the tasks of Spark jobs.

    Spark repeats an item whose task died; every step allows that. When a job fails for good, or the
    session was stopped, its items are ``left`` with the reason. Their finished work stays done, and
    running the same job again does the rest.

    Args:
        session: returns the Spark session. It is called when items are to be run: a wrong call then
            fails before Spark starts.
        connection: how tasks reach the cluster.
        job: its name; Spark's pages show it with the phase, ``recover_bookie: copying fragments``.
        on_counts: called with the counts of each task.
        hosts: returns the hosts of bookies; tasks on them read their files without a network.
    """

    is_elsewhere: Final = True

    def __init__(
        self,
        session: Callable[[], SparkSession],
        connection: Connection,
        job: str,
        on_counts: Tell = lambda counts: None,
        hosts: Callable[[], Mapping[BookieId, str]] = dict,
    ) -> None:
        self._hosts = hosts
        self._on_counts = on_counts
        self._session = session
        self._connection = connection
        self._job = job

    @cached_property
    def _spark(self) -> SparkSession:
        return self._session()

    @property
    @override
    def width(self) -> int:
        """How many items run at once, if Spark runs as many tasks as its default parallelism."""
        if is_stopped(self._spark):
            return 1
        return parallelism(self._spark) * self._connection.config.job_items_at_once

    @override
    def slowest(self) -> Sequence[Straggler]:
        return ()  # tasks report nothing before they end

    @override
    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        """Yield the results of all items.

        ``progress`` is called while the job runs, every few seconds, perhaps from another thread.

        Args:
            items: they travel in the closure of one job, which must stay small.
        """
        progress(step.phase, 0, len(items), 0)
        if not items:
            return
        of_items = _size_bytes(items)

        def on_tasks(tasks: int, of: int) -> None:
            share = tasks / of if of else 0
            # An estimate, until the results arrive.
            progress(step.phase, int(len(items) * share), len(items), int(of_items * share))

        found = self._run_job(step, items, on_tasks)
        progress(step.phase, len(items), len(items), sum(result.bytes for result in found))
        yield from found

    def _run_job(
        self,
        step: Step[ItemT, ResultT],
        items: Sequence[ItemT],
        on_tasks: Callable[[int, int], None],
    ) -> list[ResultT]:
        if is_stopped(self._spark):
            return [step.failed(item, _STOPPED) for item in items]
        cores = parallelism(self._spark)
        tasks = len(items) if step.is_computing else task_count(items, cores)
        hands = cut(items, tasks) if step.shares_with_neighbours else dealt(len(items), tasks)
        # One pickle for each pack: values that its items share, such as classes, travel once.
        packs = [[items[i] for i in numbers] for numbers in hands]
        work = _task(self._connection, [pickle.dumps(pack) for pack in packs], step)
        hosts = self._hosts()
        wishes = [wish_of(pack, hosts) for pack in packs]
        try:
            answers = run_tasks(self._spark, wishes, work, f"{self._job}: {step.phase}", on_tasks)
        except spark_errors() as error:
            if is_stopped(self._spark):
                return [step.failed(item, _STOPPED) for item in items]
            of_job = f"the Spark job failed: {first_line(error)}"
            failure = Failure(f"{of_job}; run it again to do the rest", of_job=of_job)
            return [step.failed(item, failure) for item in items]
        found: dict[int, Sequence[ResultT]] = {}
        for pack, answer in answers:
            told = pickle.loads(answer)
            if pack == _COUNTS:
                self._on_counts(told)
            else:
                found.update(zip(hands[pack], told, strict=True))
        return [result for number in range(len(items)) for result in found[number]]


def wish_of(items: Sequence[Item], hosts: Mapping[BookieId, str]) -> Wish:
    """Return the hosts that have a task's bytes. Small items are left out: any host is as fast."""
    wish: Wish = Counter()
    for item in (each for each in items if each.size_bytes >= LARGE_BYTES):
        found = [hosts[b] for b in getattr(item, "sources", ()) if b in hosts]
        wish.update(dict.fromkeys(found, item.size_bytes))
    return wish


def preferred(wishes: Sequence[Wish], executors: Counter[str]) -> list[str]:
    """Return a host for each task, or ``""``.

    Spark lets a task wait some seconds for its host (``spark.locality.wait``), and in local mode
    for ever. So only hosts of executors are returned, and none for more than its part of the tasks.
    """
    room = Counter({h: -(-len(wishes) * n // executors.total()) for h, n in executors.items()})
    chosen: list[str] = []
    for wish in wishes:
        chosen.append(next((host for host, _ in wish.most_common() if room[host] > 0), ""))
        room[chosen[-1]] -= 1
    return chosen


def task_count(items: Sequence[Item], cores: int) -> int:
    """Return the number of tasks for these items: one for each core; more only where it pays.

    Many small items get the same number of tasks for each core, or some would idle at the end.
    """
    by_count = len(items) // (ITEMS_PER_TASK * cores) * cores
    by_size = _size_bytes(items) // BYTES_PER_TASK
    return min(len(items), max(cores, by_count, by_size))


def dealt(items: int, tasks: int) -> list[range]:
    """Return the numbers of the items of each task, assigned in turn: the first items are the
    urgent ones, and every task begins with some of them.
    """
    return [range(first, items, tasks) for first in range(tasks)]


def cut(items: Sequence[Item], tasks: int) -> list[range]:
    """Return the numbers of each task's items: neighbours in one task, about as much work for each.

    An item counts as its bytes and a fixed part, as in ``task_count``. Where one large item is as
    much as the share of several tasks, there are fewer tasks.
    """
    each = BYTES_PER_TASK // ITEMS_PER_TASK
    total = sum(item.size_bytes + each for item in items)
    ends = [0] * tasks
    before = 0
    for number, item in enumerate(items):
        size = item.size_bytes + each
        task = (2 * before + size) * tasks // (2 * total)  # that of the item's middle
        ends[task] = number + 1
        before += size
    cuts = pairwise([0, *accumulate(ends, max)])
    return [range(start, end) for start, end in cuts if start < end]


def _size_bytes(items: Sequence[Item]) -> int:
    """Return the approximate size of all items; unknown sizes count as 0."""
    return sum(item.size_bytes for item in items)


def _task(connection: Connection, packs: Sequence[bytes], step: Step[Any, Any]) -> _Work:
    """Return the function of a job's tasks: it carries out the items of the pack of its number."""

    def work(pack: int) -> Iterator[_Answer]:
        context = task_context(connection)
        told: list[Counts] = []
        at_once = connection.config.job_items_at_once
        items = pickle.loads(packs[pack])
        inside = context
        if len(items) >= ITEMS_AT_ONCE:
            inside = replace(context, runtime=ThreadRuntime(map_width=1))
        with seldom_collected(), counted(context.metrics, told.append):
            under_way = RunningItems(context.runtime)  # not read in a task
            results = carry_out_many(
                step, inside, items, at_once, under_way, runtime=context.runtime
            )
        yield pack, pickle.dumps(results)
        yield _COUNTS, pickle.dumps(told[0])

    return work


def run_tasks(
    spark: SparkSession, wishes: Sequence[Wish], work: _Work, description: str, on_tasks: Tasks
) -> list[_Answer]:
    """Run a task for each wish, as a job of that description; return all answers, in task order.

    Args:
        wishes: the preferred hosts of each task. Spark Connect ignores them.
        on_tasks: as by ``run_jobs``.

    Raises the errors that ``spark_errors`` returns.
    """
    count = len(wishes)
    if is_connect(spark):
        frame = spark.range(0, count, 1, count).mapInArrow(_of_rows(work), _ANSWER_SCHEMA)
        return [(row.number, bytes(row.value)) for row in collect(frame, description, on_tasks)]

    def collected() -> list[_Answer]:  # in a thread where Ctrl-C interrupts no call of the JVM
        tasks: RDD[Any] = spark.sparkContext.parallelize([], count)
        if any(wishes):
            with suppress(*spark_errors()):  # such calls may be forbidden: prefer no host then
                if any(hosts := preferred(wishes, executor_hosts(tasks.context))):
                    tasks = located(tasks, hosts)
        return tasks.mapPartitionsWithIndex(_of_partition(work)).collect()

    return run_jobs(spark, collected, description, on_tasks)


def executor_hosts(context: Any) -> Counter[str]:
    """Return the number of executors on each host, under Spark's own names of hosts."""
    listed = context._jsc.sc().getExecutorMemoryStatus().keys().mkString(",")  # noqa: SLF001
    driver = Counter([context.getConf().get("spark.driver.host")])  # the driver is listed, too
    return Counter(each.rpartition(":")[0] for each in listed.split(",")) - driver


def located(tasks: RDD[Any], hosts: Sequence[str]) -> RDD[Any]:
    """Return the same tasks with preferred hosts, which pyspark has no method for."""
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    context: Any = tasks.context
    seq, row = context._jvm.PythonUtils.toSeq, context._jvm.scala.Tuple2  # noqa: SLF001
    rows = {host: row(b"", seq([host] if host else [])) for host in {*hosts}}  # a JVM call each
    made = context._jsc.sc().makeRDD(seq([rows[h] for h in hosts]), tasks._jrdd.classTag())  # noqa: SLF001
    return RDD(made.toJavaRDD(), context, NoOpSerializer())


def _of_partition(work: _Work) -> Callable[[int, Iterable[Any]], Iterable[_Answer]]:
    def run(number: int, nothing: Iterable[Any]) -> Iterable[_Answer]:
        for _ in nothing:  # read to its end, or Spark does not use this process again
            pass
        return work(number)

    return run


def _of_rows(work: _Work) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for number, value in work(task):
                    columns = [pa.array([number], pa.int32()), pa.array([value], pa.binary())]
                    yield pa.RecordBatch.from_arrays(columns, names=["number", "value"])

    return run
