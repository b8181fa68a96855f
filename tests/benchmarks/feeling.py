"""What a person waits for: reading entry by entry, one column of ten, and every job as it starts.

A job is called cold, by ``spark-submit`` in a process of its own, and warm, in a session that has
run jobs before. Most of the first is Spark's start, which no job can do anything about; what is
ours is the second, and what the second process adds beside plain Python.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa

import spark_bookkeeper as sbk
from spark_bookkeeper.cli.shell.jobs import run_job
from tests.benchmarks import raw
from tests.benchmarks.appending import TINY
from tests.benchmarks.frames import consume
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import RAW, Against, Line, at_most

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 10
LEDGERS = 20
EXECUTORS = "local-cluster[2,1,1024]"
"""Two executors in processes of their own, as on a cluster."""


def reading(lab: Lab) -> Iterator[Line]:
    """P5, beside the scan: entry by entry, and one column of ten."""
    yield _entries(lab)
    yield from _column(lab)


def _entries(lab: Lab) -> Line:
    count = lab.sizes.window_appends // 2
    payload = raw.noise(TINY)
    with lab.bk.create_ledger() as writer:
        for _ in range(count):
            writer.append_async(payload)
    path = lab.scratch("raw-entries") / "payloads.arrow"
    column = pa.array([payload] * count, pa.binary())
    path.write_bytes(raw.arrow_file(pa.table({"payload": column})))

    def ours() -> float:
        started = time.perf_counter()
        with lab.bk.open_ledger(writer.ledger_id) as reader:
            seen = sum(len(entry.payload) for entry in reader.entries())
        assert seen == count * TINY
        return count / (time.perf_counter() - started)

    def plain() -> float:
        started = time.perf_counter()
        with pa.ipc.open_file(path) as file:
            seen = sum(len(value.as_py()) for value in file.read_all().column("payload"))
        assert seen == count * TINY
        return count / (time.perf_counter() - started)

    return Line(
        "P5",
        f"entries() of {TINY} B, one by one",
        "per s",
        f"{count:,} entries; raw: the values of a column of one Arrow file",
        ours,
        [Against(RAW, plain)],
        rounds=lab.sizes.rounds,
    )


def _column(lab: Lab) -> Iterator[Line]:
    size = lab.sizes.spark_bytes
    rows = size // (COLUMNS * 8)
    dice = np.random.default_rng(7)
    table = pa.table({f"c{n}": dice.integers(0, 1 << 62, rows) for n in range(COLUMNS)})
    with lab.bk.create_ledger(schema=table.schema) as writer:
        writer.append(table)
    reader = lab.bk.open_ledger(writer.ledger_id)

    def milliseconds(columns: Sequence[str] | None) -> float:
        started = time.perf_counter()
        read = reader.read_arrow(columns=columns)
        assert read.num_rows == rows
        return (time.perf_counter() - started) * 1000

    same = lab.scratch("raw-columns") / "columns.arrow"
    same.write_bytes(raw.arrow_file(table))
    halves = [same.with_suffix(f".{half}") for half in range(2)]
    for half, path in enumerate(halves):
        path.write_bytes(raw.noise(same.stat().st_size // 2, half))
    same.unlink()

    def in_spark(columns: Sequence[str] | None) -> float:
        started = time.perf_counter()
        consume(reader.read(columns=columns))
        return (time.perf_counter() - started) * 1000

    sizes = f"{size >> 20} MiB of numbers; every digest of what is read is verified"
    yield Line(
        "P5",
        "one column of ten, by read_arrow",
        "ms",
        sizes,
        lambda: milliseconds(["c3"]),
        [
            Against("all ten columns", lambda: milliseconds(None), at_most(0.2)),
            Against("raw: read and CRC32C, 2 at a time", lambda: raw.read_verified(halves) * 1000),
        ],
        rounds=lab.sizes.rounds,
    )
    yield Line(
        "P5",
        "one column of ten into a Spark job, by reader.read()",
        "ms",
        sizes,
        lambda: in_spark(["c3"]),
        [Against("all ten columns", lambda: in_spark(None), at_most(0.2))],
        rounds=lab.sizes.rounds,
        warm_up=2,  # Spark's first jobs are several times slower
    )


def starting(lab: Lab) -> Iterator[Line]:
    """How long each job takes as a person feels it, on a cluster with little to do."""
    assert lab.spark is not None
    # The other cluster has thousands of ledgers by now.
    with lab.new_cluster("starting") as bk:
        ids = [_small_ledger(bk) for _ in range(LEDGERS)]
        bookie = bk.ledger(ids[0]).fragments[0].ensemble[0]
        jobs: dict[str, tuple[object, ...]] = {
            "check_ledgers": ("--percentage", 100),
            "recover_ledgers": (ids[0],),
            "recover_bookie": (bookie, "--dry-run", "--even-if-alive"),
            "audit": (),
            "rereplicate": (),
            "autorecovery": ("--once",),
        }
        yield _command(bk, lab.sizes.rounds)
        for job, more in jobs.items():
            arguments = [bk.metadata_uri, *map(str, more), "--json"]
            yield Line(
                "START",
                f"jobs/{job}.py, warm",
                "ms",
                f"{LEDGERS} small ledgers; in a session that ran jobs before",
                lambda job=job, arguments=arguments: _warm(job, arguments),  # type: ignore[misc]
                [
                    Against(
                        f"cold, {master}",
                        lambda job=job, arguments=arguments, master=master: _cold(  # type: ignore[misc]
                            job, arguments, master
                        ),
                    )
                    for master in ("local[2]", EXECUTORS)
                ],
                rounds=max(2, lab.sizes.rounds // 2),
            )


def _small_ledger(bk: sbk.BookKeeper) -> int:
    with bk.create_ledger() as writer:
        writer.append(b"little")
    return writer.ledger_id


def _warm(job: str, arguments: Sequence[str]) -> float:
    started = time.perf_counter()
    with redirect_stdout(io.StringIO()) as said:
        code = run_job(job, arguments)
    assert code == 0, said.getvalue()
    return (time.perf_counter() - started) * 1000


def _cold(job: str, arguments: Sequence[str], master: str) -> float:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    tool = Path(sys.executable).with_name("spark-submit")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": paths,
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    script = str(ROOT / "jobs" / f"{job}.py")
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(tool), "--master", master, *options, script, *arguments]
    return _seconds_of(command, environment) * 1000


def _command(bk: sbk.BookKeeper, rounds: int) -> Line:
    """A command of the command line that needs no Spark."""
    python = [sys.executable, "-m", "spark_bookkeeper", "--metadata-uri", bk.metadata_uri]
    return Line(
        "START",
        "spark-bookkeeper ledger list",
        "ms",
        f"{LEDGERS} small ledgers; a process of its own, which connects to ZooKeeper",
        lambda: _seconds_of([*python, "ledger", "list", "--json"]) * 1000,
        [
            Against(
                "raw: Python that imports pyarrow and kazoo",
                lambda: _seconds_of([sys.executable, "-c", "import pyarrow, kazoo.client"]) * 1000,
            )
        ],
        rounds=rounds,
    )


def _seconds_of(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds
