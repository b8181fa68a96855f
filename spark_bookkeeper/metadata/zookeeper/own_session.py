"""Which session a client has: what goes with it, locks and votes, is its own."""

from __future__ import annotations

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes


def own_session(zk: Nodes, root: str) -> int:
    """The number of this client's session: not to be had while the connection is away.

    Args:
        root: some node, to be asked for: that waits for the connection.
    """
    if not zk.session_id:
        zk.exists(root)
    session = zk.session_id
    if not session:
        raise MetadataUnavailableError(
            "the connection to ZooKeeper broke, so it is not known which session this client "
            "has, and which locks and votes are its own; nothing was changed"
        )
    return session
