"""Entries on their way: what a digest does not tell of them."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.messages import encode_batches
from spark_bookkeeper.errors import CorruptEntryError


@pytest.mark.parametrize("end", [2_000_000_000, 400, -1])
def test_rows_that_point_out_of_their_message_are_corrupt(end: int) -> None:
    batch = pa.record_batch({"text": ["abcdef"]})
    encoding = LedgerEncoding(batch.schema)
    message = bytes(encode_batches(encoding, [batch])[0])
    entry = StoredEntry(7, 6, 6, b"", False, message, encoding.schema)
    assert entry.batch().equals(batch)

    head, _, value = message.rpartition(struct.pack("<ii", 0, 6))
    bad = head + struct.pack("<ii", 0, end) + value

    for data in (bad, b"", message[:-16], b"\xff" * 64):
        with pytest.raises(CorruptEntryError, match="entry 7 cannot be used") as refused:
            entry._replace(data=data).batch()
        assert refused.value.facts["entry_id"] == 7
