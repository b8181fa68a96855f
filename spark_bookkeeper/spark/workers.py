"""What a Spark task needs of a cluster, made once in each Python worker process.

Spark keeps its worker processes and gives them one task after the other; a session with
ZooKeeper and opened storages are worth keeping just as long. Workers are forked, and neither
threads nor sockets survive that, so everything is bound to the process that made it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.protocol.ids import BookieId

CLUSTERS_KEPT: Final = 4
"""A worker that served more clusters than this forgets the oldest."""

_contexts: dict[tuple[int, bytes], ClientContext] = {}


def task_context(
    connection: Connection, roots: Mapping[BookieId, str] | None = None
) -> ClientContext:
    """The context of this process for a cluster.

    Its session with ZooKeeper begins when metadata is asked for first, holds nothing ephemeral,
    and ends with the process, or when several other clusters were used since.

    Args:
        roots: where bookies are, as the driver knew when it planned.
    """
    key = (os.getpid(), pickle.dumps(connection))
    context = _contexts.get(key)
    if context is None:
        while len(_contexts) >= CLUSTERS_KEPT:
            _close(_contexts.pop(next(iter(_contexts))))
        context = _contexts[key] = connection.open_lazily()
    if roots:
        context.bookies.learn(roots)
    return context


def _close(context: ClientContext) -> None:
    context.bookies.close()
    context.store.close()
