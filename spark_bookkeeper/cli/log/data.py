"""``spark-bookkeeper log append | read``: copy files and lines to a log, and print its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import click

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA
from spark_bookkeeper.cli.ledger.data import (
    append_file,
    check_readable,
    form_of,
    print_rows,
    schema_of_file,
    told_rows,
    unlike,
)
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.parameters import (
    Time,
    WholeNumber,
    refuse_both,
    time_of,
    time_range_options,
)
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings, begun
from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.client.write.columns import check_schema
from spark_bookkeeper.errors import InvalidArgumentError, LogOwnershipLostError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.log import Position


@click.command(epilog="Example: journalctl -f | spark-bookkeeper log append messages -")
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
        for file in files:  # check first, so that a wrong call fences no writer
            is_rows = form_of(file) == "rows"
            check_schema(schema_of_file(file) if is_rows else PAYLOAD_SCHEMA, opened.schema)
        writer = opened.become_writer()
        last: Position | None = None
        try:
            with writer, begun():
                settings.output.note(f"writing ledger {writer.ledger_id} of log {name}")
                with settings.output.progress("appending rows", unit="rows") as progress:
                    for file in files:
                        last = append_file(writer, file, form_of(file), progress) or last
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


@click.command(epilog="Example: spark-bookkeeper log read orders --start 7:0 --follow")
@click.argument("name")
@click.option("--start", metavar="LEDGER:ENTRY", help="First entry.  [default: the first]")
@click.option("--end", metavar="LEDGER:ENTRY", help="Stop before it.  [default: after the last]")
@time_range_options
@click.option("--limit", type=WholeNumber(min=0), help="So many rows.  [default: 20 on screen]")
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

    A terminal shows a table. A pipe gets a line for each row, as soon as it is read: the position
    and the bytes, or a JSON object. Bytes with a line feed are several lines.

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
            entries = opened.tail(start if since is None else opened.position_at(since))
        else:
            entries = opened.entries(start, end, start_time=since, end_time=until)
        key = unlike("position", opened.schema.names)

        def place(entry: Entry, number: int) -> str:
            return str(Position(entry.ledger_id, EntryId(entry.entry_id), number))

        def line(row: Mapping[str, Any]) -> bytes:
            return b"%s  %s" % (row[key].encode(), row["payload"])

        with suppress(KeyboardInterrupt) if follow else nullcontext():
            print_rows(
                settings.output,
                {"log": name},
                told_rows(entries, key, place),
                [key, *opened.schema.names],
                limit,
                "--limit N shows more",
                raw=line if opened.schema == PAYLOAD_SCHEMA else None,
                as_lines=follow,
            )
    return EXIT_DONE
