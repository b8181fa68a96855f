"""Archive runs that are killed with SIGKILL at arbitrary moments, and repeated.

Twenty kills: ``SPARK_BOOKKEEPER_KILLS=20 python -m pytest -m delta tests/delta/test_killed.py``.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_bookkeeper as sbk
from spark_bookkeeper.delta.pieces import SMALL_BYTES

pytestmark = [pytest.mark.delta, pytest.mark.slow]

KILLS = int(os.environ.get("SPARK_BOOKKEEPER_KILLS", "3"))

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
    frame = bk.spark.range(0).selectExpr("id", "sha2(cast(id as string), 256) as text")
    log = bk.create_log("killed", schema=frame.schema)
    rows = 0
    with log.become_writer() as writer:
        for count in (*[10] * 8, 50_000) * 2:  # small ledgers, which go together, and large ones
            ids = range(rows, rows + count)
            text = [hashlib.sha256(str(i).encode()).hexdigest() for i in ids]
            writer.append(pa.table({"id": pa.array(ids, pa.int64()), "text": text}))
            writer.roll()
            rows += count
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
    sizes = set(bk.ledgers_arrow()["length_bytes"].to_pylist())
    assert min(sizes) < SMALL_BYTES < max(sizes)
