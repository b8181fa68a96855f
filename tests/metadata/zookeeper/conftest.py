"""Sessions with a real ZooKeeper, the one of the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.testing.conformance.metadata import Stores
from tests.metadata.zookeeper.proxy import ZooKeeperStores


@pytest.fixture
def zookeeper(host: EmbeddedZooKeeper) -> Iterator[ZooKeeperStores]:
    stores = ZooKeeperStores(host.address)
    yield stores
    stores.close()


@pytest.fixture
def stores(zookeeper: ZooKeeperStores) -> Stores:
    return zookeeper


@pytest.fixture
def store(zookeeper: ZooKeeperStores) -> ZooKeeperStore:
    """A session with a new cluster."""
    session = zookeeper.session()
    session.initialize_cluster()
    return session


@pytest.fixture
def other(zookeeper: ZooKeeperStores, store: ZooKeeperStore) -> ZooKeeperStore:
    """Another session with that cluster."""
    return zookeeper.session()


@pytest.fixture
def raw(host: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(host.address)
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()
