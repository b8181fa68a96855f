"""``spark-bookkeeper cluster backup | restore``: copy ledgers and logs to a directory, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import click
from click.core import ParameterSource

from spark_bookkeeper.backup.folder import backup_at
from spark_bookkeeper.backup.saving import BackupReport
from spark_bookkeeper.cli.shell.engine import sizes_of
from spark_bookkeeper.cli.shell.parameters import LedgerIdType, LedgerType, WholeNumber, is_decimal
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.work import Work, refuse_unknown, work_options
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import parse_ledger_id
from spark_bookkeeper.replication.report import counted, some_of
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.session.arguments import either_of, uri_of


@click.command(epilog="Example: spark-bookkeeper cluster backup s3://backups/main")
@click.argument("uri", metavar="URI")
@click.argument("ledger_ids", type=LedgerType(), nargs=-1, metavar="[LEDGER]...")
@click.option("--log", metavar="NAME", help="The ledgers of this log, its list and consumers.")
@click.option(
    "--table",
    "in_table",
    is_flag=True,
    help="Put the rows of closed ledgers into a Delta table at URI, the rest beside it.",
)
@click.option("--verify", is_flag=True, help="Read again also what earlier runs copied.")
@work_options(dry_run="Only say what it would copy.", engine="either")
def backup(
    work: Work, uri: str, ledger_ids: Sequence[int], log: str | None, in_table: bool, verify: bool
) -> int:
    """Copy ledgers and logs to the directory at URI; without LEDGER and --log, all of them.

    Run it as often as you like: it copies what is new, and ends with a snapshot of what it saved.
    Nobody who writes is disturbed. The directory will hold the ledgers' passwords too.
    """
    wanted = either_of(ledger_ids or None, log)
    if in_table:
        if work.on_spark is False:
            raise InvalidArgumentError(
                "--table writes a Delta table, which needs Spark: leave --no-spark out; nothing "
                "was changed"
            )
        from spark_bookkeeper.spark.delta_tables import session_with_delta

        session_with_delta(**work.settings.spark_conf)
        work = replace(work, on_spark=True)
    report = work.run(
        "copying ledgers",
        lambda bk, dry_run, progress: bk.backup(
            uri, wanted, log, in_table=in_table, verify=verify, dry_run=dry_run, progress=progress
        ),
        before=lambda bk: refuse_unknown(bk, wanted),
        sizes=lambda bk: sizes_of(bk, wanted if log is None else bk.open_log(log).ledgers()),
    )
    return _show(work, report)


@click.command(epilog="Example: spark-bookkeeper cluster restore s3://backups/main --dry-run")
@click.argument("uri", metavar="[URI]", required=False)
@click.argument("ledger_ids", type=LedgerIdType(), nargs=-1, metavar="[LEDGER_ID]...")
@click.option("--log", metavar="NAME", help="This log and its ledgers.")
@click.option("--snapshot", type=WholeNumber(1), metavar="N", help="Which; the newest without it.")
@click.option(
    "--forget",
    is_flag=True,
    help="Without URI: give up restores that did not end, of LEDGER... or all.",
)
@work_options(
    dry_run="Only say what it would restore, or forget.",
    yes="With --forget: do not ask.",
    engine="either",
)
def restore(
    work: Work,
    uri: str | None,
    ledger_ids: Sequence[int],
    log: str | None,
    snapshot: int | None,
    forget: bool,
) -> int:
    """Put ledgers and logs of the backup at URI into this cluster, which should be empty.

    Run it until nothing is left: what is there already is passed over. Ids and positions are those
    that they were. A ledger that was not closed is closed at the last entry in the backup.

    Whoever does not go on with a restore gives it up with --forget: garbage collection takes what
    it has copied, and these ledgers cannot be restored to this cluster any more.
    """
    if forget:
        if log is not None or snapshot is not None:
            raise InvalidArgumentError("--forget takes no --log and no --snapshot, only LEDGER ids")
        if uri is not None:
            ledger_ids = (_ledger_id(uri), *ledger_ids)
        return _forget(work, ledger_ids)
    source = click.get_current_context().get_parameter_source("yes")
    if source is ParameterSource.COMMANDLINE:  # in a job, ``yes`` is always set
        raise InvalidArgumentError("--yes is of --forget: a restore asks nothing")
    if uri is None:
        raise InvalidArgumentError(
            "no URI was given: of the backup, as `cluster backup` was given it. `spark-bookkeeper "
            "cluster restore --help` shows an example"
        )
    wanted = either_of(ledger_ids or None, log)
    report = work.run(
        "restoring ledgers",
        lambda bk, dry_run, progress: bk.restore(
            uri, wanted, log, snapshot=snapshot, dry_run=dry_run, progress=progress
        ),
        sizes=lambda bk: _saved_sizes(bk, uri, wanted, snapshot),
    )
    return _show(work, report)


def _saved_sizes(
    bk: BookKeeper, uri: str, wanted: Sequence[int] | None, snapshot: int | None
) -> Iterator[tuple[int, int]]:
    """Yield entries and bytes of each ledger in a snapshot, or of the wanted ones."""
    folder = backup_at(bk.context, uri_of(uri))
    folder.incarnation()  # raises if the directory is no backup
    for each in folder.snapshots.read(snapshot)[1].ledgers:
        if wanted is None or each.ledger_id in wanted:
            yield each.last_entry_id + 1, each.length_bytes


def _show(work: Work, report: BackupReport) -> int:
    code = work.show(report)
    if report.remark is not None:
        work.settings.output.note(report.remark)
    return code


def _forget(work: Work, ledger_ids: Sequence[int]) -> int:
    wanted: Sequence[int] | None = ledger_ids or None

    def ask(plan: BackupReport) -> None:
        nonlocal wanted
        # Only the shown ones: another restore may have begun meanwhile.
        wanted = sorted({row.ledger_id for row in plan.rows if row.ledger_id >= 0})
        if not wanted:
            return
        size = sum(row.bytes for row in plan.rows)
        work.settings.output.note(
            f"{counted(len(wanted), 'ledger')}, {counted(size, 'byte')} that are garbage then: "
            f"{some_of(wanted)}"
        )
        confirm("Give them up? They cannot be restored to this cluster any more.")

    report = work.run(
        "asking bookies what they have",
        lambda bk, dry_run, progress: bk.forget_restores(
            wanted, dry_run=dry_run, progress=progress
        ),
        ask=ask,
    )
    return work.show(report)


def _ledger_id(text: str) -> int:
    if not is_decimal(text):
        raise InvalidArgumentError(
            f"{text!r} is no ledger id: --forget takes ids, and no URI; nothing was changed"
        )
    return parse_ledger_id(int(text))
