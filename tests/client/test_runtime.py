"""The real clock, dice and threads."""

from __future__ import annotations

import threading

from spark_bookkeeper.client.runtime import ThreadRuntime


def test_a_runtime_that_maps_in_turn_uses_no_other_thread() -> None:
    runtime = ThreadRuntime(map_width=1)

    threads = runtime.map(lambda _: threading.current_thread(), list(range(8)))

    assert set(threads) == {threading.current_thread()}
