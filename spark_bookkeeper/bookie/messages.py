"""Entries encoded as the record batch messages of a record, and the columns that describe them.

Entries are encoded once for the records of several bookies. Entry ids, lengths, sizes and digests
are computed column by column, since a record may hold thousands of small entries.

Most records hold one small entry, and a caller waits for it. Then nearly all the time goes into
code that has left the processor's cache since the last append: calls into pyarrow and numpy took
220 us, and 30 us when repeated. So payloads are encoded with ``struct`` and ``bytes`` alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie import framing
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.errors import InvalidArgumentError

Int64Array: TypeAlias = npt.NDArray[np.int64]

MOST_ENTRY_BYTES: Final = 2**31 - 2
"""The most bytes of one entry, and of all payloads of one record: Arrow counts the bytes of its
type ``binary`` in int32, and builds no larger array."""


def check_entry_size(size_bytes: int) -> None:
    """Raise ``InvalidArgumentError`` if this is too large for one entry."""
    if size_bytes > MOST_ENTRY_BYTES:
        raise InvalidArgumentError(
            f"{size_bytes} bytes do not fit into one entry, which holds less than 2 GiB "
            f"({MOST_ENTRY_BYTES} bytes); nothing was appended. Append smaller pieces"
        )


def int64s(values: Iterable[int]) -> Int64Array:
    """Make a column of integers, little-endian as in the files."""
    return np.fromiter(values, dtype="<i8")


def read_only(column: Int64Array) -> Int64Array:
    """Make a column read-only, so that several callers can share it, and return it."""
    column.flags.writeable = False
    return column


@dataclass(frozen=True, slots=True, eq=False)
class EncodedEntries:
    """Encoded entries. Columns are in storage order: payloads, then batches."""

    messages: tuple[Buffer, ...]
    row_count: int
    row_crc32c: int
    ids: Sequence[int]
    lengths: Sequence[int]
    sizes: Sequence[int]
    digests: bytes
    """The digests of the entries, concatenated."""

    @property
    def row_extent(self) -> int:
        """The bytes of the message that the payload entries share."""
        return memoryview(self.messages[0]).nbytes if self.row_count else 0

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages."""
        return sum(memoryview(message).nbytes for message in self.messages)


NOTHING: Final = EncodedEntries((), 0, 0, (), (), (), b"")
"""No entries, for a fence and for a record that only lists parts."""


def encode_entries(encoding: LedgerEncoding, entries: Sequence[NewEntry]) -> EncodedEntries:
    """Encode entries, and compute every digest once; see ``encode_columns``."""
    return encode_columns(
        encoding,
        [entry.entry_id for entry in entries],
        [entry.length_after for entry in entries],
        [entry.payload for entry in entries],
    )


def encode_columns(
    encoding: LedgerEncoding,
    ids: Sequence[int],
    lengths_after: Sequence[int],
    payloads: Sequence[bytes | pa.RecordBatch],
) -> EncodedEntries:
    """Encode entries that are given as columns.

    Raises:
        InvalidArgumentError: bytes given to a ledger with a schema of its own.
    """
    rows = [payload for payload in payloads if type(payload) is bytes]
    batches: list[pa.Buffer] = []
    if len(rows) < len(payloads):
        in_order = sorted(range(len(payloads)), key=lambda n: type(payloads[n]) is not bytes)
        ids = [ids[n] for n in in_order]
        lengths_after = [lengths_after[n] for n in in_order]
        batches = encode_batches(encoding, [payloads[n] for n in in_order[len(rows) :]])
    sizes = [*map(len, rows), *(message.size for message in batches)]
    shared = [payload_message(encoding, rows)] if rows else []
    digester = encoding.digester()
    return EncodedEntries(
        messages=(*shared, *batches),
        row_count=len(rows),
        row_crc32c=crc(shared[0]) if shared else 0,
        ids=ids,
        lengths=lengths_after,
        sizes=sizes,
        digests=digester.digests(rows) + digester.digests(batches),
    )


_PAYLOADS_HEAD: Final = struct.Struct(
    "<Ii"  # continuation, length of the flatbuffer
    "I4x"  # where the root table is: 20, from here
    "6H"  # vtable: its size, the table's size, offsets of version, kind, record batch, body length
    "ixBH"  # the Message, at 20: back to the vtable, kind, version
    "Iq"  # forward to the record batch, bytes of the body
    "2x5H"  # vtable: its size, the table's size, offsets of rows, nodes, buffers
    "i2Iq"  # the RecordBatch: back to the vtable, forward to nodes and to buffers, rows
    "4xI6q"  # three buffers, each with its offset and length: which are null, ends, payloads
    "4xI2q"  # a node: rows, and how many are null
)
"""The bytes before the body of a record batch with one column of payloads, without nulls.

Source: Apache Arrow columnar format 1.5, ``format/Message.fbs`` (Message, RecordBatch, FieldNode,
Buffer), as Arrow's own writer lays it out.
"""


_SMALL_BYTES: Final = 1 << 16
"""Larger payloads are encoded with Arrow, whose pool is faster since it reuses touched pages."""


def payload_message(encoding: LedgerEncoding, payloads: Sequence[bytes]) -> Buffer:
    """Encode the record batch message that payload entries share, a row each, as Arrow would.

    Raises:
        InvalidArgumentError: the ledger has a schema of its own, or the payloads are too large.
    """
    if not encoding.has_payload:
        raise InvalidArgumentError(
            "bytes can be appended only to a ledger with the default schema (one binary column "
            f"'payload'); this one has\n{encoding.schema.to_string()}"
        )
    rows = len(payloads)
    ends = list(accumulate(map(len, payloads), initial=0))
    size = ends[-1]
    if size > MOST_ENTRY_BYTES:
        raise InvalidArgumentError("one record holds less than 2 GiB of payloads")
    packed = struct.pack(f"<{len(ends)}i", *ends)
    if encoding.compression is not None or size > _SMALL_BYTES:
        # ``pa.array`` would import pandas: half a second in the first append.
        buffers = [None, pa.py_buffer(packed), pa.py_buffer(b"".join(payloads))]
        column = pa.Array.from_buffers(pa.binary(), rows, buffers)
        batch = pa.RecordBatch.from_arrays([column], schema=encoding.schema)
        message: Buffer = encode_batches(encoding, [batch])[0]
        return message
    return b"".join([_before_payloads(rows, size, packed), *payloads, bytes(-size % 8)])


def only_payload(message: bytes | pa.Buffer, size: int) -> bytes | pa.Buffer | None:
    """Return the payload of a message that has only one, if ``payload_message`` encoded it without
    Arrow; else ``None``.
    """
    begin = _PAYLOADS_HEAD.size + 8
    if not 0 <= size <= _SMALL_BYTES or len(message) != begin + size + -size % 8:
        return None
    return message[begin : begin + size] if message[:begin] == _before_one(size) else None


@lru_cache(maxsize=64)
def _before_one(size: int) -> bytes:
    return _before_payloads(1, size, struct.pack("<2i", 0, size))


def _before_payloads(rows: int, size: int, ends: bytes) -> bytes:
    """Return the message up to the payloads (``size`` bytes in all; ``ends``: 0, then each end)."""
    begin = len(ends) + -len(ends) % 8
    head = _PAYLOADS_HEAD.pack(
        *(0xFFFFFFFF, _PAYLOADS_HEAD.size - 8),
        20,
        *(12, 22, 6, 5, 8, 12),
        *(12, 3, 4),
        *(24, begin + size + -size % 8),
        *(10, 24, 12, 4, 8),
        *(10, 76, 16, rows),
        *(3, 0, 0, 0, len(ends), begin, size),
        *(1, rows, 0),
    )
    return head + ends + bytes(begin - len(ends))


def encode_batches(encoding: LedgerEncoding, batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
    """Return the encapsulated message of each batch, with the ledger's compression.

    The rows must have the ledger's schema: they were converted when users passed them.
    """
    for batch in batches:
        fits = batch.schema.equals(encoding.schema, check_metadata=False)
        assert fits, f"rows have the ledger's schema\n{batch.schema}\n{encoding.schema}"
    if encoding.compression is None:
        return [batch.serialize() for batch in batches]
    sink = pa.BufferOutputStream()
    ends = [len(framing.schema_message(encoding.schema))]
    with pa.ipc.new_stream(sink, encoding.schema, options=encoding.write_options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            ends.append(sink.tell())
    data = sink.getvalue()
    return [data.slice(start, end - start) for start, end in pairwise(ends)]
