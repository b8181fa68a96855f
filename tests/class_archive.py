"""Keeps Java's classes of ZooKeeper and of Spark for all processes that the tests start.

A Java process spends most of its start on loading the same classes. Java can save them when a
program ends, and load them from the saved file in the next one (class data sharing, JEP 350).
Spark with a first query takes 9 s then, instead of 16.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.local_cluster import embedded_zookeeper as zookeeper
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper

_ENDING_SECONDS: Final = 60.0
"""A server that saves its classes has this long to end, also on a busy machine."""

_UNSYNCED: Final = "-Dzookeeper.forceSync=no"
"""Only a machine that stops would lose what a server did not sync, and no test stops one."""

_JVM_OPTIONS: Final = zookeeper._JVM_OPTIONS
"""The options that the library gives to Java."""

_SPARK_OPTIONS: Final = "SPARK_SUBMIT_OPTS"

_QUERIES: Final = """
import pyarrow as pa
import spark_bookkeeper as sbk

spark = sbk.spark_session("local[1]")
spark.range(10).selectExpr("id % 3 AS k", "id").groupBy("k").count().orderBy("k").collect()
spark.createDataFrame(pa.table({"k": [1]})).mapInArrow(lambda batches: batches, "k long").collect()
"""


def use(directory: Path) -> None:
    """Start every ZooKeeper without syncs, and use the archives that are in the directory."""
    shared = f"-XX:SharedArchiveFile={_of_zookeeper(directory)}"  # Java does without it, too
    zookeeper._JVM_OPTIONS = (*zookeeper._JVM_OPTIONS, _UNSYNCED, shared)
    archive = _of_spark(directory)
    if archive.exists() and "-XX:SharedArchiveFile" not in os.environ[_SPARK_OPTIONS]:
        os.environ[_SPARK_OPTIONS] += f" -XX:SharedArchiveFile={archive} -Xlog:disable"


def make_for_zookeeper(directory: Path) -> None:
    """Make its archive. Without a Java, or with one that cannot save classes, there is none."""
    if _of_zookeeper(directory).exists():
        return
    made = _of_zookeeper(directory).with_suffix(".new")
    with pytest.MonkeyPatch.context() as patch:
        options = (*_JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={made}")
        patch.setattr(zookeeper, "_JVM_OPTIONS", options)
        try:
            _serve_once(directory / "server")
        except BookKeeperError:  # no Java: the tests that need it say so
            return
    if made.exists():
        made.rename(_of_zookeeper(directory))


def make_for_spark(directory: Path) -> None:
    """Make its archive, in half a minute: worth it for a run that starts many Sparks."""
    archive = _of_spark(directory)
    if archive.exists():
        return
    options = f"{os.environ[_SPARK_OPTIONS]} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    subprocess.run(
        [sys.executable, "-c", _QUERIES],
        env={**os.environ, _SPARK_OPTIONS: options},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,  # without Java there is none
    )


def _of_zookeeper(directory: Path) -> Path:
    return directory / "zookeeper.jsa"


def _of_spark(directory: Path) -> Path:
    """One for each Spark that is installed: an archive is good for the same jars alone."""
    spark = find_spec("pyspark")
    place = "" if spark is None else f"{spark.origin}"
    return directory / f"spark-{zlib.crc32(place.encode()):08x}.jsa"


def _serve_once(directory: Path) -> None:
    """Start a server and let it end in good order: one that is killed writes nothing down."""
    with EmbeddedZooKeeper(directory) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + _ENDING_SECONDS
        while server.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
