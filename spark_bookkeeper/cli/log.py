"""``spark-bookkeeper log``: logs made of ledgers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any, BinaryIO

import click

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA
from spark_bookkeeper.cli.ledger.creation import new_ledger_options
from spark_bookkeeper.cli.ledger.data import (
    cell,
    check_readable,
    form_of,
    rows_of,
    schema_of_file,
    unlike,
)
from spark_bookkeeper.cli.shell.asking import confirm
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected, looking
from spark_bookkeeper.cli.shell.parameters import (
    Time,
    TimeType,
    refuse_both,
    shown_time,
    time_of,
    time_range_options,
)
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings, begun
from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.client.write.columns import check_schema
from spark_bookkeeper.errors import InvalidArgumentError, LogOwnershipLostError, NoSuchLogError
from spark_bookkeeper.logs.logs import log_table
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.runtime.progress import Progress

_SIZE = click.IntRange(min=1)
_NOT_OF_LOGS = ("name", "owner", "custom_metadata")


@click.group(name="log", epilog="Example: spark-bookkeeper log list")
def log() -> None:
    """Logs made of ledgers: create, list, show, append, read, consumers, truncate, delete."""


@log.command(epilog="Example: spark-bookkeeper log create orders --ensemble-size 4")
@click.argument("log_name", metavar="NAME")
@new_ledger_options
@click.option("--schema-of", metavar="FILE", help="Rows like those of a Parquet or Arrow file.")
@click.option("--roll-bytes", type=_SIZE, help="Begin a new ledger after so many bytes.")
@click.option("--roll-seconds", type=_SIZE, help="Begin a new ledger after so long.")
@click.option("--retain-seconds", type=_SIZE, help="Truncate ledgers that ended longer ago.")
@click.option(
    "--retain-for",
    multiple=True,
    metavar="CONSUMER",
    help="But keep what this follower has still to read; repeatable.",
)
@access_options
@click.pass_obj
def create(
    settings: Settings,
    access: Access,
    log_name: str,
    wish: Mapping[str, Any],
    schema_of: str | None,
    roll_bytes: int | None,
    roll_seconds: int | None,
    retain_seconds: int | None,
    retain_for: Sequence[str],
) -> int:
    """Create an empty log; the options are those of each of its ledgers."""
    for option in _NOT_OF_LOGS:
        if wish[option]:
            raise InvalidArgumentError(
                f"--{'label' if option == 'custom_metadata' else option} is about one ledger, and "
                "a log has many: its name is NAME, and each of its ledgers has the label `log`"
            )
    options = {key: value for key, value in wish.items() if key not in _NOT_OF_LOGS}
    schema = None if schema_of is None else schema_of_file(schema_of)
    with connected(settings, access) as bk:
        bk.create_log(
            log_name,
            schema=schema,
            roll_bytes=roll_bytes,
            roll_seconds=roll_seconds,
            retain_seconds=retain_seconds,
            retain_for=retain_for,
            **options,
        )
    settings.output.result(
        {"log": log_name},
        lambda: settings.output.say(
            f"log {log_name} is there, and empty. Append to it: "
            f"spark-bookkeeper log append {log_name} FILE"
        ),
    )
    return EXIT_DONE


for _option in create.params:
    if isinstance(_option, click.Option) and _option.name in ("name", "owner", "labels"):
        _option.hidden = True  # refused, with the reason


@log.command(name="list", epilog="Example: spark-bookkeeper log list --json")
@access_options
@click.pass_obj
def list_(settings: Settings, access: Access) -> int:
    """List logs: how many ledgers, which is the newest, whether it is open."""
    with looking(settings, access) as bk, settings.output.progress("reading logs"):
        rows = bk.logs_arrow().to_pylist()
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["log"], []).append(row)
    logs = [
        {
            "log": name,
            "ledgers": sum(row["ledger_id"] is not None for row in of_one),
            "newest_ledger_id": of_one[-1]["ledger_id"],
            "state": of_one[-1]["state"],
        }
        for name, of_one in found.items()
    ]

    def show() -> None:
        if not logs:
            settings.output.say("no logs")
            return
        settings.output.table(
            ["log", "ledgers", "newest", "state"], [list(each.values()) for each in logs]
        )

    settings.output.result({"logs": logs}, show)
    return EXIT_DONE


@log.command(epilog="Example: spark-bookkeeper log show orders")
@click.argument("name")
@access_options
@click.pass_obj
def show(settings: Settings, access: Access, name: str) -> int:
    """Show the ledgers of one log, in order."""
    with looking(settings, access) as bk:
        columns = bk.open_log(name).schema
        rows = log_table(bk.context, name).to_pylist()
    rows = [row for row in rows if row["ledger_id"] is not None]

    def present() -> None:
        settings.output.say(f"log {name}: {', '.join(f'{f.name} {f.type}' for f in columns)}")
        names = ["position", "ledger_id", "state", "last_entry_id", "is_truncated"]
        settings.output.table(names, [[row[column] for column in names] for row in rows])

    settings.output.result({"log": name, "ledgers": rows}, present)
    return EXIT_DONE


@log.command(epilog="Example: journalctl -f | spark-bookkeeper log append messages -")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@access_options
@click.pass_obj
def append(settings: Settings, access: Access, name: str, files: Sequence[str]) -> int:
    """Become the writer of a log, and append every FILE to it. "-" is stdin.

    Whoever wrote the log before is fenced, when all files were seen to fit. Lines become an entry
    each; the rows of Parquet and Arrow files are appended as rows.
    """
    check_readable(files)
    with connected(settings, access) as bk:
        opened = bk.open_log(name)
        for file in files:  # a wrong call deposes nobody
            is_rows = form_of(file) == "rows"
            check_schema(schema_of_file(file) if is_rows else PAYLOAD_SCHEMA, opened.schema)
        writer = opened.become_writer()
        last: Position | None = None
        try:
            with writer, begun():
                settings.output.note(f"writing ledger {writer.ledger_id} of log {name}")
                with settings.output.progress("appending entries", unit="entries") as progress:
                    for file in files:
                        last = _append_file(writer, file, progress) or last
        except LogOwnershipLostError:
            raise
        except BaseException:
            settings.output.note(
                f"log {name} is acknowledged up to {writer.last_position}, and that ledger is not "
                "closed; whoever appends to the log next closes it"
            )
            raise
    settings.output.result(
        {
            "log": name,
            "ledger_id": writer.ledger_id if last is None else last.ledger_id,
            "last_position": None if last is None else str(last),
        },
        lambda: settings.output.say(
            f"log {name}: nothing was appended"
            if last is None
            else f"log {name}: appended through {last}, every entry acknowledged. Read it: "
            f"spark-bookkeeper log read {name}"
        ),
    )
    return EXIT_DONE


@log.command(epilog="Example: spark-bookkeeper log read orders --start 7:0 --follow")
@click.argument("name")
@click.option("--start", metavar="LEDGER:ENTRY", help="First entry.  [default: the first]")
@click.option("--end", metavar="LEDGER:ENTRY", help="Stop before it.  [default: after the last]")
@time_range_options
@click.option("--limit", type=click.IntRange(min=0), help="So many rows.  [default: 20 on screen]")
@click.option("--follow", is_flag=True, help="Go on with what is appended; Ctrl-C ends it.")
@access_options
@click.pass_obj
def read(
    settings: Settings,
    access: Access,
    name: str,
    start: str | None,
    end: str | None,
    start_time: Time | None,
    end_time: Time | None,
    limit: int | None,
    follow: bool,
) -> int:
    """Print rows of a log with their positions. Its writer is not disturbed.

    Times are those of the appends, by the clocks of the writers.
    """
    if follow and (end is not None or end_time is not None or settings.output.is_json):
        raise InvalidArgumentError("--follow has no end: leave out --end, --end-time and --json")
    refuse_both(("--start", start), ("--start-time", start_time))
    refuse_both(("--end", end), ("--end-time", end_time))
    with connected(settings, access) as bk:
        opened = bk.open_log(name)
        now_ms = bk.context.runtime.wall_ms()
        since, until = time_of(start_time, now_ms), time_of(end_time, now_ms)
        if follow:
            begin = start if since is None else opened.position_at(since)
            with suppress(KeyboardInterrupt):
                for row in islice(_rows(opened.tail(begin)), limit):
                    settings.output.say("  ".join(str(value) for value in _shown(row)))
            return EXIT_DONE
        most = 20 if limit is None and not settings.output.is_json else limit
        found = _rows(opened.entries(start, end, start_time=since, end_time=until))
        rows = list(islice(found, most))
        is_cut = most is not None and len(rows) == most and next(found, None) is not None
    names = [unlike("position", opened.schema.names), *opened.schema.names]

    def present() -> None:
        settings.output.table(names, [_shown(row) for row in rows])
        if is_cut:
            settings.output.note(f"only {len(rows)} rows are shown; --limit N shows more")

    settings.output.result(
        {"log": name, "rows": [dict(zip(names, row, strict=True)) for row in rows]}, present
    )
    return EXIT_DONE


@log.command(epilog="Example: spark-bookkeeper log truncate orders --older-than 7d --dry-run")
@click.argument("name")
@click.argument("before", metavar="[LEDGER:ENTRY]", required=False)
@click.option(
    "--before-time",
    "--older-than",
    "times",
    multiple=True,
    type=TimeType(),
    help="Those that had ended by then: 2026-11-22T06:30, or 90m (minutes), 12h, 7d, 2w ago.",
)
@click.option("--dry-run", is_flag=True, help="Show what would go; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@access_options
@click.pass_obj
def truncate(
    settings: Settings,
    access: Access,
    name: str,
    before: str | None,
    times: Sequence[Time],
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete the ledgers of a log that lie before a position, or had ended by a time.

    Of a time: a ledger goes when its last entry is that old, by the clock of its writer. The
    newest ledger always stays.
    """
    if (before is not None) + len(times) != 1:
        raise InvalidArgumentError(
            "what is to go is said once: by a position, as 12:0, by --before-time "
            "2026-11-22T06:30, or by --older-than 7d"
        )
    position = None if before is None else Position.parse(before)
    with connected(settings, access) as bk:
        opened = bk.open_log(name)
        time = time_of(times[0] if times else None, bk.context.earlier_ms())
        place = position or time
        assert place is not None
        doomed = opened.truncate(place, dry_run=True)
        if time is None:
            where = f"before {before}"
        else:
            where = f"that had ended by {shown_time(time)}"
        settings.output.note(f"ledgers of log {name} {where}: {_listed(doomed)}")
        deleted: list[LedgerId] = []
        if doomed and not dry_run:
            if not yes:
                confirm(f"Delete {_counted(doomed)} for ever?")
            deleted = opened.truncate(doomed[-1] + 1)  # what was shown, and no more
    settings.output.result(
        {"log": name, "dry_run": dry_run, "planned": doomed, "deleted": deleted},
        lambda: settings.output.say(
            f"to be deleted: {_listed(doomed)}; nothing was changed"
            if dry_run
            else f"deleted: {_listed(deleted)}"
        ),
    )
    return EXIT_DONE


@log.command(epilog="Example: spark-bookkeeper log consumers orders")
@click.argument("name")
@click.option("--forget", metavar="CONSUMER", help="This one is no more: nobody waits for it.")
@access_options
@click.pass_obj
def consumers(settings: Settings, access: Access, name: str, forget: str | None) -> int:
    """Show who follows a log under a name, and how far behind its end each is."""
    with connected(settings, access) as bk:
        rows = bk.consumers_arrow(name).to_pylist()
        is_known = forget in {row["consumer"] for row in rows}
        if forget is not None:
            bk.open_log(name).forget_consumer(forget)
            rows = [row for row in rows if row["consumer"] != forget]

    def present() -> None:
        if forget is not None:
            settings.output.say(
                f"consumer {forget} of log {name} is forgotten"
                if is_known
                else f"log {name} has no consumer {forget}; nothing was changed"
            )
        if not rows:
            settings.output.say(f"log {name} has no named followers")
            return
        settings.output.table(
            ["consumer", "reads next", "entries behind", "bytes behind", "seconds behind"],
            [_consumer_cells(row) for row in rows],
        )

    settings.output.result({"log": name, "consumers": rows}, present)
    return EXIT_DONE


@log.command(epilog="Example: spark-bookkeeper log delete orders --yes")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@access_options
@click.pass_obj
def delete(settings: Settings, access: Access, name: str, yes: bool) -> int:
    """Delete a log with all its ledgers for ever. Its writer is fenced first.

    A repeat finishes what a deletion that failed has left.
    """
    with connected(settings, access) as bk:
        try:
            doomed = bk.open_log(name).ledgers()
        except NoSuchLogError:
            bk.delete_log(name)  # what is left of it; whoever deleted it was asked
            raise
        settings.output.note(f"log {name}: {_listed(doomed)}")
        if not yes:
            confirm(f"Delete log {name} and {_counted(doomed)} for ever?")
        bk.delete_log(name)
    settings.output.result(
        {"log": name, "deleted": doomed},
        lambda: settings.output.say(f"log {name} and {_counted(doomed)} are deleted"),
    )
    return EXIT_DONE


def _append_file(writer: LogWriter, name: str, progress: Progress) -> Position | None:
    """The position of its last entry, which is acknowledged; ``None`` for an empty file."""
    last: Position | None = None
    if form_of(name) == "rows":
        with rows_of(name) as (_, tables):
            for count, table in enumerate(tables, 1):
                last = writer.append(table)
                progress.set(count)
        return last
    added: Future[Position] | None = None
    with ExitStack() as stack:
        stream: BinaryIO = (
            sys.stdin.buffer if name == "-" else stack.enter_context(open(name, "rb"))
        )
        for count, line in enumerate(stream, 1):
            added = writer.append_async(line.rstrip(b"\r\n"))
            progress.set(count)
    writer.flush()
    return None if added is None else added.result()


def _rows(entries: Iterator[Entry]) -> Iterator[list[Any]]:
    for entry in entries:
        for number, row in enumerate(entry.batch.to_pylist()):
            position = Position(entry.ledger_id, EntryId(entry.entry_id), number)
            yield [str(position), *row.values()]


def _shown(row: Sequence[Any]) -> list[Any]:
    """A row for people; programs get all of every value."""
    return [cell(value) for value in row]


def _consumer_cells(row: Mapping[str, Any]) -> list[Any]:
    seconds = row["seconds_behind"]
    next_entry = f"{row['ledger_id']}:{row['entry_id']}"
    return [
        row["consumer"],
        f"{next_entry} (truncated)" if row["is_truncated"] else next_entry,
        row["entries_behind"],
        row["bytes_behind"],
        "unknown" if seconds is None else f"{seconds:.1f}",
    ]


def _listed(ledgers: Sequence[int]) -> str:
    return ", ".join(map(str, ledgers)) or "none"


def _counted(ledgers: Sequence[int]) -> str:
    return f"{len(ledgers)} ledger{'' if len(ledgers) == 1 else 's'}"
