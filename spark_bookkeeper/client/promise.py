"""What a caller of ``append_async`` holds: a future that costs little and cannot be cancelled.

A ``Future`` makes a condition of its own, which takes longer than all else that an append does.
The futures of one writer share one instead, and a group of them is resolved under it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import NamedTuple

from typing_extensions import override

from spark_bookkeeper.errors import BookKeeperError


class Promise(Future[int]):
    """Works as any future does, also in ``concurrent.futures.wait``.

    It is running from the start, so ``cancel`` is refused: an append cannot be taken back.

    Args:
        shared: the condition of its writer's promises (re-entrant, as a future's own is).
    """

    def __init__(self, shared: threading.Condition) -> None:
        # Not the base class's, which is what is to be saved: the same attributes, one shared.
        self._condition = shared
        self._state = RUNNING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[int]], object]] = []

    @override
    def result(self, timeout: float | None = None) -> int:
        self._await(timeout)
        return super().result(0)

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        """Others share the condition, so being woken does not mean that this one is resolved."""
        if self._state is not FINISHED:
            with self._condition:
                self._condition.wait_for(lambda: self._state is FINISHED, timeout)


class Resolved(NamedTuple):
    """How a promise ends: with an entry id, or with an error."""

    promise: Promise
    error: BookKeeperError | None
    entry_id: int


def shared_condition() -> threading.Condition:
    """For the promises of one writer."""
    return threading.Condition()


def resolve(shared: threading.Condition, resolved: Iterable[Resolved]) -> None:
    """Resolve promises of one writer all at once, then call who asked to be called, in order."""
    called = []
    with shared:
        for promise, error, entry_id in resolved:
            assert promise._state is RUNNING, "a promise is resolved once"  # noqa: SLF001
            promise._exception = error  # noqa: SLF001  (all of these: the same module)
            promise._result = None if error is not None else entry_id  # noqa: SLF001
            promise._state = FINISHED  # noqa: SLF001
            for waiter in promise._waiters:  # noqa: SLF001
                if error is None:
                    waiter.add_result(promise)
                else:
                    waiter.add_exception(promise)
            if promise._done_callbacks:  # noqa: SLF001
                called.append(promise)
        shared.notify_all()
    for promise in called:
        promise._invoke_callbacks()  # type: ignore[attr-defined]  # noqa: SLF001  (typeshed omits it)
