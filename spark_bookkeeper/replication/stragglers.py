"""The items that run now, and those that take long compared with the others."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final, NamedTuple

from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.runtime.runtime import Runtime

LEAST_SECONDS: Final = 10.0
"""An item that runs for less time is not slow."""

TIMES: Final = 4.0
"""An item is slow when it takes this many times the median of the ended items."""

MOST_NAMED: Final = 3

_REMEMBERED: Final = 200
"""The number of last ended items over which the median is taken."""


class Straggler(NamedTuple):
    """An item that takes long."""

    what: str
    seconds: float
    """The time since it began."""


class RunningItems:
    """The running items of one process. Any thread may begin and end items.

    It holds no lock: each of its changes is one operation of a ``dict`` or a ``deque``, and its
    results are for people only.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._numbers = count()
        self._begun: dict[int, tuple[float, int, Callable[[], str]]] = {}
        self._ended: deque[float] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def doing(self, what: Callable[[], str], items: int = 1) -> Iterator[None]:
        """Record an item, or a batch of items, as running during the block.

        Args:
            what: returns the name; called only when the work is slow.
            items: the size of the batch; each item is taken to need an equal part of the time.
        """
        number, began = next(self._numbers), self._runtime.now()
        self._begun[number] = (began, items, what)
        try:
            yield
        finally:
            del self._begun[number]
            self._ended.append((self._runtime.now() - began) / items)

    def slowest(self) -> Sequence[Straggler]:
        """Return the slow items that run longest, the longest first; empty while none is slow."""
        now = self._runtime.now()
        usual = statistics.median(self._ended.copy() or [0.0])
        slow = [
            (now - began, what)
            for began, items, what in self._begun.copy().values()
            if now - began > max(LEAST_SECONDS, TIMES * usual * items)
        ]
        slow.sort(key=lambda each: each[0], reverse=True)
        return [Straggler(what(), seconds) for seconds, what in slow[:MOST_NAMED]]


def said(slow: Sequence[Straggler]) -> str:
    """Return the slow items, as a suffix of a phase's name; empty if none is slow."""
    named = " and ".join(f"{what} for {seconds:.0f} s" for what, seconds in slow)
    return f", slowest {named}" if named else ""


def name_of(
    ledger_id: LedgerId,
    first: EntryId | None = None,
    source: str | None = None,
    target: str | None = None,
) -> str:
    """Return the name of an item in messages.

    Args:
        first: its first entry; ``None`` is the whole ledger.
        source: the bookie to which the share belongs.
        target: the bookie that gets the share.
    """
    return (
        f"ledger {ledger_id}"
        + ("" if first is None else f" from entry {first}")
        + (f" of {source}" if source else "")
        + (f" to {target}" if target else "")
    )


def with_others(name: str, others: int) -> str:
    """Return the name of a batch in messages: the name of its first item, and how many others."""
    return f"{name} and {others} other{'s' if others > 1 else ''} with it" if others else name
