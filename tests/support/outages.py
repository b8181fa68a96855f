"""Bookies of a whole cluster that lose their storage for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster


@contextmanager
def paused(cluster: LocalCluster, *bookies: str) -> Iterator[None]:
    """Bookies whose agents do not look at their storage, whatever becomes of it.

    So they stay registered, and what is tested does not depend on when an agent would have looked.
    Afterwards they look at once: their storage is to be as it was, and they are registered again.
    """
    agents = [cluster.agent(bookie) for bookie in bookies]
    for agent in agents:
        agent.pause()
    try:
        yield
    finally:
        for agent in agents:
            agent.start()


@contextmanager
def without_storage(cluster: LocalCluster, *bookies: str) -> Iterator[list[Path]]:
    """Bookies whose directories are elsewhere: gives where. Nobody tells the cluster."""
    with paused(cluster, *bookies):
        roots = [cluster.root_of(bookie) for bookie in bookies]
        hidden = [root.with_name(f"hidden-{root.name}") for root in roots]
        for root, place in zip(roots, hidden, strict=True):
            root.rename(place)
        try:
            yield hidden
        finally:
            for root, place in zip(roots, hidden, strict=True):
                place.rename(root)
