"""The table of all tasks, which shows why each ledger is still under-replicated."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.autorecovery.backoff import blocked_by, writable_of
from spark_bookkeeper.autorecovery.names import beside, is_ours
from spark_bookkeeper.autorecovery.notes import Notes, as_marked
from spark_bookkeeper.autorecovery.publishing import LEDGERS_AT_ONCE, chunks
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.task_notes import WAIT_FOR_EVENT_MS, LocalRefusal, TaskNote
from spark_bookkeeper.protocol.underreplication import (
    absent_members,
    blocked,
    fewest_copies,
    has_source,
    takers,
)
from spark_bookkeeper.replication.report import Outcome, Row

_NAMED: Final = 3
"""The most bookies that are named as possible targets."""

_BELIEVED_MS: Final = WAIT_FOR_EVENT_MS
"""A longer wait was set by another clock, whatever wait a worker is configured to."""

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
    """Return every task (``UNDERREPLICATED``); change nothing.

    ``live_copies`` counts the copies of the entries that have the fewest; null where the metadata
    is gone or cannot be read. ``blocker`` is what blocked the last attempt or would block any
    attempt, and why no running worker makes one; null where a worker may take the task now.
    """
    tables = [
        pa.Table.from_pylist(rows, schema=UNDERREPLICATED)
        for rows in chunks(_rows(context), LEDGERS_AT_ONCE)
    ]
    return pa.concat_tables([UNDERREPLICATED.empty_table(), *tables])


def _rows(
    context: ClientContext, ledger_ids: Sequence[LedgerId] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the given ledgers that have a task; by default of all tasks."""
    tree, notes = context.store.underreplication, Notes(context.store.registers)
    locks = tree.locks()
    registered = context.bookies.registrations()
    workers = Workers.seen(context)
    at_ms = context.cluster_ms()
    asked = tree.ledger_ids() if ledger_ids is None else ledger_ids
    for chunk in chunks(asked, LEDGERS_AT_ONCE):
        tasks = dict(tree.read_many(chunk))
        noted = dict(notes.read_many(chunk))
        for ledger_id, found in context.store.read_ledgers(chunk):
            task = tasks.get(ledger_id)
            if task is None:
                continue
            holder = locks.get(ledger_id)
            note = noted[ledger_id]
            yield _row(ledger_id, task, found, note, holder, registered, workers, at_ms)


def _row(
    ledger_id: LedgerId,
    task: Versioned[Task] | MetadataFormatError,
    found: Versioned[LedgerMetadata] | MetadataFormatError | None,
    note: TaskNote,
    locked_by: str | None,
    registered: Mapping[BookieId, Registration],
    workers: Workers,
    at_ms: int,
) -> dict[str, Any]:
    error, blocker, copies, next_ms = note.last_error, note.blocker, None, note.next_try_at_ms
    marked = as_marked(task)
    if isinstance(found, Versioned) and note.is_past_grace(found.value):
        error = blocker = None  # the note was about a fragment that is closed now
    if marked is not None and note.marked is None:
        error = blocker = None  # the note was about an unreadable task, and this one is readable
    for refusal in note.refusals:
        error = error or f"{refusal.bookie} did not take it: {refusal.error}"
    if note.is_due(at_ms, marked, registered, len(writable_of(registered)), _BELIEVED_MS):
        next_ms = 0  # for example, it was published again
    unattended = workers.none_works
    if isinstance(task, MetadataFormatError):
        error = task.message
    if isinstance(found, MetadataFormatError):
        error = error or found.message
    elif found is not None:
        live = live_members(found.value, registered_incarnations(registered))
        writable = writable_of(registered)
        copies = fewest_copies(found.value, live)
        absent = absent_members(found.value, live)
        limbo = set(absent) & registered.keys()
        waits_for = blocked(found.value, live, writable, limbo)
        if note.waits_for_event:
            blocker = waits_for
            next_ms = next_ms if blocker else 0  # the event has come
        blocker = blocker or waits_for or blocked_by(found.value, absent, registered)
        unattended = unattended or workers.lacking(found.value, live, writable)
    if locked_by is not None:
        unattended = None
    value = task.value if isinstance(task, Versioned) else None
    return {
        "ledger_id": ledger_id,
        "missing_replicas": list(value.missing) if value else [],
        "marked_at": _time(value.marked_at_ms if value else None),
        "locked_by": locked_by,
        "live_copies": copies,
        "attempts": note.attempts + sum(refusal.attempts for refusal in note.refusals),
        "last_error": error,
        "blocker": "; ".join(filter(None, (blocker, unattended))) or None,
        "next_try_at": _time(next_ms or workers.refused_until(note.refusals)),
    }


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that run, by the auditor's election: each worker is a candidate."""

    is_enabled: bool
    names: tuple[str, ...]
    """The names of this library's workers; BookKeeper's workers cannot read these bookies."""

    @classmethod
    def seen(cls, context: ClientContext) -> Workers:
        """Return the workers that run now."""
        tree = context.store.underreplication
        return cls(tree.is_enabled(), tuple(filter(is_ours, tree.candidates())))

    @property
    def none_works(self) -> str | None:
        """Why no worker works on any task, with the remedy; ``None`` if workers do."""
        if not self.is_enabled:
            return "autorecovery is disabled: `spark-bookkeeper autorecovery enable`"
        if not self.names:
            return "no replication worker runs: `spark-bookkeeper autorecovery start`"
        return None

    def refused_until(self, refusals: Collection[LocalRefusal]) -> int | None:
        """Return when the first running worker tries again, if each runs next to a bookie that has
        refused; ``None`` if one of them has not refused.
        """
        until = {each.bookie: each.next_try_at_ms for each in refusals}
        bookies = {beside(name) for name in self.names}
        times = [until[bookie] for bookie in bookies if bookie in until]
        return min(times) if times and len(times) == len(bookies) else None

    def lacking(
        self, metadata: LedgerMetadata, live: Collection[BookieId], writable: Collection[BookieId]
    ) -> str | None:
        """Return why no running worker can take some fragment that another worker could take."""
        bookies = {beside(name) for name in self.names}
        if None in bookies:
            return None  # that worker copies to any bookie
        for fragment, fit in takers(metadata, live, writable):
            # If no bookie has the lacking entries, another worker would not help.
            if fit and not fit & bookies and has_source(metadata.quorum, fragment, live):
                some, more = " or ".join(sorted(fit)[:_NAMED]), len(fit) - _NAMED
                others = f" or {more} others" if more > 0 else ""
                return (
                    f"only {some}{others} can take the fragment from entry "
                    f"{fragment.first_entry_id}, and no worker runs beside any of those: "
                    "`spark-bookkeeper autorecovery rereplicate` copies to any bookie, once; "
                    "`spark-bookkeeper autorecovery start` does so as long as it runs"
                )
        return None


def without_worker(
    context: ClientContext, ledger_ids: Sequence[LedgerId]
) -> Iterator[tuple[LedgerId, str]]:
    """Yield the ledgers with a task that no running worker can repair, with the reason; each reason
    names a command.
    """
    tree = context.store.underreplication
    locks, workers = tree.locks(), Workers.seen(context)
    registered = context.bookies.registrations()
    incarnations, writable = registered_incarnations(registered), writable_of(registered)
    for ledger_id, found in context.store.read_ledgers(ledger_ids):
        if ledger_id in locks or not isinstance(found, Versioned):
            continue
        why = workers.lacking(found.value, live_members(found.value, incarnations), writable)
        if why is not None:
            yield ledger_id, why


def not_repaired_now(
    context: ClientContext, ledger_ids: Sequence[LedgerId]
) -> Iterator[tuple[LedgerId, str]]:
    """Yield the ledgers with a task that waits for more than its turn, with the reason."""
    at_ms = context.cluster_ms()
    for row in _rows(context, ledger_ids):
        if row["locked_by"] is None and (row["blocker"] or row["last_error"]):
            yield LedgerId(row["ledger_id"]), why_waiting(row, at_ms)


def _time(ms: int | None) -> datetime | None:
    try:
        return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:  # no clock shows this time: the value is damaged
        return None


def why_waiting(row: Mapping[str, Any], at_ms: int, *, is_whole: bool = False) -> str:
    """Return the reason why a task still exists, in words.

    Args:
        row: a row of ``underreplicated_table``.
        at_ms: now, in milliseconds since 1970.
        is_whole: whether all bookies that the metadata name now are present.
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
    """Yield a row with the reason for each existing task that a round of work did not take."""
    at_ms = context.cluster_ms()
    for row in _rows(context):
        if row["ledger_id"] not in worked_on:
            yield Row(row["ledger_id"], "task", Outcome.LEFT, why_waiting(row, at_ms))
