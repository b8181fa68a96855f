"""``spark-bookkeeper ledger recover | check | repair | diff``: work on ledgers' entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import click

from spark_bookkeeper.cli.shell.cluster_options import looking
from spark_bookkeeper.cli.shell.engine import sizes_of
from spark_bookkeeper.cli.shell.parameters import LedgerType, WholeNumber
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.cli.shell.work import MOST_ROWS, Work, refuse_unknown, work_options
from spark_bookkeeper.cli.shell.writers import about_writer
from spark_bookkeeper.client.views import ledger_rows
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, counted
from spark_bookkeeper.replication.runner import Progress
from spark_bookkeeper.session import BookKeeper

MOST_ENTRIES = 100
"""The most entries of a comparison that a person sees; programs get all."""

_ledger_ids = click.argument("ledger_ids", type=LedgerType(), nargs=-1, metavar="[LEDGER]...")


def _percentage(default: int, text: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    share = WholeNumber(0, 100)
    return click.option("--percentage", type=share, default=default, show_default=True, help=text)


@click.command(epilog="Example: spark-bookkeeper ledger recover 7 8")
@_ledger_ids
@click.option("--accept-loss", is_flag=True, help="Where bookies are gone, keep what is left.")
@click.option("--gone", metavar="BOOKIE", multiple=True, help="It is gone for good; repeatable.")
@work_options(
    dry_run="Only say which ledgers it would recover; with --accept-loss also what may be missing.",
    yes="Do not ask, neither before every open ledger is recovered nor before a loss is accepted.",
    engine="either",
)
def recover(work: Work, ledger_ids: Sequence[int], accept_loss: bool, gone: Sequence[str]) -> int:
    """Fence, recover and close ledgers; without LEDGER, every one that is not closed.

    Their writers, if they live, are stopped: what they acknowledged is kept. Who names a LEDGER
    is not asked, unless entries may be lost.
    """
    wanted = list(dict.fromkeys(ledger_ids)) or None
    shown: RecoveryReport | None = None

    def ask(plan: RecoveryReport) -> None:
        nonlocal shown
        shown = plan
        _ask_about_losses(work.settings, plan)

    def job(bk: BookKeeper, dry_run: bool, progress: Progress) -> RecoveryReport:
        run = partial(bk.recover_ledgers, wanted, gone=gone, progress=progress)
        loss = shown or accept_loss
        if loss is True and not dry_run:  # no question is asked
            loss = run(accept_loss=True, dry_run=True)
        return run(accept_loss=loss, dry_run=dry_run)

    def before(bk: BookKeeper) -> None:
        refuse_unknown(bk, wanted)
        if wanted is None and not work.dry_run and not work.yes:
            _ask_about_writers(work.settings, bk)

    report = work.run(
        "reading ledger metadata",
        job,
        ask=ask if accept_loss else None,
        before=before,
        sizes=lambda bk: sizes_of(bk, wanted, only_open=True),
    )
    return work.show(report)


def _ask_about_losses(settings: Settings, plan: RecoveryReport) -> None:
    """Show the entries that may be lost for good, and ask; ask nothing if there are none."""
    for row in islice(plan.rows, MOST_ROWS):
        last = "" if row.last_entry_id is None else row.last_entry_id
        said = f"entries {row.first_entry_id}..{last}: {row.reason or row.status}"
        settings.output.note(f"ledger {row.ledger_id}, {said}")
    if len(plan.rows) > MOST_ROWS:
        more = f"{len(plan.rows) - MOST_ROWS:,} more"
        settings.output.note(f"... {more}; --dry-run with --report-file or --json has all")
    if any(row.status is Outcome.GIVEN_UP for row in plan.rows):
        confirm("Give these entries up? It cannot be taken back, also where a bookie comes back.")


def _ask_about_writers(settings: Settings, bk: BookKeeper) -> None:
    """Show the ledgers that are not closed, and ask, because recovery stops their writers."""
    with settings.output.progress():
        rows = ledger_rows(bk.context)
        open_ones = [row for row in rows if row["state"] in ("OPEN", "IN_RECOVERY")]
    for row in open_ones:
        about = about_writer(row["writer"], row["writer_state"])
        settings.output.note(f"ledger {row['ledger_id']}: {row['state']}; {about}")
    if open_ones:
        whose = "its writer" if len(open_ones) == 1 else "their writers"
        of = counted(len(open_ones), "ledger")
        confirm(f"Fence, recover and close {of}, stopping {whose}?")


@click.command(epilog="Example: spark-bookkeeper ledger check --percentage 100")
@_ledger_ids
@_percentage(
    0, "Of the entries, besides the first and last of each share; 100 verifies every digest."
)
@work_options(engine="either", limit="reading")
def check(
    work: Work, ledger_ids: Sequence[int], percentage: int, bytes_per_second: int | None
) -> int:
    """Do the bookies hold what the metadata says? Without LEDGER, all ledgers. Changes nothing."""
    wanted = list(dict.fromkeys(ledger_ids)) or None
    report = work.run(
        "checking ledgers",
        lambda bk, _, progress: bk.check_ledgers(
            wanted, percentage=percentage, bytes_per_second=bytes_per_second, progress=progress
        ),
        before=lambda bk: refuse_unknown(bk, wanted),
        sizes=lambda bk: sizes_of(bk, wanted),
        unit="ledgers",
    )
    return work.show(report)


@click.command(epilog="Example: spark-bookkeeper ledger repair 7 --dry-run")
@_ledger_ids
@_percentage(100, "Of the entries that are looked at; what is wrong with others stays as it is.")
@work_options(dry_run="Look, and say what would be copied.", engine="either", limit="copying")
def repair(
    work: Work, ledger_ids: Sequence[int], percentage: int, bytes_per_second: int | None
) -> int:
    """Make missing and damaged copies again on the bookies that should have them.

    Without LEDGER, of all ledgers. Copies are added and nothing is taken away. What is on lost
    bookies is left: `bookie recover` replaces those.
    """
    wanted = list(dict.fromkeys(ledger_ids)) or None
    report = work.run(
        "repairing ledgers",
        lambda bk, dry_run, progress: bk.repair_ledgers(
            wanted,
            percentage=percentage,
            dry_run=dry_run,
            bytes_per_second=bytes_per_second,
            progress=progress,
        ),
        before=lambda bk: refuse_unknown(bk, wanted),
        sizes=lambda bk: sizes_of(bk, wanted),
        unit="ledgers",
    )
    return work.show(report)


@click.command(epilog="Example: spark-bookkeeper ledger diff 7")
@click.argument("ledger_id", type=LedgerType(), metavar="LEDGER")
@work_options(limit="reading", reports=False)
def diff(work: Work, ledger_id: int, bytes_per_second: int | None) -> int:
    """Show the same entry on all its bookies, side by side, every digest verified.

    Exit code 1 when any replica is missing, damaged, or unlike another.
    """
    output = work.settings.output
    with looking(work.settings, work.access, "reading every replica") as bk:
        found = bk.diff_replicas_arrow(ledger_id, bytes_per_second=bytes_per_second)
    rows = found.to_pylist()
    entries: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        entries.setdefault(row["entry_id"], {})[row["bookie_id"]] = row
    different = [entry for entry, replicas in entries.items() if not _is_equal(replicas)]
    bookies = sorted({row["bookie_id"] for row in rows})
    shown = (different + [e for e in entries if e not in set(different)])[:MOST_ENTRIES]

    def show() -> None:
        if entries:
            output.table(
                ["entry", "bytes", *bookies],
                [
                    [entry, _size(entries[entry]), *(_cell(entries[entry].get(b)) for b in bookies)]
                    for entry in shown
                ],
            )
        if len(entries) > len(shown):
            output.say(f"... {len(entries) - len(shown)} more entries; --json has them all")
        output.say(
            f"ledger {ledger_id}: {len(entries):,} entries, {len(rows):,} replicas; "
            + (
                f"{len(different):,} entries lack a good replica somewhere: "
                f"{', '.join(map(str, different[:20]))}{', ...' if len(different) > 20 else ''}"
                if different
                else "every replica of every entry is verified and the same"
            )
        )

    output.result(
        {
            "ledger_id": ledger_id,
            "entries": len(entries),
            "replicas": len(rows),
            "different": different,
            "rows": rows,
        },
        show,
    )
    return EXIT_LEFT_UNDONE if different else EXIT_DONE


def _is_equal(replicas: Mapping[str, Mapping[str, Any]]) -> bool:
    found = {(each["status"], each["digest"]) for each in replicas.values()}
    return len(found) == 1 and found.pop()[0] == "verified"


def _size(replicas: Mapping[str, Mapping[str, Any]]) -> int | None:
    return next((r["bytes"] for r in replicas.values() if r["bytes"] is not None), None)


def _cell(replica: Mapping[str, Any] | None) -> str | None:
    if replica is None:
        return None  # not in the write set
    if replica["status"] != "verified":
        return f"{replica['status']}: {replica['reason']}"
    return str(replica["digest"])
