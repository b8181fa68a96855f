"""Ledgers that nobody owns: they take space, and nobody would miss them. Only a person knows.

A ledger is somebody's while its writer lives or may live, while a log names it, or when it has a
label of a user: a name, an owner, or any other. Those of a log have the label ``log``; when that
log does not name them (its writer died between making the ledger and entering it, or the log was
deleted and they were not), they are nobody's as well. But one that a write has staged and closed
may be entered as long as its log has no later ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.lifecycle import RESERVED_PREFIX
from spark_bookkeeper.client.presence import WriterState, ledgers_with_writers, writer_of
from spark_bookkeeper.client.staging import STAGED
from spark_bookkeeper.client.views import UNREADABLE, moment
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.logs.logs import logs_table
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

LOG_LABEL: Final = "log"
"""Of the ledgers of a log: its name."""

ORPHANS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("length_bytes", pa.int64()),
        pa.field("ctime", pa.timestamp("us", tz="UTC")),
        pa.field("writer", pa.string()),
        pa.field("log", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class OwnedLedger:
    """A ledger as its metadata tells it, and who owns it."""

    metadata: LedgerMetadata | None
    """``None``: it cannot be decoded."""
    log: str | None
    """The log that it was made for, by its label."""
    unowned: str | None
    """Why nobody owns it; ``None``: somebody does, or it cannot be told."""


def ledgers_with_owners(
    context: ClientContext, ledger_ids: Iterable[LedgerId] | None = None
) -> Mapping[LedgerId, OwnedLedger]:
    """Every ledger there is, and whether somebody owns it.

    Args:
        ledger_ids: only those of them that there are; ``None`` is all.

    Logs are read after the ledgers: of a ledger that was entered into its log meanwhile the log
    tells, and of one that is about to be, its writer.
    """
    found = list(ledgers_with_writers(context, ledger_ids))
    in_logs: set[LedgerId] = set()
    newest: dict[str, int] = {}
    unreadable: set[str] = set()
    for row in logs_table(context).to_pylist():
        newest.setdefault(row["log"], -1)
        if row["ledger_id"] is not None:
            in_logs.add(row["ledger_id"])
            newest[row["log"]] = max(newest[row["log"]], row["ledger_id"])
        elif row["state"] == UNREADABLE:
            unreadable.add(row["log"])
    known: dict[LedgerId, OwnedLedger] = {}
    for ledger_id, metadata, writer in found:
        if isinstance(metadata, MetadataFormatError):
            known[ledger_id] = OwnedLedger(None, None, None)
            continue
        log = _log_of(metadata)
        unowned = None
        is_staged = metadata.is_closed and STAGED in metadata.custom_metadata
        may_be_entered = is_staged and log in newest and newest[log] < ledger_id
        if ledger_id not in in_logs and log not in unreadable and not may_be_entered:
            unowned = _unowned(metadata, log, writer)
        known[ledger_id] = OwnedLedger(metadata, log, unowned)
    return known


def orphans_table(context: ClientContext) -> pa.Table:
    """One row for each ledger that nobody owns (``ORPHANS``), ascending."""
    return pa.Table.from_pylist(list(_rows(context)), schema=ORPHANS)


def _rows(context: ClientContext) -> Iterator[dict[str, Any]]:
    for ledger_id, known in ledgers_with_owners(context).items():
        metadata = known.metadata
        if metadata is None or known.unowned is None:
            continue
        writer = writer_of(metadata)
        yield {
            "ledger_id": ledger_id,
            "state": metadata.state.name,
            "last_entry_id": metadata.last_entry_id,
            "length_bytes": metadata.length_bytes,
            "ctime": moment(metadata.ctime_ms),
            "writer": None if writer is None else str(writer),
            "log": known.log,
            "reason": known.unowned,
        }


def _unowned(metadata: LedgerMetadata, log: str | None, writer: WriterState | None) -> str | None:
    if writer in ("lives", "unknown"):
        return None
    if log is not None:
        return f"it was made for log {log!r}, which does not name it"
    if all(key.startswith(RESERVED_PREFIX) for key in metadata.custom_metadata):
        return "no log names it, and it has no name, owner or other label"
    return None


def _log_of(metadata: LedgerMetadata) -> str | None:
    label = metadata.custom_metadata.get(LOG_LABEL)
    return None if label is None else label.decode("utf-8", "replace")
