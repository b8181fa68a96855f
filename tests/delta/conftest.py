"""A Spark session with real Delta, and one cluster. Run apart: ``python -m pytest -m delta``.
For what needs no Spark there is a cluster in this process.

A session is one for a process, and the other tests want one without Delta.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.testing.ground import Ground
from tests.guests import guests_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark(delta_jars: list[Path]) -> Iterator[Any]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    session = sbk.spark_session(
        "local[2]",
        delta=True,
        **{
            "spark.jars": ",".join(str(jar) for jar in delta_jars),
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def bk(spark: Any, host: EmbeddedZooKeeper) -> Iterator[sbk.BookKeeper]:
    with guests_of(host):
        bookkeeper = sbk.local(bookies=3, spark=spark)
    with bookkeeper:
        yield bookkeeper


# Without Spark


@pytest.fixture
def ground(inline_ground: Ground) -> Ground:
    """A cluster in which one thing happens after the other."""
    return inline_ground


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where a table will be."""
    return tmp_path / "lake"
