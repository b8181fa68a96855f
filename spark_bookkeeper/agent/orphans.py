"""Ledgers that nobody owns: they take space, and nobody would miss them. Only a person knows.

A ledger is somebody's while its writer lives or may live, while a log names it, when a table stands
for copies of it, or when it has a label of a user: a name, an owner, or any other. One that another
client made is somebody's, too: what its labels mean is not known here.

Those that were made for a log have a note of ours; the label ``log`` without it is a user's. They
are nobody's when the log was deleted, or when it has a later ledger and does not name them: ids
ascend along a log, so nobody can enter them any more. A log that was never there may be about to be
restored, behind its ledgers.
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
    """A ledger as its metadata tells it, and who owns it."""

    metadata: LedgerMetadata | None
    """``None``: it cannot be decoded."""
    log: str | None
    """The log that names it, or else that it was made for."""
    unowned: str | None
    """Why nobody owns it; ``None``: somebody does, or it cannot be told."""


def ledgers_with_owners(context: ClientContext) -> Mapping[LedgerId, OwnedLedger]:
    """Every ledger there is, and whether somebody owns it.

    Logs are read after the ledgers: of a ledger that was entered into its log meanwhile the log
    tells, and of one that is about to be, its writer.
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
    """Whether nothing in a ledger's own metadata says whose it is, but perhaps a log's."""
    custom = metadata.custom_metadata
    if metadata.nonce is None or ARCHIVE in custom:
        return False
    if LOG_LABEL in custom and custom.get(LOG) != custom[LOG_LABEL]:
        return False
    return all(key == LOG_LABEL or key.startswith(RESERVED_PREFIX) for key in custom)


class _DeletedLogs:
    """Which names were those of logs that were deleted; each is asked for once."""

    def __init__(self, context: ClientContext) -> None:
        self._registers = context.store.registers
        self._known: dict[str, bool] = {}

    def __contains__(self, log: str) -> bool:
        if log not in self._known:
            try:
                head = find_life(self._registers, log)
            except (InvalidArgumentError, MetadataFormatError):
                head = None  # no name of a log, or it cannot be told
            self._known[log] = head is not None and head.is_deleted
        return self._known[log]


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
