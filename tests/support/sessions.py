"""A session whose jobs run in this process, so that whole clusters can be tested without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.session import BookKeeper

PATIENT: Final = ClientConfig(metadata_timeout_ms=60_000, explicit_lac_ms=0)
"""Whoever does not test what happens without ZooKeeper has the time that a busy machine needs; and
what bookies hold does not depend on how long it takes between two appends."""


def connect_without_spark(
    metadata_uri: str,
    *,
    config: ClientConfig | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BookKeeper:
    """Connect to a cluster; what would be a Spark job runs in this process.

    Raises what ``spark_bookkeeper.connect`` raises.
    """
    connection = Connection(metadata_uri, config or PATIENT, dict(storage_options or {}))
    bk = BookKeeper(connection, runs_jobs_here=True)
    try:
        bk.context.store.require_cluster()
    except BaseException:
        bk.close()
        raise
    return bk


def give_up_after(bk: BookKeeper, seconds: float) -> None:
    """From now on a call waits no longer for ZooKeeper; for tests that are about to take it away.

    To connect, and to do what comes before, there was the time that a busy machine may need.
    """
    store = bk.context.store
    assert isinstance(store, ZooKeeperStore)
    store._zk._link.patience = seconds


def wait_no_longer_for_another(store: ZooKeeperStore) -> None:
    """From now on a bookie that another session holds is refused soon.

    The session itself keeps the time that a busy machine needs.
    """
    store._registrations._session_timeout_ms = 400
