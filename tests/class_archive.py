"""Keeps Java's classes of ZooKeeper for all servers that the tests start.

A server spends most of its start on loading the same classes. Java can save them when a program
ends, and load them from the saved file in the next one (class data sharing, JEP 350).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from spark_bookkeeper.cluster import zookeeper
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.errors import BookKeeperError

_ENDING_SECONDS: Final = 60.0
"""A server that saves its classes has this long to end, also on a busy machine."""

_UNSYNCED: Final = "-Dzookeeper.forceSync=no"
"""Only a machine that stops would lose what a server did not sync, and no test stops one."""


def use(archive: Path) -> None:
    """Start every server without syncs, and from the archive if it exists."""
    shared = (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()
    zookeeper._JVM_OPTIONS = (*zookeeper._JVM_OPTIONS, _UNSYNCED, *shared)


def make(archive: Path) -> None:
    """Make the archive. Without a Java, or with one that cannot save classes, there is none."""
    usual = zookeeper._JVM_OPTIONS
    zookeeper._JVM_OPTIONS = (*usual, f"-XX:ArchiveClassesAtExit={archive}")
    try:
        _serve_once(archive.with_name("server"))
    except BookKeeperError:  # no Java: the tests that need it say so
        return
    finally:
        zookeeper._JVM_OPTIONS = usual


def _serve_once(directory: Path) -> None:
    """Start a server and let it end in good order: one that is killed writes nothing down."""
    with EmbeddedZooKeeper(directory) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + _ENDING_SECONDS
        while server.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
