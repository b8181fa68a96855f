"""The real clock, dice and threads."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import pytest

from spark_bookkeeper.client.runtime import ThreadCondition, ThreadRuntime


def test_a_runtime_that_maps_in_turn_uses_no_other_thread() -> None:
    runtime = ThreadRuntime(map_width=1)

    threads = runtime.map(lambda _: threading.current_thread(), list(range(8)))

    assert set(threads) == {threading.current_thread()}


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
