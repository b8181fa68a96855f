"""Where the time of one contender of ours goes: a sampler that looks at every thread.

Every few milliseconds the innermost function of this library, and what it was doing just then,
is noted for each thread. Threads that wait for work are left out. It sees this process only, so
replication work, which Spark's tasks do otherwise, is done in this process meanwhile.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.table import Table

LOOK_SECONDS = 0.002
SHOWN = 25

_IDLE = (
    "agent.py:",
    "auto_reset_event.py:wait",
    "connection.py:_read",
    "link.py:select",
    "local.py:_supervise",
    "profiling.py",
    "watchdog.py",
)
_NUMBERS = re.compile(r"[0-9]+")


class _Timed:
    """Whether what counts is going on just now, in lines that say so (``timed``)."""

    is_said = False
    is_on = False


@contextmanager
def timed() -> Iterator[None]:
    """What a line measures, as against what it prepares: only this is profiled."""
    _Timed.is_said = _Timed.is_on = True
    try:
        yield
    finally:
        _Timed.is_on = False


class Sampler:
    """Looks at all threads while it is entered."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str, str]] = Counter()
        """Thread, function of ours, innermost call: how often."""
        self.looks = 0
        self._ended = threading.Event()

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if _Timed.is_said and not _Timed.is_on:
                continue
            self.looks += 1
            names = {t.ident: _NUMBERS.sub("N", t.name) for t in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                place = _place(frame)
                if place is not None:
                    key = (names.get(ident, "?"), *place)
                    self.seen[key] += 1

    def show(self, console: Console, title: str) -> None:
        """The most frequent places; 100 % is one thread that was there all the time."""
        table = Table(title=title, title_justify="left")
        for heading in ("share", "thread", "in", "at"):
            table.add_column(heading, overflow="fold")
        for (thread, ours, inner), count in self.seen.most_common(SHOWN):
            table.add_row(f"{100 * count / max(1, self.looks):.0f} %", thread, ours, inner)
        console.print(table)


def _place(frame: FrameType) -> tuple[str, str] | None:
    """The innermost function of the library on a stack, and the innermost line of all."""
    inner = _called(frame)
    at: FrameType | None = frame
    while at is not None and "/spark_bookkeeper/" not in at.f_code.co_filename:
        at = at.f_back
    if at is None:
        return None
    ours = _called(at)
    if any(idle in ours or idle in inner for idle in _IDLE):
        return None
    return f"{ours}:{at.f_lineno}", f"{inner}:{frame.f_lineno}"


def _called(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_code.co_name}"


def profile(run: Callable[[], float], console: Console, title: str) -> None:
    """Run a contender once to warm up, then once under the sampler."""
    _Timed.is_said = False
    run()
    started = time.perf_counter()
    with Sampler() as sampler:
        figure = run()
    seconds = time.perf_counter() - started
    sampler.show(console, f"{title}: {figure:,.3g} in a run of {seconds:.1f} s")
