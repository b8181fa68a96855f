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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from spark_bookkeeper.backup.snapshot import SNAPSHOTS, Snapshots, local_path
from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.connection import storage_of
from spark_bookkeeper.errors import (
    BookieFullError,
    BookieUnavailableError,
    BookKeeperError,
    InvalidArgumentError,
)
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.table.listing import DIRECTORY, Listing
from spark_bookkeeper.table.opening import table_of
from spark_bookkeeper.table.snapshot import LOG

T = TypeVar("T")

BESIDE_TABLE: Final = f"{DIRECTORY}/backup"
"""Where a backup is that has the rows of ledgers in a Delta table, below that table. Delta passes
over names with an underscore, also when it vacuums."""


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
            self._storage: Storage = storage_of(context, self.bookie_id)
        except BookieUnavailableError as error:
            said = self.error_text(error.message)
            raise InvalidArgumentError(f"no backup can be at {uri!r}: {said}") from error
        self._partition = Partition(self._storage)
        self.snapshots = Snapshots(self._storage, uri, context.runtime)

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
        marker = _unless_file(self._partition.marker)
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
                    os.makedirs(local_path(self._storage.uri), exist_ok=True)
                marker = Marker(
                    self.bookie_id,
                    self._context.runtime.token(),
                    instance_id,
                    has_witness=not self._storage.has_directories,
                )
                self._storage.make_directory(SNAPSHOTS)
                self._partition.furnish(marker)
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
            said = self.error_text(str(error))
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
            _check_writable(local_path(self._storage.uri))
        if self._partition.marker() is not None:
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
        """A ledger as it is in the backup, where no ledger has to be ended."""
        ref = LedgerRef(ledger.key, incarnation, ledger.encoding, may_take_last=True)
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

    def error_text(self, reason: str) -> str:
        """What a bookie says of itself, as said of a backup."""
        return reason.replace(f"bookie {self.bookie_id}", f"the backup at {self.uri}")

    def without_room(self, error: BookieFullError) -> str:
        """What to do when the backup takes no more."""
        return (
            f"there is no room for it in {self.uri} ({self.error_text(error.message)}): make room "
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
            f"{self.error_text(reason)}. Run `spark-bookkeeper cluster backup --verify` in the "
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


def _check_writable(path: str) -> None:
    """Raises ``OSError``: no directory can be at a path, or nothing be written there."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
