"""The demo's first writer: a separate program, so that it can be killed.

``python -m spark_bookkeeper.cli.demo.writer METADATA_URI ROWS.arrow`` creates a ledger, appends
two Spark DataFrames to it and then small batches one after the other. It reports on stdout what
was acknowledged, one JSON object a line. It never closes the ledger. It ends when its standard
input ends, so that it does not outlive its parent.
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

FIRST_ROWS: Final = 120_000
"""Rows of the DataFrame that is appended before any failure."""

SECOND_ROWS: Final = 140_000
"""Rows of the DataFrame during whose append a bookie is lost."""

BATCH_ROWS: Final = 50
"""Rows of one small append."""

WINDOW: Final = 16
"""The number of concurrent small appends, so that a killed writer leaves a tail."""

ACK_PATIENCE_SECONDS: Final = 1.0

ENTRY_BYTES: Final = 1 << 20


def tell(event: str, **facts: Any) -> None:
    """Report an event to the parent process."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def main(metadata_uri: str, path: str) -> None:
    """Write until killed."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    with pa.memory_map(path) as source:
        rows = pa.ipc.open_file(source).read_all()
    with connect(metadata_uri) as bk:
        bk.spark  # noqa: B018 - starts it, before the clock of the first append runs
        tell("ready")
        writer = bk.create_ledger(
            ensemble_size=4,
            write_quorum_size=3,
            ack_quorum_size=2,
            schema=rows.schema,
            name="flights",
            entry_target_bytes=ENTRY_BYTES,
        )
        tell(
            "created",
            ledger_id=writer.ledger_id,
            ensemble=list(writer.metadata.last_fragment.ensemble),
        )
        start = 0
        for count in (FIRST_ROWS, SECOND_ROWS):
            frame = bk.spark.createDataFrame(rows.slice(start, count))
            start += count
            first = writer.last_add_pushed + 1
            tell("appending", first_entry_id=first, rows=count)
            writer.append(frame)
            tell("appended", rows=start, acks=_acks(writer, first), **_where(writer))
        _append_batches(writer, rows, start)
        tell("exhausted")
        threading.Event().wait()


def _append_batches(writer: LedgerWriter, rows: pa.Table, start: int) -> None:
    """Append the rest of the rows in small batches, several at once."""
    under_way: deque[tuple[int, Future[int]]] = deque()
    for offset in range(start, rows.num_rows, BATCH_ROWS):
        piece = rows.slice(offset, BATCH_ROWS)
        under_way.append((offset + piece.num_rows, writer.append_async(piece)))
        if len(under_way) > WINDOW:
            _tell_oldest(under_way)
    while under_way:
        _tell_oldest(under_way)


def _tell_oldest(under_way: deque[tuple[int, Future[int]]]) -> None:
    end, future = under_way.popleft()
    tell("acknowledged", entry_id=future.result(), rows=end)


def _where(writer: LedgerWriter) -> dict[str, Any]:
    return {
        "last_add_confirmed": writer.last_add_confirmed,
        "ensemble": list(writer.metadata.last_fragment.ensemble),
        "fragments": len(writer.metadata.fragments),
    }


def _acks(writer: LedgerWriter, first: int) -> list[dict[str, Any]]:
    """Return which bookies stored the entries from ``first`` on; wait shortly for third copies."""
    patient_until = time.monotonic() + ACK_PATIENCE_SECONDS
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
