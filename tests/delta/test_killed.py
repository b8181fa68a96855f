"""Archive runs that are killed with SIGKILL at arbitrary moments, and repeated."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

import spark_bookkeeper as sbk

pytestmark = [pytest.mark.delta, pytest.mark.slow]

KILLS = int(os.environ.get("SPARK_BOOKKEEPER_KILLS", "10"))

PROGRAM = """
import os, random, signal, sys, threading
import spark_bookkeeper as sbk

uri, path, jars, seed = sys.argv[1:]
conf = {"spark.jars": jars, "spark.databricks.delta.snapshotPartitions": "1"}
spark = sbk.spark_session("local[2]", delta=True, **conf)
spark.range(1).count()
with sbk.connect(uri, spark) as bk:
    if seed != "none":
        wait_s = random.Random(int(seed)).uniform(0.0, 15.0)
        threading.Timer(wait_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    report = bk.archive_to_delta(path, log="killed")
print(report.unfinished)
os._exit(0 if report.is_complete else 1)
"""


@pytest.mark.timeout(3600)
def test_killed_again_and_again_it_has_every_row_once(
    bk: sbk.BookKeeper, delta_jars: list[Path], tmp_path: Path
) -> None:
    log = bk.create_log("killed", schema=bk.spark.range(1).schema)
    rows = 0
    with log.become_writer() as writer:
        for _ in range(12):
            writer.append(bk.spark.range(rows, rows + 50_000))
            writer.roll()
            rows += 50_000
    path = str(tmp_path / "table")
    names = ",".join(str(jar) for jar in delta_jars)
    dice = random.Random(7)

    def archive(seed: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, bk.metadata_uri, path, names, seed]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    ends = [archive(str(dice.randrange(1 << 30))).returncode for _ in range(KILLS)]
    last = archive("none")

    assert -signal.SIGKILL in ends
    assert set(ends) <= {0, -signal.SIGKILL}
    assert last.returncode == 0, last.stdout + last.stderr
    found = DeltaTable(path).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == list(range(rows))
