"""Queries from a log into another, killed again and again: the output is the input, once."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.logs.log import Log
from tests.spark.drivers import Drive, batches_begun, drivers, kill, wait, wait_until_started
from tests.spark.standalone import Standalone, process_tree

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

SCHEMA = pa.schema([("id", pa.int64())])
KILLS = int(os.environ.get("SPARK_BOOKKEEPER_KILLS", "4"))
START_SECONDS = 180.0
ROWS = 20
"""Of one write to the source."""
BATCH = 4
"""Writes in a micro-batch of the query."""

Query = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[sbk.BookKeeper]:
    with sbk.local(bookies=4) as bk:
        yield bk


@pytest.fixture
def driver_of(python_path: str, tmp_path: Path) -> Iterator[Drive]:
    with drivers(python_path, tmp_path) as start:
        yield lambda script, *arguments: start(Path(__file__).with_name(script), *arguments)


@pytest.fixture
def query(cluster: sbk.BookKeeper, driver_of: Drive, tmp_path: Path) -> Query:
    """Start a query from one log into another."""

    def start(master: str, source: Log, sink: Log, *more: str) -> subprocess.Popen[str]:
        arguments = [source.name, sink.name, str(tmp_path / "checkpoint")]
        return driver_of("copying_query.py", master, cluster.metadata_uri, *arguments, *more)

    return start


def run_and_kill(driver: subprocess.Popen[str], directory: Path, dice: random.Random) -> None:
    """Let a query begin one or two batches, and kill it somewhere in the last of them."""
    wait_until_started(driver, directory / "stderr")
    last = batches_begun(directory / "checkpoint") + dice.randint(1, 2)
    while batches_begun(directory / "checkpoint") < last:
        wait(driver, 0.02)
    wait(driver, dice.choice([0.0, 0.1, 0.4, 1.0]) * dice.random())
    kill(driver)


def feed(source: Log, first: int, writes: int) -> int:
    """More rows for the source; the first id that is not in it yet."""
    for start in range(first, first + writes * ROWS, ROWS):
        source.write(pa.table({"id": pa.array(range(start, start + ROWS), pa.int64())}))
    return first + writes * ROWS


def check(cluster: sbk.BookKeeper, sink: Log, end: int) -> None:
    found = sink.read_arrow().column("id").to_pylist()
    assert len(found) == len(set(found)), "nothing twice"
    assert sorted(found) == [2 * n for n in range(end)], "nothing lost"
    in_logs = set(cluster.logs_arrow().column("ledger_id").to_pylist())
    left = [i for i in cluster.ledgers_arrow().column("ledger_id").to_pylist() if i not in in_logs]
    assert left == [], "leftovers are removed by the batches behind them"


def test_a_query_killed_at_random_moments_copies_a_log_once(
    cluster: sbk.BookKeeper, query: Query, tmp_path: Path
) -> None:
    source = cluster.create_log("source", schema=SCHEMA)
    sink = cluster.create_log("sink", schema=SCHEMA)
    dice = random.Random(7)
    end, progress = feed(source, 0, 20), list[int]()
    for _ in range(KILLS):
        run_and_kill(query("local[2]", source, sink), tmp_path, dice)
        progress.append(len(sink.ledgers()))
        end = feed(source, end, 2 * BATCH)  # as much as it may have begun at the most

    driver = query("local[2]", source, sink, "until-end")
    assert driver.wait(START_SECONDS * 4) == 0

    check(cluster, sink, end)
    assert len(set(progress)) > KILLS // 4, f"it was killed while it worked: {progress}"


# Executors on hosts of their own, speculation, tasks that are slow or fail


def executors(standalone: Standalone) -> list[psutil.Process]:
    """The executors that the workers have started."""
    found = []
    for worker in standalone.workers:
        for process in process_tree(worker):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(part.endswith("ExecutorBackend") for part in process.cmdline()):
                    found.append(process)
    return found


def test_executors_that_are_killed_cost_nothing(
    cluster: sbk.BookKeeper, query: Query, standalone: Standalone, tmp_path: Path
) -> None:
    source = cluster.create_log("executors-source", schema=SCHEMA)
    sink = cluster.create_log("executors-sink", schema=SCHEMA)
    end = feed(source, 0, 40)
    driver = query(standalone.url, source, sink, "until-end")
    wait_until_started(driver, tmp_path / "stderr")
    done = tmp_path / "checkpoint" / "commits"
    killed = 0
    for batches in (1, 3, 6):
        while driver.poll() is None and len(list(done.glob("[0-9]*"))) < batches:
            with suppress(subprocess.TimeoutExpired):
                driver.wait(0.02)
        for executor in executors(standalone)[:1]:
            for process in process_tree(executor.pid):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            killed += 1
    assert driver.wait(START_SECONDS * 4) == 0

    assert killed > 0, "there was one to kill"
    check(cluster, sink, end)


def test_with_speculation_a_slow_and_a_failing_task_each_row_is_there_once(
    cluster: sbk.BookKeeper, driver_of: Drive, standalone: Standalone, tmp_path: Path
) -> None:
    sink = cluster.create_log("speculating", schema=SCHEMA)
    markers = tmp_path / "markers"
    markers.mkdir()
    arguments = [standalone.url, cluster.metadata_uri, sink.name, "6000", str(markers)]

    driver = driver_of("speculating_write.py", *arguments)

    assert driver.wait(START_SECONDS * 2) == 0, (tmp_path / "stderr").read_text()[-4000:]
    assert {path.name for path in markers.iterdir()} == {"0-first", "0-again", "1-first", "1-again"}
    assert sink.read_arrow().column("id").to_pylist() == list(range(6000))
