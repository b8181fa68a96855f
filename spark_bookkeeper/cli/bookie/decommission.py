"""``spark-bookkeeper bookie decommission``: remove a bookie for good."""

from __future__ import annotations

import click

from spark_bookkeeper.agent.decommission import DecommissionReport
from spark_bookkeeper.cli.bookie.rebalance import ask_to_drain, counting, note_readonly
from spark_bookkeeper.cli.shell.engine import sizes_of
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_LEFT_UNDONE
from spark_bookkeeper.cli.shell.work import PLAN, YES, Planned, Work, work_options
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.session import BookKeeper


@click.command(epilog="Example: spark-bookkeeper bookie decommission 192.168.1.10:3181 --dry-run")
@click.argument("bookie_id", metavar="BOOKIE")
@click.option("--drain", is_flag=True, help="Copy its data while it runs; its cookie stays then.")
@work_options(dry_run=PLAN, yes=YES, engine="either", limit="copying")
def decommission(work: Work, bookie_id: str, drain: bool, bytes_per_second: int | None) -> int:
    """Make all that BOOKIE holds again on others, and then remove its cookie.

    Ledgers that are open on it are fenced, recovered and closed. It says what remains, and what is
    in the way; run again it does the rest.
    """
    name = parse_bookie_id(bookie_id)

    is_drained = False

    def before(bk: BookKeeper) -> None:
        nonlocal is_drained
        is_drained = drain and name in bk.context.bookies.registrations()

    def ask(plan: DecommissionReport) -> None:
        if is_drained:
            ask_to_drain(work.settings, name, plan)
            return
        planned = Planned.of(plan)
        if planned.steps:
            planned.note(work.settings)
            confirm(f"Copy what {name} holds, and then forget that bookie?")
        elif planned.left is None:
            confirm(f"No ledger counts on {name}. Forget that bookie?")

    report = work.run(
        "reading ledger metadata",
        lambda bk, dry_run, progress: bk.decommission_bookie(
            name, drain, dry_run=dry_run, bytes_per_second=bytes_per_second, progress=progress
        ),
        before=before,
        sizes=lambda bk: sizes_of(bk, naming={name}),
        ask=ask,
    )
    code = work.show(report)
    if work.dry_run:
        return code
    if report.blocked_by is None:
        work.settings.output.note(f"bookie {name} is forgotten: its cookie is removed")
    else:
        work.settings.output.note(
            f"bookie {name} is not forgotten: {report.blocked_by}. {counting(report)} on it"
        )
        if is_drained:
            note_readonly(work.settings, name)
    return code if report.is_complete else max(code, EXIT_LEFT_UNDONE)
