"""Writers that nobody closed: those that are dropped, and those that are left at the end.

Python calls a finalizer in whichever thread happens to collect the garbage, perhaps in the middle
of a channel and with its lock held. So a finalizer here warns and puts the work into a queue, which
never waits; one thread of the process takes it from there.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, Protocol

EXIT_SECONDS: Final = 5.0
"""How long a process that ends without ``close`` waits for what is on its way, in all."""


class ClockAndThreads(Protocol):
    """What is wanted of a ``Runtime``, which itself names this module."""

    def now(self) -> float: ...

    def spawn(self, name: str, run: Callable[[], None]) -> object: ...


class PendingWork(Protocol):
    """What goes on beside its owner, and outlives it. Hashed by identity."""

    def is_pending(self) -> bool:
        """Whether something is on its way, or failed and nobody was told. Takes no lock."""

    def account(self) -> str | None:
        """What is certain now, in one sentence; ``None`` when there is nothing to say.

        Takes no lock.
        """

    def settle(self, seconds: float) -> None:
        """Wait until nothing is on its way, but no longer than this."""

    def wind_up(self, ended: Callable[[], None]) -> None:
        """Its owner is gone: carry out what is on its way, then end, and call ``ended``."""


def look_after(runtime: ClockAndThreads, owner: object, work: PendingWork) -> Callable[[], None]:
    """Have an eye on the work of an owner; returns what to call when it ended as it should."""
    _begin(runtime)
    _left.add(work)
    finalizer = weakref.finalize(owner, _drop, work)
    finalizer.atexit = False  # the end of the process looks at all of them at once

    def end() -> None:
        finalizer.detach()
        _left.discard(work)

    return end


_left: set[PendingWork] = set()
"""Work that was not ended."""

_dropped: SimpleQueue[PendingWork] = SimpleQueue()
"""Work whose owner is gone, for the thread that winds it up."""

_runtime: ClockAndThreads | None = None
"""That of the first writer; ``None`` before there is one, and so no thread."""


def _begin(runtime: ClockAndThreads) -> None:
    """Have the thread, and be the first to be called at the end.

    At the end the last is called first. Clients of ZooKeeper and clusters of this process, which
    go then too, were begun before the writers that need them.
    """
    global _runtime
    atexit.unregister(_end)
    atexit.register(_end)
    if _runtime is None:
        _runtime = runtime
        runtime.spawn("dropped-writers", _wind_up)


def _drop(work: PendingWork) -> None:
    """The finalizer of an owner."""
    if work not in _left:
        return  # its parent's, in a forked child
    account = work.account()
    _dropped.put(work)  # before the warning, which may be turned into an error
    if account is not None:
        warnings.warn(f"a writer was dropped without close(). {account}", ResourceWarning, 3)


def _wind_up() -> None:
    queue = _dropped
    while True:
        _wind_up_one(queue.get())


def _wind_up_one(work: PendingWork) -> None:
    """A function of its own, so that the thread keeps nothing while it waits for the next."""
    work.wind_up(lambda: _left.discard(work))


def _end() -> None:
    """The process ends: wait a moment, then say what is certain and what is not.

    Only what was on its way is told to everybody. What is acknowledged and merely not closed
    is a ``ResourceWarning``, as for a file that was not closed.
    """
    if _runtime is None:
        return
    left = [(work, work.is_pending()) for work in list(_left)]
    deadline = _runtime.now() + EXIT_SECONDS
    with suppress(KeyboardInterrupt):  # a second Ctrl-C: wait no longer
        for work, was_pending in left:
            if was_pending:
                work.settle(max(0.0, deadline - _runtime.now()))
    for work, was_pending in left:
        account = work.account()
        if account is None:
            continue
        text = f"the process ends without close() of a writer. {account}"
        if not was_pending:
            warnings.warn(text, ResourceWarning, 2)
        elif sys.stderr is not None:
            with suppress(OSError, ValueError):  # closed: then there is nobody to tell
                print(f"spark_bookkeeper: {text}", file=sys.stderr, flush=True)  # noqa: T201
    _left.clear()


def _forget() -> None:
    """A forked child: all of it is the parent's, and so is the thread."""
    global _dropped, _runtime
    _dropped, _runtime = SimpleQueue(), None
    _left.clear()


os.register_at_fork(after_in_child=_forget)
