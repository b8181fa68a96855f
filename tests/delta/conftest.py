"""A Spark session with real Delta, and one cluster. Run apart: ``python -m pytest -m delta``.

A session is one for a process, and the other tests want one without Delta.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_bookkeeper as sbk

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
