"""``spark-bookkeeper ledger history | orphans | delete-orphans``: the past of ledgers, and their
owners.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, looking
from spark_bookkeeper.cli.shell.output import number
from spark_bookkeeper.cli.shell.parameters import LedgerType, Time, TimeType, time_of
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cli.shell.work import MOST_ROWS, PLAN, YES, Work, work_options
from spark_bookkeeper.replication.report import counted, some_of
from spark_bookkeeper.replication.runner import Progress
from spark_bookkeeper.session import BookKeeper

if TYPE_CHECKING:
    from spark_bookkeeper.agent.orphan_deletion import OrphansReport


@click.command(epilog="Example: spark-bookkeeper ledger history 7")
@click.argument("ledger_id", type=LedgerType(), metavar="LEDGER")
@access_options
@click.pass_obj
def history(settings: Settings, access: Access, ledger_id: int) -> int:
    """Show what happened to a ledger, as far as its metadata and its bookies still tell.

    Times of changes are not kept, nor the names of bookies that a recovery replaced. Nothing is
    fenced or changed by looking.
    """
    with looking(settings, access) as bk:
        rows = bk.history_arrow(ledger_id).to_pylist()
    settings.output.result(
        {"ledger_id": ledger_id, "events": rows},
        lambda: settings.output.table(
            ["event", "at", "by", "entry", "bookies", "detail"],
            [
                [
                    row["event"],
                    None if row["at"] is None else f"{row['at']:%Y-%m-%d %H:%M:%S}",
                    row["by"],
                    row["entry_id"],
                    ", ".join(row["bookies"]),
                    row["detail"],
                ]
                for row in rows
            ],
        ),
    )
    return EXIT_DONE


@click.command(epilog="Example: spark-bookkeeper ledger orphans --json")
@access_options
@click.pass_obj
def orphans(settings: Settings, access: Access) -> int:
    """List ledgers that nobody owns: no writer, no log, no name, owner or other label.

    Nothing is deleted; whether somebody misses one of them only people know.
    """
    with looking(settings, access) as bk:
        rows = bk.orphans_arrow().to_pylist()

    def show() -> None:
        if not rows:
            settings.output.say("every ledger is somebody's")
            return
        settings.output.table(
            ["ledger", "state", "bytes", "created", "writer", "why"],
            [
                [
                    row["ledger_id"],
                    row["state"],
                    number(row["length_bytes"]),
                    None if row["ctime"] is None else f"{row['ctime']:%Y-%m-%d %H:%M:%S}",
                    row["writer"],
                    row["reason"],
                ]
                for row in rows[:MOST_ROWS]
            ],
        )
        more = f", of which {MOST_ROWS} are shown; --json has all" if len(rows) > MOST_ROWS else ""
        settings.output.say(
            f"{len(rows):,} ledgers{more}. If nobody misses one: `spark-bookkeeper ledger delete "
            f"{rows[0]['ledger_id']}`; if nobody misses any: `spark-bookkeeper ledger "
            "delete-orphans --older-than 7d --dry-run`"
        )

    settings.output.result({"orphans": rows}, show)
    return EXIT_DONE


def _only_one(
    context: click.Context, parameter: click.Parameter, values: tuple[Time, ...]
) -> Time | None:
    """Return the given time; refuse two, because it is unclear which is meant."""
    if len(values) > 1:
        raise click.BadParameter("given more than once; give one time", context, parameter)
    return values[0] if values else None


@click.command(
    name="delete-orphans",
    epilog="Example: spark-bookkeeper ledger delete-orphans --older-than 30d --dry-run",
)
@click.option(
    "--created-before",
    "--older-than",
    "created_before",
    type=TimeType(),
    required=True,
    multiple=True,
    callback=_only_one,
    help="Those created by then: 2026-11-22T06:30, or 90m (minutes), 12h, 7d, 2w ago.",
)
@work_options(dry_run=PLAN, yes=YES)
def delete_orphans(work: Work, created_before: Time) -> int:
    """Delete the ledgers that `ledger orphans` lists and that are old enough.

    A closed ledger without a name, an owner or another label is among them, also when somebody
    knows its id, and those of a log that was deleted or has gone past them. What was confirmed is
    deleted, and nothing else.

    One that is not closed stays: its writer may only be cut off from ZooKeeper. Once its
    process has ended, `ledger recover` closes it, and keeps what was acknowledged.
    """
    shown: set[int] | None = None
    time: datetime | None = None

    def ask(plan: OrphansReport) -> None:
        nonlocal shown
        shown = {row.ledger_id for row in plan.rows}
        if plan.rows:
            size = counted(sum(row.bytes for row in plan.rows), "byte")
            ids = some_of([row.ledger_id for row in islice(plan.rows, MOST_ROWS)])
            of = counted(len(plan.rows), "ledger")
            work.settings.output.note(f"{of} with {size} to go: {ids}")
            confirm("Delete them for ever?")

    def job(bk: BookKeeper, dry_run: bool, progress: Progress) -> OrphansReport:
        nonlocal time
        time = time or time_of(created_before, bk.context.earlier_ms())
        assert time is not None
        return bk.delete_orphans(time, dry_run, ledger_ids=shown, progress=progress)

    return work.show(work.run("reading ledger metadata", job, ask=ask))
