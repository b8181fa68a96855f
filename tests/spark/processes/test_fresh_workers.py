"""Python workers that have imported nothing of this library, as Spark's own daemon starts them.

The session of the other tests has workers that find all of it imported (``imported/``), so an
import that is missing, or goes round in a circle, in what a worker imports first shows only here.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

SCRIPT = """
import sys
import tempfile
import spark_bookkeeper as sbk
from spark_bookkeeper.autorecovery import scan
from spark_bookkeeper.source.older_spark import REPLACES_SOURCES

# Every task has a worker of its own.
spark = sbk.spark_session("local[1]", spark_python_worker_reuse=False)

def is_fresh(batches):
    import sys
    import pyarrow as pa
    list(batches)
    yield pa.RecordBatch.from_pydict({"is_fresh": ["spark_bookkeeper" not in sys.modules]})

def check_fresh():
    fresh = spark.range(0, 1, 1, 1).mapInArrow(is_fresh, "is_fresh boolean")
    assert fresh.collect()[0].is_fresh, "the workers have imported the library already"

check_fresh()
with sbk.local(bookies=5, spark=spark) as bk:
    frame = spark.range(0, 100, 1, 1)
    log = bk.create_log("fresh", schema=frame.schema)
    with log.become_writer() as writer:
        writer.append(frame)
    (ledger,) = log.ledgers()
    assert bk.open_ledger(ledger).read().count() == 100

    cluster = {"metadataUri": bk.metadata_uri}

    def read(**options):
        return spark.read.format("bookkeeper").options(**cluster, **options).load()

    assert read(log="fresh").count() == 100
    assert read(view="ledgers").count() == 1
    if REPLACES_SOURCES:
        bk.register_sql(spark)
        assert spark.sql("SELECT * FROM bk_logs()").count() == 1
    bk.create_log("sink", schema=frame.schema)
    writing = frame.write.format("bookkeeper").mode("append").options(**cluster)
    writing.option("log", "sink").save()
    query = (
        spark.readStream.format("bookkeeper").options(**cluster)
        .option("log", "fresh").option("startingOffsets", "earliest").load()
        .writeStream.format("bookkeeper").options(**cluster).option("log", "sink")
        .option("checkpointLocation", tempfile.mkdtemp()).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    assert bk.open_log("sink").read().count() == 200

    assert set(bk.check_ledgers(percentage=100).counts) == {"healthy"}
    lost = bk.open_ledger(ledger).metadata.last_fragment.ensemble[0]
    bk.cluster.stop_bookie(lost, destroy=True)
    scan.LEDGERS_FOR_SPARK = 0
    assert lost in {row.source for row in bk.audit(dry_run=True).rows}
    report = bk.recover_bookie(lost)
    assert report.is_complete, report.unfinished
check_fresh()
spark.stop()
print("all is well")
"""


def test_a_worker_that_has_imported_nothing_does_all_that_tasks_do(python_path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=500
    )

    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all is well"]), done.stderr
