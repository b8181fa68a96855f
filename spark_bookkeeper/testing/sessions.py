"""A session whose jobs run in this process, so that whole clusters can be tested without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.bulk import BulkPlan, EntryRange, TaskResult
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.replication.runner import LocalRunner, Runner
from spark_bookkeeper.session import BookKeeper, SparkDoor

PATIENT: Final = ClientConfig(metadata_timeout_ms=60_000)
"""Whoever does not test what happens without ZooKeeper has the time that a busy machine needs."""


class ArrowDoor(SparkDoor):
    """Stands where Spark would: Arrow tables are its frames, and this process runs its jobs."""

    def __init__(self) -> None:
        self.bk: BookKeeper | None = None

    @property
    @override
    def session(self) -> Any:
        raise MissingRequirementError("this session was made without Spark; use connect()")

    @override
    def runner(self, job: str) -> Runner:
        assert self.bk is not None
        return LocalRunner(self.bk.context)

    @override
    def is_frame(self, data: Any) -> bool:
        return False

    @override
    def schema(self, frame: Any) -> pa.Schema:
        raise MissingRequirementError("this session was made without Spark; use connect()")

    @override
    def arrow_schema(self, schema: Any) -> pa.Schema:
        return schema

    @override
    def write_parts(self, frame: Any, plan: BulkPlan) -> Sequence[TaskResult]:
        raise MissingRequirementError("this session was made without Spark; use connect()")

    @override
    def from_arrow(self, table: pa.Table) -> Any:
        return table

    @override
    def read(self, context: ClientContext, schema: pa.Schema, ranges: Sequence[EntryRange]) -> Any:
        raise MissingRequirementError("this session was made without Spark; use connect()")


def connect_without_spark(
    metadata_uri: str,
    *,
    config: ClientConfig | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> BookKeeper:
    """Connect to a cluster; what would be a Spark job runs in this process.

    Raises what ``spark_bookkeeper.connect`` raises.
    """
    door = ArrowDoor()
    connection = Connection(metadata_uri, config or PATIENT, dict(storage_options or {}))
    door.bk = BookKeeper(connection, door)
    try:
        door.bk.context.store.require_cluster()
    except BaseException:
        door.bk.close()
        raise
    return door.bk


def give_up_after(bk: BookKeeper, seconds: float) -> None:
    """From now on a call waits no longer for ZooKeeper; for tests that are about to take it away.

    To connect, and to do what comes before, there was the time that a busy machine may need.
    """
    store = bk.context.store
    assert isinstance(store, ZooKeeperStore)
    store._zk._link.patience = seconds  # noqa: SLF001  (no user needs to change it under way)
