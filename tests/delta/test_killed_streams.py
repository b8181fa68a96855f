"""Streams from a log into a table and on into a log, killed again and again: no row twice or lost.

Spark starts with every kill, so both directions share a driver, and its death.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_bookkeeper as sbk
from spark_bookkeeper.logs.log import Log
from tests.spark.drivers import Drive, batches_begun, drivers, kill, wait, wait_until_started

pytestmark = [pytest.mark.delta, pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.int64())])
KILLS = int(os.environ.get("SPARK_BOOKKEEPER_KILLS", "3"))
ROWS = 20
"""Of one write to the source, which is an entry."""
BATCH = 4
"""Writes in a micro-batch of the first query."""


@pytest.fixture
def cluster() -> Iterator[sbk.BookKeeper]:
    with sbk.local(bookies=3) as bk:
        yield bk


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Drive]:
    discovery = ROOT / "spark_bookkeeper" / "_discovery"
    paths = [str(ROOT), str(discovery), *filter(None, [os.environ.get("PYTHONPATH")])]
    with drivers(os.pathsep.join(paths), tmp_path) as drive:
        yield lambda *arguments: drive(Path(__file__).with_name("streaming_queries.py"), *arguments)


def feed(source: Log, first: int, writes: int) -> int:
    """More rows for the source; the first id that is not in it yet."""
    with source.become_writer() as writer:
        for begin in range(first, first + writes * ROWS, ROWS):
            writer.append(pa.table({"id": pa.array(range(begin, begin + ROWS), pa.int64())}))
    return first + writes * ROWS


def test_each_row_is_once_in_the_table_and_once_in_the_log_behind_it(
    cluster: sbk.BookKeeper, start: Drive, delta_jars: list[Path], tmp_path: Path
) -> None:
    source = cluster.create_log("source", schema=SCHEMA)
    sink = cluster.create_log("sink", schema=SCHEMA)
    table, checkpoints = tmp_path / "lake", tmp_path / "checkpoints"
    DeltaTable.create(str(table), SCHEMA)
    jars = ",".join(str(jar) for jar in delta_jars)
    names = (cluster.metadata_uri, source.name, str(table), sink.name, str(checkpoints), jars)
    dice = random.Random(11)
    end, in_table, in_log = feed(source, 0, 2 * BATCH), list[int](), list[int]()

    for number in range(KILLS):
        driver = start(*names)
        wait_until_started(driver, tmp_path / "stderr")
        # In turns, somewhere in a batch of the one query or of the other.
        watched = checkpoints / ("to-table", "to-log")[number % 2]
        last = batches_begun(watched) + dice.randint(1, 2)
        end = feed(source, end, 3 * BATCH)
        while batches_begun(watched) < last:
            wait(driver, 0.02, tmp_path / "stderr")
        wait(driver, dice.choice([0.0, 0.2, 1.0, 3.0]) * dice.random(), tmp_path / "stderr")
        kill(driver)
        in_table.append(DeltaTable(str(table)).version())
        in_log.append(len(sink.ledgers()))
    driver = start(*names, "until-end")
    assert driver.wait() == 0, (tmp_path / "stderr").read_text()[-4000:]

    assert sorted(source.read_arrow()["id"].to_pylist()) == list(range(end))
    found = DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist()
    assert sorted(found) == list(range(end))
    assert sorted(sink.read_arrow()["id"].to_pylist()) == list(range(end))
    assert len(set(in_table)) > max(1, KILLS // 4), f"it was killed while it worked: {in_table}"
    assert len(set(in_log)) > max(1, KILLS // 4), f"it was killed while it worked: {in_log}"
