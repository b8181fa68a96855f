"""Why is it still under-replicated? Every task with all that is known of it, as a table."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import LEDGERS_AT_ONCE, chunks
from spark_bookkeeper.autorecovery.replication import blocked_by
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.protocol.underreplication import absent_members, fewest_copies
from spark_bookkeeper.replication.report import Outcome, Row

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

UNDERREPLICATED: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("missing_replicas", pa.list_(pa.string()), nullable=False),
        pa.field("marked_at", pa.timestamp("us", tz="UTC")),
        pa.field("locked_by", pa.string()),
        pa.field("live_copies", pa.int32()),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("last_error", pa.string()),
        pa.field("blocker", pa.string()),
        pa.field("next_try_at", pa.timestamp("us", tz="UTC")),
    ]
)


def underreplicated_table(context: ClientContext) -> pa.Table:
    """Every task (``UNDERREPLICATED``); changes nothing.

    ``live_copies`` is of the entries that have the fewest; null where the metadata is gone or
    cannot be read. A task that nobody has tried has no attempts, and its ``blocker`` is what any
    attempt would meet, where the metadata alone shows it.
    """
    tables = [
        pa.Table.from_pylist(rows, schema=UNDERREPLICATED)
        for rows in chunks(_rows(context), LEDGERS_AT_ONCE)
    ]
    return pa.concat_tables([UNDERREPLICATED.empty_table(), *tables])


def _rows(context: ClientContext) -> Iterator[dict[str, Any]]:
    tree, notes = context.store.underreplication, Notes(context.store.registers)
    locks = tree.locks()
    noted = set(notes.ledger_ids())
    registered = context.bookies.registrations()
    for chunk in chunks(tree.ledger_ids(), LEDGERS_AT_ONCE):
        tasks = dict(tree.read_many(chunk))
        for ledger_id, found in context.store.read_ledgers(chunk):
            task = tasks.get(ledger_id)
            if task is None:
                continue
            note = notes.read(ledger_id) if ledger_id in noted else TaskNote()
            yield _row(ledger_id, task, found, note, locks.get(ledger_id), registered)


def _row(
    ledger_id: LedgerId,
    task: Versioned[Task] | MetadataFormatError,
    found: Versioned[LedgerMetadata] | MetadataFormatError | None,
    note: TaskNote,
    locked_by: str | None,
    registered: Mapping[BookieId, Registration],
) -> dict[str, Any]:
    error, blocker, copies = note.last_error, note.blocker, None
    if isinstance(task, MetadataFormatError):
        error = task.message
    if isinstance(found, MetadataFormatError):
        error = error or found.message
    elif found is not None:
        live = live_members(found.value, registered_incarnations(registered))
        copies = fewest_copies(found.value, live)
        absent = absent_members(found.value, live)
        blocker = blocker or blocked_by(found.value, absent, registered)
    value = task.value if isinstance(task, Versioned) else None
    return {
        "ledger_id": ledger_id,
        "missing_replicas": list(value.missing) if value else [],
        "marked_at": _time(value.marked_at_ms if value else None),
        "locked_by": locked_by,
        "live_copies": copies,
        "attempts": note.attempts,
        "last_error": error,
        "blocker": blocker,
        "next_try_at": _time(note.next_try_at_ms or None),
    }


def _time(ms: int | None) -> datetime | None:
    try:
        return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:  # nobody's clock: it was damaged
        return None


def why_waiting(row: Mapping[str, Any], at_ms: int, *, is_whole: bool = False) -> str:
    """Why a task is still there, in words.

    Args:
        row: of ``underreplicated_table``.
        at_ms: now, in milliseconds since 1970.
        is_whole: the bookies that the metadata name now are all there.
    """
    said = []
    if is_whole:
        said.append("its bookies are all there now: a replication worker looks, and withdraws it")
    if row["locked_by"] is not None:
        holder = "somebody" if row["locked_by"] == "?" else row["locked_by"]
        said.append(f"{holder} is at it; the lock goes when that process ends")
    if row["blocker"]:
        said.append(row["blocker"])
    if row["last_error"]:
        tries = row["attempts"]
        said.append(f"after {tries} attempt{'' if tries == 1 else 's'}: {row['last_error']}")
    if row["next_try_at"] is not None:
        wait_ms = round(row["next_try_at"].timestamp() * 1000) - at_ms
        if wait_ms > 0:
            said.append(f"tried again in {wait_ms // 1000 + 1:,} s")
    return "; ".join(said) or "waits for a replication worker"


def left_waiting(context: ClientContext, worked_on: Container[int]) -> Iterator[Row]:
    """A row for each task that is there and that a round of work did not take, with the reason."""
    at_ms = context.runtime.wall_ms()
    for row in _rows(context):
        if row["ledger_id"] not in worked_on:
            yield Row(row["ledger_id"], "task", Outcome.LEFT, why_waiting(row, at_ms))
