"""A driver of its own that does with the data source whatever can be done with it."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
import tempfile
from pathlib import Path
import spark_bookkeeper as sbk
from spark_bookkeeper.source.older_spark import REPLACES_SOURCES
from tests.spark.source_cases import CASES, make, rows, run
from tests.spark.starting import started

master, *pairs = sys.argv[1:]
spark = sbk.spark_session(master, **dict(pair.split("=", 1) for pair in pairs))

def refused(said, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"{arguments}, {options} was taken")

with sbk.local(bookies=6, spark=spark) as bk:
    made, uri = make(bk), bk.metadata_uri
    # Found without registration: only the cluster is named.
    named = spark.read.format("bookkeeper").option("metadataUri", uri).option("log", "of-cases")
    assert named.load().count() == 50
    # What an option says does not depend on where it is read: one case of each use is enough.
    for name in {case.use: name for name, case in reversed(CASES.items())}.values():
        run(bk, made, name, Path(tempfile.mkdtemp()))

    names = bk.register_sql(spark)
    cluster = {} if REPLACES_SOURCES else {"metadataUri": uri}
    options = "" if REPLACES_SOURCES else f", metadataUri '{uri}'"
    assert "bk_ledgers" in names
    assert spark.sql("SELECT * FROM bk_logs()").count() >= 2
    spark.sql(f"CREATE TEMPORARY VIEW seen USING bookkeeper OPTIONS (log 'of-cases'{options})")
    assert spark.sql("SELECT count(*) AS n FROM seen").collect()[0].n == 50
    bk.create_log("inserted", schema=spark.range(1).schema)
    spark.sql(f"CREATE TEMPORARY VIEW added USING bookkeeper OPTIONS (log 'inserted'{options})")
    spark.sql("INSERT INTO added VALUES (1000), (1001)")
    assert sorted(bk.open_log("inserted").read_arrow()["id"].to_pylist()) == [1000, 1001]

    schema = "id long, name string"
    frame = spark.createDataFrame(rows(0).to_pandas(), schema).coalesce(2)
    log = bk.create_log("wronged", schema=rows(0).schema)

    def fail(batches):
        for batch in batches:
            yield batch
        raise ZeroDivisionError("of the query itself")

    def read(**wrong):
        spark.read.format("bookkeeper").options(**cluster, **wrong).load().count()

    def write(frame, mode="append", **options):
        writer = frame.write.format("bookkeeper").mode(mode)
        writer.options(**{"metadataUri": uri, "log": "wronged", **options}).save()

    def follow(checkpoint, log="of-cases", to="wronged", **options):
        reader = spark.readStream.format("bookkeeper").option("metadataUri", uri)
        writer = reader.option("log", log).options(**options).load().writeStream
        writer = writer.format("bookkeeper").option("metadataUri", uri).option("log", to)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        started(writer).awaitTermination()

    invalid, ledger = "[BOOKKEEPER_INVALID_ARGUMENT]", str(made["other"])
    refused(f"{invalid} option 'lgo' is not known", read, lgo="of-cases")
    refused("[BOOKKEEPER_NO_SUCH_LOG]", read, log="nobody")
    refused("[BOOKKEEPER_NO_SUCH_LEDGER]", read, ledgers=f"{ledger}-9999999999")
    place = {"startingOffsets": f"{ledger}:99"}
    refused("[BOOKKEEPER_NO_SUCH_ENTRY]", read, ledger=ledger, **place)
    refused("[BOOKKEEPER_UNAUTHORIZED]", read, ledger=ledger, password="wrong")
    refused("holds nothing of what is read", read, ledger=ledger, bookie="nobody:1")
    refused("of the query itself", write, frame.mapInArrow(fail, schema))
    refused("never overwritten", write, frame, "overwrite")
    refused(invalid, write, frame, txnVersion="1")
    refused(invalid, write, frame, txnAppId="a", txnVersion="-1")
    refused(invalid, write, frame, ensembleSize="3")
    refused(invalid, write, frame.select("id"))
    refused("[BOOKKEEPER_NO_SUCH_LOG]", write, frame, log="nobody")
    place = {"startingOffsets": f"{ledger}:1"}
    refused("[BOOKKEEPER_NO_SUCH_ENTRY]", follow, tempfile.mkdtemp(), **place)
    refused(invalid, follow, tempfile.mkdtemp(), consumer="a/b")
    refused("[BOOKKEEPER_NO_SUCH_LOG]", follow, tempfile.mkdtemp(), to="nobody")
    assert log.ledgers() == [], "nothing of what was refused"

    checkpoint = tempfile.mkdtemp()
    with bk.create_log("again", schema=rows(0).schema).become_writer() as writer:
        writer.append(rows(0))
    follow(checkpoint, "again", startingOffsets="earliest")
    bk.delete_log("again")
    with bk.create_log("again", schema=rows(0).schema).become_writer() as writer:
        writer.append(rows(10))
    refused("[BOOKKEEPER_DATA_LOSS]", follow, checkpoint, "again")
    follow(checkpoint, "again", failOnDataLoss="false")
    assert sorted(log.read_arrow().column("id").to_pylist()) == [*range(20)]
spark.stop()
print("all is well")
"""


def use_source(master: str, *settings: str, python_path: str) -> None:
    """Run it on a master, with settings of Spark (``name=value``)."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, master, *settings],
        env={**os.environ, "PYTHONPATH": python_path, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
    )

    assert "all is well" in done.stdout, done.stderr[-4000:]
