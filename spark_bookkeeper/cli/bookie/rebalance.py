"""``spark-bookkeeper bookie rebalance | drain``: move shares to bookies that have room."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.agent.decommission import DecommissionReport
from spark_bookkeeper.cli.shell.engine import sizes_of
from spark_bookkeeper.cli.shell.parameters import WholeNumber
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.cli.shell.work import PLAN, YES, Planned, Work, work_options
from spark_bookkeeper.config import SPARE_BYTES
from spark_bookkeeper.protocol.ids import BookieId, parse_bookie_id
from spark_bookkeeper.replication.rebalance import RebalanceReport
from spark_bookkeeper.replication.report import counted


@click.command(
    epilog="Example: spark-bookkeeper bookie rebalance 10.0.0.9:3181 --max-bytes 100000000000 "
    "--dry-run"
)
@click.argument("targets", metavar="[BOOKIE]...", nargs=-1)
@click.option("--max-bytes", type=WholeNumber(min=1), help="So much is moved at the most.")
@click.option(
    "--tolerance-percent",
    type=WholeNumber(min=0),
    default=10,
    show_default=True,
    help="A bookie with so much more than its part is left alone.",
)
@click.option(
    "--spare-bytes",
    type=WholeNumber(min=0),
    default=SPARE_BYTES,
    show_default=True,
    help="Left free on the disk of every target.",
)
@work_options(dry_run="Show the plan; change nothing.", yes=YES, engine="either", limit="copying")
def rebalance(
    work: Work,
    targets: Sequence[str],
    max_bytes: int | None,
    tolerance_percent: int,
    spare_bytes: int,
    bytes_per_second: int | None,
) -> int:
    """Move shares of closed ledgers to BOOKIE..., or to all bookies that have too little.

    Each bookie's part follows the size of its disk, and no write set gets onto fewer racks. Old
    copies are garbage, and take space until it is collected. Run again it does the rest.
    """
    names = [parse_bookie_id(name) for name in targets]

    def ask(plan: RebalanceReport) -> None:
        planned = Planned.of(plan)
        if planned.steps:
            planned.note(work.settings)
            confirm("Move them?")

    report = work.run(
        "reading ledger metadata",
        lambda bk, dry_run, progress: bk.rebalance(
            names or None,
            max_bytes=max_bytes,
            tolerance_percent=tolerance_percent,
            spare_bytes=spare_bytes,
            dry_run=dry_run,
            bytes_per_second=bytes_per_second,
            progress=progress,
        ),
        ask=ask,
    )
    code = work.show(report)
    if report.remark is not None:
        work.settings.output.note(report.remark)
    elif not report.rows:
        work.settings.output.note("every bookie has its part, or nearly so (--tolerance-percent)")
    if not work.settings.output.is_json:
        work.settings.output.table(
            ["bookie", "bytes before", "after", "its part"],
            [
                [load.bookie_id, load.before_bytes, load.after_bytes, load.goal_bytes]
                for load in report.loads
            ],
        )
    return code


@click.command(epilog="Example: spark-bookkeeper bookie drain 192.168.1.10:3181 --dry-run")
@click.argument("bookie_id", metavar="BOOKIE")
@work_options(dry_run=PLAN, yes=YES, engine="either", limit="copying")
def drain(work: Work, bookie_id: str, bytes_per_second: int | None) -> int:
    """Make BOOKIE read-only, and make all that it holds again on others; it stays in the cluster.

    Ledgers that are open on it are fenced, recovered and closed. It says what remains, and what is
    in the way; run again it does the rest. `bookie set-writable` ends it, `bookie decommission`
    takes the bookie away.
    """
    name = parse_bookie_id(bookie_id)

    report = work.run(
        "reading ledger metadata",
        lambda bk, dry_run, progress: bk.drain_bookie(
            name, dry_run=dry_run, bytes_per_second=bytes_per_second, progress=progress
        ),
        sizes=lambda bk: sizes_of(bk, naming={name}),
        ask=lambda plan: ask_to_drain(work.settings, name, plan),
    )
    code = work.show(report)
    if work.dry_run:
        return code
    note = work.settings.output.note
    if report.is_complete:
        note(f"bookie {name} is drained: no ledger counts on it")
    else:
        note(f"{counting(report)} on bookie {name} still: {report.blocked_by}")
    note_readonly(work.settings, name)
    return code if report.is_complete else max(code, EXIT_LEFT_UNDONE)


def ask_to_drain(settings: Settings, bookie: BookieId, plan: DecommissionReport) -> None:
    """Ask before a bookie becomes read-only, even if there is nothing to copy."""
    planned = Planned.of(plan)
    if planned.steps or planned.left is not None:
        planned.note(settings)
    more = ", and make all that it holds again on others" if planned.steps else ""
    confirm(f"Make {bookie} read-only{more}?")


def note_readonly(settings: Settings, bookie: BookieId) -> None:
    """Print that a drained bookie stays read-only, whether everything could be copied or not."""
    settings.output.note(
        f"it stays read-only until it is told otherwise: spark-bookkeeper bookie set-writable "
        f"{bookie}"
    )


def counting(report: DecommissionReport) -> str:
    """Return a text such as ``3 ledgers count``, about those that still rely on a bookie."""
    count = len(report.remaining)
    return f"{counted(count, 'ledger')} count{'s' if count == 1 else ''}"
