"""The snapshots of a backup: their list, and each as a value and as a file (``FORMAT.md``)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.codec import decode_ledger, encode_ledger
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.plain_names import has_names_only
from spark_bookkeeper.runtime.private_files import warn_if_others_may_read
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage.storage import Content, Storage

FORMAT: Final = 2
"""Introduced with backups to a table; format 1 had neither ``index`` nor ``is_refused``."""

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
"""``kind`` is ``ledger`` or ``register``. For a ledger, ``name`` is ``<ledger id>-<nonce>`` and
``value`` its metadata in BookKeeper's own bytes. Last entry and length are those in the backup,
``index`` is the digest of its list if a table stands for it, ``is_refused`` whether the table never
will. A register has ``name`` and ``value`` as in the metadata store, and nulls in between."""

HEADER_KEY: Final = b"spark-bookkeeper.snapshot"


@dataclass(frozen=True, slots=True)
class SavedLedger:
    """A ledger as a snapshot has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    """The metadata at that time; the ledger may be open."""
    last_entry_id: EntryId
    """The last entry in the backup: for an open ledger, the last add confirmed at that time."""
    length_bytes: int
    index: str | None = None
    """The digest of its list below the table that stands for its entries; ``None``: the entries
    are in the folder."""
    is_refused: bool = False
    """Whether they are in the folder since the table above it can never stand for them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of a cluster, or of a part of it, at one time."""

    instance_id: str
    taken_at_ms: int
    ledgers: tuple[SavedLedger, ...]
    registers: Mapping[str, bytes]
    """Registers of logs and their consumers: names and bytes as in the metadata store."""


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
    """The place of each ledger, by ``<ledger id>-<nonce>``."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot's file."""
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
    """Decode the bytes of a snapshot's file to a table.

    Raises:
        InvalidArgumentError: they are damaged.
    """
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)  # without it Arrow trusts the offsets
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _damaged(str(error)) from error
    return table


def _damaged(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the snapshot is damaged ({reason}). Nothing was changed; take another one (`--snapshot`)"
    )


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode the bytes of a snapshot's file to a value.

    Raises:
        InvalidArgumentError: they are damaged, have a name that no register can have, or were
            written by a newer version of this library.
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
    """Return the places of a snapshot's closed ledgers, without decoding their metadata."""
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


SNAPSHOTS: Final = "snapshots"
"""The directory of snapshots, below that of the backup."""

_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{64})\.arrow")
_TAKEN = re.compile(r"([0-9]{20})\.taken")


class Snapshots:
    """The snapshots of one backup, each with a number; the newest has the highest.

    Args:
        storage: the backup's directory.
        uri: URI of that directory, for messages.
    """

    def __init__(self, storage: Storage, uri: str, runtime: Runtime) -> None:
        self._storage = storage
        self._uri = uri
        self._runtime = runtime
        self._has_looked = False
        """Whether the mode of a snapshot's file was checked."""

    def put(self, snapshot: Snapshot) -> int:
        """Store a snapshot, durably, with the next number; return the number.

        The number is reserved first, in a file of its own. Otherwise two runs at once, whose
        snapshots have different file names, would both find it free.
        """
        data = encode_snapshot(snapshot)
        digest = hashlib.sha256(data).hexdigest()
        number = self._take_number()
        # False would mean that an earlier attempt of this call has stored it (SLOT-LOG rule R3).
        content = Content([data], is_private=True)  # the ledgers' passwords
        self._storage.put_if_absent(f"{SNAPSHOTS}/{number:020d}-{digest}.arrow", content)
        return number

    def _take_number(self) -> int:
        """Reserve the number after all that were ever reserved; no other run gets it."""
        token = self._runtime.token().encode()
        while True:
            found = self._storage.list(SNAPSHOTS)
            number = max([*_numbers(_NAME, found), *_numbers(_TAKEN, found)], default=0) + 1
            name = f"{SNAPSHOTS}/{number:020d}.taken"
            if self._storage.put_if_absent(name, token) or self._storage.read(name) == token:
                return number

    def numbers(self) -> Sequence[int]:
        """Return the numbers of the existing snapshots, ascending."""
        return _numbers(_NAME, self._storage.list(SNAPSHOTS))

    def read(self, number: int | None = None) -> tuple[int, Snapshot]:
        """Return a snapshot and its number; ``None`` selects the newest.

        Raises:
            InvalidArgumentError: no snapshot has that number, or it is damaged.
        """
        taken, data = self._bytes(number)
        return taken, decode_snapshot(data)

    def ledger_ids(self, number: int) -> Set[LedgerId]:
        """Return the ids of a snapshot's ledgers.

        Raises:
            InvalidArgumentError: as ``read``.
        """
        _, data = self._bytes(number)
        table = decoded_table(data)
        return {LedgerId(i) for i in table["ledger_id"].drop_null().to_pylist()}

    def closed_ledgers(self, number: int) -> ClosedLedgers:
        """Return the places of a snapshot's closed ledgers.

        Raises:
            InvalidArgumentError: as ``read``.
        """
        _, data = self._bytes(number)
        return closed_ledgers(data)

    def _bytes(self, number: int | None) -> tuple[int, bytes]:
        """Return the number and the bytes of a snapshot."""
        found = [
            (int(m[1]), m[2], name)
            for name in self._storage.list(SNAPSHOTS)
            if (m := _NAME.fullmatch(name)) and (number is None or int(m[1]) == number)
        ]
        others = ", ".join(str(each) for each in self.numbers() if each != number)
        again = "run `spark-bookkeeper cluster backup` again"
        if not found:
            which = "" if number is None else f" {number}"
            raise InvalidArgumentError(
                f"the backup at {self._uri} has no snapshot{which}: "
                + (
                    f"it has snapshot{'s' if ', ' in others else ''} {others}"
                    if others
                    else f"no run ended that found something to save, so {again}"
                )
            )
        newest, digest, name = max(found)
        data = self._storage.read(f"{SNAPSHOTS}/{name}")
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            others = ", ".join(str(each) for each in self.numbers() if each != newest)
            raise InvalidArgumentError(
                f"{self._uri}/{SNAPSHOTS}/{name} is damaged: its bytes have another SHA-256 than "
                f"its name says; nothing was changed. To have a new one {again}"
                + (f"; or take another (`--snapshot`), of {others}" if others else "")
            )
        if self._storage.uri.startswith("file:") and not self._has_looked:
            self._has_looked = True
            file = f"{local_path(self._storage.uri)}/{SNAPSHOTS}/{name}"
            warn_if_others_may_read(file, "the passwords of ledgers")
        return newest, data


def _numbers(form: re.Pattern[str], names: Iterable[str]) -> list[int]:
    """Return the numbers in the file names that have this form, ascending."""
    return sorted(int(m[1]) for name in names if (m := form.fullmatch(name)))


def local_path(uri: str) -> str:
    """Return the path of a ``file:`` URI; other texts are paths already."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
