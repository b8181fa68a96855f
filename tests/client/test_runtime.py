"""The real clock, dice and threads."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest
from typing_extensions import override

from spark_bookkeeper.runtime.runtime import Task, ThreadCondition, ThreadRuntime
from tests.support.interrupts import functions_of


def test_a_runtime_that_maps_in_turn_uses_no_other_thread() -> None:
    runtime = ThreadRuntime(map_width=1)

    threads = runtime.map(lambda _: threading.current_thread(), list(range(8)))

    assert set(threads) == {threading.current_thread()}


def test_ctrl_c_in_one_item_begins_no_other_and_is_not_lost_behind_an_error() -> None:
    main = threading.current_thread()
    both_begun = threading.Barrier(2, timeout=60)
    main_waits = threading.Event()
    begun: list[int] = []

    class Helper:
        is_alive = True

        def __init__(self, task: Task) -> None:
            self._task = task

        def join(self, timeout: float | None = None) -> None:
            main_waits.set()
            self._task.join(timeout)

    class Runtime(ThreadRuntime):
        @override
        def spawn(self, name: str, run: Callable[[], None]) -> Task:
            return Helper(super().spawn(name, run))

    def work(item: int) -> None:
        begun.append(item)
        both_begun.wait()
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        assert main_waits.wait(60)
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        Runtime().map(work, list(range(8)), 2)

    assert sorted(begun) == [0, 1]


def test_a_task_is_waited_for_also_after_ctrl_c_met_who_waited_for_it() -> None:
    main = threading.current_thread()
    goes_on = threading.Event()

    def work() -> None:
        while "join" not in functions_of(main):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        goes_on.wait(60)

    task = ThreadRuntime().spawn("task", work)
    with pytest.raises(KeyboardInterrupt):
        task.join()

    assert task.is_alive
    task.join(0)
    assert task.is_alive
    goes_on.set()
    task.join()
    assert not task.is_alive


class Interrupted(ThreadRuntime):
    """Ctrl-C comes once in the main thread, while others work: as it waits for the others, or
    begins another."""

    def __init__(self, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.helpers: list[Task] = []
        self.came = threading.Event()
        self.drained = threading.Event()
        """The main thread has seen that no item is left to begin."""
        outer, main = self, threading.current_thread()

        class Queue(queue.SimpleQueue[int]):
            taken = 0

            @override
            def get_nowait(self) -> int:
                if moment == "next" and threading.current_thread() is main:
                    self.taken += 1
                    if self.taken == 2:
                        outer.come()
                try:
                    return super().get_nowait()
                except queue.Empty:
                    if threading.current_thread() is main:
                        outer.drained.set()
                    raise

        monkeypatch.setattr(queue, "SimpleQueue", Queue)
        self.moment = moment

    def come(self) -> None:
        if not self.came.is_set():
            self.came.set()
            raise KeyboardInterrupt

    @override
    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        if self.moment == "spawn" and self.helpers:
            self.come()
        outer, task = self, super().spawn(name, run)

        class Helper:
            is_alive = property(lambda _: task.is_alive)

            def join(self, timeout: float | None = None) -> None:
                if outer.moment == "join":
                    outer.come()
                task.join(timeout)

        self.helpers.append(Helper())
        return self.helpers[-1]


@pytest.mark.parametrize(("moment", "most"), [("spawn", 1), ("next", 3), ("join", 8)])
def test_ctrl_c_between_items_begins_no_other_and_waits_for_those_that_run(
    monkeypatch: pytest.MonkeyPatch, moment: str, most: int
) -> None:
    main = threading.current_thread()
    runtime = Interrupted(moment, monkeypatch)
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        if threading.current_thread() is not main:
            assert runtime.came.wait(60)
            assert runtime.drained.wait(60)

    with pytest.raises(KeyboardInterrupt):
        runtime.map(work, list(range(8)), 3)

    assert not any(helper.is_alive for helper in runtime.helpers)
    assert len(begun) <= most


def test_a_task_whose_join_was_cut_by_ctrl_c_has_not_ended() -> None:
    """For Python before 3.13 a thread has, as soon as Ctrl-C meets who joins it."""
    main, may_end = threading.current_thread(), threading.Event()

    def run() -> None:
        while "join" not in functions_of(main):
            assert not may_end.wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        assert may_end.wait(60)

    task = ThreadRuntime().spawn("at-work", run)
    with pytest.raises(KeyboardInterrupt):
        task.join()

    assert task.is_alive
    task.join(0.01)
    assert task.is_alive
    may_end.set()
    task.join()
    assert not task.is_alive


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_no_interrupt_can_come_between_taking_the_lock_and_the_block_behind_with(
    is_reentrant: bool,
) -> None:
    condition = ThreadCondition(is_reentrant=is_reentrant)
    python_calls: list[str] = []

    def noted(frame: FrameType, event: str, _: object) -> None:
        if event == "call":  # where Python looks for signals, after the lock was taken
            python_calls.append(frame.f_code.co_name)

    sys.setprofile(noted)
    try:
        with condition:
            pass
    finally:
        sys.setprofile(None)

    assert python_calls == []
