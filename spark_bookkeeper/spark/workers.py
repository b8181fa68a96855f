"""The client context of a Spark task, created once in each Python worker process.

Spark keeps its worker processes, and runs one task after the other in them. A ZooKeeper session and
opened storages are worth keeping just as long. Workers are forked, and neither threads nor sockets
survive that, so every context belongs to the process that created it.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.protocol.ids import BookieId

CLUSTERS_KEPT: Final = 4
"""Number of clusters; a worker that uses more closes the context of the oldest."""

OBJECTS_COLLECTED: Final = 20_000
"""New objects before a task's garbage collection of cycles; Python's default is 700."""

_contexts: dict[tuple[int, bytes], ClientContext] = {}

_put_aside_by: int | None = None
"""The process that has frozen its objects: this one, or one that it was forked from."""


def task_context(
    connection: Connection, roots: Mapping[BookieId, str] | None = None
) -> ClientContext:
    """Return this process's context for a cluster.

    Its ZooKeeper session begins when metadata is first read, and has no ephemeral nodes. It ends
    with the process, or when several other clusters were used since.

    Args:
        roots: the storage roots of bookies, as the driver knew them when it planned.
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


@contextmanager
def seldom_collected() -> Iterator[None]:
    """During the block, collect garbage cycles less often. From the first call on, objects that
    existed before it are never searched again.

    Work on small ledgers keeps some hundred objects of each until the whole batch is done, and
    makes hardly any cycles. Repeated searches through them took up to a third of its time.
    """
    _put_aside()
    before = gc.get_threshold()
    gc.set_threshold(max(OBJECTS_COLLECTED, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _put_aside() -> None:
    """Once in a process, exclude all existing objects from garbage collection.

    After every task Spark makes a worker collect garbage among all its objects, while other tasks
    still run.
    """
    global _put_aside_by
    if os.getpid() != _put_aside_by:
        _put_aside_by = os.getpid()
        gc.collect()  # or existing garbage would stay for ever
        gc.freeze()


def _close(context: ClientContext) -> None:
    context.bookies.close()
    context.store.close()
