"""What a Spark task needs of a cluster, made once in each Python worker process.

Spark keeps its worker processes and gives them one task after the other; a session with
ZooKeeper and opened storages are worth keeping just as long. Workers are forked, and neither
threads nor sockets survive that, so everything is bound to the process that made it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.session import Connection

_contexts: dict[tuple[int, bytes], ClientContext] = {}


def task_context(
    connection: Connection, roots: Mapping[BookieId, str] | None = None
) -> ClientContext:
    """The context of this process for a cluster.

    Its session with ZooKeeper begins when metadata is asked for first. It is never closed: it
    holds nothing ephemeral, and ends with the process.

    Args:
        roots: where bookies are, as the driver knew when it planned.
    """
    key = (os.getpid(), pickle.dumps(connection))
    context = _contexts.get(key)
    if context is None:
        context = _contexts[key] = connection.open_lazily()
    if roots:
        context.bookies.learn(roots)
    return context
