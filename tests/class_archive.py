"""What Java knows of ZooKeeper's classes, kept for all servers that a run of tests starts.

A server spends most of its start on reading the same classes, and a run of all tests starts more
than a hundred. Java can keep them as it has them in memory when a program ends (class data
sharing, JEP 350), and takes them from there when it is told where.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

import pytest

from spark_bookkeeper.cluster import zookeeper
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.errors import BookKeeperError

MANY: Final = 50
"""So many tests with processes of their own start more servers than it costs to keep the classes:
as much as five starts."""

_ENDING_SECONDS: Final = 60.0
"""Until a server has ended that writes its classes down, on a machine that is busy."""


_UNSYNCED: Final = "-Dzookeeper.forceSync=no"
"""What a server wrote is there when it was killed; only a machine that stops would lose it."""


class ClassArchive:
    """A plugin of pytest: an archive is made before the first test, and goes after the last one.

    And no server that a test starts waits for its disk.
    """

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._before = zookeeper._JVM_OPTIONS
        self._usual = (*self._before, _UNSYNCED)

    def pytest_configure(self) -> None:
        zookeeper._JVM_OPTIONS = self._usual

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        items = [item for item in session.items if item.get_closest_marker("integration")]
        if len(items) < MANY or session.config.option.collectonly:
            return
        self._directory = Path(tempfile.mkdtemp(prefix="spark-bookkeeper-classes-"))
        archive = self._directory / "zookeeper.jsa"
        try:
            zookeeper._JVM_OPTIONS = (*self._usual, f"-XX:ArchiveClassesAtExit={archive}")
            _serve_once(self._directory / "server")
        except BookKeeperError:  # no Java: the tests that need it say so
            return
        finally:
            zookeeper._JVM_OPTIONS = self._usual
        if archive.exists():  # an older or another Java may have none
            zookeeper._JVM_OPTIONS = (*self._usual, f"-XX:SharedArchiveFile={archive}")

    def pytest_sessionfinish(self) -> None:
        zookeeper._JVM_OPTIONS = self._before
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _serve_once(directory: Path) -> None:
    """Start a server and let it end in good order: one that is killed writes nothing down."""
    with EmbeddedZooKeeper(directory) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + _ENDING_SECONDS
        while server.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
