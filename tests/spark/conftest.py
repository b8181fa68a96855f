"""One Spark session and one cluster for all tests here: each takes seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from tests.guests import guests_of
from tests.spark.standalone import Standalone, standalone_master

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def python_path() -> str:
    """Where the Python workers of Spark find this library when it is not installed.

    And where they find the module that tells Spark of the data source.
    """
    discovery = ROOT / "spark_bookkeeper" / "_discovery"
    paths = [str(ROOT), str(discovery), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    return os.environ["PYTHONPATH"]


@pytest.fixture(scope="session")
def spark(python_path: str) -> Iterator[Any]:
    # Two failures of a task are allowed, and the session's time zone is not the ledgers' one.
    with pytest.MonkeyPatch.context() as patch:  # Spark keeps the path that it starts with
        patch.setenv("PYTHONPATH", f"{Path(__file__).parent / 'imported'}{os.pathsep}{python_path}")
        session = sbk.spark_session(
            "local[2,3]",
            spark_sql_session_timeZone="Europe/Berlin",
            spark_sql_shuffle_partitions=3,
            spark_sql_adaptive_enabled=True,
            spark_python_task_killTimeout="100ms",  # of a cancelled task, before its worker ends
        )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def bk(spark: Any, host: EmbeddedZooKeeper) -> Iterator[sbk.BookKeeper]:
    with guests_of(host):
        bookkeeper = sbk.local(bookies=6, spark=spark)
    with bookkeeper:
        yield bookkeeper


@pytest.fixture
def own_bk(spark: Any, guests: None) -> Iterator[sbk.BookKeeper]:
    """A cluster whose bookies a test may destroy, on a ZooKeeper that others use."""
    with sbk.local(bookies=6, spark=spark) as bookkeeper:
        yield bookkeeper


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, python_path: str) -> Iterator[Standalone]:
    """A standalone master with two workers, each on a host of its own as far as Spark knows."""
    with standalone_master(tmp_path_factory.mktemp("standalone"), python_path) as running:
        yield running
