"""``spark-bookkeeper cluster backup | restore``: ledgers and logs in a directory, and back."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.parameters import LedgerIdType
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.cli.shell.work import no_spark, open_table, report_table, show_report
from spark_bookkeeper.errors import InvalidArgumentError

_ledger_ids = click.argument("ledger_ids", type=LedgerIdType(), nargs=-1, metavar="[LEDGER]...")


@click.command(epilog="Example: spark-bookkeeper cluster backup s3://backups/main")
@click.argument("uri", metavar="URI")
@_ledger_ids
@click.option("--log", metavar="NAME", help="The ledgers of this log, its list and consumers.")
@click.option("--verify", is_flag=True, help="Read again also what earlier runs copied.")
@click.option("--dry-run", is_flag=True, help="Only say what it would copy.")
@report_table
@no_spark
@access_options
@click.pass_obj
def backup(
    settings: Settings,
    access: Access,
    uri: str,
    ledger_ids: Sequence[int],
    log: str | None,
    verify: bool,
    dry_run: bool,
    report_table: str | None,
    no_spark: bool,
) -> int:
    """Copy ledgers and logs to the directory at URI; without LEDGER and --log, all of them.

    Run it as often as you like: it copies what is new, and ends with a snapshot of what there is.
    Nobody who writes is disturbed. The directory will hold the ledgers' passwords too.
    """
    wanted = _wanted(ledger_ids, log)
    with connected(settings, access, with_spark=not no_spark) as bk:
        table = open_table(settings, report_table)
        with settings.output.progress("copying ledgers") as progress:
            report = bk.backup(
                uri, wanted, log, verify=verify, dry_run=dry_run, progress=progress.phase
            )
    return show_report(settings, report, table)


@click.command(epilog="Example: spark-bookkeeper cluster restore s3://backups/main --dry-run")
@click.argument("uri", metavar="URI")
@_ledger_ids
@click.option("--log", metavar="NAME", help="This log and its ledgers.")
@click.option(
    "--snapshot", type=click.IntRange(1), metavar="N", help="Which; the newest without it."
)
@click.option("--dry-run", is_flag=True, help="Only say what it would restore.")
@report_table
@no_spark
@access_options
@click.pass_obj
def restore(
    settings: Settings,
    access: Access,
    uri: str,
    ledger_ids: Sequence[int],
    log: str | None,
    snapshot: int | None,
    dry_run: bool,
    report_table: str | None,
    no_spark: bool,
) -> int:
    """Put ledgers and logs of the backup at URI into this cluster, which should be empty.

    Run it until nothing is left: what is there already is passed over. Ids and positions are those
    that they were. A ledger that was not closed is closed at the last entry in the backup.
    """
    wanted = _wanted(ledger_ids, log)
    with connected(settings, access, with_spark=not no_spark) as bk:
        table = open_table(settings, report_table)
        with settings.output.progress("restoring ledgers") as progress:
            report = bk.restore(
                uri, wanted, log, snapshot=snapshot, dry_run=dry_run, progress=progress.phase
            )
    return show_report(settings, report, table)


def _wanted(ledger_ids: Sequence[int], log: str | None) -> list[int] | None:
    if ledger_ids and log is not None:
        raise InvalidArgumentError("give either LEDGER ids or --log, not both")
    return list(dict.fromkeys(ledger_ids)) or None
