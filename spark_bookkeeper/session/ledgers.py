"""Calls that create, open, delete and show ledgers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from spark_bookkeeper.client import fencing, lifecycle, views
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.fencing import Fencing
from spark_bookkeeper.client.history import history_table
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.names import ledger_called
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.ids import parse_ledger_id
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.lost_entries import lost_entries as lost_entries_table
from spark_bookkeeper.replication.runner import LocalRunner, Progress
from spark_bookkeeper.runtime.progress import told
from spark_bookkeeper.session.arguments import digest_type_of, ids_of, rate_of
from spark_bookkeeper.session.handle import ClusterHandle


def create_ledger(
    self: ClusterHandle,
    *,
    ensemble_size: int = 3,
    write_quorum_size: int = 3,
    ack_quorum_size: int = 2,
    schema: Any = None,
    password: bytes = b"",
    digest_type: str = "CRC32C",
    custom_metadata: Mapping[str, bytes] | None = None,
    name: str | None = None,
    owner: str | None = None,
    ledger_id: int | None = None,
    compression: str | None = None,
    entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES,
) -> LedgerWriter:
    """Create a ledger and return its writer.

    Args:
        ensemble_size, write_quorum_size, ack_quorum_size: E >= Qw >= Qa >= 1, in bookies.
        schema: a Spark or Arrow schema; ``None`` is one column ``payload binary``.
        password: required to open the ledger again; also the key of ``digest_type="MAC"``.
        digest_type: ``CRC32C``, ``CRC32``, ``MAC`` or ``DUMMY`` (none).
        custom_metadata: stored with the ledger, and visible to every tool.
        name, owner: labels to find it by, each of at most 200 printable characters.
        ledger_id: a chosen id, never used before; ``None`` takes the next one.
        compression: ``None``, ``"lz4"`` or ``"zstd"``.
        entry_target_bytes: approximate size of the entries of a bulk append.

    Raises:
        InvalidArgumentError, NotEnoughBookiesError, LedgerExistsError. Nothing was created.
    """
    labels = lifecycle.labels_of(custom_metadata, name=name, owner=owner)
    return lifecycle.create_ledger(
        self.context,
        Quorum(ensemble_size, write_quorum_size, ack_quorum_size),
        schema=None if schema is None else self.frames.arrow_schema(schema),
        password=password,
        digest_type=digest_type_of(digest_type),
        labels=labels,
        ledger_id=ledger_id,
        compression=compression,
        entry_target_bytes=entry_target_bytes,
        frames=self.frames,
    )


def open_ledger(self: ClusterHandle, ledger_id: int | str, password: bytes = b"") -> LedgerReader:
    """Open a ledger to read all of it; one that is not closed is fenced, recovered, closed.

    Args:
        ledger_id: its id, or its name if no other ledger has the same. The search for a name
            reads the metadata of all ledgers.
        password: as at ``create_ledger``.

    Raises:
        NoSuchLedgerError: no ledger has that id or name.
        InvalidArgumentError: several have that name.
        UnauthorizedError: it has another password. Nothing was changed.
        RecoveryUndecidedError: too few bookies answer, so the end of the ledger is unknown. The
            message names the bookies that would decide it. The ledger stays fenced; open it again.
        NotEnoughBookiesError: recovered entries could not be stored by an ack quorum.
        MetadataFormatError: another client wrote it, or its metadata cannot be decoded.
        MetadataUnavailableError: it may or may not be closed now; repeat.
    """
    called = ledger_called(self.context, ledger_id)
    return lifecycle.open_ledger(self.context, called, password, self.frames)


def open_ledger_no_recovery(
    self: ClusterHandle, ledger_id: int | str, password: bytes = b""
) -> LedgerReader:
    """Open a ledger to read up to its last add confirmed; never disturbs its writer.

    Args:
        ledger_id, password: as at ``open_ledger``.

    Raises:
        NoSuchLedgerError, InvalidArgumentError, UnauthorizedError, MetadataFormatError: as
            ``open_ledger``.
        EntryUnreadableError: it is not closed, and no bookie of its last fragment answers.
        MetadataUnavailableError: the metadata store does not answer.
    """
    called = ledger_called(self.context, ledger_id)
    return lifecycle.open_ledger_no_recovery(self.context, called, password, self.frames)


def open_ledger_async(
    self: ClusterHandle, ledger_id: int | str, password: bytes = b""
) -> Future[LedgerReader]:
    """Call ``open_ledger`` in the background."""
    return self.begin("open-ledger", lambda: self.calls.open_ledger(ledger_id, password))


def open_ledger_no_recovery_async(
    self: ClusterHandle, ledger_id: int | str, password: bytes = b""
) -> Future[LedgerReader]:
    """Call ``open_ledger_no_recovery`` in the background."""
    return self.begin(
        "open-ledger", lambda: self.calls.open_ledger_no_recovery(ledger_id, password)
    )


def create_ledger_async(self: ClusterHandle, **options: Any) -> Future[LedgerWriter]:
    """Call ``create_ledger`` in the background."""
    return self.begin("create-ledger", lambda: self.calls.create_ledger(**options))


def delete_ledger_async(
    self: ClusterHandle, ledger_id: int, *, even_if_alive: bool = False
) -> Future[Deletion]:
    """Call ``delete_ledger`` in the background."""
    return self.begin(
        "delete-ledger", lambda: self.calls.delete_ledger(ledger_id, even_if_alive=even_if_alive)
    )


def delete_ledger(
    self: ClusterHandle, ledger_id: int, *, even_if_alive: bool = False, dry_run: bool = False
) -> Deletion:
    """Delete a ledger for ever; idempotent. One that is not closed is fenced before.

    Args:
        even_if_alive: also delete it if its writer lives or may live, or if too few of its
            bookies could be fenced to be certain that the writer is stopped.
        dry_run: only return what would be deleted, with its size, or raise as a run would now.

    Returns:
        the state before, the size, and the bookies that could not be fenced. ``jobs()`` then shows
        who deleted the ledger, and when.

    Raises:
        InvalidArgumentError: its writer lives, or may live; the message names the writer.
        RecoveryUndecidedError: too few bookies could be fenced; it was not deleted.
    """
    context = self.context  # the note below works even if another thread closes this
    gone = lifecycle.delete_ledger(context, ledger_id, even_if_alive=even_if_alive, dry_run=dry_run)
    if gone.state is not None and not dry_run:
        self.note_deleted(context, gone)
    return gone


def fence_ledger(self: ClusterHandle, ledger_id: int | str, *, dry_run: bool = False) -> Fencing:
    """Stop a ledger's writer now, dead or alive, and decide about the ledger later; idempotent.

    The ledger becomes IN_RECOVERY, and its bookies refuse further entries of its writer. It is not
    closed: ``open_ledger`` or ``recover_ledgers`` closes it, ``delete_ledger`` deletes it. The next
    append fails; one in flight may still be acknowledged, and is kept. The result has the fenced
    bookies, and whether they suffice.

    Args:
        ledger_id: its id, or its name, as at ``open_ledger``.
        dry_run: only return the bookies that would be fenced, without a call to them.

    Raises:
        NoSuchLedgerError, InvalidArgumentError: as ``open_ledger``.
        MetadataFormatError: another client wrote it. Nothing was changed.
        MetadataUnavailableError: it may or may not be IN_RECOVERY now; repeat.
    """
    return fencing.fence_ledger(self.context, ledger_id, dry_run=dry_run)


def ledger(self: ClusterHandle, ledger_id: int | str) -> LedgerInfo:
    """Return the current metadata of one ledger; nothing is fenced.

    Args:
        ledger_id: its id, or its name, as at ``open_ledger``.

    Raises:
        NoSuchLedgerError: no ledger has that id or name.
        InvalidArgumentError: several have that name.
    """
    wanted = ledger_called(self.context, ledger_id)
    found = self.context.store.read_ledger(wanted)
    return LedgerInfo.of(wanted, found.value, self.context, self.frames.from_arrow)


def ledgers(self: ClusterHandle, *, ask_bookies: bool = False) -> Any:
    """Return all ledgers as a DataFrame (``docs/tables.md``).

    If the metadata of a ledger cannot be decoded, its state is ``UNREADABLE`` and other facts are
    missing. ``writer_state`` of a ledger that is not closed is ``lives``, ``gone`` or ``unknown``.

    Args:
        ask_bookies: fill ``last_add_confirmed`` and ``newest_entry_at`` also for ledgers that
            are not closed, by calls to their bookies; nothing is fenced.
    """
    return self.frames.from_arrow(self.calls.ledgers_arrow(ask_bookies=ask_bookies))


def ledgers_arrow(self: ClusterHandle, *, ask_bookies: bool = False) -> pa.Table:
    """Return all ledgers as an Arrow table, without Spark."""
    return views.ledgers_table(self.context, ask_bookies=ask_bookies)


def history(self: ClusterHandle, ledger_id: int) -> Any:
    """Return the recorded events of a ledger as a DataFrame (``docs/tables.md``).

    They are its creation with time and creator, its ensemble changes, its fences and its end. The
    times of changes are not recorded, nor the bookies that a recovery replaced.

    Raises:
        NoSuchLedgerError: there is no such ledger.
    """
    return self.frames.from_arrow(self.calls.history_arrow(ledger_id))


def history_arrow(self: ClusterHandle, ledger_id: int) -> pa.Table:
    """Return ``history`` as an Arrow table, without Spark."""
    return history_table(self.context, parse_ledger_id(ledger_id))


def diff_replicas(
    self: ClusterHandle, ledger_id: int, *, bytes_per_second: int | None = None
) -> Any:
    """Return every entry on every bookie of its write set, as a DataFrame (``docs/tables.md``).

    Args:
        bytes_per_second: limit on reading; ``None`` is no limit.

    Raises:
        NoSuchLedgerError: there is no such ledger.
    """
    table = self.calls.diff_replicas_arrow(ledger_id, bytes_per_second=bytes_per_second)
    return self.frames.from_arrow(table)


def diff_replicas_arrow(
    self: ClusterHandle, ledger_id: int, *, bytes_per_second: int | None = None
) -> pa.Table:
    """Return ``diff_replicas`` as an Arrow table, without Spark."""
    return views.replicas_table(self.context, parse_ledger_id(ledger_id), rate_of(bytes_per_second))


def lost_entries(
    self: ClusterHandle,
    ledger_ids: Iterable[int] | None = None,
    *,
    progress: Progress | None = None,
) -> Any:
    """Return the entries that no bookie can deliver, with each bookie's reason, as a DataFrame.

    A Spark job reads and verifies every acknowledged entry; nothing is changed.
    ``read(skip_lost=True)`` and ``failOnDataLoss=false`` skip the same entries.

    Args:
        ledger_ids: ``None`` is all ledgers.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Returns:
        a row for each run of entries and each bookie that should have them (``docs/tables.md``);
        no row if every entry can be read.
    """
    runner = self.runner("lost_entries")
    with told(progress, "lost_entries") as tell:
        table = lost_entries_table(self.context, runner, ids_of(ledger_ids), tell)
    return self.frames.from_arrow(table)


def lost_entries_arrow(self: ClusterHandle, ledger_ids: Iterable[int] | None = None) -> pa.Table:
    """Return ``lost_entries`` as an Arrow table, without Spark."""
    return lost_entries_table(self.context, LocalRunner(self.context), ids_of(ledger_ids))
