"""The directory of a backup: a partition that belongs to no cluster, and snapshots.

Entries lie in it as on any bookie, in the files that ``bookie/FORMAT.md`` describes. So the same
code writes, reads and verifies them. A snapshot says which of them make up the cluster at one time.
The directory may lie below a Delta table. The table then stands for ledgers, as it does for ledgers
that were released to it. ``FORMAT.md`` describes the files.
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
"""Path, below a Delta table, of a backup whose ledgers have their rows in that table. Delta ignores
names with an underscore, also when it vacuums."""


class BackupFolder:
    """The directory of one backup, as this process reaches it.

    Args:
        context: any cluster; it opens storage, and its time-outs apply.
        uri: a path or an fsspec URI.
    """

    def __init__(self, context: ClientContext, uri: str) -> None:
        # A slash at the end is ignored, except for a root or a host, which have nothing else.
        bare = uri.rstrip("/")
        self.uri = uri = uri if bare == "" or bare.endswith(":") else bare
        is_beside = uri.endswith(f"/{BESIDE_TABLE}")
        self.table = uri.removesuffix(f"/{BESIDE_TABLE}") if is_beside else None
        """URI of the table that the directory is below; ``None``: no table."""
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
        """Return the incarnation of the directory.

        Args:
            instance_id: id of the cluster that the directory has to be a backup of.

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
        """Return the marker of a backup; ``None``: the directory is no backup."""
        marker = _unless_file(self._partition.marker)
        is_one = marker is not None and marker.bookie_id.startswith("backup-")
        return marker if is_one else None

    @property
    def is_there(self) -> bool:
        """Whether the directory was made a backup."""
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
        """Make an empty or missing directory a backup; return its incarnation.

        Raises:
            InvalidArgumentError: it has other files, or it cannot be reached. Nothing was changed.
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
        """Check that ``prepare`` would succeed, as far as possible without writing.

        Raises:
            InvalidArgumentError: as ``prepare``.
        """
        with self._reached():
            self._is_one(instance_id)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn storage errors of the directory into errors about the backup."""
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
            InvalidArgumentError: it has other files, or is a backup of another kind.
            BookieUnavailableError, OSError: it cannot be reached or written.
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
        if set(found) - {"ledgers", "retired", SNAPSHOTS}:  # a run may have left these
            raise InvalidArgumentError(
                f"{self.uri} is not empty (it holds {', '.join(found[:5])}) and no backup; "
                "nothing was changed. Choose an empty directory"
            )
        return False

    def replica(self, ledger: Ledger, incarnation: str) -> Replica:
        """Return a ledger's replica in the backup, without a reserve for ending ledgers."""
        ref = LedgerRef(ledger.key, incarnation, ledger.encoding, may_take_last=True)
        return Replica(self._context.bookies.bookie(self.bookie_id), ref)

    def source(self, ledger: Ledger, incarnation: str, index: str | None) -> Replica:
        """Return the replica from which a ledger of a snapshot is read.

        Args:
            index: the digest of the ledger's list, if a table stands for it.

        Raises:
            InvalidArgumentError: the ledger is in a table, and this directory is below none.
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
        """Return the list of a ledger's entries; ``None``: no table stands for the ledger.

        Raises:
            BookieUnavailableError: the list does not exist, or is damaged.
        """
        if index is None or self.table is None:
            return None
        ref = LedgerRef(ledger.key, index, ledger.encoding)
        return table_of(self._context, self.table).listing(ref)

    def error_text(self, reason: str) -> str:
        """Turn a bookie's error text about itself into a text about the backup."""
        return reason.replace(f"bookie {self.bookie_id}", f"the backup at {self.uri}")

    def without_room(self, error: BookieFullError) -> str:
        """Return what an operator can do about a full backup."""
        return (
            f"there is no room for it in {self.uri} ({self.error_text(error.message)}): make room "
            "there, and run it again: it goes on where it was"
        )

    def unreadable(self, ledger: Ledger, entry_id: int, reason: str, index: str | None) -> str:
        """Return why an entry cannot be restored, and what an operator can do.

        Args:
            index: the digest of the ledger's list, if a table stands for it.
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
        """Return what an operator can do about rows that a table has lost."""
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
    """Return the backup directory of a table that has the rows of ledgers.

    Args:
        table: URI of the table, which need not exist yet.
    """
    return BackupFolder(context, f"{table.rstrip('/')}/{BESIDE_TABLE}")


def backup_at(context: ClientContext, uri: str) -> BackupFolder:
    """Return the backup at a URI; for the URI of a table, the backup below the table."""
    folder = BackupFolder(context, uri)
    beside = beside_table(context, uri)
    return beside if not folder.is_there and beside.is_there else folder


def _unless_file(ask: Callable[[], T]) -> T | None:
    """Call a function; return ``None`` if its path is below a file, so that nothing is there."""
    try:
        return ask()
    except BookieUnavailableError as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        return None


def _check_writable(path: str) -> None:
    """Raise ``OSError`` if no directory can be at a path, or if it cannot be written."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
