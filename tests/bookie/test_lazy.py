"""Values that are worked out when they are first asked for."""

from __future__ import annotations

import threading

from spark_bookkeeper.bookie.lazy import lazy
from spark_bookkeeper.runtime.runtime import ThreadRuntime


def test_it_is_computed_once() -> None:
    computed: list[int] = []

    class Index:
        @lazy
        def table(self) -> int:
            computed.append(1)
            return 7

    index = Index()

    assert (index.table, index.table) == (7, 7)
    assert len(computed) == 1


def test_threads_with_different_instances_do_not_wait_for_each_other() -> None:
    both = threading.Barrier(2, timeout=60)

    class Index:
        @lazy
        def table(self) -> int:
            return both.wait()  # ends when another computes as well

    indexes = [Index(), Index()]

    assert sorted(ThreadRuntime().map(lambda index: index.table, indexes)) == [0, 1]
