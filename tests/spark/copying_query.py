"""A driver of its own: queries, each from a log through a transformation into another log.

``python copying_query.py MASTER METADATA_URI CHECKPOINTS for-ever|until-end NAME...``

Query ``NAME`` reads the log ``NAME-source``, writes the log ``NAME-sink``, and has its checkpoint
in ``CHECKPOINTS/NAME``. They are started in the order in which they are named, and run side by side
until the driver is killed, until one of them fails, or until each has come to the end.

Prints ``started`` when all of them run.
"""

from __future__ import annotations

import sys

import spark_bookkeeper as sbk
from tests.spark.starting import started


def main(master: str, uri: str, checkpoints: str, how: str, *names: str) -> None:
    spark = sbk.spark_session(
        master,
        spark_ui_enabled=False,
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
        spark_executor_memory="512m",
        spark_task_maxFailures=8,
    )
    source = spark.readStream.format("bookkeeper").option("metadataUri", uri)
    source = source.option("startingOffsets", "earliest").option("maxEntriesPerTrigger", 4)
    queries = []
    for name in names:
        frame = source.option("log", f"{name}-source").load()
        frame = frame.selectExpr("id * 2 as id").repartition(2)
        write = frame.writeStream.format("bookkeeper").option("metadataUri", uri)
        write = write.option("log", f"{name}-sink").queryName(name)
        write = write.option("checkpointLocation", f"{checkpoints}/{name}")
        # Spark would ask every 10 ms, and those that wait would leave little to those that work.
        often = (
            {"availableNow": True} if how == "until-end" else {"processingTime": "100 milliseconds"}
        )
        queries.append(started(write.trigger(**often)))
    print("started", flush=True)
    if how == "until-end":
        for query in queries:
            query.awaitTermination()
    else:
        spark.streams.resetTerminated()  # starts that failed, and were repeated, do not count
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
