"""A driver of its own: a query from a log into a table, and one from that table into a log.

``python streaming_queries.py METADATA_URI SOURCE TABLE SINK CHECKPOINTS JARS [until-end]``

Prints ``started`` when both run. They run until they are killed; or one after the other, each until
it has come to the end.
"""

from __future__ import annotations

import sys
from typing import Any

import spark_bookkeeper as sbk
from tests.spark.starting import started


def main(
    uri: str, source: str, table: str, sink: str, checkpoints: str, jars: str, *more: str
) -> None:
    spark = sbk.spark_session(
        "local[2,3]",  # a task that fails is tried again, as on a cluster
        delta=True,
        spark_jars=jars,
        spark_ui_enabled=False,
        spark_databricks_delta_snapshotPartitions="1",
    )
    read = spark.readStream.format("bookkeeper").option("metadataUri", uri).option("log", source)
    read = read.option("startingOffsets", "earliest").option("maxEntriesPerTrigger", 4)
    to_table = read.load().writeStream.format("delta").option("path", table)
    rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(table)
    to_log = rows.writeStream.format("bookkeeper").option("metadataUri", uri).option("log", sink)

    def start(write: Any, name: str) -> Any:
        query = write.option("checkpointLocation", f"{checkpoints}/{name}")
        if "until-end" in more:
            query = query.trigger(availableNow=True)
        running = started(query)
        if "until-end" in more:
            running.awaitTermination()
        return running

    start(to_table, "to-table")
    start(to_log, "to-log")
    print("started", flush=True)
    if "until-end" not in more:
        spark.streams.resetTerminated()  # starts that failed, and were repeated, do not count
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
