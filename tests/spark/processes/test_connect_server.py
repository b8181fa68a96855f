"""The same over Spark Connect: appends, reads and jobs use DataFrames only."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time

import pytest

from tests.spark.source_driver import use_source

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # only of what hangs
    pytest.mark.skipif(
        importlib.util.find_spec("grpc") is None,
        reason="grpcio is not installed (pyspark[connect])",
    ),
]

SCRIPT = """
import spark_bookkeeper as sbk
from spark_bookkeeper.autorecovery import scan
spark = sbk.spark_session("local[2]", **{"spark.api.mode": "connect"})
assert ".connect." in type(spark).__module__, type(spark)
with sbk.local(bookies=5, spark=spark) as bk:
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        "id", "array(struct(id as a, timestamp_seconds(id) as t)) as deep", "map('k', id) as m"
    )
    with bk.create_ledger(ensemble_size=4, schema=frame.schema) as writer:
        writer.append(frame)
    assert writer.acks().count() > 0
    reader = bk.open_ledger(writer.ledger_id)
    read = reader.read()
    assert read.schema == frame.schema
    assert read.collect() == frame.collect()
    lost = writer.metadata.last_fragment.ensemble[0]
    bk.cluster.stop_bookie(lost, destroy=True)
    scan.LEDGERS_FOR_SPARK, scan.LocalRunner = 0, None
    assert [row.source for row in bk.audit(dry_run=True).rows] == [lost]
    report = bk.recover_bookie(lost)
    assert report.is_complete, report.unfinished
    assert report.to_df().count() == len(report.rows)
    assert set(bk.check_ledgers(percentage=100).counts) == {"healthy"}
    assert read.count() == 5000
    assert bk.ledgers().count() == 1

    def fails(batches):
        raise ValueError("a mistake in a function")

    with bk.create_ledger(schema=spark.range(1).schema) as writer:
        try:
            writer.append(spark.range(3).mapInArrow(fails, "id long"))
        except Exception as error:
            assert "a mistake in a function" in str(error), error
            assert "Nothing of it was appended" in error.__notes__[0]
        else:
            raise AssertionError("it did not fail")
        try:
            writer.append(spark.range(3).id)
        except sbk.InvalidArgumentError as error:
            assert "df.select(column)" in str(error), error
        else:
            raise AssertionError("a column is no rows")
        try:
            spark.range(3).mapInArrow(lambda batches: [writer.metadata], "id long").collect()
        except Exception as error:
            assert "a writer of ledger" in str(error), error
            assert "belongs to the process" in str(error), error
        else:
            raise AssertionError("a writer does not travel")
        assert writer.append(spark.range(3).coalesce(1)) == 0

from spark_bookkeeper.spark.job import collect

def slowly(batches):
    import time
    for batch in batches:
        time.sleep(1)
        yield batch

told = []
slow = spark.range(0, 8, 1, 8).mapInArrow(slowly, "id long")
assert len(collect(slow, "slow", lambda done, of: told.append((done, of)))) == 8
assert told == sorted(told), told
assert any(0 < done < of == 8 for done, of in told), told
spark.range(3).count()
assert told[-1][1] == 8, "nobody listens any more"

import os, signal, threading
presser = threading.Timer(4, os.kill, (os.getpid(), signal.SIGINT))
presser.start()
try:
    collect(spark.range(0, 1000, 1, 1000).mapInArrow(slowly, "id long"), "very slow")
except KeyboardInterrupt:
    assert spark.range(3).count() == 3, "there is room for others, the job is cancelled"
else:
    raise AssertionError("nobody heard Ctrl-C")
gone = spark.range(3)
spark.stop()
from spark_bookkeeper.spark.job import is_stopped
assert is_stopped(gone.sparkSession)
print("all of it")
"""


PORT = 15002
"""Where pyspark starts its server, whatever is asked for."""


def is_port_free() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", PORT))
        except OSError:
            return False
    return True


@pytest.fixture(autouse=True)
def port() -> None:
    """Wait for the port. The tests of this file share a worker, so only another run can have it."""
    deadline = time.monotonic() + 600
    while not is_port_free():
        if time.monotonic() > deadline:
            pytest.skip(f"port {PORT}, which is Spark Connect's, belongs to somebody else")
        time.sleep(1)


def test_everything_works_over_spark_connect(python_path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": python_path, "PYSPARK_PYTHON": sys.executable},
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "all of it"


def test_the_data_source_works_over_spark_connect(python_path: str) -> None:
    use_source("local[2]", "spark.api.mode=connect", python_path=python_path)
