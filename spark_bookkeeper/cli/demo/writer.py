"""The demo's first writer, in a process of its own so that it can be killed.

``python -m spark_bookkeeper.cli.demo.writer METADATA_URI ROWS.arrow`` creates a ledger, appends two
Spark DataFrames and then small batches, and prints each step as a line of JSON. It never closes
the ledger, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.opening import connect

FRAME_ROWS: Final = (120_000, 140_000)
"""Rows of the two DataFrames; a bookie is lost during the append of the second."""

BATCH_ROWS: Final = 50
WINDOW: Final = 16
"""Small appends in flight, so that a killed writer leaves entries without an acknowledgement."""

QUORUM: Final[dict[str, Any]] = {"ensemble_size": 4, "write_quorum_size": 3, "ack_quorum_size": 2}


def report(event: str, **facts: Any) -> None:
    """Print an event for the process that started this one."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def main(metadata_uri: str, path: str) -> None:
    """Write until killed."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    with pa.memory_map(path) as source:
        rows = pa.ipc.open_file(source).read_all()
    with connect(metadata_uri) as bk:
        bk.spark  # noqa: B018 - starts Spark before the first append is timed
        writer = bk.create_ledger(
            **QUORUM, schema=rows.schema, name="flights", entry_target_bytes=1 << 20
        )
        ensemble = list(writer.metadata.last_fragment.ensemble)
        report("created", ledger_id=writer.ledger_id, ensemble=ensemble)
        start = 0
        for count in FRAME_ROWS:
            frame = bk.spark.createDataFrame(rows.slice(start, count))
            start += count
            first, began = writer.last_add_pushed + 1, time.monotonic()
            report("appending", rows=count)
            last = writer.append(frame)
            seconds = time.monotonic() - began
            acks = _acks(writer, first)
            report("appended", rows=count, first=first, last=last, seconds=seconds, acks=acks)
        in_flight: deque[tuple[int, Future[int]]] = deque()
        while start < rows.num_rows or in_flight:
            if start < rows.num_rows and len(in_flight) < WINDOW:
                batch = rows.slice(start, BATCH_ROWS)
                start += batch.num_rows
                in_flight.append((start, writer.append_async(batch)))
            else:
                end, future = in_flight.popleft()
                report("acknowledged", entry_id=future.result(), rows=end)
        threading.Event().wait()


def _acks(writer: LedgerWriter, first: int) -> list[dict[str, Any]]:
    """Return the acknowledgements from entry ``first`` on; wait up to 1 s for third copies."""
    patient_until = time.monotonic() + 1.0
    while True:
        table = writer.acks_arrow().drop_columns(["stored_at"])  # JSON has no times
        rows = [row for row in table.to_pylist() if row["entry_id"] >= first]
        if time.monotonic() > patient_until or all(row["status"] == "stored" for row in rows):
            return rows
        time.sleep(0.01)


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
