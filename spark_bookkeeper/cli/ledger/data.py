"""``spark-bookkeeper ledger append | read``: copy files and lines to a ledger, and back."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click
import pyarrow as pa
import pyarrow.parquet

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA
from spark_bookkeeper.cli.ledger.creation import create_ledger, new_ledger_options, password_option
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.output import Output, cell
from spark_bookkeeper.cli.shell.parameters import (
    LedgerType,
    Time,
    WholeNumber,
    refuse_both,
    time_of,
    time_range_options,
)
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings, begun
from spark_bookkeeper.cli.shell.writers import about_writer
from spark_bookkeeper.client.read.reader import Entry, LedgerReader
from spark_bookkeeper.client.write.columns import check_schema
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError, UnauthorizedError
from spark_bookkeeper.runtime.progress import Progress

if TYPE_CHECKING:
    from spark_bookkeeper.logs.writer import LogWriter

TABLE_BYTES: Final = 64 << 20
"""Approximate bytes of a file's rows in one append."""

_ROWS_AT_ONCE: Final = 1_000
"""Rows of an entry that become Python values at once: a wide entry of 8 MiB takes a second."""

_PARQUET: Final = frozenset({".parquet", ".pq"})
_ARROW: Final = frozenset({".arrow", ".feather", ".ipc"})


@click.command(
    epilog="Example: spark-bookkeeper ledger append flights.parquet --name flights; "
    "journalctl | spark-bookkeeper ledger append -"
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--as",
    "form",
    type=click.Choice(["lines", "bytes", "rows"]),
    help="One entry for each line, one for each file, or the rows of Parquet and Arrow files. "
    " [default: rows for .parquet, .arrow, .feather, .ipc, else lines]",
)
@new_ledger_options
@click.option("--leave-open", is_flag=True, help="Do not close it: as after a writer's crash.")
@click.option("--acks", is_flag=True, help="Also who acknowledged what, of the last slots.")
@access_options
@click.pass_obj
def append(
    settings: Settings,
    access: Access,
    files: Sequence[str],
    form: str | None,
    wish: Mapping[str, Any],
    leave_open: bool,
    acks: bool,
) -> int:
    """Create a ledger, append every FILE to it in order, and close it. "-" is stdin.

    A ledger has one writer for all its life, so nothing can be appended to it later; append to a
    new one.
    """
    kind = _kind_of(files, form)
    check_readable(files)
    schema = _schema_of_all(files) if kind == "rows" else None
    table: pa.Table | None = None
    with connected(settings, access) as bk:
        writer = create_ledger(bk, wish, schema)
        bookies = ", ".join(writer.metadata.last_fragment.ensemble)
        settings.output.note(f"ledger {writer.ledger_id} on {bookies}")
        with begun(), _abandoned_on_trouble(settings, writer):
            with settings.output.progress("appending rows", unit="rows") as progress:
                for name in files:
                    append_file(writer, name, kind, progress)
                writer.flush()
            table = writer.acks_arrow() if acks else None
            if leave_open:
                writer.abandon()
            else:
                writer.close()
    value: dict[str, Any] = {
        "ledger_id": writer.ledger_id,
        "state": "OPEN" if leave_open else "CLOSED",
        "last_entry_id": writer.last_add_confirmed,
        "length_bytes": writer.length_bytes,
        "fragments": len(writer.metadata.fragments),
    }
    if table is not None:
        value["acks"] = table.to_pylist()

    def show() -> None:
        if table is not None:
            settings.output.table(table.column_names, [list(r.values()) for r in table.to_pylist()])
        settings.output.say(
            f"ledger {writer.ledger_id}: {writer.last_add_confirmed + 1:,} entries, "
            f"{writer.length_bytes:,} bytes, every one acknowledged; the ledger is "
            f"{value['state']}. Read it: spark-bookkeeper ledger read {writer.ledger_id}"
        )

    settings.output.result(value, show)
    return EXIT_DONE


def _kind_of(files: Sequence[str], form: str | None) -> str:
    """Return the form in which all files are appended."""
    forms = {form or form_of(name) for name in files}
    if len(forms) > 1:
        raise InvalidArgumentError(
            "rows and lines cannot go into one ledger: it has one schema; give --as"
        )
    return forms.pop()


def _schema_of_all(files: Sequence[str]) -> pa.Schema:
    """Return the common columns. Refuse a file with other columns before any file is appended."""
    schema = schema_of_file(files[0])
    for name in files[1:]:
        others = schema_of_file(name)
        try:
            check_schema(others, schema)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name} after {files[0]}: {error.message}") from error
    return schema


@contextmanager
def _abandoned_on_trouble(settings: Settings, writer: LedgerWriter) -> Iterator[None]:
    """Leave the ledger open after an error, and print up to which entry it is acknowledged."""
    try:
        yield
    except BaseException:
        writer.abandon()
        settings.output.note(
            f"ledger {writer.ledger_id} is acknowledged up to entry "
            f"{writer.last_add_confirmed} and not closed; "
            f"`spark-bookkeeper ledger recover {writer.ledger_id}` closes it"
        )
        raise


@click.command(
    epilog="Example: spark-bookkeeper ledger read 7 --start 0 --end 100 --output rows.parquet; "
    "spark-bookkeeper ledger read 7 --follow | grep ERROR"
)
@click.argument("ledger_id", type=LedgerType(), metavar="LEDGER")
@click.option(
    "--start", "--first", "first", type=WholeNumber(min=0), help="First entry.  [default: 0]"
)
@click.option("--end", type=WholeNumber(min=1), help="Stop before it.  [default: after the last]")
@click.option("--last", type=WholeNumber(min=0), help="Last entry, included, instead of --end.")
@time_range_options
@click.option("--limit", type=WholeNumber(min=0), help="So many rows.  [default: 20 on screen]")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, allow_dash=True),
    help='A .parquet or .arrow file; "-" is stdout, with lines as in a pipe.',
)
@click.option("--follow", is_flag=True, help="Go on with what is appended, until it is closed.")
@click.option("--recover", is_flag=True, help="Fence, recover and close it first, if it is open.")
@click.option("--unconfirmed", is_flag=True, help="Only what is behind the last add confirmed.")
@password_option
@access_options
@click.pass_obj
def read(
    settings: Settings,
    access: Access,
    ledger_id: int,
    first: int | None,
    end: int | None,
    last: int | None,
    start_time: Time | None,
    end_time: Time | None,
    limit: int | None,
    output: Path | None,
    follow: bool,
    recover: bool,
    unconfirmed: bool,
    password: str,
) -> int:
    """Print the rows of a ledger, or write them to a file. Every byte is verified.

    A terminal shows a table. A pipe gets a line for each row, as soon as it is read: bytes as they
    are, other rows as JSON objects. Bytes with a line feed are several lines, in a file one row.

    A ledger that is still open is read up to what is known to be acknowledged, and its writer
    is not disturbed, unless --recover is given.
    """
    is_stdout = str(output) == "-"
    is_cut = any(given is not None for given in (end, last, start_time, end_time))
    if follow and is_cut:
        raise InvalidArgumentError("--follow reads to the end: leave out --end, --last and times")
    if unconfirmed and (is_cut or follow or recover or first is not None):
        raise InvalidArgumentError("--unconfirmed goes with no range, --follow or --recover")
    if (follow or is_stdout) and (settings.output.is_json or not (output is None or is_stdout)):
        raise InvalidArgumentError("--follow and --output - print lines: no file, and no --json")
    refuse_both(("--start", first), ("--start-time", start_time))
    refuse_both(("--end", end), ("--last", last))
    last = last if end is None else end - 1
    refuse_both(("--end or --last", last), ("--end-time", end_time))
    if output is not None and not is_stdout:
        _check_output(output)
    with connected(settings, access) as bk:
        opener = bk.open_ledger if recover else bk.open_ledger_no_recovery
        try:
            reader = opener(ledger_id, password.encode())
        except UnauthorizedError as error:
            raise UnauthorizedError(
                f"the password given for ledger {ledger_id} is not its own; nothing was read or "
                "changed. Give --password, or set SPARK_BOOKKEEPER_PASSWORD"
                if password
                else f"ledger {ledger_id} has a password; nothing was read or changed. Give "
                "--password, or set SPARK_BOOKKEEPER_PASSWORD",
                ledger_id=ledger_id,
            ) from error
        if not reader.is_closed:
            about = about_writer(reader.writer, reader.writer_state())
            what = "until it is" if follow else f"up to entry {reader.last_add_confirmed}"
            if unconfirmed:
                what = f"what is behind entry {reader.last_add_confirmed}, acknowledged or not"
            settings.output.note(
                f"ledger {ledger_id} is not closed: reading {what}; {about}; --recover fences its "
                "writer and reads all of it"
            )
        now_ms = bk.context.runtime.wall_ms()
        since, until = time_of(start_time, now_ms), time_of(end_time, now_ms)
        if follow:
            entries = reader.tail(first=first or 0)
        elif unconfirmed:
            entries = reader.read_unconfirmed()
        else:
            entries = reader.entries(first or 0, last, start_time=since, end_time=until)
        if output is not None and not is_stdout:
            begin = None if unconfirmed or since else first or 0  # otherwise reading shows it
            return _read_to_file(settings, reader, entries, begin, limit, output)
        key = unlike("unconfirmed_entry_id" if unconfirmed else "entry_id", reader.schema.names)
        with suppress(KeyboardInterrupt) if follow else nullcontext():
            print_rows(
                settings.output,
                {
                    "ledger_id": ledger_id,
                    "is_closed": reader.is_closed,
                    "last_add_confirmed": reader.last_add_confirmed,
                },
                told_rows(entries, key, lambda entry, _: entry.entry_id),
                [key, *reader.schema.names],
                limit,
                "--limit N shows more, --output FILE has them all",
                raw=(lambda row: row["payload"]) if reader.schema == PAYLOAD_SCHEMA else None,
                as_lines=follow or is_stdout,
            )
    return EXIT_DONE


def check_readable(files: Sequence[str]) -> None:
    """Raise ``InvalidArgumentError`` for the first name that is no file, or is not readable."""
    for name in files:
        if name == "-":
            continue
        if not Path(name).is_file():
            raise InvalidArgumentError(f"{name} is not a file; nothing was changed")
        if not os.access(name, os.R_OK):
            raise InvalidArgumentError(f"{name} may not be read; nothing was changed")


def schema_of_file(name: str) -> pa.Schema:
    """Return the columns of a Parquet or Arrow file.

    Raises:
        InvalidArgumentError: it is neither, or cannot be read.
    """
    with rows_of(name) as (schema, _):
        return schema


def form_of(name: str) -> str:
    """Return ``rows`` or ``lines``, by the name of a file."""
    return "rows" if Path(name).suffix.lower() in _PARQUET | _ARROW else "lines"


def append_file(writer: LedgerWriter | LogWriter, name: str, kind: str, progress: Progress) -> Any:
    """Append a file as ``lines``, ``bytes`` or ``rows``; return its last position, if any."""
    if kind == "rows":
        last = None
        with rows_of(name) as (_, tables):
            for table in tables:
                last = writer.append(table)
                progress.set(progress.done + table.num_rows)
        return last
    added: Future[Any] | None = None
    with ExitStack() as stack:
        stream: BinaryIO = (
            sys.stdin.buffer if name == "-" else stack.enter_context(open(name, "rb"))
        )
        for line in [stream.read()] if kind == "bytes" else stream:
            added = writer.append_async(line if kind == "bytes" else line.rstrip(b"\r\n"))
            progress.set(progress.done + 1)
    writer.flush()
    return None if added is None else added.result()


@contextmanager
def rows_of(name: str) -> Iterator[tuple[pa.Schema, Iterator[pa.Table]]]:
    """Yield a file's schema, and its rows in pieces of about ``TABLE_BYTES``.

    Raises:
        InvalidArgumentError: it is neither Parquet nor Arrow, or cannot be read. A failed read may
            be raised by the iterator of pieces.
    """
    with ExitStack() as stack:
        with _reading(name):
            schema, batches = _opened(name, stack)
        yield schema.remove_metadata(), _pieces(_read(name, batches))


def _opened(name: str, stack: ExitStack) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    suffix = Path(name).suffix.lower()
    if suffix in _PARQUET:
        file = stack.enter_context(pa.parquet.ParquetFile(name))
        return file.schema_arrow, file.iter_batches()
    if suffix in _ARROW:
        source = stack.enter_context(pa.memory_map(name))
        reader = stack.enter_context(pa.ipc.open_file(source))
        return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
    raise InvalidArgumentError(
        f"{name} is no .parquet, .arrow, .feather or .ipc file; --as lines or --as bytes takes any "
        "file"
    )


def _read(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _reading(name):
        yield from batches


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Translate errors of reading a file. Wrap nothing else: other code also raises ``OSError``."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidArgumentError(f"{name} cannot be read: {error}") from error


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= TABLE_BYTES or len(held) >= 10_000:  # a limit for batches of one row each
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _check_output(output: Path) -> None:
    """Raise ``InvalidArgumentError`` unless a file of rows can be created there."""
    if output.suffix.lower() not in _PARQUET | _ARROW:
        raise InvalidArgumentError(f"--output {output}: end it in .parquet or .arrow")
    folder = output.absolute().parent
    if not folder.is_dir():
        raise InvalidArgumentError(
            f"--output {output}: {folder} is not a directory; make it first: "
            f"mkdir -p {shlex.quote(str(folder))}"
        )
    if output.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidArgumentError(
            f"--output {output}: no file can be written there; name another place"
        )


def _read_to_file(
    settings: Settings,
    reader: LedgerReader,
    found: Iterator[Entry],
    first: int | None,
    limit: int | None,
    output: Path,
) -> int:
    suffix = output.suffix.lower()
    entries = rows = 0

    def batches(progress: Progress) -> Iterator[pa.RecordBatch]:
        nonlocal first, entries, rows
        for entry in found:
            first = entry.entry_id if first is None else first
            batch = entry.batch if limit is None else entry.batch.slice(0, limit - rows)
            yield batch
            rows += batch.num_rows
            entries += 1
            progress.set(entries)
            if limit is not None and rows >= limit:
                break

    part = output.with_name(f".{output.name}.part")  # the file gets its name when it is complete
    try:
        with settings.output.progress("reading entries", unit="entries") as progress:
            with _file_writer(part, suffix, reader.schema) as write:
                for table in _pieces(batches(progress)):
                    write(table)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    settings.output.result(
        {
            "ledger_id": reader.ledger_id,
            "first_entry_id": first,
            "entries": entries,
            "rows": rows,
            "output": output,
        },
        lambda: settings.output.say(f"{rows:,} rows of {entries:,} entries are in {output}"),
    )
    return EXIT_DONE


@contextmanager
def _file_writer(
    path: Path, suffix: str, schema: pa.Schema
) -> Iterator[Callable[[pa.Table], None]]:
    if suffix in _PARQUET:
        with pa.parquet.ParquetWriter(path, schema) as file:
            yield file.write_table
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as stream:
            yield stream.write_table


def told_rows(
    entries: Iterable[Entry], key: str, place: Callable[[Entry, int], object]
) -> Iterator[Mapping[str, Any]]:
    """Yield rows of entries as they are read, each with its position in the column ``key``.

    ``place`` is called with an entry and the number of a row in it.
    """
    for entry in entries:
        for start in range(0, entry.batch.num_rows, _ROWS_AT_ONCE):
            some = entry.batch.slice(start, _ROWS_AT_ONCE).to_pylist()
            for number, row in enumerate(some, start):
                yield {key: place(entry, number), **row}


def print_rows(
    output: Output,
    value: Mapping[str, Any],
    rows: Iterator[Mapping[str, Any]],
    names: Sequence[str],
    limit: int | None,
    more: str,
    *,
    raw: Callable[[Mapping[str, Any]], bytes] | None,
    as_lines: bool = False,
) -> None:
    """Print rows as lines, as they come; on a terminal as a table, with ``--json`` as one object.

    Args:
        value: further keys of the object.
        limit: the most rows; ``None`` is all, and 20 in a table.
        more: how to see more rows than a table has.
        raw: returns the bytes of a line, if entries are bytes; ``None``: lines are JSON objects.
        as_lines: print lines also on a terminal.
    """
    if as_lines or not (output.is_json or sys.stdout.isatty()):
        for row in islice(rows, limit):
            output.line(row if raw is None else raw(row))
        return
    most = 20 if limit is None and not output.is_json else limit
    shown = list(islice(rows, most))
    is_cut = most is not None and len(shown) == most and next(rows, None) is not None

    def show() -> None:
        output.table(names, [[cell(row[name]) for name in names] for row in shown])
        if is_cut:
            output.note(f"only {len(shown)} rows are shown; {more}")

    output.result({**value, "rows": shown}, show)


def unlike(name: str, columns: Sequence[str]) -> str:
    """Return a name that no column has, for an additional column."""
    while name in columns:
        name = f"_{name}"
    return name
