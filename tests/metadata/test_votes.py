"""Votes in elections of logs, as ZooKeeper has them."""

from __future__ import annotations

from spark_bookkeeper.metadata.election import Election
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.znodes import ZNodes


def test_a_vote_that_goes_with_no_session_keeps_nobody_from_leading(znodes: ZNodes) -> None:
    store = ZooKeeperStore("zk://nowhere:2181/ledgers", token=lambda: "0" * 32)
    store.initialize_cluster()
    election = Election(store.ballots, "orders", ThreadRuntime())
    node = store.ballots._node("orders")
    znodes.put(f"{node}/V_{'f' * 32}_0000000000", b"of a tree that was copied")
    znodes.nodes[node].made_below = 1

    assert election.leader() is None
    assert election.candidates() == []
    with election.join(b"one") as vote:
        assert vote.wait(0)
        assert vote.is_leader
        assert election.leader() == b"one"
    store.close()
