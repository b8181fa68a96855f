"""``spark-bookkeeper bookie refill``: copy back what a bookie with a replaced disk should hold."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.cli.shell.engine import sizes_of
from spark_bookkeeper.cli.shell.parameters import only_ledgers
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, ask_about, work_options
from spark_bookkeeper.protocol.ids import parse_bookie_id


@click.command(epilog="Example: spark-bookkeeper bookie refill 192.168.1.10:3181 --dry-run")
@click.argument("bookie_id", metavar="BOOKIE")
@only_ledgers
@click.option("--skip-open-ledgers", is_flag=True, help="Leave ledgers alone that are not closed.")
@work_options(dry_run=PLAN, yes=YES, engine="either", limit="copying")
def refill(
    work: Work,
    bookie_id: str,
    ledger_ids: Sequence[int],
    skip_open_ledgers: bool,
    bytes_per_second: int | None,
) -> int:
    """Copy back to BOOKIE, whose disk was replaced, all that the ledgers say that it holds.

    Before: `bookie format --replaced` and `bookie start`. For each ledger its word counts again
    when everything is there. Ledgers that are open on it are fenced, recovered and closed first.
    Killed at any moment it loses nothing, and run again it finishes the rest.
    """
    name = parse_bookie_id(bookie_id)
    report = work.run(
        "reading ledger metadata",
        lambda bk, dry_run, progress: bk.refill_bookie(
            name,
            ledger_ids=ledger_ids or None,
            skip_open_ledgers=skip_open_ledgers,
            dry_run=dry_run,
            bytes_per_second=bytes_per_second,
            progress=progress,
        ),
        sizes=lambda bk: sizes_of(bk, ledger_ids or None, naming={name}),
        ask=lambda plan: ask_about(work.settings, plan),
    )
    return work.show(report)
