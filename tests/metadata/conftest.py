"""Nodes in memory where ZooKeeper would be, and sessions with a cluster in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from spark_bookkeeper.metadata.zookeeper import link
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.support.znodes import ZNodes, client_class

_TOKENS = itertools.count(1)


@pytest.fixture
def znodes(monkeypatch: pytest.MonkeyPatch) -> ZNodes:
    """What every client of ZooKeeper in a test finds."""
    made = ZNodes()
    monkeypatch.setattr(link, "Client", client_class(made))
    return made


@pytest.fixture
def store(znodes: ZNodes) -> Iterator[ZooKeeperStore]:
    """A session with a new cluster."""
    with_cluster = opened()
    with_cluster.initialize_cluster()
    yield with_cluster
    with_cluster.close()


@pytest.fixture
def other(store: ZooKeeperStore) -> Iterator[ZooKeeperStore]:
    """A session of another process."""
    session = opened()
    yield session
    session.close()


def opened() -> ZooKeeperStore:
    """A session with the nodes in memory, whatever is there."""
    return ZooKeeperStore("zk://nowhere:2181/ledgers", token=lambda: f"{next(_TOKENS):032x}")


def begin_session(znodes: ZNodes, store: ZooKeeperStore) -> None:
    """The servers have ended the session of a client, which begins another one."""
    client = store._zk._link.client
    znodes.end(client._session)
    client._session = next(znodes.sessions)
