"""Queries from a log into another, killed again and again: the output is the input, once.

A start of Spark costs more than what a query does until it is killed, so one driver runs several
queries, each with its own rows, logs and checkpoint: what is killed together was somewhere else
in each of them. Fifty queries that are killed twenty times each, ten in a driver::

    SPARK_BOOKKEEPER_KILLS=20 SPARK_BOOKKEEPER_QUERIES=10 SPARK_BOOKKEEPER_RUNS=5 \
        python -m pytest -m slow tests/spark/processes/test_killed_queries.py -k random_moments -s
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.logs.log import Log
from tests.spark.drivers import Drive, drivers, kill, wait, wait_until_started
from tests.spark.standalone import Standalone, process_tree

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600 * 60),
]

MASTER = "local[2,3]"
"""A task that fails is tried again, as on every master but a local one that is not told so."""
SCHEMA = pa.schema([("id", pa.int64())])
KILLS = int(os.environ.get("SPARK_BOOKKEEPER_KILLS", "3"))
"""Of each driver."""
QUERIES = int(os.environ.get("SPARK_BOOKKEEPER_QUERIES", "3"))
"""Of each driver."""
RUNS = int(os.environ.get("SPARK_BOOKKEEPER_RUNS", "1"))
"""Each with its own dice."""
ROWS = 20
"""Of one write to the source."""
BATCH = 4
"""Writes in a micro-batch of a query."""
AHEAD = 3
"""Micro-batches for which each source has rows behind those that were begun."""
RANGE = 1_000_000
"""The first ids of two queries are so far apart."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[sbk.BookKeeper]:
    with sbk.local(bookies=4) as bk:
        yield bk


@pytest.fixture
def driver_of(python_path: str, tmp_path: Path) -> Iterator[Drive]:
    with drivers(python_path, tmp_path) as start:
        yield lambda script, *arguments: start(Path(__file__).parents[1] / script, *arguments)


@dataclass
class Copy:
    """A query from a log into another, and what was written to the first of them."""

    name: str
    source: Log
    sink: Log
    checkpoint: Path
    first: int = 0
    """The first id."""
    writes: int = 0

    @property
    def begun(self) -> int:
        """Micro-batches whose offsets Spark has noted, before it carried them out."""
        return _noted(self.checkpoint / "offsets")

    @property
    def is_at_work(self) -> bool:
        return self.begun > _noted(self.checkpoint / "commits")

    def feed(self, writes: int) -> None:
        """Rows for the source, until there were so many writes."""
        for number in range(self.writes, writes):
            start = self.first + number * ROWS
            ids = pa.array(range(start, start + ROWS), pa.int64())
            self.source.write(pa.table({"id": ids}))
        self.writes = max(self.writes, writes)

    def check(self) -> None:
        found = self.sink.read_arrow().column("id").to_pylist()
        assert len(found) == len(set(found)), f"nothing twice in {self.name}"
        end = self.first + self.writes * ROWS
        assert sorted(found) == [2 * n for n in range(self.first, end)], (
            f"nothing lost in {self.name}"
        )


def _noted(directory: Path) -> int:
    return max((int(path.name) + 1 for path in directory.glob("[0-9]*")), default=0)


MakeCopy = Callable[..., Copy]
Query = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def copy_of(cluster: sbk.BookKeeper, tmp_path: Path) -> MakeCopy:
    """Make the two logs of a query."""

    def make(name: str, first: int = 0) -> Copy:
        source = cluster.create_log(f"{name}-source", schema=SCHEMA)
        sink = cluster.create_log(f"{name}-sink", schema=SCHEMA)
        return Copy(name, source, sink, tmp_path / "checkpoints" / name, first)

    return make


@pytest.fixture
def query(cluster: sbk.BookKeeper, driver_of: Drive, tmp_path: Path) -> Query:
    """Start a driver with queries."""

    def start(master: str, how: str, copies: list[Copy]) -> subprocess.Popen[str]:
        arguments = [cluster.metadata_uri, str(tmp_path / "checkpoints"), how]
        names = [copy.name for copy in copies]
        return driver_of("copying_query.py", master, *arguments, *names)

    return start


def kill_at_work(
    driver: subprocess.Popen[str], copies: list[Copy], dice: random.Random, errors: Path
) -> None:
    """Let one of the queries begin one or two batches, and kill all somewhere in the last of them.

    The others are wherever they are by then: some have not started yet, some wait for rows.
    """
    watched = dice.choice(copies)
    last = watched.begun + dice.randint(1, 2)
    while watched.begun < last:
        wait(driver, 0.02, errors)
    wait(driver, dice.choice([0.0, 0.1, 0.4, 1.0]) * dice.random(), errors)
    kill(driver)


def check(cluster: sbk.BookKeeper, copies: list[Copy]) -> None:
    for copy in copies:
        copy.check()
    in_logs = set(cluster.logs_arrow().column("ledger_id").to_pylist())
    left = [i for i in cluster.ledgers_arrow().column("ledger_id").to_pylist() if i not in in_logs]
    assert left == [], "leftovers are removed by the batches behind them"


@pytest.mark.parametrize("run", range(RUNS))
def test_queries_killed_at_random_moments_copy_each_log_once(
    cluster: sbk.BookKeeper, copy_of: MakeCopy, query: Query, tmp_path: Path, run: int
) -> None:
    dice = random.Random(7 + run)
    copies = [copy_of(f"run{run}-query{n}", n * RANGE) for n in range(QUERIES)]
    at_work = 0
    for number in range(KILLS):
        driver = query(MASTER, "for-ever", dice.sample(copies, QUERIES))
        for copy in copies:  # rows come while the queries start, and while some work
            copy.feed((copy.begun + AHEAD) * BATCH)
        kill_at_work(driver, copies, dice, tmp_path / "stderr")
        at_work += sum(copy.is_at_work for copy in copies)
        print(f"run {run}: killed {number + 1} times, {at_work} times a query at work", flush=True)
    for copy in copies:
        copy.feed((copy.begun + AHEAD) * BATCH)

    driver = query(MASTER, "until-end", copies)
    assert driver.wait() == 0, (tmp_path / "stderr").read_text()[-4000:]

    check(cluster, copies)
    rows = sum(copy.writes * ROWS for copy in copies)
    print(f"run {run}: {QUERIES} queries, {KILLS} kills, {rows} rows, each there once", flush=True)
    assert at_work > KILLS // 4, "they were killed while they worked"


# Executors on hosts of their own, speculation, tasks that are slow or fail


def executors(parents: Sequence[int]) -> list[psutil.Process]:
    """The executors that these processes have started."""
    found = []
    for parent in parents:
        for process in process_tree(parent):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(part.endswith("ExecutorBackend") for part in process.cmdline()):
                    found.append(process)
    return found


def test_executors_that_are_killed_cost_nothing(
    cluster: sbk.BookKeeper, copy_of: MakeCopy, query: Query, standalone: Standalone, tmp_path: Path
) -> None:
    copy = copy_of("executors")
    copy.feed(40)
    driver = query(standalone.url, "until-end", [copy])
    wait_until_started(driver, tmp_path / "stderr")
    done = copy.checkpoint / "commits"
    killed = 0
    for batches in (1, 3, 6):
        while driver.poll() is None and _noted(done) < batches:
            with suppress(subprocess.TimeoutExpired):
                driver.wait(0.02)
        for executor in executors(standalone.workers)[:1]:
            for process in process_tree(executor.pid):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            killed += 1
    assert driver.wait() == 0, (tmp_path / "stderr").read_text()[-4000:]

    assert killed > 0, "there was one to kill"
    check(cluster, [copy])


def test_with_speculation_a_slow_and_a_failing_task_each_row_is_there_once(
    cluster: sbk.BookKeeper, driver_of: Drive, standalone: Standalone, tmp_path: Path
) -> None:
    sink = cluster.create_log("speculating", schema=SCHEMA)
    markers = tmp_path / "markers"
    markers.mkdir()
    arguments = [standalone.url, cluster.metadata_uri, sink.name, "6000", str(markers)]

    driver = driver_of("speculating_write.py", *arguments)

    assert driver.wait() == 0, (tmp_path / "stderr").read_text()[-4000:]
    assert {path.name for path in markers.iterdir()} == {"0-first", "0-again", "1-first", "1-again"}
    assert sink.read_arrow().column("id").to_pylist() == list(range(6000))
