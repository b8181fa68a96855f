"""``spark-bookkeeper ledger delete | fence``: show the affected ledgers, and ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from spark_bookkeeper.cli.shell.cluster_options import connected
from spark_bookkeeper.cli.shell.output import text_of
from spark_bookkeeper.cli.shell.parameters import LedgerType
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings, begun
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, work_options, would_go
from spark_bookkeeper.cli.shell.writers import about_writer
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.presence import writer_of, writer_state
from spark_bookkeeper.client.views import UNREADABLE
from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.report import counted
from spark_bookkeeper.session import BookKeeper


@click.command(epilog="Example: spark-bookkeeper ledger delete 7 9 --yes")
@click.argument("ledger_ids", type=LedgerType(), nargs=-1, required=True, metavar="LEDGER...")
@click.option(
    "--even-if-alive",
    is_flag=True,
    help="Also a ledger whose writer lives, may live, or cannot be stopped for certain.",
)
@work_options(dry_run=PLAN, yes=YES, reports=False)
def delete(work: Work, ledger_ids: Sequence[int], even_if_alive: bool) -> int:
    """Delete ledgers for ever. What bookies hold of them becomes garbage.

    One that is not closed is fenced before, so that its writer, should it live, can append
    nothing more; while the writer is known to live it is not deleted, unless told so.
    """
    settings, dry_run = work.settings, work.dry_run
    with connected(settings, work.access) as bk:
        wanted = [parse_ledger_id(ledger_id) for ledger_id in dict.fromkeys(ledger_ids)]
        left: dict[int, str] = {}
        planned: list[Deletion] = []
        with settings.output.progress():
            found = dict(bk.context.store.read_ledgers(wanted))
            notes = [_as_found(bk, ledger_id, found[ledger_id]) for ledger_id in wanted]
            gone = [ledger_id for ledger_id in wanted if found[ledger_id] is None]
            for i in (each for each in wanted if found[each] is not None):
                try:
                    planned.append(bk.delete_ledger(i, even_if_alive=even_if_alive, dry_run=True))
                except (InvalidArgumentError, MetadataFormatError) as error:
                    left[i] = error.message
        for note in notes:
            settings.output.note(note)
        todo = [each.ledger_id for each in planned]
        if todo and not (work.yes or dry_run):
            confirm(f"Delete {counted(len(todo), 'ledger')} for ever?")
        doomed = [] if dry_run else todo
        with settings.output.progress("deleting ledgers"):
            deleted, failed = _delete(settings, bk, doomed, even_if_alive=even_if_alive)
        left.update(failed)
        not_fenced = {i: bookies for i, bookies in deleted.items() if bookies}

    def show() -> None:
        done = f"deleted: {', '.join(map(str, deleted)) or 'nothing'}"
        settings.output.say(would_go(planned) if dry_run else done)
        for ledger_id, bookies in not_fenced.items():
            settings.output.say(f"not fenced before ledger {ledger_id} was deleted:")
            for bookie, why in bookies.items():
                settings.output.say(f"  {bookie}: {why}")
        for message in left.values():
            settings.output.say(f"left: {message}")

    value: dict[str, Any] = {"deleted": list(deleted), "not_found": gone}
    value |= {"planned": planned} if dry_run else {}
    value |= {k: v for k, v in (("left", left), ("not_fenced", not_fenced)) if v}
    settings.output.result(value, show)
    return EXIT_LEFT_UNDONE if left else EXIT_DONE


@click.command(epilog="Example: spark-bookkeeper ledger fence 7 --yes")
@click.argument("ledger_ids", type=LedgerType(), nargs=-1, required=True, metavar="LEDGER...")
@work_options(dry_run=PLAN, yes="Do not ask before writers are stopped.", reports=False)
def fence(work: Work, ledger_ids: Sequence[int]) -> int:
    """Stop the writers of ledgers now, and decide later.

    Bookies take nothing more of the ledgers, and keep what they have; nothing is closed. `ledger
    recover` closes them, `ledger delete` deletes them. Exit code 1 where a writer may go on.
    """
    output = work.settings.output
    with connected(work.settings, work.access) as bk:
        with output.progress():
            plans = [bk.fence_ledger(each, dry_run=True) for each in dict.fromkeys(ledger_ids)]
            found = dict(bk.context.store.read_ledgers([each.ledger_id for each in plans]))
            notes = [_as_found(bk, ledger_id, each) for ledger_id, each in found.items()]
        for note in notes:
            output.note(note)
        todo = [each.ledger_id for each in plans if not each.is_stopped]
        if todo and not (work.yes or work.dry_run):
            confirm(f"Fence {counted(len(todo), 'ledger')}, stopping their writers?")
        with begun(), output.progress("fencing ledgers"):
            rows = plans if work.dry_run else [bk.fence_ledger(each) for each in found]

    def show() -> None:
        for row in rows:
            took = f"{len(row.fenced)} of {len(row.fenced) + len(row.not_fenced)} bookies fenced"
            so = "its writer is stopped" if row.is_stopped else "its writer may go on"
            output.say(f"ledger {row.ledger_id} was {row.state}: {took}; {so}")
            for bookie, why in row.not_fenced.items():
                output.say(f"  {bookie}: {why}")

    output.result({"dry_run": work.dry_run, "rows": rows}, show)
    return EXIT_DONE if work.dry_run or all(row.is_stopped for row in rows) else EXIT_LEFT_UNDONE


def _delete(
    settings: Settings, bk: BookKeeper, ledger_ids: Sequence[LedgerId], *, even_if_alive: bool
) -> tuple[Mapping[LedgerId, Mapping[BookieId, str]], Mapping[int, str]]:
    """Delete ledgers one after the other. Return the deleted ones, each with its unfenced bookies,
    and the reasons why the others remain.
    """
    deleted: dict[LedgerId, Mapping[BookieId, str]] = {}
    left: dict[int, str] = {}
    silent: str | None = None
    for ledger_id in ledger_ids:
        if silent is not None:
            left[ledger_id] = f"ledger {ledger_id} was not tried: {silent}"
            continue
        try:
            deleted[ledger_id] = bk.delete_ledger(ledger_id, even_if_alive=even_if_alive).not_fenced
        except MetadataUnavailableError as error:  # the others would wait as long for it
            left[ledger_id] = f"ledger {ledger_id} may or may not be deleted: {error.message}"
            silent = "ZooKeeper did not answer; repeat it"
        except BookKeeperError as error:  # continue, and report all deletions
            left[ledger_id] = error.message
        except KeyboardInterrupt:
            ids = ", ".join(map(str, deleted)) or "nothing"
            settings.output.note(f"deleted before: {ids}; ledger {ledger_id} may be as well")
            raise
    return deleted, left


def _as_found(
    bk: BookKeeper,
    ledger_id: LedgerId,
    found: Versioned[LedgerMetadata] | MetadataFormatError | None,
) -> str:
    """Return a line about a ledger that is to be deleted or fenced."""
    if found is None:
        return f"ledger {ledger_id} does not exist"
    if isinstance(found, MetadataFormatError):
        return f"ledger {ledger_id}: {UNREADABLE}; {found.message}"
    m = found.value
    size = "unknown" if m.length_bytes is None else f"{m.length_bytes:,}"
    line = (
        f"ledger {ledger_id}: {m.state.name}, last entry {m.last_entry_id}, {size} bytes, "
        f"label {text_of(m.custom_metadata.get('name')) or 'none'}"
    )
    if m.is_closed:
        return line
    return f"{line}; {about_writer(writer_of(m), writer_state(bk.context, ledger_id, m))}"
