"""``spark-bookkeeper autorecovery audit | rereplicate``: one round of each, as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.cli.shell.work import no_spark, open_table, report_table, show_report
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
    with connected(settings, access) as bk:
        table = open_table(settings, report_table)
        with settings.output.progress("reading ledger metadata") as progress:
            report = bk.audit(dry_run=dry_run, progress=progress.phase)
    return show_report(settings, report, table)


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
    with connected(settings, access, with_spark=not no_spark and not dry_run) as bk:
        table = open_table(settings, report_table)
        with settings.output.progress("replicating", unit="ledgers") as progress:
            report = bk.rereplicate(
                config=access.conf.autorecovery, dry_run=dry_run, progress=progress.phase
            )
    return show_report(settings, report, table)


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
