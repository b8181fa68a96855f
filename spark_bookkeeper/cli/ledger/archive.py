"""``spark-bookkeeper ledger archive``: copy closed ledgers to a Delta table."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.cli.shell.parameters import LedgerType, WholeNumber
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.work import Work, work_options
from spark_bookkeeper.session.arguments import either_of


@click.command(epilog="Example: spark-bookkeeper ledger archive /data/clicks --log clicks")
@click.argument("path", metavar="PATH")
@click.argument("ledger_ids", type=LedgerType(), nargs=-1, metavar="[LEDGER]...")
@click.option("--log", metavar="NAME", help="The ledgers of this log, as far as they are closed.")
@click.option(
    "--release", is_flag=True, help="Have bookies drop copies; reads come from the table then."
)
@click.option(
    "--keep",
    type=WholeNumber(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Copies of every entry that stay on bookies, with --release; 0 is none.",
)
@work_options(
    dry_run="Only say which ledgers it would add, or release.",
    yes="With --release: do not ask.",
    engine="spark",
)
def archive(
    work: Work, path: str, ledger_ids: Sequence[int], log: str | None, release: bool, keep: int
) -> int:
    """Put the rows of closed ledgers into the Delta table at PATH, each row exactly once.

    Without LEDGER and --log, of all ledgers. Run it as often as you like: what is in the table is
    verified and not added again. The ledgers stay as they are, unless --release is given: then
    every entry is made again of the table and compared byte for byte, and bookies drop copies.

    Spark writes the table, so there is no --no-spark.
    """
    wanted = either_of(ledger_ids or None, log)
    if release and not work.dry_run and not work.yes:
        kept = f"all but {keep} copies" if keep else "all copies"
        work.settings.output.note("--dry-run shows which ledgers that are")
        confirm(f"Have bookies drop {kept} of what is in the table at {path} afterwards?")
    from spark_bookkeeper.spark.delta_tables import session_with_delta

    session_with_delta(**work.settings.spark_conf)
    report = work.run(
        "archiving ledgers",
        lambda bk, dry_run, progress: bk.archive_to_delta(
            path,
            wanted,
            log,
            release=release,
            keep=keep,
            dry_run=dry_run,
            progress=progress,
        ),
        unit="ledgers",
    )
    return work.show(report)
