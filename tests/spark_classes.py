"""Keeps Java's classes of Spark for all sessions that the tests start.

As ``class_archive.py`` does for ZooKeeper: a JVM of Spark spends two fifths of what it takes to run
a few queries on loading the same classes. Those of signed jars are loaded as ever. To save them
takes as long as ten sessions gain, so CI does it, which starts dozens; whoever has them uses them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_SILENTLY: Final = "-Xlog:disable"  # a JVM that cannot use an archive says so on stdout

_SESSION: Final = """
import os, sys, tempfile
import spark_bookkeeper as sbk
from pyspark import SparkContext

new, kept = sys.argv[1:]
spark = sbk.spark_session("local[2]", spark_sql_shuffle_partitions=2)
frame = spark.range(10).mapInArrow(lambda batches: batches, "id long")
with tempfile.TemporaryDirectory() as directory:
    frame.write.mode("append").parquet(directory)
    rows = spark.readStream.schema("id long").parquet(directory)
    copy = rows.writeStream.format("memory").queryName("copy").trigger(availableNow=True).start()
    copy.awaitTermination()
    spark.sql("SELECT id % 2, sum(id) FROM copy GROUP BY 1").collect()
java = SparkContext._gateway.proc
spark.stop()
java.stdin.close()  # at which it ends, and saves its classes
java.wait()
os.replace(new, kept)
"""


def archive_in(directory: Path) -> Path:
    """Where the classes of the installed Spark are."""
    return directory / f"spark-{version('pyspark')}.jsa"


def use(archive: Path) -> None:
    """Start every session from the archive if it exists."""
    before = os.environ.get(_OPTIONS, "")
    if archive.exists() and str(archive) not in before:
        os.environ[_OPTIONS] = f'{before} "-XX:SharedArchiveFile={archive}" {_SILENTLY}'


def making(archive: Path) -> subprocess.Popen[bytes]:
    """Begin to make the archive. Where Spark cannot run there is none, and its tests say why."""
    new = archive.with_suffix(".new")
    options = f'{os.environ.get(_OPTIONS, "")} "-XX:ArchiveClassesAtExit={new}" {_SILENTLY}'
    return subprocess.Popen(
        [sys.executable, "-c", _SESSION, str(new), str(archive)],
        env={**os.environ, _OPTIONS: options},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
