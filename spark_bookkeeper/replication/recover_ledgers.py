"""Fence, recover and close many ledgers as one job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.report import RecoveryReport, Row
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress


@dataclass(frozen=True, slots=True)
class RecoverWork:
    """Recover one ledger. Picklable."""

    action: ClassVar[str] = "recover"
    ledger_id: LedgerId
    known: Versioned[LedgerMetadata]
    """As it was when the work was planned; the compare-and-swap notices what changed since."""


def recover_ledgers(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Recover the given ledgers, or every ledger that is not closed; one row for each.

    A ledger that must wait is ``left``, and its reason names the entry, what each bookie
    answered and the bookie that would unblock it. The others are not held up by it.
    """
    started = context.runtime.now()
    wanted = list(context.store.ledger_ids()) if ledger_ids is None else list(ledger_ids)
    todo: list[RecoverWork] = []
    rows: list[Row] = []
    for done, (ledger_id, found) in enumerate(context.store.read_ledgers(wanted), 1):
        if found is None:
            rows.append(Row(ledger_id, "recover", "gone", "the ledger does not exist"))
        elif isinstance(found, MetadataFormatError):
            rows.append(Row(ledger_id, "recover", "left", found.message))
        elif not found.value.is_closed:
            todo.append(RecoverWork(ledger_id, found))
        elif ledger_ids is not None:
            last = found.value.last_entry_id
            row = Row(ledger_id, "recover", "no longer needed", "closed already", 0, last)
            rows.append(row)
        progress("reading ledger metadata", done, len(wanted), 0)
    if dry_run:
        rows += [Row(work.ledger_id, "recover", "planned", first_entry_id=0) for work in todo]
    else:
        rows += runner.run("recovering ledgers", todo, recover_one, progress)
    duration_ms = round((context.runtime.now() - started) * 1000)
    rows.sort(key=lambda row: row.ledger_id)
    return RecoveryReport("recover_ledgers", tuple(rows), dry_run, duration_ms)


def recover_one(context: ClientContext, work: RecoverWork) -> Sequence[Row]:
    """Recover one ledger and say how it ended."""
    ledger_id = work.ledger_id
    try:
        metadata = recover_ledger(context, ledger_id, work.known).value
    except NoSuchLedgerError as error:
        return [Row(ledger_id, "recover", "gone", error.message)]
    except BookKeeperError as error:
        return [Row(ledger_id, "recover", "left", error.message, 0)]
    assert metadata.last_entry_id is not None
    entries = metadata.last_entry_id + 1
    size = metadata.length_bytes or 0
    return [
        Row(
            ledger_id,
            "recover",
            "closed",
            None,
            0,
            metadata.last_entry_id,
            None,
            None,
            entries,
            size,
        )
    ]
