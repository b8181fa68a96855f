"""Whole clusters: a real ZooKeeper, bookies in directories, processes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.sessions import connect_without_spark
from tests.guests import guests_of


@pytest.fixture(scope="module")
def cluster(
    host: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Six bookies, shared by the tests of a module, which leave them as they are.

    On a ZooKeeper that others use; what a test starts beside them has one of its own.
    """
    made = LocalCluster(tmp_path_factory.mktemp("cluster") / "c", bookies=6)
    with guests_of(host):
        made.start()
    with made as running:
        yield running


@pytest.fixture(scope="module")
def bk(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with connect_without_spark(cluster.metadata_uri) as connected:
        yield connected
