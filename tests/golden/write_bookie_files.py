"""Write the golden files of a bookie. Run once for each format version, then keep what it wrote.

    python tests/golden/write_bookie_files.py tests/golden/bookie
    python tests/golden/write_bookie_files.py --with-times tests/golden/bookie-with-times

The test reads them back with every later version of the library, so nothing here may be changed
for format version 1; a new version gets a folder of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.part import PartEncoder, part_name
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.storage.local import LocalStorage
from tests.support.slotlog import Log, every_place

MARKER = Marker("10.0.0.1:3181", "0123456789abcdef", "9f4e6e1c-0000-4000-8000-000000000001")

PAYLOADS = LedgerKey(7, "n1")
PAYLOADS_ENCODING = LedgerEncoding()

ROWS = LedgerKey(8, "n2")
ROWS_ENCODING = LedgerEncoding(
    pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))]),
    DigestType.MAC,
    b"golden password",
    "lz4",
)


def rows(first: int, count: int) -> pa.RecordBatch:
    """Rows whose values say where they belong."""
    numbers = range(first, first + count)
    return pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.array([None if n % 3 == 0 else [str(n)] for n in numbers], pa.list_(pa.string())),
        ],
        schema=ROWS_ENCODING.schema,
    )


def write(root: Path) -> None:
    """Two ledgers: payloads with a copy and a fence; rows in a record, and in a part."""
    storage = LocalStorage(root)
    Partition(storage).furnish(MARKER)

    log = Log(storage, LedgerRef(PAYLOADS, MARKER.incarnation, PAYLOADS_ENCODING))
    log.prepare()
    entries = [NewEntry(0, 5, b"hello"), NewEntry(1, 5, b""), NewEntry(2, 10, b"world")]
    log.add(0, encode_add(PAYLOADS, PAYLOADS_ENCODING, "writer-1", 0, -1, entries))
    entries = [NewEntry(3, 12, b"42")]
    log.add(1, encode_add(PAYLOADS, PAYLOADS_ENCODING, "writer-1", 1, 2, entries))
    log.write_copy(list(log.reader.entries(every_place(log.locate(2, 3)))))
    log.fence()

    log = Log(storage, LedgerRef(ROWS, MARKER.incarnation, ROWS_ENCODING))
    log.prepare()
    batch = [NewEntry(0, 500, rows(0, 4))]
    log.add(0, encode_add(ROWS, ROWS_ENCODING, "writer-2", 0, -1, batch))
    name = part_name("attempt-1", 0, 0)
    sink = log.parts.create(name)
    encoder = PartEncoder(ROWS, ROWS_ENCODING, sink.write)
    encoder.add(rows(4, 10))
    encoder.add(rows(14, 0))
    ref = encoder.finish(name)
    sink.finish()
    part = PlacedPart(ref, (1, 2), (1500, 2000))
    log.add(1, encode_add(ROWS, ROWS_ENCODING, "writer-2", 1, 0, parts=[part], spans=[(1, 2)]))


def write_with_times(root: Path) -> None:
    """A ledger whose records have the time of the append, an explicit LAC, and a copy of it all."""
    storage = LocalStorage(root)
    Partition(storage).furnish(MARKER)
    key = LedgerKey(9, "n3")
    log = Log(storage, LedgerRef(key, MARKER.incarnation, PAYLOADS_ENCODING))
    log.prepare()
    entries = [NewEntry(0, 5, b"hello"), NewEntry(1, 10, b"world")]
    for slot, data in enumerate(
        (
            encode_add(
                key, PAYLOADS_ENCODING, "w", 0, -1, entries, appended_at_ms=1_700_000_000_000
            ),
            encode_add(key, PAYLOADS_ENCODING, "w", 1, 1, appended_at_ms=1_700_000_001_000),
            encode_add(key, PAYLOADS_ENCODING, "w", 2, 1, [NewEntry(2, 12, b"42")]),
        )
    ):
        log.add(slot, data, held=((0, 1), (2, 1), (2, 2))[slot])
    name = part_name("attempt-1", 0, 0)
    sink = log.parts.create(name)
    encoder = PartEncoder(key, PAYLOADS_ENCODING, sink.write)
    encoder.add(pa.record_batch({"payload": [b"in", b"a part"]}))
    ref = encoder.finish(name)
    sink.finish()
    part = PlacedPart(ref, (3,), (500,))
    log.add(
        3,
        encode_add(
            key, PAYLOADS_ENCODING, "w", 3, 2, parts=[part], appended_at_ms=1_700_000_003_000
        ),
    )
    placed = list(log.records())[3].parts
    log.write_copy(list(log.read_many(log.locate(0, 2).locations())), placed)


if __name__ == "__main__":
    if sys.argv[1] == "--with-times":
        write_with_times(Path(sys.argv[2]))
    else:
        write(Path(sys.argv[1]))
