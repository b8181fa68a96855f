"""Clusters of tests that are guests of one ZooKeeper, each below a node of its own.

What a test does to its cluster takes less time than a server of its own to start. A guest that is
started again, in its directory or where that was moved, is below its node again. A test that stops,
kills or freezes ZooKeeper has a server of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from typing_extensions import override

from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.local_cluster import local_cluster as local
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.local_cluster.running_cluster import RunningCluster
from spark_bookkeeper.metadata.uri import MetadataUri
from spark_bookkeeper.runtime.runtime import Runtime

_numbers: Final = itertools.count()


class Room(EmbeddedZooKeeper):
    """The server of all, which runs before a guest comes and after it has gone."""

    @override
    def start(self) -> None:
        """It has started."""

    @override
    def stop(self) -> None:
        """The others are still there."""

    @property
    @override
    def is_running(self) -> bool:
        return True


def _root_of(directory: Path) -> str:
    """Where the metadata of a guest are, which its directory remembers."""
    note = directory / "zookeeper" / "guest"
    if not note.exists():
        note.parent.mkdir(exist_ok=True)
        note.write_text(f"/guest-{next(_numbers)}/ledgers")
    return note.read_text()


@contextmanager
def guests_of(host: EmbeddedZooKeeper) -> Iterator[None]:
    """Every ``LocalCluster`` that is started meanwhile is a guest of this server."""

    class Guest(RunningCluster):
        def __init__(
            self, given: Path | None, wanted: int, config: BookieConfig, runtime: Runtime
        ) -> None:
            super().__init__(given, wanted, config, runtime)
            self.zookeeper = Room(host.directory, host.port)
            self._root = _root_of(self.directory)

        @property
        @override
        def metadata_uri(self) -> str:
            return str(MetadataUri((self.zookeeper.address,), self._root))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "RunningCluster", Guest)
        yield
