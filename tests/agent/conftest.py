"""What tests of a cluster's processes share: a store in a real ZooKeeper, and our own programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from tests.support.program import Program


@pytest.fixture
def store(host: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> Iterator[ZooKeeperStore]:
    """A cluster of its own for each test, under another root of one ZooKeeper."""
    uri = f"zk://{host.address}/{request.path.stem}-{request.node.name}"
    store = ZooKeeperStore(uri, token=ThreadRuntime().token)
    store.initialize_cluster()
    yield store
    store.close()


@pytest.fixture
def start(store: ZooKeeperStore, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts a command in a process and returns when it has said some words; none is left."""
    started: list[Program] = []

    def start(words: str, *arguments: object) -> Program:
        environment = {"SPARK_BOOKKEEPER_METADATA_URI": str(store.uri)}
        log = tmp_path / f"program-{len(started)}.log"
        started.append(Program(log, *arguments, environment=environment))
        started[-1].wait_for(words)
        return started[-1]

    yield start
    for program in started:
        if program.is_running:
            program.kill()
