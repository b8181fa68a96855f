"""Entries as the record batch messages that a record holds, and the columns that describe them.

Encoded once, they serve the records of several bookies. What is many (entry ids, lengths, sizes,
digests) is worked out column by column, since a record may hold thousands of small entries.

Mostly it is one small entry, and whoever appended it waits. Then nearly all the time goes into code
that the processor has not run since the last append: calls into pyarrow and numpy that take 30 us
when they are repeated took 220 then. So payloads are encoded by ``struct`` and ``bytes`` alone.
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
"""What one entry can hold, and the payloads of one record together: Arrow counts the bytes of its
type ``binary`` in int32, and builds no array of more than this."""


def check_entry_size(size_bytes: int) -> None:
    """Raises ``InvalidArgumentError`` for what is too large for one entry."""
    if size_bytes > MOST_ENTRY_BYTES:
        raise InvalidArgumentError(
            f"{size_bytes} bytes do not fit into one entry, which holds less than 2 GiB "
            f"({MOST_ENTRY_BYTES} bytes); nothing was appended. Append smaller pieces"
        )


def int64s(values: Iterable[int]) -> Int64Array:
    """A column of them, little-endian as in the files."""
    return np.fromiter(values, dtype="<i8")


def read_only(column: Int64Array) -> Int64Array:
    """The same column, which several callers may have: none of them can change it."""
    column.flags.writeable = False
    return column


@dataclass(frozen=True, slots=True, eq=False)
class EncodedEntries:
    """Entries that are bytes already. Columns are in storage order: payloads, then batches."""

    messages: tuple[Buffer, ...]
    row_count: int
    row_crc32c: int
    ids: Sequence[int]
    lengths: Sequence[int]
    sizes: Sequence[int]
    digests: bytes
    """Of the entries, one after the other."""

    @property
    def row_extent(self) -> int:
        """Bytes of the message that the payload entries share."""
        return memoryview(self.messages[0]).nbytes if self.row_count else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages."""
        return sum(memoryview(message).nbytes for message in self.messages)


NOTHING: Final = EncodedEntries((), 0, 0, (), (), (), b"")
"""No entries: of a fence, and of a record that only lists parts."""


def encode_entries(encoding: LedgerEncoding, entries: Sequence[NewEntry]) -> EncodedEntries:
    """Encode entries, computing every digest once; see ``encode_columns``."""
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
"""Before the body of a record batch of one column of payloads, none of them null.

Source: Apache Arrow columnar format 1.5, ``format/Message.fbs`` (Message, RecordBatch, FieldNode,
Buffer), as Arrow's own writer lays it out.
"""


_SMALL_BYTES: Final = 1 << 16
"""Above it, what counts is that Arrow's pool keeps pages that were touched before."""


def payload_message(encoding: LedgerEncoding, payloads: Sequence[bytes]) -> Buffer:
    """The record batch message that payload entries share, a row each: the bytes that Arrow makes.

    Raises:
        InvalidArgumentError: the ledger has a schema of its own, or these are too many bytes.
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
        # Not by ``pa.array``, which imports pandas first: half a second in the first append.
        buffers = [None, pa.py_buffer(packed), pa.py_buffer(b"".join(payloads))]
        column = pa.Array.from_buffers(pa.binary(), rows, buffers)
        batch = pa.RecordBatch.from_arrays([column], schema=encoding.schema)
        message: Buffer = encode_batches(encoding, [batch])[0]
        return message
    return b"".join([_before_payloads(rows, size, packed), *payloads, bytes(-size % 8)])


def only_payload(message: bytes | pa.Buffer, size: int) -> bytes | pa.Buffer | None:
    """The payload of a message that has no other, where ``payload_message`` laid it out without
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
    """What a message begins with. Args: ``size`` of all payloads, ``ends`` of each, behind a 0."""
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
    """The encapsulated message of each batch, compressed as the ledger says.

    Rows are made to fit the ledger's schema where they are taken from users, and only there.
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
