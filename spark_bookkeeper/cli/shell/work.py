"""What the verbs that do replication work share: where it runs, and how its report is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import ROW_SCHEMA, Report, shown

if TYPE_CHECKING:
    from spark_bookkeeper.spark.report_table import ReportTable

Command = TypeVar("Command", bound=Callable[..., Any])

MOST_ROWS: Final = 40
"""Rows of a report that a person is shown; unfinished ones come first, programs get all."""

no_spark = click.option(
    "--no-spark", is_flag=True, help="Do the work in this process instead of as a Spark job."
)


report_table = click.option(
    "--report-table", metavar="PATH", help="Append the report to a Delta table; this needs Spark."
)


def open_table(settings: Settings, path: str | None) -> ReportTable | None:
    """Where the report is to be kept, before there is one: what is missing shows at once."""
    if path is None:
        return None
    from spark_bookkeeper.spark.report_table import open_report_table  # pyspark only where needed

    return open_report_table(path, settings.metadata_uri, **settings.spark_conf)


def show_report(settings: Settings, report: Report, table: ReportTable | None = None) -> int:
    """Keep and print a report; return the exit code: 0 when nothing is left undone.

    What a dry run is asked for is the plan, and 0 says that a run would leave nothing undone.
    """

    def show() -> None:
        _show_rows(settings, report)
        _show_summary(settings, report)

    is_kept = True
    if table is not None:
        try:
            table.append(report)
        except BookKeeperError as error:
            is_kept = False
            settings.output.note(f"Error: {error.message}")
    settings.output.result(report.to_dict(), show)
    return EXIT_LEFT_UNDONE if report.unfinished or not is_kept else EXIT_DONE


def _show_rows(settings: Settings, report: Report) -> None:
    rows = sorted(report.rows, key=lambda row: row in report.unfinished, reverse=True)
    if not rows:
        return
    more = [name for name in report.columns.SCHEMA.names if name not in ROW_SCHEMA.names]
    settings.output.table(
        [
            "ledger",
            "entry ids",
            "action",
            "bookie",
            "target",
            "entries",
            "bytes",
            "status",
            "reason",
            *(name.replace("_", " ") for name in more),
        ],
        [
            [
                row.ledger_id,
                _range(row.first_entry_id, row.last_entry_id),
                row.action,
                row.source,
                row.target,
                row.entries,
                f"{row.bytes:,}",
                row.status,
                row.reason,
                *(shown(row.to_dict().get(name)) for name in more),
            ]
            for row in rows[:MOST_ROWS]
        ],
    )
    if len(rows) > MOST_ROWS:
        settings.output.say(f"... {len(rows) - MOST_ROWS} more rows; --json has them all")


def _show_summary(settings: Settings, report: Report) -> None:
    counts = "   ".join(f"{status} {count}" for status, count in report.counts.items())
    numbers = report.to_dict()
    settings.output.say(
        f"{report.job}{' (dry run, nothing was changed)' if report.dry_run else ''}: "
        f"{counts or 'nothing to do'}   {numbers['entries']:,} entries, "
        f"{numbers['bytes']:,} bytes, {report.duration_ms / 1000:.1f} s"
    )
    if report.unfinished:
        count = len(report.unfinished)
        rows = "1 row is" if count == 1 else f"{count} rows are"
        settings.output.say(f"{rows} not as {'it' if count == 1 else 'they'} should be; see reason")


def _range(first: int | None, last: int | None) -> str | None:
    if first is None:
        return None
    if last is not None and last < first:
        return "none"
    return f"{first}..{'' if last is None else last}"
