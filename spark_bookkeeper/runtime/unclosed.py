"""Writers without a call of ``close``: dropped ones, and those left when the process ends.

Python calls a finalizer in any thread that happens to collect garbage, perhaps in the middle of a
channel and with its lock held. So a finalizer here warns and puts the work into a queue, which
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
"""How long a process that ends without ``close`` waits in all for pending entries."""


class ClockAndThreads(Protocol):
    """The methods of a ``Runtime`` that this module needs; ``runtime.py`` imports this module."""

    def now(self) -> float: ...

    def spawn(self, name: str, run: Callable[[], None]) -> object: ...


class PendingWork(Protocol):
    """Background work that outlives its owner. Hashed by identity."""

    def is_pending(self) -> bool:
        """Whether entries are pending, or failed without an error to a caller. Takes no lock."""

    def account(self) -> str | None:
        """Return what is certain now, in one sentence; ``None`` if nothing needs to be said.

        Takes no lock.
        """

    def settle(self, seconds: float) -> None:
        """Wait until nothing is pending, but no longer than this."""

    def wind_up(self, ended: Callable[[], None]) -> None:
        """Complete the pending entries of a dropped owner, then end, and call ``ended``."""


def look_after(runtime: ClockAndThreads, owner: object, work: PendingWork) -> Callable[[], None]:
    """Watch the work of an owner; return the function to call when it has ended as it should."""
    _begin(runtime)
    _left.add(work)
    finalizer = weakref.finalize(owner, _drop, work)
    finalizer.atexit = False  # ``_end`` handles all of them at the end of the process

    def end() -> None:
        finalizer.detach()
        _left.discard(work)

    return end


_left: set[PendingWork] = set()
"""Work that has not ended."""

_dropped: SimpleQueue[PendingWork] = SimpleQueue()
"""Work whose owner was dropped, for the thread that completes it."""

_runtime: ClockAndThreads | None = None
"""That of the first writer; ``None`` before one exists, so that no thread exists either."""


def _begin(runtime: ClockAndThreads) -> None:
    """Start the thread, and make ``_end`` the first function to be called at exit.

    Python calls exit functions in reverse order. ZooKeeper clients and clusters of this process,
    which end then too, were created before the writers that need them.
    """
    global _runtime
    atexit.unregister(_end)
    atexit.register(_end)
    if _runtime is None:
        _runtime = runtime
        runtime.spawn("dropped-writers", _wind_up)


def _drop(work: PendingWork) -> None:
    """Finalize an owner."""
    if work not in _left:
        return  # belongs to the parent of a forked child
    account = work.account()
    _dropped.put(work)  # before the warning, which may be turned into an error
    if account is not None:
        warnings.warn(f"a writer was dropped without close(). {account}", ResourceWarning, 3)


def _wind_up() -> None:
    queue = _dropped
    while True:
        _wind_up_one(queue.get())


def _wind_up_one(work: PendingWork) -> None:
    """Complete one work. A function, so that the thread keeps no reference while it waits."""
    work.wind_up(lambda: _left.discard(work))


def _end() -> None:
    """At the end of the process, wait a moment, and then report what is certain.

    Only pending entries are reported to every user, on stderr. A writer with all entries
    acknowledged that was merely not closed causes a ``ResourceWarning``, as an unclosed file does.
    """
    if _runtime is None:
        return
    left = [(work, work.is_pending()) for work in list(_left)]
    deadline = _runtime.now() + EXIT_SECONDS
    with suppress(KeyboardInterrupt):  # a second Ctrl-C ends the wait
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
            with suppress(OSError, ValueError):  # closed: the text cannot be written
                print(f"spark_bookkeeper: {text}", file=sys.stderr, flush=True)  # noqa: T201
    _left.clear()


def _forget() -> None:
    """In a forked child, forget all: the work and the thread belong to the parent."""
    global _dropped, _runtime
    _dropped, _runtime = SimpleQueue(), None
    _left.clear()


os.register_at_fork(after_in_child=_forget)
