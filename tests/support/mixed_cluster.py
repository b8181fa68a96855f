"""A cluster of which each bookie is a disk or a bucket, with a real ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.roots import open_storage
from tests.support.s3 import S3Server

ON_DEMAND: Final = BookieConfig(probe_interval_ms=3_600_000)
"""An agent looks at its storage when a test makes it ``step``."""


class MixedCluster:
    """Bookies wherever a root URI points, each with an agent in this process.

    Args:
        directory: of the disks.
        server: of the buckets.
        zookeeper: runs, and may have other clusters.
    """

    def __init__(self, directory: Path, server: S3Server, zookeeper: EmbeddedZooKeeper) -> None:
        self.directory = directory
        self.server = server
        self.runtime = ThreadRuntime()
        self.uri = f"zk://{zookeeper.address}/mixed-{self.runtime.token()}/ledgers"
        self.store = ZooKeeperStore(self.uri, token=self.runtime.token)
        self.store.initialize_cluster()
        self.agents: dict[str, BookieAgent] = {}
        self.roots: dict[str, str] = {}

    def start(self, kind: str) -> str:
        """A new bookie on local ``disk`` or in a ``bucket`` of its own."""
        bookie = f"10.0.0.{len(self.roots) + 1}:3181"
        if kind == "disk":
            root = self.directory / bookie
            root.mkdir()
            self.roots[bookie] = root.as_uri()
        else:
            self.roots[bookie] = f"s3://{self.server.make_bucket()}/bookies/{bookie}"
        storage = open_storage(self.roots[bookie], self.server.storage_options)
        # What a bucket promises is probed in tests of storage; it takes fifty requests.
        Partition(storage).format(
            bookie,
            self.store.instance_id(),
            token=self.runtime.token,
            is_probe_required=False,
        )
        agent = BookieAgent(
            self.store, Partition(storage), BookieId(bookie), self.runtime, ON_DEMAND
        )
        agent.start()
        self.agents[bookie] = agent
        return bookie

    def kind(self, bookie: str) -> str:
        return "bucket" if self.roots[bookie].startswith("s3://") else "disk"

    def bucket(self, bookie: str) -> str:
        return self.roots[bookie].removeprefix("s3://").partition("/")[0]

    def wipe(self, bookie: str) -> None:
        """Everything in its partition is gone, and nobody has told the cluster."""
        Partition(open_storage(self.roots[bookie], self.server.storage_options)).wipe()

    def stop(self, bookie: str) -> None:
        self.agents.pop(bookie).stop()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.stop()
        self.store.close()
