"""A Spark session with real Delta, and one cluster. Run apart: ``python -m pytest -m delta``.

A session is one for a process, and the other tests want one without Delta.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_bookkeeper as sbk

ROOT = Path(__file__).parents[2]
VERSION = "4.4.0"
ARTIFACTS = ("delta-spark_4.2_2.13", "delta-storage")


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    """The two jars that tables need, fetched once with Maven."""
    home = Path.home() / ".m2" / "repository" / "io" / "delta"
    found = [home / name / VERSION / f"{name}-{VERSION}.jar" for name in ARTIFACTS]
    if not all(jar.is_file() for jar in found):
        if shutil.which("mvn") is None:
            pytest.skip("the jars of Delta are not here, and there is no Maven to fetch them")
        for name in ARTIFACTS:
            subprocess.run(
                [
                    *["mvn", "-B", "-q", "dependency:get", "-Dtransitive=false"],
                    f"-Dartifact=io.delta:{name}:{VERSION}",
                ],
                check=True,
                timeout=300,
                stdin=subprocess.DEVNULL,
            )
    return found


@pytest.fixture(scope="session")
def spark(jars: list[Path]) -> Iterator[Any]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    session = sbk.spark_session(
        "local[2]",
        delta=True,
        **{
            "spark.jars": ",".join(str(jar) for jar in jars),
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def bk(spark: Any) -> Iterator[sbk.BookKeeper]:
    with sbk.local(bookies=3, spark=spark) as bookkeeper:
        yield bookkeeper
