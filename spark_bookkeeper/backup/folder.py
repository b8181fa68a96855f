"""The directory of a backup: a bookie's partition that belongs to no cluster, and snapshots.

Entries lie in it as on any bookie, in the files that ``bookie/FORMAT.md`` describes, so that what
writes, reads and verifies them is what does so everywhere. A snapshot says what of it makes up the
cluster at one time. It may lie beside a Delta table, which stands for ledgers then as it does for
those that were released to it. ``FORMAT.md`` beside this file is the page about it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_bookkeeper.backup.snapshot import (
    ClosedLedgers,
    Snapshot,
    closed_ledgers,
    decode_snapshot,
    encode_snapshot,
)
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
    BookKeeperError,
    InvalidArgumentError,
)
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.table.listing import DIRECTORY, Listing
from spark_bookkeeper.table.opening import table_of
from spark_bookkeeper.table.snapshot import LOG

T = TypeVar("T")

SNAPSHOTS: Final = "snapshots"

BESIDE_TABLE: Final = f"{DIRECTORY}/backup"
"""Where a backup is that has the rows of ledgers in a Delta table, below that table. Delta passes
over names with an underscore, also when it vacuums."""

_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{64})\.arrow")
_TAKEN = re.compile(r"([0-9]{20})\.taken")


class BackupFolder:
    """One directory, as this process reaches it.

    Args:
        context: any cluster; how storage is opened and how long it may be silent is its affair.
        uri: a path or an fsspec URI.
    """

    def __init__(self, context: ClientContext, uri: str) -> None:
        # A slash at the end makes no other place. The root of all, or of a host, has nothing else.
        bare = uri.rstrip("/")
        self.uri = uri = uri if bare == "" or bare.endswith(":") else bare
        is_beside = uri.endswith(f"/{BESIDE_TABLE}")
        self.table = uri.removesuffix(f"/{BESIDE_TABLE}") if is_beside else None
        """URI of the table beside which it is, if it is."""
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
        marker = self._marker()
        if marker is None:
            raise InvalidArgumentError(
                f"{self.uri} is no backup: it has no file BOOKIE of one; nothing was changed. "
                + self._what_makes_one()
            )
        if instance_id is not None and marker.instance_id != instance_id:
            raise InvalidArgumentError(
                f"the backup at {self.uri} is of cluster {marker.instance_id}, not of "
                f"{instance_id}; nothing was changed. Choose another directory"
            )
        return marker.incarnation

    def _marker(self) -> Marker | None:
        """That of a backup; ``None``: there is none."""
        marker = _unless_file(lambda: read_marker(self._storage))
        is_one = marker is not None and marker.bookie_id.startswith("backup-")
        return marker if is_one else None

    @property
    def is_there(self) -> bool:
        """Whether somebody has made it a backup."""
        return self._marker() is not None

    @property
    def has_table(self) -> bool:
        """Whether the directory is a Delta table's."""
        return bool(_unless_file(lambda: self._storage.list(LOG)))

    def _what_makes_one(self) -> str:
        if self.has_table:
            return (
                f"It is a Delta table without the directory {BESIDE_TABLE}, which has the rest of "
                "a backup: metadata, logs, and what rows do not tell. `spark-bookkeeper cluster "
                f"backup --table {self.uri}` makes it; of a table that was copied, copy that too"
            )
        return (
            f"`spark-bookkeeper cluster backup {self.uri}` makes one; where there should be "
            "one, look whether the URI is right and everything was copied there"
        )

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
        if LOG in found:
            raise InvalidArgumentError(
                f"{self.uri} is a Delta table: in_table=True (`cluster backup --table`) puts the "
                "rows of ledgers there, and a backup without it goes to a directory of its own. "
                "Nothing was changed"
            )
        if DIRECTORY in found and beside_table(self._context, self.uri).is_there:
            raise InvalidArgumentError(
                f"{self.uri} has a backup whose ledgers go into a table, of which there is nothing "
                "yet: in_table=True (`cluster backup --table`) goes on with it. Nothing was changed"
            )
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

    def source(self, ledger: Ledger, incarnation: str, index: str | None) -> Replica:
        """Where a ledger is read from that a snapshot has.

        Args:
            index: the digest of its list, when a table stands for it.

        Raises:
            InvalidArgumentError: it is in a table, and this directory is beside none.
        """
        if index is None:
            return self.replica(ledger, incarnation)
        if self.table is None:
            raise InvalidArgumentError(
                f"ledger {ledger.ledger_id} is in the table beside which this backup was made, and "
                f"{self.uri} is beside none: give the URI of the table, with this directory in it "
                f"as {BESIDE_TABLE}"
            )
        ref = LedgerRef(ledger.key, index, ledger.encoding)
        return Replica(table_of(self._context, self.table), ref)

    def listing(self, ledger: Ledger, index: str | None) -> Listing | None:
        """The list of a ledger's entries; ``None``: no table stands for it.

        Raises:
            BookieUnavailableError: it is not there, or is damaged.
        """
        if index is None or self.table is None:
            return None
        ref = LedgerRef(ledger.key, index, ledger.encoding)
        return table_of(self._context, self.table).listing(ref)

    def in_words(self, reason: str) -> str:
        """What a bookie says of itself, as said of a backup."""
        return reason.replace(f"bookie {self.bookie_id}", f"the backup at {self.uri}")

    def without_room(self, error: BookieFullError) -> str:
        """What to do when the backup takes no more."""
        return (
            f"there is no room for it in {self.uri} ({self.in_words(error.message)}): make room "
            "there, and run it again: it goes on where it was"
        )

    def unreadable(self, ledger: Ledger, entry_id: int, reason: str, index: str | None) -> str:
        """Why an entry cannot be restored, and what to do.

        Args:
            index: the digest of the ledger's list, when a table stands for it.
        """
        if index is not None:
            return (
                f"entry {entry_id} of ledger {ledger.ledger_id} cannot be read from the table at "
                f"{self.table}: {reason}. {self._how_to_mend(ledger, index)}"
            )
        return (
            f"entry {entry_id} cannot be read from the backup at {self.uri}: "
            f"{self.in_words(reason)}. Run `spark-bookkeeper cluster backup --verify` in the "
            "cluster that it is of, which copies again what is damaged or missing; without that "
            "cluster this ledger is lost to this backup, and the others are not"
        )

    def _how_to_mend(self, ledger: Ledger, index: str) -> str:
        """What to do where a table lacks what it had of a ledger."""
        again = (
            "Run `spark-bookkeeper cluster backup --table --verify` in the cluster that it is of, "
            "which puts what the table lacks into the directory beside it"
        )
        try:
            listing = self.listing(ledger, index)
        except BookKeeperError:
            listing = None
        if listing is None:
            return f"{again}; without that cluster this ledger is lost to this backup"
        return (
            f"{again}; or restore the table to version {listing.files.version}, which had all of "
            "it, as long as that was not vacuumed"
        )

    def put(self, snapshot: Snapshot) -> int:
        """Store a snapshot, durably, behind those there are; returns its number.

        The number is taken first, for itself: of two runs at once, whose snapshots have different
        names, both would find it free.
        """
        data = encode_snapshot(snapshot)
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
        return taken, decode_snapshot(data)

    def ledger_ids(self, number: int) -> Set[LedgerId]:
        """Of which ledgers a snapshot is.

        Raises:
            InvalidArgumentError: as ``snapshot``.
        """
        _, data = self._read(number)
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        return {LedgerId(i) for i in table["ledger_id"].drop_null().to_pylist()}

    def closed_ledgers(self, number: int) -> ClosedLedgers:
        """Where the closed ledgers of a snapshot are.

        Raises:
            InvalidArgumentError: as ``snapshot``.
        """
        _, data = self._read(number)
        return closed_ledgers(data)

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


def beside_table(context: ClientContext, table: str) -> BackupFolder:
    """The directory of a backup that has the rows of ledgers in a table.

    Args:
        table: URI of the table; there need not be one yet.
    """
    return BackupFolder(context, f"{table.rstrip('/')}/{BESIDE_TABLE}")


def backup_at(context: ClientContext, uri: str) -> BackupFolder:
    """The backup that somebody means by a URI: of a table that has one beside it, that one."""
    folder = BackupFolder(context, uri)
    beside = beside_table(context, uri)
    return beside if not folder.is_there and beside.is_there else folder


def _unless_file(ask: Callable[[], T]) -> T | None:
    """What is at a path; ``None``: a file, below which there is nothing for certain."""
    try:
        return ask()
    except BookieUnavailableError as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        return None


def _numbers(form: re.Pattern[str], names: Iterable[str]) -> list[int]:
    """Of the files whose names have this form, ascending."""
    return sorted(int(m[1]) for name in names if (m := form.fullmatch(name)))


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
