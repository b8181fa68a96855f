"""``spark-bookkeeper bookie rebalance | drain``: shares moved to where there is room."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.cli.shell.asking import confirm
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options
from spark_bookkeeper.cli.shell.settings import EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.cli.shell.work import no_spark, report_table, working
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.replication.rebalance import SPARE_BYTES, RebalanceReport
from spark_bookkeeper.replication.report import Report


@click.command(
    epilog="Example: spark-bookkeeper bookie rebalance 10.0.0.9:3181 --max-bytes 100000000000 "
    "--dry-run"
)
@click.argument("targets", metavar="[BOOKIE]...", nargs=-1)
@click.option("--max-bytes", type=click.IntRange(min=1), help="So much is moved at the most.")
@click.option(
    "--tolerance-percent",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="A bookie with so much more than its part is left alone.",
)
@click.option(
    "--spare-bytes",
    type=click.IntRange(min=0),
    default=SPARE_BYTES,
    show_default=True,
    help="Left free on the disk of every target.",
)
@click.option("--bytes-per-second", type=click.IntRange(min=1), help="Limit on copying.")
@click.option("--dry-run", is_flag=True, help="Show the plan; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@report_table
@no_spark
@access_options
@click.pass_obj
def rebalance(
    settings: Settings,
    access: Access,
    targets: Sequence[str],
    max_bytes: int | None,
    tolerance_percent: int,
    spare_bytes: int,
    bytes_per_second: int | None,
    dry_run: bool,
    yes: bool,
    report_table: str | None,
    no_spark: bool,
) -> int:
    """Move shares of closed ledgers to BOOKIE..., or to all bookies that have too little.

    Each bookie's part follows the size of its disk, and no write set gets onto fewer racks. Old
    copies are garbage, and take space until it is collected. Run again it does the rest.
    """
    names = [parse_bookie_id(name) for name in targets]

    def ask(plan: RebalanceReport) -> None:
        settings.output.note(
            f"{len(plan.rows):,} shares to move, {sum(row.bytes for row in plan.rows):,} bytes"
        )
        if plan.rows:
            confirm("Move them?")

    with working(settings, access, report_table, on_spark=not no_spark and not dry_run) as work:
        report = work.run(
            "reading ledger metadata",
            lambda is_dry, progress: work.bk.rebalance(
                names or None,
                max_bytes=max_bytes,
                tolerance_percent=tolerance_percent,
                spare_bytes=spare_bytes,
                dry_run=is_dry,
                bytes_per_second=bytes_per_second,
                progress=progress,
            ),
            dry_run=dry_run,
            ask=None if yes else ask,
        )
    code = work.show(report)
    if not settings.output.is_json:
        settings.output.table(
            ["bookie", "bytes before", "after", "its part"],
            [
                [load.bookie_id, load.before_bytes, load.after_bytes, load.goal_bytes]
                for load in report.loads
            ],
        )
    return code


@click.command(epilog="Example: spark-bookkeeper bookie drain 192.168.1.10:3181 --dry-run")
@click.argument("bookie_id", metavar="BOOKIE")
@click.option("--bytes-per-second", type=click.IntRange(min=1), help="Limit on copying.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@report_table
@no_spark
@access_options
@click.pass_obj
def drain(
    settings: Settings,
    access: Access,
    bookie_id: str,
    bytes_per_second: int | None,
    dry_run: bool,
    yes: bool,
    report_table: str | None,
    no_spark: bool,
) -> int:
    """Make BOOKIE read-only, and make all that it holds again on others; it stays in the cluster.

    Ledgers that are open on it are fenced, recovered and closed. It says what remains, and what is
    in the way; run again it does the rest. `bookie set-writable` ends it, `bookie decommission`
    takes the bookie away.
    """
    name = parse_bookie_id(bookie_id)
    with working(settings, access, report_table, on_spark=not no_spark and not dry_run) as work:
        report = work.run(
            "reading ledger metadata",
            lambda is_dry, progress: work.bk.drain_bookie(
                name, dry_run=is_dry, bytes_per_second=bytes_per_second, progress=progress
            ),
            dry_run=dry_run,
            ask=None if yes else lambda plan: _ask_to_drain(settings, name, plan),
        )
    code = work.show(report)
    if dry_run:
        return code
    if report.is_complete:
        settings.output.note(f"bookie {name} is drained: no ledger counts on it")
    else:
        settings.output.note(
            f"{len(report.remaining):,} ledgers count on bookie {name} still: {report.blocked_by}"
        )
    return code if report.is_complete else max(code, EXIT_LEFT_UNDONE)


def _ask_to_drain(settings: Settings, name: str, plan: Report) -> None:
    """A bookie that is read-only stays so, even where nothing is to be copied."""
    opened = sum(row.action == "recover" for row in plan.rows)
    settings.output.note(
        f"{len(plan.rows)} steps, {sum(row.bytes for row in plan.rows):,} bytes to copy, "
        f"{opened} open ledgers to close first, which stops their writers"
    )
    confirm(f"Make {name} read-only, and make all that it holds again on others?")
