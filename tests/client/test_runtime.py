"""The real clock, dice and threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest
from typing_extensions import override

from spark_bookkeeper.client.runtime import Task, ThreadCondition, ThreadRuntime


def test_a_runtime_that_maps_in_turn_uses_no_other_thread() -> None:
    runtime = ThreadRuntime(map_width=1)

    threads = runtime.map(lambda _: threading.current_thread(), list(range(8)))

    assert set(threads) == {threading.current_thread()}


def test_ctrl_c_in_one_item_begins_no_other_and_is_not_lost_behind_an_error() -> None:
    main = threading.current_thread()
    both_begun = threading.Barrier(2, timeout=30)
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
        assert main_waits.wait(30)
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        Runtime().map(work, list(range(8)), 2)

    assert sorted(begun) == [0, 1]


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
