"""What commands print: tables for people or one JSON object for programs, and progress.

stdout holds the result and nothing else; everything said on the way goes to stderr. On a
terminal progress is a bar, elsewhere a line at least every ten seconds.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, datetime
from enum import Enum
from pathlib import PurePath
from threading import Event, Thread
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spark_bookkeeper.replication.bar import bar_on, move

T = TypeVar("T")

LINE_INTERVAL_S: Final = 9.0
"""Between two lines of progress where there is no terminal: never more than ten seconds."""


def print_what_can_be_printed() -> None:
    """From here on, stdout shows a question mark for what its encoding has no character for."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


@dataclass(frozen=True)
class Output:
    """Where a command says things, and for whom."""

    is_json: bool = False

    def result(self, value: Mapping[str, Any], show: Callable[[], None]) -> None:
        """Print the result: ``value`` as one JSON object, or ``show()`` for a person."""
        if self.is_json:
            self.json(value)
        else:
            show()

    def json(self, value: Any) -> None:
        """Print one JSON value on stdout."""
        text = json.dumps(value, default=_plain, ensure_ascii=False) + "\n"
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # JSON has a form for every character in plain ASCII
            text = json.dumps(value, default=_plain) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        title: str | None = None,
    ) -> None:
        """Print a table on stdout; numbers to the right, ``None`` as an empty cell.

        Cells are text as it stands: square brackets in them are not markup. Where stdout is not
        a terminal, the table is as wide as it needs to be, so that no cell is cut.
        """
        rows = [list(row) for row in rows]
        table = Table(title=title, title_justify="left", header_style="bold")
        for index, column in enumerate(columns):
            is_number = bool(rows) and all(_is_number(row[index]) for row in rows)
            table.add_column(column, justify="right" if is_number else "left", overflow="fold")
        for row in rows:
            table.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
        _stdout().print(table)

    def say(self, text: str) -> None:
        """Print a sentence for a person: on stdout, or on stderr beside JSON."""
        console = Console(stderr=True, soft_wrap=True) if self.is_json else _stdout()
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a sentence on stderr: a step on the way, a warning, what to do next."""
        Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: float | None = None, unit: str = "") -> Iterator[Progress]:
        """Show how far ``what`` has come while the block runs.

        Args:
            what: the work, as a person would name it ("copying fragments").
            total: how much there is to do; ``None`` while that is not known.
            unit: of what is counted ("fragments", "MB").
        """
        if sys.stderr.isatty():
            with _Bar(what, total) as bar:
                yield bar
        else:
            with _Lines(what, total, unit) as lines:
                yield lines


class Progress:
    """How far some work has come. ``advance`` and ``set`` may be called from any thread."""

    def __init__(self, what: str, total: float | None) -> None:
        self.what = what
        self.total = total
        self.done: float = 0
        self.size_bytes = 0
        """How much of it was copied or read; 0 where nobody counts."""

    def advance(self, count: float = 1) -> None:
        """``count`` more is done."""
        self.set(self.done + count)

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


class _Bar(Progress):
    """A bar on a terminal."""

    def __enter__(self) -> _Bar:
        self._bar = bar_on(Console(stderr=True))
        self._task = self._bar.add_task(escape(self.what), total=self.total)
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        super().begin(what)
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(escape(what), total=None)

    def set(self, done: float, total: float | None = None) -> None:
        super().set(done, total)
        move(self._bar, self._task, self.what, self.done, self.total, self.size_bytes)


class _Lines(Progress):
    """Lines in a log: the first after ``LINE_INTERVAL_S``, so that short work says nothing."""

    def __init__(self, what: str, total: float | None, unit: str) -> None:
        super().__init__(what, total)
        self._unit = f" {unit}" if unit else ""
        self._ended = Event()

    def __enter__(self) -> _Lines:
        self._started = time.monotonic()
        # A thread, because the work may sit in one long call (a Spark job) and still must be seen.
        self._speaker = Thread(target=self._speak, name="progress", daemon=True)
        self._speaker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._speaker.join()

    def begin(self, what: str) -> None:
        super().begin(what)
        self._started = time.monotonic()

    def _speak(self) -> None:
        while not self._ended.wait(LINE_INTERVAL_S):
            sys.stderr.write(self.line(time.monotonic() - self._started) + "\n")
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
                text += f", {self.size_bytes / seconds / 1e6:,.1f} MB/s"
            text += f", {rate:,.1f}{self._unit}/s"
            if self.total is not None and self.total > self.done:
                text += f", about {(self.total - self.done) / rate:,.0f} s left"
        return text


def text_of(label: bytes | None) -> str | None:
    """A label as text."""
    return None if label is None else label.decode("utf-8", "replace")


def _stdout() -> Console:
    """A console that fits the terminal, or never wraps when stdout is not one."""
    return Console() if sys.stdout.isatty() else Console(width=10_000)


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, (int, float)) and not isinstance(cell, bool))


def _plain(value: Any) -> Any:
    """What JSON has no form for, as the nearest thing that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (PurePath, BaseException)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON: {value!r}")
