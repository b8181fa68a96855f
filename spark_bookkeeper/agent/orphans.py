"""Ledgers without an owner: they take space, and only an operator knows whether they are needed.

A ledger has an owner while its writer lives or may live, while a log names it, when a table
replaces copies of it, or when it has a label of a user: a name, an owner, or any other. A
ledger of another client has an owner, too: the meaning of its labels is unknown here.

A ledger that was made for a log has a mark of this library; the label ``log`` without it is a
user's. Such a ledger has no owner when the log was deleted, or when the log does not name it and
has a later ledger: ids ascend along a log, so it can never enter the log. A log that never existed
may yet be restored, after its ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import LOG, LOG_LABEL, log_of
from spark_bookkeeper.client.lifecycle import RESERVED_PREFIX
from spark_bookkeeper.client.presence import ledgers_with_writers, writer_of
from spark_bookkeeper.client.views import UNREADABLE, moment
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.logs.logs import logs_table
from spark_bookkeeper.metadata.logs import find_life
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import ARCHIVE, LedgerMetadata

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
    """A ledger's metadata, its log, and whether it has an owner."""

    metadata: LedgerMetadata | None
    """``None``: it cannot be decoded."""
    log: str | None
    """The log that names it, or else the log that it was made for."""
    unowned: str | None
    """Why it has no owner; ``None``: it has one, or this is unknown."""


def ledgers_with_owners(context: ClientContext) -> Mapping[LedgerId, OwnedLedger]:
    """Return every ledger, and whether it has an owner.

    Logs are read after the ledgers. So a ledger that enters its log meanwhile is found in the log,
    and a ledger that has yet to enter has a living writer.
    """
    found = list(ledgers_with_writers(context))
    in_logs: dict[LedgerId, str] = {}
    newest: dict[str, int] = {}
    unreadable: set[str] = set()
    for row in logs_table(context).to_pylist():
        newest.setdefault(row["log"], -1)
        if row["ledger_id"] is not None:
            in_logs[row["ledger_id"]] = row["log"]
            newest[row["log"]] = max(newest[row["log"]], row["ledger_id"])
        elif row["state"] == UNREADABLE:
            unreadable.add(row["log"])
    deleted = _DeletedLogs(context)
    known: dict[LedgerId, OwnedLedger] = {}
    for ledger_id, metadata, writer in found:
        if isinstance(metadata, MetadataFormatError):
            known[ledger_id] = OwnedLedger(None, None, None)
            continue
        log = log_of(metadata)
        unowned = None
        if ledger_id not in in_logs and writer not in ("lives", "unknown") and is_free(metadata):
            if log is None:
                unowned = "no log names it, and it has no name, owner or other label"
            elif log in newest:
                if log not in unreadable and ledger_id < newest[log]:
                    unowned = f"it was made for log {log!r}, which has gone past it"
            elif log in deleted:
                unowned = f"it was made for log {log!r}, which was deleted"
        known[ledger_id] = OwnedLedger(metadata, in_logs.get(ledger_id, log), unowned)
    return known


def is_free(metadata: LedgerMetadata) -> bool:
    """Whether a ledger's own metadata name no owner, except perhaps a log."""
    custom = metadata.custom_metadata
    if metadata.nonce is None or ARCHIVE in custom:
        return False
    if LOG_LABEL in custom and custom.get(LOG) != custom[LOG_LABEL]:
        return False
    return all(key == LOG_LABEL or key.startswith(RESERVED_PREFIX) for key in custom)


class _DeletedLogs:
    """Whether a name is that of a deleted log; each name is read once."""

    def __init__(self, context: ClientContext) -> None:
        self._registers = context.store.registers
        self._known: dict[str, bool] = {}

    def __contains__(self, log: str) -> bool:
        if log not in self._known:
            try:
                head = find_life(self._registers, log)
            except (InvalidArgumentError, MetadataFormatError):
                head = None  # it is not a valid name of a log, or its state is unreadable
            self._known[log] = head is not None and head.is_deleted
        return self._known[log]


def orphans_table(context: ClientContext) -> pa.Table:
    """Return one row for each ledger without an owner (``ORPHANS``), ascending."""
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
