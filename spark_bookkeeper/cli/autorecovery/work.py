"""``spark-bookkeeper autorecovery audit | rereplicate``: one round of each, as a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import click

from spark_bookkeeper.autorecovery.scan import LEDGERS_FOR_SPARK
from spark_bookkeeper.cli.shell.engine import SMALL_BYTES, sizes_of
from spark_bookkeeper.cli.shell.settings import Settings, begun
from spark_bookkeeper.cli.shell.work import PLAN, Work, show_report, work_options
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.replication.report import counted, report_rows
from spark_bookkeeper.session import BookKeeper

if TYPE_CHECKING:
    from spark_bookkeeper.spark.report_table import ReportTable


@click.command(epilog="Example: spark-bookkeeper autorecovery audit --dry-run")
@work_options(dry_run=PLAN, engine="either")
def audit(work: Work) -> int:
    """Publish every ledger that counts on a bookie which is not there; nothing is copied."""
    report = work.run(
        "reading ledger metadata",
        lambda bk, dry_run, progress: bk.audit(dry_run=dry_run, progress=progress),
        sizes=_scanned,
        unit="ledgers",
    )
    return work.show(report)


def _scanned(bk: BookKeeper) -> Iterator[tuple[int, int]]:
    """Yield one large size if ``scan`` would use Spark; this reads no ledgers."""
    ranges = bk.context.store.ledger_ranges(LEDGERS_FOR_SPARK)
    if sum(each.ledgers for each in ranges) >= LEDGERS_FOR_SPARK:
        yield 0, SMALL_BYTES + 1


@click.command(epilog="Example: spark-bookkeeper autorecovery rereplicate")
@work_options(dry_run=PLAN, engine="either")
def rereplicate(work: Work) -> int:
    """Repair the ledgers that are published as under-replicated, those in most danger first."""
    report = work.run(
        "replicating",
        lambda bk, dry_run, progress: bk.rereplicate(
            config=work.access.conf.autorecovery, dry_run=dry_run, progress=progress
        ),
        sizes=lambda bk: sizes_of(bk, bk.context.store.underreplication.ledger_ids()),
        unit="ledgers",
    )
    return work.show(report)


def run_once(
    settings: Settings,
    bk: BookKeeper,
    config: AutorecoveryConfig,
    beside: str | None,
    table: ReportTable | None,
    *,
    dry_run: bool = False,
) -> int:
    """Run one audit and one round of work. Report the round, and what the audit left undone.

    Args:
        beside: copy to this bookie, and to no other.
        dry_run: only report the ledgers that would be published, and the existing tasks that would
            be taken.
    """
    with settings.output.progress("reading ledger metadata") as progress:
        found = bk.audit(dry_run=dry_run, progress=progress.phase)
        marked = found.marked_ledgers
        would = "would be " if dry_run else ""
        settings.output.note(f"{would}published: {counted(marked, 'ledger')} that lack replicas")
        with begun() if marked and not dry_run else nullcontext():
            report = bk.rereplicate(
                bookie_id=beside, config=config, dry_run=dry_run, progress=progress.phase
            )
    audited = found.rows if dry_run else found.unfinished
    return show_report(
        settings, replace(report, rows=report_rows(chain(audited, report.rows))), table
    )
