"""The real clock, dice and threads."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest
from typing_extensions import override

from spark_bookkeeper.runtime.runtime import Task, ThreadCondition, ThreadRuntime


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


class Interrupted(ThreadRuntime):
    """Ctrl-C comes once in the main thread, while others work: as it waits for the others, or
    begins another."""

    def __init__(self, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.helpers: list[Task] = []
        self.came = threading.Event()
        outer, main = self, threading.current_thread()

        class Queue(queue.SimpleQueue[int]):
            taken = 0

            @override
            def get_nowait(self) -> int:
                if moment == "next" and threading.current_thread() is main:
                    self.taken += 1
                    if self.taken == 2:
                        outer.come()
                return super().get_nowait()

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

    with pytest.raises(KeyboardInterrupt):
        runtime.map(work, list(range(8)), 3)

    assert not any(helper.is_alive for helper in runtime.helpers)
    assert len(begun) <= most


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
