"""``spark-bookkeeper bookie refill``: a bookie whose disk was replaced, filled again in place."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options
from spark_bookkeeper.cli.shell.parameters import LedgerIdType
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.cli.shell.work import ask_about, no_spark, report_table, working
from spark_bookkeeper.protocol.ids import parse_bookie_id


@click.command(epilog="Example: spark-bookkeeper bookie refill 192.168.1.10:3181 --dry-run")
@click.argument("bookie_id", metavar="BOOKIE")
@click.option(
    "--ledger", "ledger_ids", type=LedgerIdType(), multiple=True, help="Only this; repeatable."
)
@click.option("--skip-open-ledgers", is_flag=True, help="Leave ledgers alone that are not closed.")
@click.option("--bytes-per-second", type=click.IntRange(min=1), help="Limit on copying.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@report_table
@no_spark
@access_options
@click.pass_obj
def refill(
    settings: Settings,
    access: Access,
    bookie_id: str,
    ledger_ids: Sequence[int],
    skip_open_ledgers: bool,
    bytes_per_second: int | None,
    dry_run: bool,
    yes: bool,
    report_table: str | None,
    no_spark: bool,
) -> int:
    """Copy back to BOOKIE, whose disk was replaced, all that the ledgers say that it holds.

    Before: `bookie format --replaced` and `bookie start`. For each ledger its word counts again
    when everything is there. Ledgers that are open on it are fenced, recovered and closed first.
    Killed at any moment it loses nothing, and run again it finishes the rest.
    """
    name = parse_bookie_id(bookie_id)
    with working(settings, access, report_table, on_spark=not no_spark and not dry_run) as work:
        report = work.run(
            "reading ledger metadata",
            lambda is_dry, progress: work.bk.refill_bookie(
                name,
                ledger_ids=ledger_ids or None,
                skip_open_ledgers=skip_open_ledgers,
                dry_run=is_dry,
                bytes_per_second=bytes_per_second,
                progress=progress,
            ),
            dry_run=dry_run,
            ask=None if yes else lambda plan: ask_about(settings, plan),
        )
    return work.show(report)
