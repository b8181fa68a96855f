"""A driver of its own: a batch write with speculation, a slow task and a failing one.

``python speculating_write.py MASTER METADATA_URI LOG ROWS MARKERS``

``MARKERS`` is a directory that all tasks see: the first attempt of partition 0 stands still there
until another one has ended, and then goes on behind it; the first of partition 1 fails.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import spark_bookkeeper as sbk


def main(master: str, uri: str, log: str, rows: str, markers: str) -> None:
    spark = sbk.spark_session(
        master,
        spark_ui_enabled=False,
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
        spark_executor_memory="512m",
        spark_executor_cores=1,
        spark_speculation=True,
        spark_speculation_interval="100ms",
        spark_speculation_multiplier="1.1",
        spark_speculation_quantile="0.5",
    )

    def disturbed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        here = TaskContext.get()
        assert here is not None
        partition = here.partitionId()
        first = Path(markers) / f"{partition}-first"
        is_first = False
        if partition in (0, 1):
            try:
                first.touch(exist_ok=False)
                is_first = True
            except FileExistsError:
                (Path(markers) / f"{partition}-again").touch()
        yield from batches
        if is_first and partition == 0:
            deadline = time.monotonic() + 120
            while not (Path(markers) / "0-again").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(1.0)
        if is_first and partition == 1:
            raise RuntimeError("the first attempt of this task fails behind all of its rows")

    frame = spark.range(0, int(rows), 1, 6).mapInArrow(disturbed, "id bigint")
    write = frame.write.format("bookkeeper").mode("append").option("metadataUri", uri)
    write.option("log", log).option("txnAppId", "speculating").option("txnVersion", 0).save()
    time.sleep(3.0)  # losers go on behind the commit
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
