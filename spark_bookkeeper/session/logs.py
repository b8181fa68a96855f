"""Logs: made, opened, deleted, looked at."""

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
    """Make an empty log; every ledger of it is made as is said here, see ``create_ledger``.

    Args:
        roll_bytes, roll_entries, roll_seconds: its writer goes on in a new ledger when the old
            one has so many bytes or entries, or was written for so long; ``None`` leaves that to
            ``roll()``. A ledger is compacted once it is closed: a log to which many small
            appends are made, each waited for, had better have ``roll_entries=100_000``.
        retain_seconds: ledgers whose last entry is older are truncated, when a ledger is added and
            when a writer closes. None is written for longer, so that an entry goes in twice the
            time at the latest, while there are appends.
        retain_for: named followers, see ``consumers``: what one of them has still to read is
            kept, however old it is. Who has not published a position yet has all to read.

    Raises:
        LogExistsError: there is one of that name. Nothing was changed.
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
    """A log to read, follow, truncate or write. Raises ``NoSuchLogError``."""
    return log_calls.open_log(self.context, name, self.frames)


def delete_log(self: ClusterHandle, name: str, *, dry_run: bool = False) -> list[Deletion]:
    """Delete a log with all its ledgers, its writer fenced first; idempotent.

    Args:
        dry_run: only say which ledgers would go, with their sizes.

    Returns:
        the ledgers that went. ``jobs()`` keeps by whom, when, and how much.

    Raises:
        NoSuchLogError: there is no such log, of a dry run.
        RecoveryUndecidedError: where its newest ledgers end cannot be found now. The log is there
            as before.
        MetadataFormatError, MetadataUnavailableError: some of its ledgers stay; repeat it.
    """
    if dry_run:
        return planned_deletions(self.context, self.calls.open_log(name).ledgers())
    return truncation.delete(self.context, name)


def logs(self: ClusterHandle) -> Any:
    """All logs, a row for each of their ledgers, as a DataFrame (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.logs_arrow())


def logs_arrow(self: ClusterHandle) -> pa.Table:
    """All logs, as an Arrow table: no Spark."""
    return log_calls.logs_table(self.context)


def consumers(self: ClusterHandle, log: str) -> Any:
    """Who follows a log under a name, and how far behind, as a DataFrame (``docs/tables.md``)."""
    return self.frames.from_arrow(self.calls.consumers_arrow(log))


def consumers_arrow(self: ClusterHandle, log: str) -> pa.Table:
    """The same as an Arrow table: no Spark.

    Raises:
        NoSuchLogError: there is no log of that name.
    """
    return followers.consumers_table(self.context, log)


def show_lag(self: ClusterHandle, log: str) -> None:
    """From now on ``metrics()`` has gauges for the named followers of a log.

    ``bookkeeper_log_consumer_entries_behind{consumer="etl",log="orders"}``, and the same for
    bytes and seconds: what ``consumers`` tells, looked up each time. A follower that publishes
    by ``Log.publish`` here is shown without being asked for.
    """
    followers.show_lag(self.context, log)
