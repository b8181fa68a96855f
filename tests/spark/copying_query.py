"""A driver of its own: a query from one log through a transformation into another one.

``python copying_query.py MASTER METADATA_URI SOURCE SINK CHECKPOINT [until-end]``

Prints ``started`` when the query runs. It runs until it is killed, or until it has come to the end.
"""

from __future__ import annotations

import sys

import spark_bookkeeper as sbk


def main(master: str, uri: str, source: str, sink: str, checkpoint: str, *more: str) -> None:
    spark = sbk.spark_session(
        master,
        spark_ui_enabled=False,
        spark_sql_shuffle_partitions=2,
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
        spark_executor_memory="512m",
        spark_task_maxFailures=8,
    )
    read = spark.readStream.format("bookkeeper").option("metadataUri", uri).option("log", source)
    read = read.option("startingOffsets", "earliest").option("maxEntriesPerTrigger", 4)
    frame = read.load().selectExpr("id * 2 as id").repartition(2)
    write = frame.writeStream.format("bookkeeper").option("metadataUri", uri).option("log", sink)
    write = write.option("checkpointLocation", checkpoint)
    if "until-end" in more:
        write = write.trigger(availableNow=True)
    query = write.start()
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
