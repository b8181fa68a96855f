"""Clusters of tests whose metadata is in the memory of this process: no Java, no socket.

Agents, storages and clients are those of every local cluster; only the metadata store is the twin
(``testing/memory_store.py``). No other process reaches such a cluster, and nothing of ZooKeeper
itself is in it: its bytes, its end. Tests of those have a guest (``guests.py``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from typing_extensions import override

from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.local_cluster import local_cluster as local
from spark_bookkeeper.local_cluster.running_cluster import RunningCluster
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metadata.uri import MetadataUri, parse_metadata_uri
from spark_bookkeeper.metrics import Metrics
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.testing.memory_store import MemoryCluster
from tests.guests import Room

_NOWHERE: Final = "127.0.0.1:1"
_FOLDER: Final = "/twin-"

_numbers: Final = itertools.count()
_clusters: Final[dict[str, MemoryCluster]] = {}
"""By the root of each."""


def _new_cluster() -> MemoryCluster:
    """One with a clock of its own, and with an id that no other one has."""
    cluster = MemoryCluster()
    cluster.clock_ms = lambda: time.time_ns() // 1_000_000
    for _ in _clusters:
        cluster.number()
    return cluster


@contextmanager
def twins() -> Iterator[None]:
    """Every ``LocalCluster`` that is started meanwhile has its metadata in memory."""
    open_store = Connection.open_store

    class Twin(RunningCluster):
        def __init__(
            self, given: Path | None, wanted: int, config: BookieConfig, runtime: Runtime
        ) -> None:
            super().__init__(given, wanted, config, runtime)
            self.zookeeper = Room(self.directory, 1)
            self._root = f"{_FOLDER}{next(_numbers)}/ledgers"

        @property
        @override
        def metadata_uri(self) -> str:
            return str(MetadataUri((_NOWHERE,), self._root))

    def opened(
        connection: Connection,
        runtime: Runtime,
        metrics: Metrics | None = None,
        *,
        session_timeout_ms: int | None = None,
    ) -> MetadataStore:
        uri = parse_metadata_uri(connection.metadata_uri)
        if not (uri.hosts == _NOWHERE and uri.root.startswith(_FOLDER)):
            return open_store(connection, runtime, metrics, session_timeout_ms=session_timeout_ms)
        if uri.root not in _clusters:
            _clusters[uri.root] = _new_cluster()
        return _clusters[uri.root].session()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "RunningCluster", Twin)
        patch.setattr(local, "java_home", lambda: None)
        patch.setattr(Connection, "open_store", opened)
        yield
