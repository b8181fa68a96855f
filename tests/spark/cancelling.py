"""Jobs that somebody does not want any more: Ctrl-C, and cancelling as on Spark's pages."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that will hold."""
    deadline = time.monotonic() + 300.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def interrupt_when(holds: Callable[[], bool]) -> threading.Thread:
    """Press Ctrl-C in this process as soon as something holds."""

    def press() -> None:
        until(holds)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def active_tasks(spark: Any) -> int:
    """How many run now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


@contextmanager
def cancelled_from_elsewhere(
    spark: Any, when: Callable[[], bool] = lambda: True, group: str | None = None
) -> Iterator[None]:
    """As by the link on Spark's page, as soon as a task runs, until the block has ended.

    Args:
        when: and not before this holds.
        group: only the jobs of this group; ``None`` is all.
    """
    ended = threading.Event()

    def cancel() -> None:
        until(lambda: ended.is_set() or (when() and active_tasks(spark) > 0))
        is_over = ended.is_set()
        while not is_over:  # the first job of several may be one that is tried again
            if group is None:
                spark.sparkContext.cancelAllJobs()
            else:
                spark.sparkContext.cancelJobGroup(group)
            is_over = ended.wait(0.1)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    until(lambda: active_tasks(spark) == 0)
