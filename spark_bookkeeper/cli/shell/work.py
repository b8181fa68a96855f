"""Code that verbs with replication work share: where it runs, and how its report is shown."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.engine import is_small, sizes_of, spark_or_not
from spark_bookkeeper.cli.shell.parameters import WholeNumber
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError
from spark_bookkeeper.replication.recovery_plan import PlanRow, only_if_read
from spark_bookkeeper.replication.report import (
    ROW_SCHEMA,
    Outcome,
    Report,
    Row,
    check_report_file,
    counted,
    shown,
    some_of,
    write_report,
)
from spark_bookkeeper.replication.runner import Progress
from spark_bookkeeper.session import BookKeeper

if TYPE_CHECKING:
    from spark_bookkeeper.spark.report_table import ReportTable

Command = TypeVar("Command", bound=Callable[..., Any])
ReportT = TypeVar("ReportT", bound=Report)

MOST_ROWS: Final = 40
"""The most rows of a report that a person sees, unfinished ones first; programs get all."""

_FILE: Final = "spark_bookkeeper.report_file"


def _keep(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is not None:
        check_report_file(path)
        context.meta[_FILE] = path


def report_table(command: Command) -> Command:
    """Give a command the options for where to keep its report."""
    in_table = click.option(
        "--report-table",
        metavar="PATH",
        help="Append the report to a Delta table; this needs Spark.",
    )
    in_file = click.option(
        "--report-file",
        metavar="FILE",
        expose_value=False,
        callback=_keep,
        help="Write all rows to FILE, which ends in .parquet or .jsonl; --json has none then.",
    )
    return in_table(in_file(command))


def kept_in_file() -> str | None:
    """Return the file of ``--report-file`` in the running command; ``None``: not given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_FILE)


_REPLICATING: Final = frozenset(
    {"recover_bookie", "refill_bookie", "repair_ledgers", "rereplicate"}
)
"""Jobs after which a ledger without unfinished rows is fully replicated."""

PLAN: Final = "Show what would be done; change nothing."
YES: Final = "Do not ask."


def would_go(planned: Sequence[Deletion]) -> str:
    """Describe the result of a dry run of deletions; the size of an open ledger is unknown."""
    least = "at least " if any(each.length_bytes is None for each in planned) else ""
    size = least + counted(sum(each.length_bytes or 0 for each in planned), "byte")
    return f"{counted(len(planned), 'ledger')} with {size} would go; nothing was changed"


@dataclass(frozen=True)
class Work:
    """One job from the command line: its plan, a question, the work, and the report.

    It holds the options that all such commands have; see ``work_options``.
    """

    settings: Settings
    access: Access
    dry_run: bool
    yes: bool
    on_spark: bool | None
    """``None``: ``engine.is_small`` decides."""
    report_table: str | None

    def run(
        self,
        what: str,
        job: Callable[[BookKeeper, bool, Progress], ReportT],
        *,
        ask: Callable[[ReportT], None] | None = None,
        before: Callable[[BookKeeper], None] | None = None,
        after: Callable[[BookKeeper, ReportT], None] | None = None,
        sizes: Callable[[BookKeeper], Iterable[tuple[int, int]]] = sizes_of,
        unit: str = "",
    ) -> ReportT:
        """Run a job with a progress bar; if a question is needed, first make a dry run.

        Args:
            what: the job's first phase, in words for people.
            job: called with whether it is a dry run, and with the function that receives progress.
            ask: gets the plan, and raises ``NotConfirmedError`` if the person refuses it.
            before: raises if the call makes no sense, before there is a plan.
            after: gets the report of a run that is no dry run, to do what remains.
            sizes: entries and bytes of each ledger of the job.
            unit: the counted things of the first phase.

        Raises:
            the errors of ``connected``, and those of the job.
        """
        with connected(self.settings, self.access) as bk:
            if before is not None:
                before(bk)
            _ = self._table  # a missing requirement shows before the work
            bk.runs_here = is_small(sizes(bk)) if self.on_spark is None else not self.on_spark
            where = "in this process" if bk.runs_here else "on Spark"

            def run(dry_run: bool) -> ReportT:
                with self.settings.output.progress(what, unit=unit) as progress:

                    def tell(phase: str, done: int, total: int, size_bytes: int) -> None:
                        name, *more = phase.split(", ", 1)
                        progress.phase(", ".join((name, where, *more)), done, total, size_bytes)

                    return job(bk, dry_run, progress.phase if dry_run else tell)

            if ask is not None and not self.dry_run and not self.yes:
                ask(run(True))
            report = run(self.dry_run)
            if after is not None and not self.dry_run:
                after(bk, report)
        return report

    def show(self, report: Report) -> int:
        """Keep and print the report; return the exit code."""
        return show_report(self.settings, report, self._table)

    @cached_property
    def _table(self) -> ReportTable | None:
        """The table for the report, opened once, because Spark has to look at it."""
        return open_table(self.settings, self.report_table)


def work_options(
    *,
    dry_run: str | None = None,
    yes: str | None = None,
    engine: Literal["here", "spark", "either"] = "here",
    limit: str | None = None,
    reports: bool = True,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of all that do a job, and pass it a ``Work`` with their values.

    Args:
        dry_run: the help of ``--dry-run``; ``None``: the command has no such option.
        yes: the help of ``--yes``, for a command that asks a person.
        engine: where its jobs run; ``either`` has the options ``--spark`` and ``--no-spark``.
        limit: the subject of ``--bytes-per-second``; ``None``: there is no such option.
        reports: whether it has a report that can be kept.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @access_options
        @click.pass_obj
        @functools.wraps(command)
        def with_work(settings: Settings, /, *arguments: Any, access: Access, **named: Any) -> int:
            work = Work(
                settings,
                access,
                dry_run=named.pop("dry_run", False),
                yes=named.pop("yes", False),
                on_spark=named.pop("on_spark", engine == "spark"),
                report_table=named.pop("report_table", None),
            )
            return command(work, *arguments, **named)

        found = with_work
        if engine == "either":
            found = spark_or_not(found)
        if limit is not None:
            rate, text = WholeNumber(min=1), f"Limit on {limit}."
            found = click.option("--bytes-per-second", type=rate, help=text)(found)
        if reports:
            found = report_table(found)
        if yes is not None:
            found = click.option("--yes", is_flag=True, help=yes)(found)
        if dry_run is not None:
            found = click.option("--dry-run", is_flag=True, help=dry_run)(found)
        return found

    return decorate


def open_table(settings: Settings, path: str | None) -> ReportTable | None:
    """Return the table for the report, opened before the job, so that a problem shows at once."""
    if path is None:
        return None
    from spark_bookkeeper.spark.report_table import open_report_table  # pyspark only where needed

    return open_report_table(path, settings.metadata_uri, **settings.spark_conf)


def show_report(settings: Settings, report: Report, table: ReportTable | None = None) -> int:
    """Keep and print a report; return the exit code: 0 if nothing is left undone.

    The report of a dry run is the plan. There 0 means that a run would leave nothing undone.
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
    path = kept_in_file()
    if path is not None:
        try:
            write_report(report, path)
        except BookKeeperError as error:
            is_kept, path = False, None
            settings.output.note(f"Error: {error.message}")
    if not settings.output.is_json:
        show()
    elif path is None:
        settings.output.json(report.to_dict())
    else:
        settings.output.json({**report.totals(), "rows": [], "report_file": path})
    return EXIT_LEFT_UNDONE if report.unfinished or not is_kept else EXIT_DONE


def refuse_unknown(bk: BookKeeper, wanted: Sequence[int] | None) -> None:
    """Refuse a call that names a ledger which does not exist, before anything is begun.

    A ledger whose metadata cannot be decoded exists; the report shows what is wrong with it.

    Raises:
        NoSuchLedgerError: for the first of them.
    """
    for ledger_id in wanted or ():
        with suppress(MetadataFormatError):
            bk.ledger(ledger_id)


@dataclass(frozen=True)
class Planned:
    """The totals of a plan of copying."""

    steps: int
    """The number of rows that would be done."""
    copies: int
    bytes: int
    opened: Sequence[int]
    """Ledgers that would be fenced, recovered and closed."""
    left: Row | None
    """The first row that cannot be done."""

    @classmethod
    def of(cls, plan: Report) -> Planned:
        steps = copies = size = 0
        opened: set[int] = set()
        for row in plan.rows:
            if row.status is not Outcome.PLANNED:
                continue
            steps += 1
            if row.action == "recover":
                opened.add(row.ledger_id)
            elif row.action == "copy":
                copies += 1
                size += row.bytes
        return cls(steps, copies, size, sorted(opened), next(iter(plan.unfinished), None))

    def note(self, settings: Settings) -> None:
        """Print the totals before a question."""
        note = settings.output.note
        note(f"{counted(self.copies, 'share')} to copy, {counted(self.bytes, 'byte')}")
        if self.opened:
            note(
                "fenced, recovered and closed first, which stops their writers: "
                f"ledger{'' if len(self.opened) == 1 else 's'} {some_of(self.opened, MOST_ROWS)}"
            )
        if self.left is not None:
            note(f"not everything can be done (--dry-run shows it all): {self.left.reason}")


def ask_about(settings: Settings, plan: Report, forgotten: Sequence[str] = ()) -> None:
    """Ask before ledgers are closed or bookies forgotten. Copying alone removes nothing."""
    planned = Planned.of(plan)
    if not planned.opened and not forgotten:
        return
    planned.note(settings)
    if forgotten:
        settings.output.note(f"forgotten when all is done: {', '.join(forgotten)}")
    confirm("Go on?")


def _show_rows(settings: Settings, report: Report) -> None:
    rows: list[Row] = list(islice(report.unfinished, MOST_ROWS))
    others = (row for row in report.rows if row.status.is_done or row.status is Outcome.PLANNED)
    rows += islice(others, MOST_ROWS - len(rows))
    if not rows:
        return
    if report.columns is PlanRow:
        _show_plan(settings, rows)
    else:
        _show_done(settings, report, rows)
    if len(report.rows) > len(rows):
        more_rows = len(report.rows) - len(rows)
        settings.output.say(f"... {more_rows:,} more rows; --report-file or --json has them all")


def _show_plan(settings: Settings, rows: Sequence[Row]) -> None:
    """Print a plan without numbers of entries; programs get these."""
    settings.output.table(
        ["ledger", "entry ids", "action", "bookie", "from", "target", "bytes", "copies", "remark"],
        [plan_cells(row) for row in rows],
    )


def plan_cells(row: Row) -> Sequence[object]:
    """Return the cells of a plan's row, about 100 characters. All source bookies share one cell,
    which is wrapped.
    """
    return [
        row.ledger_id,
        _range(row.first_entry_id, row.last_entry_id),
        row.action,
        row.source,
        " ".join(row.sources or ()) if isinstance(row, PlanRow) else None,
        None if row.target == row.source else row.target,
        f"{row.bytes:,}",
        _copies(row),
        _remark(row),
    ]


def _copies(row: Row) -> str | None:
    """Return the least number of live copies of an entry, before and after."""
    if not isinstance(row, PlanRow) or row.live_copies is None:
        return None
    return f"{row.live_copies} > {row.live_copies_after}"


def _remark(row: Row) -> str | None:
    """Return facts that the other columns lack."""
    if row.status is not Outcome.PLANNED:
        return f"{row.status}: {row.reason}"
    if not isinstance(row, PlanRow) or row.live_copies is None:
        return row.reason
    said = []
    if row.only_if_read is not None:
        said.append(only_if_read(row.only_if_read))
    if row.last_entry_id is None and row.source is not None:
        said.append("open: how much, is known when it is closed")
    return "; ".join(said) or None


def _show_done(settings: Settings, report: Report, rows: Sequence[Row]) -> None:
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
                None if row.ledger_id < 0 else row.ledger_id,  # the row is about a whole bookie
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
            for row in rows
        ],
    )


def _show_summary(settings: Settings, report: Report) -> None:
    found = {"planned": 0, **report.counts} if report.dry_run and report.rows else report.counts
    counts = "   ".join(f"{status} {count}" for status, count in found.items())
    numbers = report.totals()
    settings.output.say(
        f"{report.job}{' (dry run, nothing was changed)' if report.dry_run else ''}: "
        f"{counts or report.without_rows}   {numbers['entries']:,} entries, "
        f"{numbers['bytes']:,} bytes, {report.duration_ms / 1000:.1f} s"
    )
    if report.job in _REPLICATING and numbers["ledgers"] and not report.dry_run:
        whole, ledgers = numbers["ledgers_complete"], counted(numbers["ledgers"], "ledger")
        settings.output.say(f"fully replicated: {whole:,} of {ledgers}")
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
