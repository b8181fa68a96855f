"""``spark-bookkeeper ledger history | orphans``: what became of a ledger, and whose it is."""

from __future__ import annotations

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, looking
from spark_bookkeeper.cli.shell.parameters import LedgerIdType
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cli.shell.work import MOST_ROWS


@click.command(epilog="Example: spark-bookkeeper ledger history 7")
@click.argument("ledger_id", type=LedgerIdType())
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
    with looking(settings, access) as bk, settings.output.progress("reading ledger metadata"):
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
                    None if row["length_bytes"] is None else f"{row['length_bytes']:,}",
                    None if row["ctime"] is None else f"{row['ctime']:%Y-%m-%d %H:%M:%S}",
                    row["writer"],
                    row["reason"],
                ]
                for row in rows[:MOST_ROWS]
            ],
        )
        more = f", of which {MOST_ROWS} are shown; --json has all" if len(rows) > MOST_ROWS else ""
        settings.output.say(
            f"{len(rows):,} ledgers{more}. If nobody misses one: spark-bookkeeper ledger delete "
            f"{rows[0]['ledger_id']}"
        )

    settings.output.result({"orphans": rows}, show)
    return EXIT_DONE
