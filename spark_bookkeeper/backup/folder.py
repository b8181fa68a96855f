"""The directory of a backup: a bookie's partition that belongs to no cluster, and snapshots.

Entries lie in it as on any bookie, in the files that ``bookie/FORMAT.md`` describes, so that what
writes, reads and verifies them is what does so everywhere. A snapshot says what of it makes up the
cluster at one time. ``FORMAT.md`` beside this file is the page about it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.marker import Marker, read_marker
from spark_bookkeeper.bookie.partition import furnish
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.connection import partition_of
from spark_bookkeeper.errors import (
    BookieFullError,
    BookieUnavailableError,
    InvalidArgumentError,
)
from spark_bookkeeper.metadata.codec import decode_ledger, encode_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

SNAPSHOTS: Final = "snapshots"

SNAPSHOT: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("last_entry_id", pa.int64()),
        pa.field("length_bytes", pa.int64()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""``kind`` is ``ledger`` (``name`` is ``<ledger id>-<nonce>``, ``value`` its metadata in
BookKeeper's own bytes, the last entry and the length those that are in the backup) or ``register``
(``name`` and ``value`` as in the metadata store; what follows them is null)."""

HEADER_KEY: Final = b"spark-bookkeeper.snapshot"

_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{64})\.arrow")
_TAKEN = re.compile(r"([0-9]{20})\.taken")


@dataclass(frozen=True, slots=True)
class SavedLedger:
    """A ledger as a snapshot has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    """As it was; it may be open."""
    last_entry_id: EntryId
    """The last in the backup: of a ledger that is not closed the last add confirmed, then."""
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What makes up a cluster, or a part of it, at one time."""

    instance_id: str
    taken_at_ms: int
    ledgers: tuple[SavedLedger, ...]
    registers: Mapping[str, bytes]
    """Of logs and their consumers: names and bytes as in the metadata store."""


class BackupFolder:
    """One directory, as this process reaches it.

    Args:
        context: any cluster; how storage is opened and how long it may be silent is its affair.
        uri: a path or an fsspec URI.
    """

    def __init__(self, context: ClientContext, uri: str) -> None:
        self.uri = uri
        self._context = context
        name = hashlib.sha256(uri.encode()).hexdigest()[:16]
        self.bookie_id = BookieId(f"backup-{name}:1")
        context.bookies.learn({self.bookie_id: uri})
        try:
            self._storage: Storage = partition_of(context, self.bookie_id)
        except BookieUnavailableError as error:
            said = self.in_words(error.message)
            raise InvalidArgumentError(f"no backup can be at {uri!r}: {said}") from error

    def incarnation(self, instance_id: str | None = None) -> str:
        """The name of this formatting of the directory.

        Args:
            instance_id: of the cluster that is to be backed up here.

        Raises:
            InvalidArgumentError: there is no backup here, or one of another cluster.
        """
        try:
            marker = read_marker(self._storage)
        except BookieUnavailableError as error:
            if not isinstance(error.__cause__, NotADirectoryError):
                raise
            marker = None  # the path of a file, which is no backup for certain
        if marker is None or not marker.bookie_id.startswith("backup-"):
            raise InvalidArgumentError(
                f"{self.uri} is no backup: it has no file BOOKIE of one; nothing was changed. "
                f"`spark-bookkeeper cluster backup {self.uri}` makes one; where there should be "
                "one, look whether the URI is right and everything was copied there"
            )
        if instance_id is not None and marker.instance_id != instance_id:
            raise InvalidArgumentError(
                f"the backup at {self.uri} is of cluster {marker.instance_id}, not of "
                f"{instance_id}; nothing was changed. Choose another directory"
            )
        return marker.incarnation

    def prepare(self, instance_id: str) -> str:
        """Make an empty or missing directory a backup's; returns its incarnation.

        Raises:
            InvalidArgumentError: something else is there, or it cannot be reached. Nothing was
                changed.
            BookieFullError: it has no room.
        """
        with self._reached():
            if not self._is_one(instance_id):
                if self._storage.has_directories:
                    os.makedirs(_local_path(self._storage.uri), exist_ok=True)
                marker = Marker(
                    self.bookie_id,
                    self._context.runtime.token(),
                    instance_id,
                    has_witness=not self._storage.has_directories,
                )
                self._storage.make_directory(SNAPSHOTS)
                furnish(self._storage, marker)
            return self.incarnation(instance_id)

    def check(self, instance_id: str) -> None:
        """Whether ``prepare`` would do it, as far as that shows without writing.

        Raises:
            InvalidArgumentError: as ``prepare``.
        """
        with self._reached():
            self._is_one(instance_id)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """What goes wrong at the directory is said of the backup."""
        try:
            yield
        except BookieFullError as error:
            raise BookieFullError(self.without_room(error), bookie_id=self.bookie_id) from error
        except (BookieUnavailableError, OSError) as error:
            said = self.in_words(str(error))
            raise InvalidArgumentError(
                f"no backup can be made at {self.uri}: {said}. It has to be a directory or bucket "
                "that can be written; nothing was changed in the cluster"
            ) from error

    def _is_one(self, instance_id: str) -> bool:
        """Whether it is this cluster's backup; if not, it can become one. Nothing is written.

        Raises:
            InvalidArgumentError: something else is there.
            BookieUnavailableError, OSError: it cannot be reached, or not be written.
        """
        if self._storage.has_directories:
            _check_writable(_local_path(self._storage.uri))
        if read_marker(self._storage) is not None:
            self.incarnation(instance_id)
            return True
        found = self._storage.list("")
        if set(found) - {"ledgers", "retired", SNAPSHOTS}:  # which a run may have left
            raise InvalidArgumentError(
                f"{self.uri} is not empty (it holds {', '.join(found[:5])}) and no backup; "
                "nothing was changed. Choose an empty directory"
            )
        return False

    def replica(self, ledger: Ledger, incarnation: str) -> Replica:
        """A ledger as it is in the backup."""
        ref = LedgerRef(ledger.key, incarnation, ledger.encoding)
        return Replica(self._context.bookies.bookie(self.bookie_id), ref)

    def in_words(self, reason: str) -> str:
        """What a bookie says of itself, as said of a backup."""
        return reason.replace(f"bookie {self.bookie_id}", f"the backup at {self.uri}")

    def without_room(self, error: BookieFullError) -> str:
        """What to do when the backup takes no more."""
        return (
            f"there is no room for it in {self.uri} ({self.in_words(error.message)}): make room "
            "there, and run it again: it goes on where it was"
        )

    def unreadable(self, entry_id: int, reason: str) -> str:
        """Why an entry cannot be restored, and what to do."""
        return (
            f"entry {entry_id} cannot be read from the backup at {self.uri}: "
            f"{self.in_words(reason)}. Run `spark-bookkeeper cluster backup --verify` in the "
            "cluster that it is of, which copies again what is damaged or missing; without that "
            "cluster this ledger is lost to this backup, and the others are not"
        )

    def put(self, snapshot: Snapshot) -> int:
        """Store a snapshot, durably, behind those there are; returns its number.

        The number is taken first, for itself: of two runs at once, whose snapshots have different
        names, both would find it free.
        """
        data = _encoded(snapshot)
        digest = hashlib.sha256(data).hexdigest()
        number = self._take_number()
        # False would mean that it is there, by an earlier attempt of our own (SLOT-LOG rule R3).
        self._storage.put_if_absent(f"{SNAPSHOTS}/{number:020d}-{digest}.arrow", data)
        return number

    def _take_number(self) -> int:
        """One behind all that were ever taken; nobody else gets it."""
        token = self._context.runtime.token().encode()
        while True:
            found = self._storage.list(SNAPSHOTS)
            number = max([*_numbers(_NAME, found), *_numbers(_TAKEN, found)], default=0) + 1
            name = f"{SNAPSHOTS}/{number:020d}.taken"
            if self._storage.put_if_absent(name, token) or self._storage.read(name) == token:
                return number

    def numbers(self) -> Sequence[int]:
        """Of the snapshots there are, ascending."""
        return _numbers(_NAME, self._storage.list(SNAPSHOTS))

    def snapshot(self, number: int | None = None) -> tuple[int, Snapshot]:
        """One snapshot and its number; ``None`` is the newest.

        Raises:
            InvalidArgumentError: there is none of that number, or it is damaged.
        """
        taken, data = self._read(number)
        return taken, _decoded(data)

    def ledger_ids(self, number: int) -> Set[LedgerId]:
        """Of which ledgers a snapshot is.

        Raises:
            InvalidArgumentError: as ``snapshot``.
        """
        _, data = self._read(number)
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        return {LedgerId(i) for i in table["ledger_id"].drop_null().to_pylist()}

    def _read(self, number: int | None) -> tuple[int, bytes]:
        """The number and the bytes of a snapshot."""
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
                f"the backup at {self.uri} has no snapshot{which}: "
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
                f"{self.uri}/{SNAPSHOTS}/{name} is damaged: its bytes have another SHA-256 than "
                f"its name says; nothing was changed. To have a new one {again}"
                + (f"; or take another (`--snapshot`), of {others}" if others else "")
            )
        return newest, data


def _numbers(form: re.Pattern[str], names: Iterable[str]) -> list[int]:
    """Of the files whose names have this form, ascending."""
    return sorted(int(m[1]) for name in names if (m := form.fullmatch(name)))


def _encoded(snapshot: Snapshot) -> bytes:
    rows = [
        {
            "kind": "ledger",
            "name": f"{each.ledger_id}-{(each.metadata.nonce or b'').decode()}",
            "ledger_id": each.ledger_id,
            "state": each.metadata.state.name,
            "last_entry_id": each.last_entry_id,
            "length_bytes": each.length_bytes,
            "value": encode_ledger(each.metadata),
        }
        for each in snapshot.ledgers
    ]
    rows += [
        {"kind": "register", "name": name, "value": value}
        for name, value in sorted(snapshot.registers.items())
    ]
    header = {
        "format": 1,
        "instance_id": snapshot.instance_id,
        "taken_at_ms": snapshot.taken_at_ms,
    }
    schema = SNAPSHOT.with_metadata({HEADER_KEY: json.dumps(header, sort_keys=True).encode()})
    table = pa.Table.from_pylist(rows, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))


def _decoded(data: bytes) -> Snapshot:
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    header = json.loads((table.schema.metadata or {})[HEADER_KEY])
    if header["format"] != 1:
        raise InvalidArgumentError(
            f"the snapshot has format {header['format']}, and this version knows 1: upgrade it"
        )
    ledgers = []
    registers = {}
    for row in table.to_pylist():
        if row["kind"] == "register":
            registers[row["name"]] = row["value"]
            continue
        metadata = decode_ledger(row["value"], row["name"])
        ledgers.append(
            SavedLedger(
                LedgerId(row["ledger_id"]),
                metadata,
                EntryId(row["last_entry_id"]),
                row["length_bytes"],
            )
        )
    return Snapshot(header["instance_id"], header["taken_at_ms"], tuple(ledgers), registers)


def _check_writable(path: str) -> None:
    """Raises ``OSError``: no directory can be at a path, or nothing be written there."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _local_path(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
