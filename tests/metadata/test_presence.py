"""Whether writers live, as ZooKeeper tells it."""

from __future__ import annotations

from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.testing.znodes import ZNodes


def test_a_writer_whose_node_goes_with_no_session_does_not_live(znodes: ZNodes) -> None:
    """As a copy of ZooKeeper's tree has it: its ledger would wait for it for ever."""
    store = ZooKeeperStore("zk://nowhere:2181/ledgers", token=lambda: "0" * 32)
    store.initialize_cluster()
    znodes.put(paths.writer("/ledgers", LedgerId(7), "3f2a"), b"")

    assert not store.has_writer(LedgerId(7), "3f2a")
    store.close()
