"""The data source where its processes are others: Spark Connect, and executors of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # only of what hangs
]

SCRIPT = """
import sys
import tempfile
import spark_bookkeeper as sbk
from spark_bookkeeper.source.older_spark import HAS_LIMITS, REPLACES_SOURCES

master, *pairs = sys.argv[1:]
spark = sbk.spark_session(master, **dict(pair.split("=", 1) for pair in pairs))
with sbk.local(bookies=4, spark=spark) as bk:
    frame = spark.range(0, 1000, 1, 3)
    log = bk.create_log("shared", schema=frame.schema)
    with log.become_writer() as writer:
        writer.append(frame)
        writer.roll()
        writer.append(frame)

    # Found without registration: only the cluster is named.
    named = spark.read.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    assert named.option("log", "shared").load().count() == 2000
    assert named.option("log", "shared").option("includeMetadata", "true").load().where(
        "_metadata.bookie is null"
    ).count() == 0

    names = bk.register_sql(spark)
    uri = bk.metadata_uri
    cluster = {} if REPLACES_SOURCES else {"metadataUri": uri}
    options = "" if REPLACES_SOURCES else f", metadataUri '{uri}'"
    limits = {"maxEntriesPerTrigger": "2"} if HAS_LIMITS else {}
    assert "bk_ledgers" in names
    assert spark.sql("SELECT * FROM bk_logs()").count() == 2
    reading = spark.read.format("bookkeeper").options(**cluster)
    assert reading.option("view", "entries").load().count() > 0
    spark.sql(f"CREATE TEMPORARY VIEW seen USING bookkeeper OPTIONS (log 'shared'{options})")
    assert spark.sql("SELECT count(*) AS n FROM seen").collect()[0].n == 2000
    first, newest = log.ledgers()
    for wrong, said in (
        ({"lgo": "shared"}, "[BOOKKEEPER_INVALID_ARGUMENT] option 'lgo' is not known"),
        ({"log": "nobody"}, "[BOOKKEEPER_NO_SUCH_LOG]"),
        ({"ledgers": f"{first}-9999999999"}, "[BOOKKEEPER_NO_SUCH_LEDGER]"),
        ({"log": "shared", "startingOffsets": f"{first}:99"}, "[BOOKKEEPER_NO_SUCH_ENTRY]"),
        ({"ledger": str(first), "password": "wrong"}, "[BOOKKEEPER_UNAUTHORIZED]"),
        ({"ledger": str(first), "bookie": "nobody:1"}, "holds nothing of what is read"),
    ):
        try:
            spark.read.format("bookkeeper").options(**cluster, **wrong).load().count()
        except Exception as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"{wrong} was taken")
    try:
        frame.write.format("bookkeeper").mode("overwrite").options(**cluster, log="shared").save()
    except Exception as error:
        assert "never overwritten" in str(error), error
    else:
        raise AssertionError("a log was overwritten")

    query = (
        spark.readStream.format("bookkeeper")
        .options(**cluster)
        .option("log", "shared")
        .option("startingOffsets", "earliest")
        .options(**limits)
        .option("consumer", "counting")
        .load()
        .writeStream.format("memory")
        .queryName("counted")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("counted").count() == 2000
    if HAS_LIMITS:  # before, Spark tells no source that its only micro-batch is done
        (row,) = bk.consumers("shared").collect()
        assert (row.consumer, row.entries_behind) == ("counting", 0), row

    sink = bk.create_log("sink", schema=frame.schema)
    for _ in range(2):
        write = frame.write.format("bookkeeper").mode("append").options(**cluster)
        write = write.option("log", "sink")
        write.option("txnAppId", "job").option("txnVersion", "1").save()
    spark.sql(f"CREATE TEMPORARY VIEW added USING bookkeeper OPTIONS (log 'sink'{options})")
    spark.sql("INSERT INTO added VALUES (1000), (1001)")
    query = (
        spark.readStream.format("bookkeeper")
        .options(**cluster)
        .option("log", "shared")
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("bookkeeper")
        .options(**cluster)
        .option("log", "sink")
        .option("checkpointLocation", tempfile.mkdtemp())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sink.read_arrow().column("id").to_pylist() == [
        *range(1000), *sorted(sink.read_arrow().column("id").to_pylist()[1000:1002]),
        *range(1000), *range(1000),
    ]
spark.stop()
print("all is well")
"""

WRONG = """
import sys
import tempfile
from pathlib import Path
import pyarrow as pa
import spark_bookkeeper as sbk
from tests.spark.source_cases import CASES, make, rows, run
from tests.spark.starting import started

master, *pairs = sys.argv[1:]
spark = sbk.spark_session(master, **dict(pair.split("=", 1) for pair in pairs))
with sbk.local(bookies=6, spark=spark) as bk:
    made = make(bk)
    for name in CASES:
        run(bk, made, name, Path(tempfile.mkdtemp()))

    uri = bk.metadata_uri
    schema = "id long, name string"
    frame = spark.createDataFrame(rows(0).to_pandas(), schema).coalesce(2)
    log = bk.create_log("wronged", schema=rows(0).schema)

    def fail(batches):
        for batch in batches:
            yield batch
        raise ZeroDivisionError("of the query itself")

    def write(frame, **options):
        writer = frame.write.format("bookkeeper").mode("append")
        writer.options(**{"metadataUri": uri, "log": "wronged", **options}).save()

    def follow(checkpoint, log="of-cases", to="wronged", **options):
        reader = spark.readStream.format("bookkeeper").option("metadataUri", uri)
        writer = reader.option("log", log).options(**options).load().writeStream
        writer = writer.format("bookkeeper").option("metadataUri", uri).option("log", to)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        started(writer).awaitTermination()

    def refused(said, call, *arguments, **options):
        try:
            call(*arguments, **options)
        except Exception as error:
            assert said in str(error), error
        else:
            raise AssertionError(f"{arguments}, {options} was taken")

    invalid = "[BOOKKEEPER_INVALID_ARGUMENT]"
    refused("of the query itself", write, frame.mapInArrow(fail, schema))
    refused(invalid, write, frame, txnVersion="1")
    refused(invalid, write, frame, txnAppId="a", txnVersion="-1")
    refused(invalid, write, frame, ensembleSize="3")
    refused(invalid, write, frame.select("id"))
    refused("[BOOKKEEPER_NO_SUCH_LOG]", write, frame, log="nobody")
    place = {"startingOffsets": f"{made['other']}:1"}
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

ON_LOCAL_CLUSTER = (
    "spark.executor.memory=512m",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ("local[2]", "spark.api.mode=connect"),
        ("local-cluster[2,1,1024]", *ON_LOCAL_CLUSTER),
        ("standalone", *ON_LOCAL_CLUSTER),
    ],
    ids=["connect", "local-cluster", "standalone"],
)
@pytest.mark.parametrize("script", [SCRIPT, WRONG], ids=["right", "wrong"])
def test_ledgers_are_read_followed_and_written_and_what_is_wrong_is_refused(
    python_path: str, script: str, arguments: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path, "SPARK_LOCAL_IP": "127.0.0.1"}
    master, *settings = arguments
    if master == "standalone":
        master = request.getfixturevalue("standalone").url
    if not master.startswith("local["):
        settings.append(f"spark.executorEnv.PYTHONPATH={python_path}")

    done = subprocess.run(
        [sys.executable, "-c", script, master, *settings],
        env=environment,
        capture_output=True,
        text=True,
    )

    assert "all is well" in done.stdout, done.stderr[-4000:]
