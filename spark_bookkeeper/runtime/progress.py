"""The progress of some work, shown to the user who waits for it.

In a terminal and in a notebook it is a bar, elsewhere a line on stderr at least every ten seconds.
Both show bytes, rate and remaining time where these are known. Short work writes no lines.
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
"""Time between two lines of progress without a terminal: never more than ten seconds."""

SHOW_AFTER_S: Final = 1.0
"""Work that may end at once is shown as a bar, or counted piece by piece, after this time."""

SWITCH: Final = "SPARK_BOOKKEEPER_PROGRESS"
"""``off`` in this environment variable: calls from Python show no progress by themselves."""

_shown_now: Final[set[int]] = set()
"""Ids of the displays that are shown in this process now, to prevent a second one."""

T = TypeVar("T")


class Progress:
    """The progress of some work. ``set`` may be called from any thread."""

    def __init__(self, what: str, total: float | None) -> None:
        self.what = what
        self.total = total
        self.done: float = 0
        self.size_bytes = 0
        """Number of bytes copied or read; 0 where they are not counted."""
        self.started = time.monotonic()

    def set(self, done: float, total: float | None = None) -> None:
        """Set how much is done in all, and the total if it is known now."""
        self.done = done
        if total is not None:
            self.total = total

    def phase(self, what: str, done: float, total: float, size_bytes: int = 0) -> None:
        """Set the progress of one phase of a job; a phase of another name begins anew.

        The name of a phase ends at the first comma of ``what``; the rest names stragglers.

        Works as a ``replication.runner.Progress``: it can be passed to a job directly.
        """
        if what.partition(",")[0] != self.what.partition(",")[0]:
            self.begin(what)
        self.what = what
        self.size_bytes = size_bytes
        self.set(done, total)

    def begin(self, what: str) -> None:
        """Begin other work: nothing of it is done yet, and its rate is its own."""
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
    """Lines in a log: the first after ``LINE_INTERVAL_S``, so that short work writes none."""

    def __init__(self, what: str, total: float | None, unit: str = "") -> None:
        super().__init__(what, total)
        self._unit = f" {unit}" if unit else ""
        self._ended = Event()

    def __enter__(self) -> Lines:
        _shown_now.add(id(self))
        # A thread, since the work may be one long call (a Spark job), whose progress must be shown.
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
        """Return the line after ``seconds``: done, total, rate and time left, if they are known."""
        if not self.done and not self.total:  # unknown, or nothing to count
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
    """Return ``12.0 MB, 4.0 MB/s``; an empty text for 0 bytes."""
    if not size_bytes:
        return ""
    rate = f", {size_bytes / seconds / 1e6:,.1f} MB/s" if seconds > 0 else ""
    return f"{size_bytes / 1e6:,.1f} MB{rate}"


def shown(
    what: str, total: float | None = None, unit: str = ""
) -> AbstractContextManager[Progress]:
    """Return a context manager that shows the progress which its block reports to it.

    Args:
        what: the work, as users name it ("copying fragments").
        total: the amount of work; ``None`` while it is not known.
        unit: the counted things ("fragments"); only lines show it.
    """
    return Bar(what, total) if is_watched() else Lines(what, total, unit)


Told = Callable[[str, int, int, int], None]
"""Called with phase, done, total, bytes so far; ``replication.runner.Progress`` is the same."""


@contextmanager
def told(progress: Told | None, what: str) -> Iterator[Told]:
    """Yield the function that receives a call's progress: ``progress``, or that of a display.

    Args:
        progress: the caller's function; ``None`` shows the progress.
        what: the name of the work until its first report.
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
    """Whether progress that the caller did not request is switched off, or cannot be shown."""
    is_nowhere = getattr(sys.stderr, "closed", True)  # a program without stderr has ``None`` there
    return is_nowhere or os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false")


def watched(
    pieces: Iterable[T], what: str, total: int, unit: str, measure: Callable[[T], tuple[int, int]]
) -> Iterator[T]:
    """Yield the pieces as they come; show the progress if they take long.

    Args:
        total: the total of what ``measure`` counts.
        unit: the counted things, in the plural.
        measure: returns the count of a piece, and its bytes.
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
    if "ipykernel" not in sys.modules:  # so rich need not be imported
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter
