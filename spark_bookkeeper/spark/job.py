"""One Spark job while it runs: its name on Spark's pages, and its progress.

Spark Connect has no job groups and no status tracker. There the name is a tag, and the server sends
the progress of an operation.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_bookkeeper.runtime.progress import is_switched_off, told
from spark_bookkeeper.spark.waiting import wait_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

LOOK_SECONDS: Final = 2.0
"""Wait between two queries of a job's progress."""

Tasks = Callable[[int, int], None]
"""Called with tasks done and tasks in all; both are 0 where Spark does not report them."""

T = TypeVar("T")

_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"


def is_connect(spark: Any) -> bool:
    """Whether a session (or a DataFrame) is one of Spark Connect."""
    return any(".connect." in cls.__module__ for cls in type(spark).__mro__)


def is_stopped(spark: Any) -> bool:
    """Whether a session was stopped, so that it runs no job any more."""
    if is_connect(spark):
        return bool(spark.is_stopped)
    return spark.sparkContext._jsc is None  # noqa: SLF001  (pyspark itself asks nothing else)


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once, as far as Spark reports it."""
    if not is_connect(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    said = spark.conf.get("spark.default.parallelism", None)
    return int(said) if said else 8


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the error classes of Spark: its own, and those for JVM errors not translated.

    A function, so that pyspark is not imported where no job runs.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def first_line(error: Exception) -> str:
    """Return the message of a Spark error, without the stack traces that follow it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if not line.startswith("An error occurred while")), None)
    return (told or type(error).__name__).removeprefix(": ")


_CANCELLED: Final = re.compile(r"\bSPARK_JOB_CANCELLED\b|\bOPERATION_CANCELED\b")


def is_cancelled(error: Exception) -> bool:
    """Whether a user cancelled the job that ended with this error: by its group, by its tag, or on
    Spark's pages.
    """
    return _CANCELLED.search(str(error)) is not None


_STOPPED: Final = re.compile(
    r": (java\.lang\.InterruptedException|java\.io\.InterruptedIOException"
    r"|java\.nio\.channels\.ClosedByInterruptException)\b"
    r"|[^\n]*part of cancelled job group[^\n]*"
)
"""The texts by which Spark itself recognises the error of a stopped stream."""


def shortened(error: Exception) -> Exception | None:
    """Return the error of an interrupted job without its stack; ``None`` for any other error.

    Stopping a query of ``foreachBatch`` interrupts the thread in which its job runs. Spark then
    searches the text of the function's error with a regular expression
    (``StreamExecution.PROXY_ERROR``), which needs some stack for every character after the words
    ``Py4JJavaError: An error occurred while calling``. The stack trace in py4j's own text is too
    long for it: the stream ends with a ``StackOverflowError`` instead of being stopped.
    """
    from py4j.protocol import Py4JJavaError

    if not isinstance(error, Py4JJavaError):
        return None
    found = _STOPPED.search(str(error))
    if found is None:
        return None
    said = found[0].strip()

    class Interrupted(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
        def __str__(self) -> str:
            return f"{self.errmsg}{said}" if said.startswith(":") else f"{self.errmsg}: {said}"

    # Spark searches for this name, and programs know the error by it.
    Interrupted.__module__, Interrupted.__qualname__ = "py4j.protocol", "Py4JJavaError"
    return Interrupted(error.errmsg, error.java_exception)


def collect(frame: DataFrame, description: str, on_tasks: Tasks | None = None) -> list[Row]:
    """Run a DataFrame as a job of that description and return its rows; see ``run_jobs``."""
    return run_jobs(frame.sparkSession, frame.collect, description, on_tasks)


def run_jobs(
    spark: SparkSession, work: Callable[[], T], description: str, on_tasks: Tasks | None = None
) -> T:
    """Run a function whose Spark jobs get that description; return its result, or raise its error.

    Ctrl-C cancels these jobs, and no others, before it becomes a ``KeyboardInterrupt``.

    Args:
        on_tasks: called every few seconds, perhaps from another thread, until the function ends.
    """
    tag = f"spark-bookkeeper-{uuid.uuid4().hex}"

    def run() -> T:
        with _described(spark, description, tag) as group:
            if on_tasks is None:
                return work()
            with _told(spark, on_tasks) if is_connect(spark) else _watched(spark, group, on_tasks):
                return work()

    def cancel() -> None:
        if is_connect(spark):
            spark.interruptTag(tag)
        else:
            spark.sparkContext.cancelJobsWithTag(tag)

    try:
        return wait_apart(run, cancel, partial(_job_thread, spark))
    except Exception as error:
        short = shortened(error)
        if short is None:
            raise
        raise short from None


def _job_thread(spark: SparkSession, run: Callable[[], None]) -> threading.Thread:
    """Return a thread whose jobs inherit this thread's settings: a pool, a group, tags."""
    from pyspark import InheritableThread

    session = spark if is_connect(spark) else None
    return InheritableThread(run, session=session, name="spark-bookkeeper-job", daemon=True)


@contextmanager
def _described(spark: SparkSession, description: str, tag: str) -> Iterator[str]:
    """Name and tag the jobs of this thread; restore its earlier settings at the end.

    Yields the group of the jobs; on Spark Connect, which has no groups, the tag.
    """
    if is_connect(spark):
        spark.addTag(tag)
        try:
            yield tag
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = {key: context.getLocalProperty(key) for key in (_GROUP, _DESCRIPTION)}
    # An existing group belongs to a program that may want to cancel it, for example a notebook.
    group = before[_GROUP] or tag
    context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_DESCRIPTION, description)
    context.addJobTag(tag)
    try:
        yield group
    finally:
        context.removeJobTag(tag)
        for key, value in before.items():
            context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None unsets it


@contextmanager
def _told(spark: Any, on_tasks: Tasks) -> Iterator[None]:
    """Handle the progress events that Spark Connect sends in the thread that waits for the job."""
    waiting = threading.get_ident()

    def handle(stages: Iterable[Any] | None, **_: Any) -> None:
        known = list(stages or ())
        if known and threading.get_ident() == waiting:
            last = max(known, key=lambda stage: stage.stage_id)
            on_tasks(last.num_completed_tasks, last.num_tasks)

    spark.registerProgressHandler(handle)
    try:
        yield
    finally:
        spark.removeProgressHandler(handle)


@contextmanager
def _watched(spark: SparkSession, group: str, on_tasks: Tasks) -> Iterator[None]:
    ended = threading.Event()
    earlier = set(_jobs(spark, group))

    def watch() -> None:
        while not ended.wait(LOOK_SECONDS):
            on_tasks(*_tasks(spark, group, earlier))

    watcher = threading.Thread(target=watch, name="spark-bookkeeper-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(LOOK_SECONDS)


def _jobs(spark: SparkSession, group: str) -> list[int]:
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def _tasks(spark: SparkSession, group: str, earlier: set[int]) -> tuple[int, int]:
    """Return the tasks done and all tasks of the last stage, which does our work."""
    new = [job for job in _jobs(spark, group) if job not in earlier]
    if not new:
        return 0, 0
    tracker = spark.sparkContext.statusTracker()
    info = tracker.getJobInfo(max(new))
    stages = [] if info is None else [tracker.getStageInfo(stage) for stage in info.stageIds]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return 0, 0
    last = max(known, key=lambda stage: stage.stageId)
    return last.numCompletedTasks, last.numTasks


@contextmanager
def task_bar(what: str) -> Iterator[Tasks | None]:
    """Show the progress of a job while it runs: as a bar, or as lines where no bar can be seen."""
    if is_switched_off():
        yield None
        return
    counted = f"{what}, tasks"
    with told(None, counted) as tell:

        def on_tasks(done: int, total: int) -> None:
            if total:
                tell(counted, done, total, 0)

        yield on_tasks
