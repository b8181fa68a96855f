"""Which pieces of work are under way, and which of them take long compared with the others."""

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
"""What was begun less long ago is not slow."""

TIMES: Final = 4.0
"""What takes this many times as long as the median of those that have ended is slow."""

MOST_NAMED: Final = 3

_REMEMBERED: Final = 200
"""The median is taken over so many of those that have ended last."""


class Straggler(NamedTuple):
    """Something that takes long."""

    what: str
    seconds: float
    """Since it was begun."""


class RunningItems:
    """What one process is at. Any thread may begin and end work in it.

    It holds no lock: each of its changes is one operation of a ``dict`` or a ``deque``, and what
    it says is for people.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._numbers = count()
        self._begun: dict[int, tuple[float, int, Callable[[], str]]] = {}
        self._ended: deque[float] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def doing(self, what: Callable[[], str], items: int = 1) -> Iterator[None]:
        """Work that is done in the block.

        Args:
            what: its name, asked for only when it is slow.
            items: that are done together; each is taken to need its part of the time.
        """
        number, began = next(self._numbers), self._runtime.now()
        self._begun[number] = (began, items, what)
        try:
            yield
        finally:
            del self._begun[number]
            self._ended.append((self._runtime.now() - began) / items)

    def slowest(self) -> Sequence[Straggler]:
        """What has taken longest until now, the longest first; nothing while all goes as usual."""
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
    """What is slow, in words that follow the name of a phase; empty if nothing is."""
    named = " and ".join(f"{what} for {seconds:.0f} s" for what, seconds in slow)
    return f", slowest {named}" if named else ""


def name_of(
    ledger_id: LedgerId,
    first: EntryId | None = None,
    source: str | None = None,
    target: str | None = None,
) -> str:
    """What people call a piece of work.

    Args:
        first: the entry from which on; ``None``: the whole ledger.
        source: whose share it is.
        target: the bookie that it goes to.
    """
    return (
        f"ledger {ledger_id}"
        + ("" if first is None else f" from entry {first}")
        + (f" of {source}" if source else "")
        + (f" to {target}" if target else "")
    )


def with_others(name: str, others: int) -> str:
    """What people call several pieces of work that are done together, by the first of them."""
    return f"{name} and {others} other{'s' if others > 1 else ''} with it" if others else name
