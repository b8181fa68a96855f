"""``spark-bookkeeper log``: logs made of ledgers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from spark_bookkeeper.cli.ledger.creation import new_ledger_options
from spark_bookkeeper.cli.ledger.data import schema_of_file
from spark_bookkeeper.cli.log.data import append, read
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected, looking
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.parameters import Time, TimeType, WholeNumber, shown_time, time_of
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, work_options, would_go
from spark_bookkeeper.client.deletion import Deletion, planned_deletions
from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLogError
from spark_bookkeeper.logs.logs import log_table
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.replication.report import counted

_SIZE = WholeNumber(min=1)
_NOT_OF_LOGS = ("name", "owner", "custom_metadata")


@click.group(name="log", epilog="Example: spark-bookkeeper log list")
def log() -> None:
    """Logs made of ledgers: create, list, show, append, read, consumers, truncate, delete."""


log.add_command(append)
log.add_command(read)


@log.command(epilog="Example: spark-bookkeeper log create orders --ensemble-size 4")
@click.argument("log_name", metavar="NAME")
@new_ledger_options
@click.option("--schema-of", metavar="FILE", help="Rows like those of a Parquet or Arrow file.")
@click.option("--roll-bytes", type=_SIZE, help="Begin a new ledger after so many bytes.")
@click.option("--roll-entries", type=_SIZE, help="Begin a new ledger after so many entries.")
@click.option("--roll-seconds", type=_SIZE, help="Begin a new ledger after so long.")
@click.option("--retain-seconds", type=_SIZE, help="Truncate ledgers whose last entry is older.")
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
    roll_entries: int | None,
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
            roll_entries=roll_entries,
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
    with looking(settings, access, "reading logs") as bk:
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


@log.command(epilog="Example: spark-bookkeeper log truncate orders --older-than 7d --dry-run")
@click.argument("name")
@click.argument("before", metavar="[LEDGER:ENTRY]", required=False)
@click.option(
    "--end-time",
    "--before-time",
    "--older-than",
    "times",
    multiple=True,
    type=TimeType(),
    help="Those that had ended by then: 2026-11-22T06:30, or 90m (minutes), 12h, 7d, 2w ago.",
)
@work_options(dry_run=PLAN, yes=YES, reports=False)
def truncate(work: Work, name: str, before: str | None, times: Sequence[Time]) -> int:
    """Delete the ledgers of a log that lie before a position, or had ended by a time.

    Of a time: a ledger goes when its last entry is that old, by the clock of its writer. The
    newest ledger always stays.
    """
    if (before is not None) + len(times) != 1:
        raise InvalidArgumentError(
            "what is to go is said once: by a position, as 12:0, by --end-time "
            "2026-11-22T06:30, or by --older-than 7d"
        )
    position = None if before is None else Position.parse(before)
    with connected(work.settings, work.access) as bk:
        opened = bk.open_log(name)
        time = time_of(times[0] if times else None, bk.context.earlier_ms())
        place = position or time
        assert place is not None
        with work.settings.output.progress():
            ids = opened.truncate(place, dry_run=True)
            doomed = planned_deletions(bk.context, ids)
        where = f"before {before}" if time is None else f"that had ended by {shown_time(time)}"
        work.settings.output.note(f"ledgers of log {name} {where}: {len(doomed):,}")
        _show_going(work.settings.output, doomed)
        deleted: list[LedgerId] = []
        if doomed and not work.dry_run:
            if not work.yes:
                confirm(f"Delete {counted(len(doomed), 'ledger')} for ever?")
            with work.settings.output.progress("deleting ledgers"):
                deleted = opened.truncate(doomed[-1].ledger_id + 1)  # exactly the shown ledgers
    work.settings.output.result(
        {"log": name, "dry_run": work.dry_run, "planned": doomed, "deleted": deleted},
        lambda: work.settings.output.say(
            f"log {name}: {would_go(doomed)}"
            if work.dry_run
            else f"deleted: {', '.join(map(str, deleted)) or 'nothing'}"
        ),
    )
    return EXIT_DONE


@log.command(epilog="Example: spark-bookkeeper log consumers orders")
@click.argument("name")
@click.option("--forget", metavar="CONSUMER", help="This one is no more: nobody waits for it.")
@work_options(dry_run="With --forget: only show them.", reports=False)
def consumers(work: Work, name: str, forget: str | None) -> int:
    """Show who follows a log under a name, and how far behind its end each is."""
    settings = work.settings
    with connected(settings, work.access) as bk:
        with settings.output.progress():
            rows = bk.consumers_arrow(name).to_pylist()
        is_known = forget in {row["consumer"] for row in rows}
        if forget is not None and not work.dry_run:
            bk.open_log(name).forget_consumer(forget)
            rows = [row for row in rows if row["consumer"] != forget]

    def present() -> None:
        if forget is not None:
            done = "would be forgotten; nothing was changed" if work.dry_run else "is forgotten"
            settings.output.say(
                f"consumer {forget} of log {name} {done}"
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
@work_options(dry_run=PLAN, yes=YES, reports=False)
def delete(work: Work, name: str) -> int:
    """Delete a log with all its ledgers for ever. Its writer is fenced first.

    A repeat finishes what a deletion that failed has left.
    """
    output = work.settings.output
    with connected(work.settings, work.access) as bk:
        try:
            with output.progress():
                planned = bk.delete_log(name, dry_run=True)
        except NoSuchLogError:
            if not work.dry_run:
                bk.delete_log(name)  # finishes a failed deletion, which was already confirmed
            raise
        _show_going(output, planned)
        if not work.dry_run and not work.yes:
            confirm(f"Delete log {name} and {counted(len(planned), 'ledger')} for ever?")
        with output.progress("deleting ledgers"):
            deleted = [] if work.dry_run else [each.ledger_id for each in bk.delete_log(name)]
    output.result(
        {"log": name, "dry_run": work.dry_run, "planned": planned, "deleted": deleted},
        lambda: output.say(
            f"log {name}: {would_go(planned)}"
            if work.dry_run
            else f"log {name} and {counted(len(deleted), 'ledger')} are deleted"
        ),
    )
    return EXIT_DONE


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


def _show_going(output: Output, planned: Sequence[Deletion]) -> None:
    for each in planned:
        size = "unknown" if each.length_bytes is None else f"{each.length_bytes:,}"
        output.note(f"ledger {each.ledger_id}: {each.state}, {size} bytes")
