"""Calls that create, open, delete and show logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA
from spark_bookkeeper.client.deletion import Deletion, planned_deletions
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES
from spark_bookkeeper.logs import consumers as followers
from spark_bookkeeper.logs import logs as log_calls
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.session.arguments import digest_type_of, list_of
from spark_bookkeeper.session.handle import ClusterHandle


def create_log(
    self: ClusterHandle,
    name: str,
    *,
    ensemble_size: int = 3,
    write_quorum_size: int = 3,
    ack_quorum_size: int = 2,
    schema: Any = None,
    password: bytes = b"",
    digest_type: str = "CRC32C",
    compression: str | None = None,
    entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES,
    roll_bytes: int | None = None,
    roll_entries: int | None = None,
    roll_seconds: int | None = None,
    retain_seconds: int | None = None,
    retain_for: Sequence[str] = (),
) -> Log:
    """Create an empty log. All its ledgers get these settings; see ``create_ledger``.

    Args:
        roll_bytes, roll_entries, roll_seconds: the writer begins a new ledger when the current
            one has this many bytes or entries, or this age; ``None`` leaves it to ``roll()``.
            A ledger is compacted only after it is closed. So a log with many small appends,
            each of which is waited for, should have ``roll_entries=100_000``.
        retain_seconds: ledgers whose last entry is older are truncated, whenever a ledger is added
            or a writer closes. No ledger is written for longer than this. So while there are
            appends, an entry is removed after twice this time at the latest.
        retain_for: named followers, see ``consumers``. Entries that one of them has not read are
            kept, however old. A follower that has published no position yet needs all entries.

    Raises:
        LogExistsError: a log has that name. Nothing was changed.
        InvalidArgumentError: no log can have that name, or no ledger these sizes or columns.
    """
    options = LogOptions(
        Quorum(ensemble_size, write_quorum_size, ack_quorum_size),
        PAYLOAD_SCHEMA if schema is None else self.frames.arrow_schema(schema),
        password,
        digest_type_of(digest_type),
        compression,
        entry_target_bytes,
        roll_bytes,
        roll_entries,
        roll_seconds,
        retain_seconds,
        tuple(list_of("retain_for", retain_for)),
    )
    return log_calls.create_log(self.context, name, options, self.frames)


def open_log(self: ClusterHandle, name: str) -> Log:
    """Return a log to read, follow, truncate or write. Raises ``NoSuchLogError``."""
    return log_calls.open_log(self.context, name, self.frames)


def delete_log(self: ClusterHandle, name: str, *, dry_run: bool = False) -> list[Deletion]:
    """Fence a log's writer, then delete the log with all its ledgers; idempotent.

    Args:
        dry_run: only return the ledgers that would be deleted, with their sizes.

    Returns:
        the deleted ledgers. ``jobs()`` then shows who deleted them, when, and how much.

    Raises:
        NoSuchLogError: a dry run finds no such log.
        RecoveryUndecidedError: the ends of its newest ledgers cannot be found now. The log still
            exists, unchanged.
        MetadataFormatError, MetadataUnavailableError: some of its ledgers stay; repeat it.
    """
    if dry_run:
        return planned_deletions(self.context, self.calls.open_log(name).ledgers())
    return truncation.delete(self.context, name)


def logs(self: ClusterHandle) -> Any:
    """Return all logs as a DataFrame, one row for each of their ledgers (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.logs_arrow())


def logs_arrow(self: ClusterHandle) -> pa.Table:
    """Return all logs as an Arrow table, without Spark."""
    return log_calls.logs_table(self.context)


def consumers(self: ClusterHandle, log: str) -> Any:
    """Return a log's named followers and their lag, as a DataFrame (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.consumers_arrow(log))


def consumers_arrow(self: ClusterHandle, log: str) -> pa.Table:
    """Return ``consumers`` as an Arrow table, without Spark.

    Raises:
        NoSuchLogError: there is no log of that name.
    """
    return followers.consumers_table(self.context, log)


def show_lag(self: ClusterHandle, log: str) -> None:
    """Add gauges for the named followers of a log to ``metrics()``, from now on.

    ``bookkeeper_log_consumer_entries_behind{consumer="etl",log="orders"}``, and the same for
    bytes and seconds: the values of ``consumers``, looked up each time. A follower that publishes
    by ``Log.publish`` in this process is shown without this call.
    """
    followers.show_lag(self.context, log)
