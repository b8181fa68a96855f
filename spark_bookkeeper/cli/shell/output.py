"""The output of commands: tables for people or one JSON object for programs, and progress.

stdout has only the result; messages before it go to stderr. On a terminal progress is a bar,
elsewhere a line at least every ten seconds.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from uuid import UUID

from spark_bookkeeper.cli.shell.remedies import pasteable
from spark_bookkeeper.runtime.progress import Progress, shown
from spark_bookkeeper.secrecy import without_passwords

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


def open_closed_streams() -> None:
    """Open ``/dev/null`` for each of stdin, stdout and stderr that is closed at the start.

    A caller that closed them (``>&-``) wants no output, but the command should run. Otherwise a
    connection to the cluster could get one of their numbers, and other code would write into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            taken = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is ``number``
            os.set_inheritable(taken, True)  # otherwise a JVM's first file would get the number
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 - till the end
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def print_what_can_be_printed() -> None:
    """Make stdout print a question mark for each character that its encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


@dataclass(frozen=True)
class Output:
    """The output of a command, and its form."""

    is_json: bool = False
    typed: Sequence[str] = ()
    """The words of this command line. Suggested commands in messages repeat its options."""

    def result(self, value: Mapping[str, Any], show: Callable[[], None]) -> None:
        """Print the result: ``value`` as one JSON object, or ``show()`` for a person."""
        if self.is_json:
            self.json(value)
        else:
            show()

    def json(self, value: Any) -> None:
        """Print one JSON value on stdout."""
        text = _dumped(value, is_ascii=False) + "\n"
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # JSON can escape every character in plain ASCII
            text = _dumped(value, is_ascii=True) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()

    def line(self, row: bytes | Mapping[str, Any]) -> None:
        """Print a row on a line of its own, at once: bytes unchanged, other values as JSON."""
        if not isinstance(row, bytes):
            self.json(row)
        elif sys.stdout.isatty():  # which would obey control characters
            Output().say(str(cell(row)))  # without ``typed``, so that the row's text is not changed
        else:
            sys.stdout.buffer.write(row + b"\n")
            sys.stdout.flush()

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None
    ) -> None:
        """Print a table on stdout; numbers to the right, ``None`` as an empty cell.

        Square brackets in cells are text, not markup. If stdout is not a terminal, the table is as
        wide as its content, so that no cell is cut. In a terminal too narrow for the columns,
        each row is a block of lines, one for each cell.
        """
        from rich.cells import cell_len
        from rich.markup import escape
        from rich.table import Table

        rows, columns = [list(row) for row in rows], [plain(column) for column in columns]
        console = _stdout()
        texts = [["" if cell is None else plain(str(cell)) for cell in row] for row in rows]
        cells = [[column, *(row[n] for row in texts)] for n, column in enumerate(columns)]
        widths = [_least_width(each, n, cell_len) for n, each in enumerate(cells)]
        room = console.width - sum(widths) - 3 * len(widths) - 1
        if texts and room < 0:
            for line in _blocks(columns, texts, title):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        lacking = [max(map(cell_len, each)) - widths[n] for n, each in enumerate(cells)]
        for rank, n in enumerate(sorted(range(len(widths)), key=lacking.__getitem__)):
            more = max(0, min(lacking[n], room // (len(widths) - rank)))
            widths[n], room = widths[n] + more, room - more
        table = Table(title=title, title_justify="left", header_style="bold")
        for n, column in enumerate(columns):
            is_number = bool(rows) and all(_is_number(row[n]) for row in rows)
            justify: Literal["left", "right"] = "right" if is_number else "left"
            table.add_column(escape(column), justify=justify, overflow="fold", width=widths[n])
        for row in texts:
            table.add_row(*map(escape, row))
        console.print(table)

    def say(self, text: str) -> None:
        """Print a sentence for a person: on stdout, or on stderr if stdout has JSON."""
        console = _stderr() if self.is_json else _stdout()
        told = pasteable(text, self.typed)
        console.print(plain(told), markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a sentence on stderr: progress, a warning, or the next step."""
        told = without_passwords(pasteable(text, self.typed))
        _stderr().print(plain(told), markup=False, highlight=False, soft_wrap=True)

    def progress(
        self, what: str = "reading ledger metadata", total: float | None = None, unit: str = ""
    ) -> AbstractContextManager[Progress]:
        """Show the progress of ``what`` while the block runs (``runtime/progress.py``).

        Args:
            what: the work, in words for people ("copying fragments").
            total: the total of the counted things; ``None`` while it is unknown.
            unit: the counted things ("fragments", "MB").
        """
        return shown(what, total, unit)


def plain(text: str) -> str:
    """Escape the control characters of a text: names, labels and reasons may have some."""
    return text.translate(_CONTROLS)


_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that reverse the direction of the rest of a line."""

_CONTROLS: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *_DIRECTIONS)
    if chr(code) not in "\n\t"
}


def cell(value: Any) -> Any:
    """Return a value for people: bytes as text if they are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            shown = value[:48].hex()
            return f"0x{shown}{'...' if len(value) > 48 else ''}"
    return value


def number(value: int | None) -> str | None:
    """Return a number for people, with commas."""
    return None if value is None else f"{value:,}"


def gib(size_bytes: object) -> str | None:
    """Return bytes as GiB for people; ``None`` if the value is no number."""
    return f"{size_bytes / (1 << 30):,.1f}" if isinstance(size_bytes, int) else None


def text_of(label: bytes | None) -> str | None:
    """Return a label as text, cut to the length that a line shows."""
    from spark_bookkeeper.protocol.arguments import LABEL_CHARACTERS  # not for `--help`

    if label is None:
        return None
    text = label.decode("utf-8", "replace")
    return text if len(text) <= LABEL_CHARACTERS else f"{text[:LABEL_CHARACTERS]}..."


def _stdout() -> Console:
    """Return a console that fits the terminal, or one that never wraps if stdout is no terminal."""
    from rich.console import Console  # not for `--help` and `--version`, which print no table

    return Console() if sys.stdout.isatty() else Console(width=10_000)


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True)


_WHOLE_CHARACTERS: Final = 24
"""Words, keys of rows and states up to this length are not folded."""


def _least_width(cells: Sequence[str], index: int, cell_len: Callable[[str], int]) -> int:
    """Return the least readable width of a column; its name is the first cell."""
    is_key = index == 0 or cells[0] == "state"
    words = cells if is_key else [word for cell in cells for word in cell.split()]
    return min(max((1, *map(cell_len, words))), _WHOLE_CHARACTERS)


def _blocks(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None
) -> Iterator[str]:
    """Yield a line for each cell that is not empty, and an empty line between two rows."""
    if title is not None:
        yield title
    names = max(map(len, columns))
    for number, row in enumerate(rows):
        if number:
            yield ""
        for column, cell in zip(columns, row, strict=True):
            if cell:
                yield f"{column:<{names}}  {cell}"


def _is_number(cell: object) -> bool:
    return cell is None or (isinstance(cell, (int, float)) and not isinstance(cell, bool))


def _dumped(value: Any, *, is_ascii: bool) -> str:
    def dumped(value: Any) -> str:
        return json.dumps(value, default=_plain, ensure_ascii=is_ascii, allow_nan=False)

    try:
        return dumped(value)
    except ValueError:  # programs refuse JSON with NaN or infinity
        return dumped(_finite(json.loads(json.dumps(value, default=_plain))))


def _finite(value: Any) -> Any:
    """Replace infinite numbers and NaN by their names, as Spark writes them."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _plain(value: Any) -> Any:
    """Convert a value without a JSON form to the nearest value that has one."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (datetime, date, time)):
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
    if isinstance(value, (PurePath, BaseException, Decimal, timedelta, UUID)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON: {value!r}")
