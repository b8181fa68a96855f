"""The session of a client; the locks and election nodes of that session are the client's own."""

from __future__ import annotations

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes


def own_session(zk: Nodes, root: str) -> int:
    """Return the number of this client's session; it is unknown while the connection is away.

    Args:
        root: a node to read, which waits for the connection.
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
