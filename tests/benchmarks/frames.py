"""P2 and P5: DataFrames into ledgers and out of them, beside Spark tasks that do only the IO."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.benchmarks.appending import MB, SMALL
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import RAW, Against, Line, at_least

PARTITIONS = 4

Batches = Iterable[pa.RecordBatch]


def writing(lab: Lab) -> Iterator[Line]:
    """P2."""
    size = lab.sizes.spark_bytes
    frame = noise_frame(lab.spark, size)
    plain, delta = lab.directory / "raw-frames", lab.directory / "delta"

    def ours() -> float:
        writer = lab.bk.create_ledger(schema=frame.schema)
        started = time.perf_counter()
        writer.append(frame)
        seconds = time.perf_counter() - started
        writer.close()
        lab.forget(writer.ledger_id)
        return size / seconds / MB

    def copies() -> float:
        lab.scratch(plain.name)
        started = time.perf_counter()
        write_copies(frame, plain)
        seconds = time.perf_counter() - started
        shutil.rmtree(plain)
        return size / seconds / MB

    def as_delta() -> float:
        started = time.perf_counter()
        frame.write.format("delta").save(str(delta))
        seconds = time.perf_counter() - started
        shutil.rmtree(delta)
        return size / seconds / MB

    refusal = lab.delta_refusal()
    yield Line(
        "P2",
        "append(df) of incompressible 1 KB rows",
        "MB/s",
        f"{size >> 20} MiB in {PARTITIONS} partitions, cached in Spark",
        ours,
        [
            Against(RAW, copies, at_least(0.9)),
            Against("Delta, not synced", None if refusal else as_delta, at_least(1), refusal),
        ],
        rounds=lab.sizes.rounds,
        warm_up=2,  # Spark's first jobs are several times slower
    )
    frame.unpersist()


def scanning(lab: Lab) -> Iterator[Line]:
    """P5."""
    size = lab.sizes.spark_bytes
    frame = noise_frame(lab.spark, size)
    with lab.bk.create_ledger(schema=frame.schema) as writer:
        writer.append(frame)
    directory = lab.scratch("raw-scan")
    write_copies(frame, directory)
    frame.unpersist()
    paths = sorted(str(path) for path in directory.glob("*-0.arrows"))
    same = [lab.bk.open_ledger(writer.ledger_id).read(), read_files(lab.spark, paths)]
    sums = [f.selectExpr("count(*)", "sum(crc32(payload))").collect() for f in same]
    assert sums[0] == sums[1], "both read the same rows"

    def ours() -> float:
        started = time.perf_counter()
        consume(lab.bk.open_ledger(writer.ledger_id).read())
        return size / (time.perf_counter() - started) / MB

    def files() -> float:
        started = time.perf_counter()
        consume(read_files(lab.spark, paths))
        return size / (time.perf_counter() - started) / MB

    kept: dict[int, int] = {}

    def peer(entry: int, total: int, window: int, batch: int) -> float:
        if entry not in kept:  # written once; the first, uncounted round fills its caches
            kept[entry] = int(lab.peer().ask("async", total, entry, window)["ledger"])
        return lab.peer().ask("read", kept[entry], batch)["mb_per_s"]

    yield Line(
        "P5",
        "scan of 1 KB rows into a Spark job",
        "MB/s",
        f"{size >> 20} MiB in {PARTITIONS} parts; BookKeeper's 1 KB entries: "
        f"{lab.sizes.small_bytes >> 20} MiB",
        ours,
        [
            Against(RAW, files, at_least(0.85)),
            lab.against_peer(
                lambda: peer(1 << 20, size // 2, 64, 8),
                at_least(3),
                name="BookKeeper, 1 MB entries",
            ),
            lab.against_peer(
                lambda: peer(SMALL, lab.sizes.small_bytes, 1000, 1000),
                at_least(10),
                name="BookKeeper, 1 KB entries",
            ),
        ],
        rounds=lab.sizes.rounds,
        warm_up=2,  # Spark's first jobs are several times slower
    )
    lab.forget(writer.ledger_id)
    shutil.rmtree(directory)


def noise_frame(spark: Any, size_bytes: int) -> Any:
    """A DataFrame of one binary column that does not compress, held in memory by Spark."""

    def fill(batches: Batches) -> Iterator[pa.RecordBatch]:
        import numpy as np

        for batch in batches:
            if batch.num_rows == 0:
                continue
            offsets: Any = np.arange(0, (batch.num_rows + 1) * SMALL, SMALL, dtype=np.int32)
            noise = np.random.default_rng(batch.column(0)[0].as_py()).bytes(batch.num_rows * SMALL)
            column = pa.BinaryArray.from_buffers(
                pa.binary(), batch.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(noise)]
            )
            yield pa.RecordBatch.from_arrays([column], names=["payload"])

    rows = size_bytes // SMALL
    frame = spark.range(0, rows, 1, PARTITIONS).mapInArrow(fill, "payload binary").cache()
    assert frame.count() == rows
    return frame


def write_copies(frame: Any, directory: Path) -> None:
    """The tasks do only this: three fsynced Arrow copies of their rows, by three threads."""
    target = str(directory)

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        import os
        from collections import deque
        from concurrent.futures import ThreadPoolExecutor

        from pyspark import TaskContext

        here = TaskContext.get()
        assert here is not None
        files = [
            open(f"{target}/{here.partitionId()}-{n}.arrows", "wb", buffering=0)  # noqa: SIM115
            for n in range(3)
        ]
        threads = [ThreadPoolExecutor(1) for _ in files]
        waiting: deque[Any] = deque()

        def store(n: int, data: Any) -> None:
            view = memoryview(data).cast("B")
            while view:
                view = view[files[n].write(view) :]

        def send(data: Any) -> None:
            while len(waiting) >= 9:
                waiting.popleft().result()
            waiting.extend(t.submit(store, n, data) for n, t in enumerate(threads))

        has_schema = False
        for batch in batches:
            if not has_schema:
                send(batch.schema.serialize())
                has_schema = True
            send(batch.serialize())
        send(b"\xff\xff\xff\xff\0\0\0\0")  # the end of an Arrow stream
        for left in waiting:
            left.result()
        for synced in [t.submit(os.fsync, f.fileno()) for t, f in zip(threads, files, strict=True)]:
            synced.result()
        for thread, file in zip(threads, files, strict=True):
            thread.shutdown()
            file.close()
        yield pa.RecordBatch.from_arrays([pa.array([here.partitionId()])], names=["part"])

    parts = frame.mapInArrow(write, "part long").collect()
    assert len(parts) == PARTITIONS


def read_files(spark: Any, paths: list[str]) -> Any:
    """A DataFrame of the rows in plain Arrow files, a task for each file."""

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with pa.memory_map(paths[number]) as file:
                    yield from pa.ipc.open_stream(file)

    return spark.range(0, len(paths), 1, len(paths)).mapInArrow(read, "payload binary")


def consume(frame: Any) -> None:
    """Bring every row to Spark, and nowhere else."""
    frame.write.format("noop").mode("overwrite").save()
