"""A snapshot of a backup, as a value and as the bytes of its file (``FORMAT.md``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.codec import decode_ledger, encode_ledger
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.plain_names import has_names_only

FORMAT: Final = 2
"""Since backups to a table; ``index`` and ``is_refused`` are what 1 did not have."""

SNAPSHOT: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("last_entry_id", pa.int64()),
        pa.field("length_bytes", pa.int64()),
        pa.field("index", pa.string()),
        pa.field("is_refused", pa.bool_()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""``kind`` is ``ledger`` (``name`` is ``<ledger id>-<nonce>``, ``value`` its metadata in
BookKeeper's own bytes, the last entry and the length those that are in the backup, ``index`` the
digest of its list when a table stands for it, ``is_refused`` whether the table never will) or
``register`` (``name`` and ``value`` as in the metadata store; what is between them is null)."""

HEADER_KEY: Final = b"spark-bookkeeper.snapshot"


@dataclass(frozen=True, slots=True)
class SavedLedger:
    """A ledger as a snapshot has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    """As it was; it may be open."""
    last_entry_id: EntryId
    """The last in the backup: of a ledger that is not closed the last add confirmed, then."""
    length_bytes: int
    index: str | None = None
    """The digest of its list beside the table that stands for its entries; ``None``: they are in
    the folder."""
    is_refused: bool = False
    """Whether they are in the folder since the table beside it cannot stand for them, ever."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What makes up a cluster, or a part of it, at one time."""

    instance_id: str
    taken_at_ms: int
    ledgers: tuple[SavedLedger, ...]
    registers: Mapping[str, bytes]
    """Of logs and their consumers: names and bytes as in the metadata store."""


@dataclass(frozen=True, slots=True)
class SavedPlace:
    """Where a snapshot has a closed ledger; see ``SavedLedger``."""

    index: str | None
    is_refused: bool


@dataclass(frozen=True, slots=True)
class ClosedLedgers:
    """The closed ledgers of a snapshot."""

    taken_at_ms: int
    places: Mapping[str, SavedPlace]
    """By ``<ledger id>-<nonce>``."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The file."""
    rows = [
        {
            "kind": "ledger",
            "name": f"{each.ledger_id}-{(each.metadata.nonce or b'').decode()}",
            "ledger_id": each.ledger_id,
            "state": each.metadata.state.name,
            "last_entry_id": each.last_entry_id,
            "length_bytes": each.length_bytes,
            "index": each.index,
            "is_refused": each.is_refused,
            "value": encode_ledger(each.metadata),
        }
        for each in snapshot.ledgers
    ]
    rows += [
        {"kind": "register", "name": name, "value": value}
        for name, value in sorted(snapshot.registers.items())
    ]
    header = {
        "format": FORMAT,
        "instance_id": snapshot.instance_id,
        "taken_at_ms": snapshot.taken_at_ms,
    }
    schema = SNAPSHOT.with_metadata({HEADER_KEY: json.dumps(header, sort_keys=True).encode()})
    table = pa.Table.from_pylist(rows, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))


def decoded_table(data: bytes) -> pa.Table:
    """Everything that the bytes of a snapshot tell.

    Raises:
        InvalidArgumentError: they are none.
    """
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)  # Arrow takes offsets as they stand
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _damaged(str(error)) from error
    return table


def _damaged(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the snapshot is damaged ({reason}). Nothing was changed; take another one (`--snapshot`)"
    )


def decode_snapshot(data: bytes) -> Snapshot:
    """The value.

    Raises:
        InvalidArgumentError: a newer version of this library wrote it, or it names what no
            register is.
    """
    table = decoded_table(data)
    header = json.loads((table.schema.metadata or {})[HEADER_KEY])
    if not 1 <= header["format"] <= FORMAT:
        raise InvalidArgumentError(
            f"the snapshot has format {header['format']}, and this version knows 1 to {FORMAT}: "
            "upgrade it"
        )
    ledgers = []
    registers = {}
    for row in table.to_pylist():
        if row["kind"] == "register":
            if not has_names_only(row["name"]):
                raise _damaged(f"{row['name']!r} is no name of a register")
            registers[row["name"]] = row["value"]
            continue
        metadata = decode_ledger(row["value"], row["name"])
        ledgers.append(
            SavedLedger(
                LedgerId(row["ledger_id"]),
                metadata,
                EntryId(row["last_entry_id"]),
                row["length_bytes"],
                row.get("index"),
                bool(row.get("is_refused")),
            )
        )
    return Snapshot(header["instance_id"], header["taken_at_ms"], tuple(ledgers), registers)


def closed_ledgers(data: bytes) -> ClosedLedgers:
    """Where the closed ledgers of a snapshot are. No metadata are decoded."""
    table = decoded_table(data)
    header = json.loads((table.schema.metadata or {})[HEADER_KEY])
    wanted = ("name", "state", "index", "is_refused")
    rows = table.select([name for name in wanted if name in table.column_names]).to_pylist()
    places = {
        row["name"]: SavedPlace(row.get("index"), bool(row.get("is_refused")))
        for row in rows
        if row["state"] == LedgerState.CLOSED.name
    }
    return ClosedLedgers(header["taken_at_ms"], places)
