"""``spark-bookkeeper autorecovery audit | rereplicate``: one round of each, as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.cli.shell.work import no_spark, report_table, show_report, working
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.session import BookKeeper

if TYPE_CHECKING:
    from spark_bookkeeper.spark.report_table import ReportTable


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; change nothing."
)


@click.command(epilog="Example: spark-bookkeeper autorecovery audit --dry-run")
@dry_run_option
@report_table
@access_options
@click.pass_obj
def audit(settings: Settings, access: Access, dry_run: bool, report_table: str | None) -> int:
    """Publish every ledger that counts on a bookie which is not there; nothing is copied."""
    with working(settings, access, report_table) as work:
        report = work.run(
            "reading ledger metadata",
            lambda is_dry, progress: work.bk.audit(dry_run=is_dry, progress=progress),
            dry_run=dry_run,
        )
    return work.show(report)


@click.command(epilog="Example: spark-bookkeeper autorecovery rereplicate")
@dry_run_option
@report_table
@no_spark
@access_options
@click.pass_obj
def rereplicate(
    settings: Settings,
    access: Access,
    dry_run: bool,
    report_table: str | None,
    no_spark: bool,
) -> int:
    """Repair the ledgers that are published as under-replicated, those in most danger first."""
    with working(settings, access, report_table, on_spark=not no_spark and not dry_run) as work:
        report = work.run(
            "replicating",
            lambda is_dry, progress: work.bk.rereplicate(
                config=access.conf.autorecovery, dry_run=is_dry, progress=progress
            ),
            dry_run=dry_run,
            unit="ledgers",
        )
    return work.show(report)


def run_once(
    settings: Settings, bk: BookKeeper, config: AutorecoveryConfig, table: ReportTable | None
) -> int:
    """One audit, and one round of work; the report is of the latter."""
    with settings.output.progress("reading ledger metadata") as progress:
        found = bk.audit(progress=progress.phase)
        settings.output.note(
            f"published: {len({row.ledger_id for row in found.rows})} ledgers lack replicas"
        )
        report = bk.rereplicate(config=config, progress=progress.phase)
    return show_report(settings, report, table)
