"""``spark-bookkeeper bookie gc | compact | scrub``: free space, compact files, check digests."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.agent.collection import GarbageReport
from spark_bookkeeper.cli.shell.parameters import WholeNumber, only_ledgers
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, work_options
from spark_bookkeeper.config import COMPACTED_FROM_FILES
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.replication.report import Outcome, counted


@click.command(epilog="Example: spark-bookkeeper bookie gc --dry-run")
@click.argument("bookie_ids", metavar="[BOOKIE...]", nargs=-1)
@click.option(
    "--leftovers-after",
    "leftovers_after_s",
    type=WholeNumber(min=0),
    default=86_400,
    show_default=True,
    help="Seconds after which what is left of unfinished writes goes.",
)
@work_options(dry_run="Show what would go; change nothing.", yes=YES, limit="reading")
def gc(
    work: Work, bookie_ids: Sequence[str], leftovers_after_s: int, bytes_per_second: int | None
) -> int:
    """Remove what nothing needs from BOOKIEs, or from all of them.

    Deleted ledgers; copies of closed ledgers that no fragment names, when every replica was read
    and is whole; what is left of unfinished writes. What is not certain stays, and a row says why.
    """
    names = [parse_bookie_id(bookie) for bookie in bookie_ids] or None

    def ask(plan: GarbageReport) -> None:
        going = [row for row in plan.rows if row.status is Outcome.PLANNED]
        if going:
            size = counted(sum(row.bytes for row in going), "byte")
            ledgers = counted(len({row.ledger_id for row in going}), "ledger")
            work.settings.output.note(f"{size} of {ledgers} to go")
            confirm("Remove them?")

    report = work.run(
        "asking bookies what they have",
        lambda bk, dry_run, progress: bk.collect_garbage(
            dry_run,
            bookie_ids=names,
            leftovers_after_s=leftovers_after_s,
            bytes_per_second=bytes_per_second,
            progress=progress,
        ),
        ask=ask,
    )
    return work.show(report)


@click.command(epilog="Example: spark-bookkeeper bookie compact 10.0.0.3:3181 --dry-run")
@click.argument("bookie_ids", metavar="[BOOKIE...]", nargs=-1)
@only_ledgers
@click.option(
    "--files-least",
    type=WholeNumber(min=2),
    default=COMPACTED_FROM_FILES,
    show_default=True,
    help="Leave ledgers that have fewer files on a bookie.",
)
@work_options(dry_run=PLAN, limit="what is moved")
def compact(
    work: Work,
    bookie_ids: Sequence[str],
    ledger_ids: Sequence[int],
    files_least: int,
    bytes_per_second: int | None,
) -> int:
    """Make few large files of the many small ones of closed ledgers, on BOOKIEs or on all of them.

    Reads go on meanwhile, and open fewer files afterwards.
    """
    names = [parse_bookie_id(bookie) for bookie in bookie_ids] or None
    wanted = list(dict.fromkeys(ledger_ids)) or None
    report = work.run(
        "asking bookies what they have",
        lambda bk, dry_run, progress: bk.compact(
            wanted,
            bookie_ids=names,
            dry_run=dry_run,
            files_least=files_least,
            bytes_per_second=bytes_per_second,
            progress=progress,
        ),
    )
    return work.show(report)


@click.command(epilog="Example: spark-bookkeeper bookie scrub 10.0.0.3:3181")
@click.argument("bookie_id", metavar="BOOKIE")
@click.option("--from-start", is_flag=True, help="Begin anew, not where the last one ended.")
@work_options(limit="reading")
def scrub(work: Work, bookie_id: str, from_start: bool, bytes_per_second: int | None) -> int:
    """Read everything that BOOKIE should have, and compare it with its digests.

    What is damaged or missing is published to autorecovery, which makes it again from other
    replicas. Stopped, it goes on where it was; its agent does the same all the time.
    """
    name = parse_bookie_id(bookie_id)
    report = work.run(
        "reading ledger metadata",
        lambda bk, _, progress: bk.scrub(
            name, from_start=from_start, bytes_per_second=bytes_per_second, progress=progress
        ),
    )
    return work.show(report)
