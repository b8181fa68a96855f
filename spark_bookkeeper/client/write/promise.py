"""The future that ``append_async`` returns: it costs little and cannot be cancelled.

A ``Future`` makes its own condition and lists, and gets its own result; that takes longer than the
rest of an append. The futures of one writer are in entry order. So one number says which of them
are kept, and they all share one condition. Only watched futures (with a callback, or in
``concurrent.futures.wait``) are handled one by one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from heapq import heappop, heappush
from typing import Any, NoReturn

from typing_extensions import override

from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import NO_ENTRY
from spark_bookkeeper.runtime import process
from spark_bookkeeper.runtime.runtime import ThreadCondition

_log = logging.getLogger(__name__)


class Promises:
    """The results of one writer's appends, for their callers."""

    def __init__(self) -> None:
        self.condition = ThreadCondition(is_reentrant=True)
        """Guards the attributes; notified when they change. Re-entrant, as a future's own is."""
        self.kept_through: int = NO_ENTRY
        """Every promise up to this entry is kept."""
        self.error: BookKeeperError | None = None
        """Why the other promises are broken; every caller gets its own copy."""
        self.was_told = False
        """Whether some caller has looked at the error."""
        self.process = self.locks_in = process.here
        """The process that keeps the promises, and the one that ``condition`` belongs to."""
        self._watched: list[tuple[int, int, Promise]] = []
        """A heap by entry id, then by the order in which the promises were watched."""
        self._watches = 0

    def keep(
        self, through: int, error: BookKeeperError | None, due: deque[Promise] | None = None
    ) -> deque[Promise]:
        """Keep the promises up to an entry and, if there is an error, break all others.

        Args:
            due: promises whose callbacks are due already. If Ctrl-C interrupts the call, it has the
                results so far, and a second call does the rest.

        Returns:
            ``due`` and, behind it, the promises whose callbacks are due now, in entry order.
        """
        due = deque() if due is None else due
        with self.condition:
            # In this order: ``Promise`` reads both without the lock.
            self.kept_through = through
            self.error = error
            while self._watched and (error is not None or self._watched[0][0] <= through):
                # Ctrl-C may come between two lines. In this order, callbacks may then be called
                # twice; in the other order, they would never be called.
                due.append(self._watched[0][2])
                heappop(self._watched)
                due[-1].tell_waiters()
            self.condition.notify_all()
        return due

    def watch(self, promise: Promise) -> None:
        """Add a promise that is not resolved yet to those that ``keep`` handles."""
        self._watches += 1
        heappush(self._watched, (promise.entry_id, self._watches, promise))


class Promise(Future[int]):
    """The future of an append; works as any future does, also in ``concurrent.futures.wait``.

    It is running from the start, so ``cancel`` is refused: an append cannot be taken back.

    Args:
        promises: all those of its writer.
        entry_id: the last entry of the append, and the result.
    """

    def __init__(self, promises: Promises, entry_id: int) -> None:
        # This does not call the base class, which would cost too much. The properties below compute
        # its attributes on demand.
        self._promises = promises
        self.entry_id = entry_id

    _lists: tuple[list[Any], list[Callable[[Future[int]], object]]] | None = None
    """Waiters and callbacks; ``None`` until some may exist."""

    @override
    def result(self, timeout: float | None = None) -> int:
        if self.entry_id > self._promises.kept_through:
            self._await(timeout)
            return super().result(0)
        return self.entry_id

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return super().exception(0)

    @override
    def done(self) -> bool:
        return self._state is FINISHED

    def call(self) -> None:
        """Call the callbacks that were not called yet; log an ``Exception`` that they raise."""
        while self._done_callbacks:
            callback = self._done_callbacks.pop(0)
            try:
                callback(self)
            except Exception:  # noqa: BLE001  (whatever it was, the others are called)
                _log.exception("the callback of an append raised an error")

    def tell_waiters(self) -> None:
        """Notify waiting functions of ``concurrent.futures``; the condition is held."""
        for waiter in self._waiters:
            if self._exception is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)

    @override
    def __reduce__(self) -> NoReturn:
        process.refuse_pickling("future", "append there, or send what result() gives")

    def _await(self, timeout: float | None) -> None:
        """Wait for this promise. Others share the condition, so each wake-up checks it again."""
        if not self.done():
            with self._condition:
                self._condition.wait_for(self.done, timeout)

    def _get_state(self) -> str:
        is_broken = self._promises.error is not None  # read first: ``keep`` sets it last
        is_kept = self.entry_id <= self._promises.kept_through
        if is_kept or is_broken:
            return FINISHED
        process.check_here(
            self._promises.process,
            f"future of entry {self.entry_id}",
            "open its ledger and read what is there",
        )
        return RUNNING

    def _get_condition(self) -> ThreadCondition:
        promises = self._promises
        if promises.locks_in is not process.here and self.done():
            # The parent's may have been locked at the fork, by a thread that the child lacks.
            promises.condition = ThreadCondition(is_reentrant=True)
            promises.locks_in = process.here
        return promises.condition

    def _get_exception(self) -> BookKeeperError | None:
        error = self._promises.error
        if error is None or self.entry_id <= self._promises.kept_through:
            return None
        self._promises.was_told = True
        return error.again()  # not stored: its traceback refers to this promise

    # typeshed and mypy know these as plain attributes of a future.
    _condition: threading.Condition = property(_get_condition)  # type: ignore[assignment]
    _state: str = property(_get_state)  # type: ignore[assignment]
    _exception: BaseException | None = property(_get_exception)  # type: ignore[assignment]
    _result: int | None = property(lambda self: self.entry_id)  # type: ignore[assignment]
    _waiters: list[Any] = property(lambda self: self._watch()[0])  # type: ignore[assignment]
    _done_callbacks: list[Any] = property(lambda self: self._watch()[1])  # type: ignore[assignment]

    def _watch(self) -> tuple[list[Any], list[Callable[[Future[int]], object]]]:
        """Return the two lists of a future; the first call makes them and watches the promise."""
        with self._condition:
            if self._lists is None:
                self._lists = ([], [])
                if not self.done():
                    self._promises.watch(self)
            return self._lists
