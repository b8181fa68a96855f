"""What a Spark task needs of a cluster, made once in each Python worker process.

Spark keeps its worker processes and gives them one task after the other; a session with
ZooKeeper and opened storages are worth keeping just as long. Workers are forked, and neither
threads nor sockets survive that, so everything is bound to the process that made it.
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
"""A worker that served more clusters than this forgets the oldest."""

OBJECTS_COLLECTED: Final = 20_000
"""New objects after which a task looks for garbage in cycles; Python does after 700."""

_contexts: dict[tuple[int, bytes], ClientContext] = {}

_put_aside_by: int | None = None
"""The process that has: this one, or one that it was forked from."""


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


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Within it, this process looks for garbage in cycles less often, and from the first time on
    never again through what it had made until then.

    Work on small ledgers keeps some hundred objects of each until the whole batch is done, and
    makes hardly any cycles. Looking through them again and again took up to a third of its time.
    """
    _put_aside()
    before = gc.get_threshold()
    gc.set_threshold(max(OBJECTS_COLLECTED, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _put_aside() -> None:
    """Once in a process: what it has imported and made so far is not looked through any more.

    Spark has a worker look for garbage after every task, through all that it has, while other tasks
    are still at work.
    """
    global _put_aside_by
    if os.getpid() != _put_aside_by:
        _put_aside_by = os.getpid()
        gc.collect()  # or what is garbage by now would stay
        gc.freeze()


def _close(context: ClientContext) -> None:
    context.bookies.close()
    context.store.close()
