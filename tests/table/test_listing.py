"""The list of a released ledger's entries, which somebody else may have written."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.table.listing import LISTING, Listing, encode_listing, to_table
from spark_bookkeeper.table.snapshot import TableFiles

KEY = LedgerKey(7, "n1")

ENTRY = {
    **dict.fromkeys(("entry_id", "last_add_confirmed", "appended_at_ms"), 0),
    **dict.fromkeys(("length_after", "size", "rows"), 6),
    "is_payload": True,
    "digest": b"abcdef",
    "values": bytes(16),
    "patch": None,
}


def test_a_list_that_points_out_of_itself_is_refused() -> None:
    entries = to_table([ENTRY, {**ENTRY, "entry_id": 1}])
    good = encode_listing(KEY, TableFiles(1, ("a.parquet",), {}), [entries])
    listed = Listing(good, KEY).entry(0)
    assert listed is not None
    assert listed.digest == b"abcdef"

    (rows,) = entries.to_batches()
    ends = pa.py_buffer(struct.pack("<3i", 0, 400, 12))
    digests = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"abcdefabcdef")])
    columns = [digests if name == "digest" else rows[name] for name in LISTING.names]
    schema = pa.ipc.open_file(pa.BufferReader(good)).schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    with pytest.raises(CorruptEntryError, match="cannot be decoded"):
        Listing(sink.getvalue().to_pybytes(), KEY).entry(0)
