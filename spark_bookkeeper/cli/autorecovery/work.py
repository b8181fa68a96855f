"""``spark-bookkeeper autorecovery audit | rereplicate``: one round of each, as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.cli.shell.work import PLAN, Work, show_report, work_options
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.session import BookKeeper

if TYPE_CHECKING:
    from spark_bookkeeper.spark.report_table import ReportTable


@click.command(epilog="Example: spark-bookkeeper autorecovery audit --dry-run")
@work_options(dry_run=PLAN)
def audit(work: Work) -> int:
    """Publish every ledger that counts on a bookie which is not there; nothing is copied."""
    report = work.run(
        "reading ledger metadata",
        lambda bk, dry_run, progress: bk.audit(dry_run=dry_run, progress=progress),
    )
    return work.show(report)


@click.command(epilog="Example: spark-bookkeeper autorecovery rereplicate")
@work_options(dry_run=PLAN, engine="either")
def rereplicate(work: Work) -> int:
    """Repair the ledgers that are published as under-replicated, those in most danger first."""
    report = work.run(
        "replicating",
        lambda bk, dry_run, progress: bk.rereplicate(
            config=work.access.conf.autorecovery, dry_run=dry_run, progress=progress
        ),
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
