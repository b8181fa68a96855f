"""How far some work has come, shown to who waits for it.

In a terminal and in a notebook it is a bar, elsewhere a line on stderr at least every ten seconds,
both with bytes, rate and time left where they are known. Short work says nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread, Timer
from typing import Any, Final, TypeVar

LINE_INTERVAL_S: Final = 9.0
"""Between two lines of progress where there is no terminal: never more than ten seconds."""

SHOW_AFTER_S: Final = 1.0
"""What may be over at once is shown as a bar, or counted piece by piece, after so long."""

SWITCH: Final = "SPARK_BOOKKEEPER_PROGRESS"
"""``off`` in this variable of the environment: calls from Python show nothing by themselves."""

_shown_now: Final[set[int]] = set()
"""What is shown at this moment in this process, so that nothing is shown within it or beside it."""

T = TypeVar("T")


class Progress:
    """How far some work has come. ``set`` may be called from any thread."""

    def __init__(self, what: str, total: float | None) -> None:
        self.what = what
        self.total = total
        self.done: float = 0
        self.size_bytes = 0
        """How much of it was copied or read; 0 where nobody counts."""
        self.started = time.monotonic()

    def set(self, done: float, total: float | None = None) -> None:
        """``done`` in all is done, of ``total`` when that is known now."""
        self.done = done
        if total is not None:
            self.total = total

    def phase(self, what: str, done: float, total: float, size_bytes: int = 0) -> None:
        """How far one phase of a job has come; a phase of another name begins anew.

        What is behind the first comma of ``what`` is no part of the name: who is waited for.

        A ``replication.runner.Progress``: give it to a job as it is.
        """
        if what.partition(",")[0] != self.what.partition(",")[0]:
            self.begin(what)
        self.what = what
        self.size_bytes = size_bytes
        self.set(done, total)

    def begin(self, what: str) -> None:
        """Other work follows: nothing of it is done yet, and its rate is its own."""
        self.what = what
        self.done = 0
        self.total = None
        self.size_bytes = 0
        self.started = time.monotonic()


class Bar(Progress):
    """A bar in a terminal or a notebook; use it in ``with``. Short work shows none.

    One for each listing would flicker, and take longer than many a listing does.
    """

    _bar: Any = None
    """None until it is shown."""

    def __enter__(self) -> Bar:
        _shown_now.add(id(self))
        self._timer = Timer(SHOW_AFTER_S - (time.monotonic() - self.started), self._show)
        self._timer.daemon = True
        self._timer.start()
        return self

    def _show(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._escape = escape
        bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[size]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            # Else what others print would go to stderr.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._task = bar.add_task(escape(self.what), total=self.total, size="")
        bar.start()
        self._bar = bar
        self._draw()  # what came meanwhile

    def __exit__(self, *_: object) -> None:
        _shown_now.discard(id(self))
        self._timer.cancel()
        self._timer.join()
        if self._bar is not None:
            self._bar.stop()

    def begin(self, what: str) -> None:
        super().begin(what)
        if self._bar is not None:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(self._escape(what), total=None, size="")

    def set(self, done: float, total: float | None = None) -> None:
        super().set(done, total)
        self._draw()

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task,
                description=self._escape(self.what),
                completed=self.done,
                total=self.total,
                size=size_text(self.size_bytes, time.monotonic() - self.started),
            )


class Lines(Progress):
    """Lines in a log: the first after ``LINE_INTERVAL_S``, so that short work says nothing."""

    def __init__(self, what: str, total: float | None, unit: str = "") -> None:
        super().__init__(what, total)
        self._unit = f" {unit}" if unit else ""
        self._ended = Event()

    def __enter__(self) -> Lines:
        _shown_now.add(id(self))
        # A thread, because the work may sit in one long call (a Spark job) and still must be seen.
        self._speaker = Thread(target=self._speak, name="progress", daemon=True)
        self._speaker.start()
        return self

    def __exit__(self, *_: object) -> None:
        _shown_now.discard(id(self))
        self._ended.set()
        self._speaker.join()

    def _speak(self) -> None:
        while not self._ended.wait(LINE_INTERVAL_S):
            sys.stderr.write(self.line(time.monotonic() - self.started) + "\n")
            sys.stderr.flush()

    def line(self, seconds: float) -> str:
        """How far it is after ``seconds``: done, total, rate and time left where they are known."""
        if not self.done and not self.total:  # not known, or nothing to count
            return f"{self.what}: {seconds:.0f} s so far"
        total = "" if self.total is None else f" of {self.total:,.0f}"
        text = f"{self.what}: {self.done:,.0f}{total}{self._unit} after {seconds:.0f} s"
        if self.done and seconds > 0:
            rate = self.done / seconds
            if self.size_bytes:
                text += f", {size_text(self.size_bytes, seconds)}"
            text += f", {rate:,.1f}{self._unit}/s"
            if self.total is not None and self.total > self.done:
                text += f", about {(self.total - self.done) / rate:,.0f} s left"
        return text


def size_text(size_bytes: int, seconds: float) -> str:
    """``12.0 MB, 4.0 MB/s``; nothing of nothing."""
    if not size_bytes:
        return ""
    rate = f", {size_bytes / seconds / 1e6:,.1f} MB/s" if seconds > 0 else ""
    return f"{size_bytes / 1e6:,.1f} MB{rate}"


def shown(
    what: str, total: float | None = None, unit: str = ""
) -> AbstractContextManager[Progress]:
    """Something to tell how far the work in the block has come, and that shows it.

    Args:
        what: the work, as a person would name it ("copying fragments").
        total: how much there is to do; ``None`` while that is not known.
        unit: of what is counted ("fragments"); for lines.
    """
    return Bar(what, total) if is_watched() else Lines(what, total, unit)


Told = Callable[[str, int, int, int], None]
"""Called with phase, done, total, bytes so far; ``replication.runner.Progress`` is the same."""


@contextmanager
def told(progress: Told | None, what: str) -> Iterator[Told]:
    """Who is told how far a call from Python is: ``progress``, or nobody but who looks.

    Args:
        progress: what the caller gave; ``None`` shows it.
        what: the name of the work before it says one.
    """
    if progress is not None:
        yield progress
        return
    if is_switched_off() or _shown_now:
        yield lambda phase, done, total, size_bytes: None
        return
    with shown(what) as display:
        yield display.phase


def is_switched_off() -> bool:
    """Whether nothing is to be shown that was not asked for, or there is nowhere to show it."""
    is_nowhere = getattr(sys.stderr, "closed", True)  # a program without stderr has ``None`` there
    return is_nowhere or os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false")


def watched(
    pieces: Iterable[T], what: str, total: int, unit: str, measure: Callable[[T], tuple[int, int]]
) -> Iterator[T]:
    """The pieces as they come; when they take their time, it is shown how far they are.

    Args:
        total: of what ``measure`` counts.
        unit: what that is, in the plural.
        measure: how much of that a piece is, and its bytes.
    """
    if is_switched_off():
        yield from pieces
        return
    began = time.monotonic()
    done = size = 0
    show: Any = None
    try:
        for piece in pieces:
            count, piece_bytes = measure(piece)
            done, size = done + count, size + piece_bytes
            if show is None and not _shown_now and time.monotonic() - began > SHOW_AFTER_S:
                show = shown(what, total, unit)
                show.started = began
                show.__enter__()
            if show is not None:
                show.phase(what, done, total, size)
            yield piece
    finally:
        if show is not None:
            show.__exit__(None, None, None)


def is_watched() -> bool:
    """Whether stderr is a terminal that can erase a line, or this is a notebook."""
    if sys.stderr.isatty():
        return os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    if "ipykernel" not in sys.modules:  # and rich need not be asked
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter
