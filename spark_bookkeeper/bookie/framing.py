"""The frame of an Arrow IPC file, written around messages that exist already.

pyarrow's file writer encodes record batches anew. But a copy must have an entry's own bytes,
whatever version of Arrow or of a compressor wrote them, and several bookies must share one
encoding. So this module keeps the messages as they are, and makes only the frame::

    "ARROW1" 00 00 | schema message | record batch messages ... | end of stream | footer
    | int32 length of the footer | "ARROW1"

Source: Apache Arrow columnar format 1.5, "IPC File Format" and ``format/File.fbs`` (Footer,
Block); FlatBuffers internals (tables, vtables, vectors of structs).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.storage.storage import Content

MAGIC: Final = b"ARROW1\0\0"
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

MARK_BYTES: Final = 4
"""The bytes of the continuation mark at the start of every message."""

_CONTINUATION: Final = 0xFFFFFFFF
_MARK: Final = b"\xff" * MARK_BYTES
_METADATA_VERSION_5: Final = 4
_PREFIX = struct.Struct("<Ii")  # continuation, length of the flatbuffer
_BLOCK = struct.Struct("<qi4xq")  # offset, metadata length with prefix, body length
_FOOTER_HEAD = struct.Struct(
    "<I"  # where the root table is: 16
    "6H"  # vtable: its size, the table's size, offsets of version, schema, dictionaries, batches
    "i"  # the table, at 16: back to the vtable
    "3I"  # forward to schema, dictionaries, batches
    "h2x"  # version
    "I4x"  # dictionaries: an empty vector
    "I"  # batches: count; the blocks follow, 8-aligned
)


UNDECODABLE: Final = (
    pa.ArrowException,
    ValueError,  # FrameError, errors of JSON and numpy, text that is not UTF-8
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,  # for an absurd size
    RecursionError,
    OSError,
    EOFError,
    struct.error,
)
"""The errors of decoders on damaged bytes. The caller translates them into the library's errors.
An ``AssertionError`` is not among them: it shows a bug of this library."""


class FrameError(ValueError):
    """The bytes are not an Arrow IPC file with the layout of this module."""


def schema_message(schema: pa.Schema) -> bytes:
    """Return the encapsulated message of a schema; its length is a multiple of 8."""
    message: bytes = schema.serialize().to_pybytes()
    assert len(message) % 8 == 0
    return message


_SHORT_BYTES: Final = 1024
_LAYOUTS_KEPT: Final = 256


class _Layout(NamedTuple):
    schema: pa.Schema
    """Kept, so that its ``id`` stays valid as a key."""

    message: bytes
    """The message with zeros as values."""

    places: Sequence[int]
    """The offset of each value."""


_layouts: dict[tuple[int, tuple[bytes, ...], tuple[int, ...]], _Layout] = {}
"""By the ``id`` of the schema (faster than its hash), the keys, and the lengths of the values."""


def header_message(schema: pa.Schema, values: dict[bytes, bytes]) -> bytes:
    """Return the message of a schema with these values added to its metadata.

    The layout of a message depends only on the lengths of the values. So for short values an
    earlier message is used again, and values of the same lengths are written into it.
    """
    lengths = tuple(map(len, values.values()))
    if sum(lengths) > _SHORT_BYTES:
        return _with_metadata(schema, values)
    kind = id(schema), tuple(values), lengths
    layout = _layouts.get(kind)
    if layout is None:
        if len(_layouts) >= _LAYOUTS_KEPT:
            _layouts.clear()
        layout = _layouts[kind] = _layout(schema, dict(zip(values, lengths, strict=True)))
    message = bytearray(layout.message)
    for place, value in zip(layout.places, values.values(), strict=True):
        message[place : place + len(value)] = value
    return bytes(message)


def _layout(schema: pa.Schema, lengths: dict[bytes, int]) -> _Layout:
    """Find the offset of each value: the first byte that differs if the value differs."""
    zeros = {key: bytes(length) for key, length in lengths.items()}
    empty = _with_metadata(schema, zeros)
    places = []
    for key, length in lengths.items():
        marked = _with_metadata(schema, {**zeros, key: b"\xff" * length})
        places.append(next((at for at, byte in enumerate(marked) if byte != empty[at]), 0))
    return _Layout(schema, empty, places)


def _with_metadata(schema: pa.Schema, values: dict[bytes, bytes]) -> bytes:
    return schema_message(schema.with_metadata({**(schema.metadata or {}), **values}))


def metadata_length(message: Buffer) -> int:
    """Return the bytes before the body of an encapsulated message, with its prefix."""
    view = memoryview(message)
    if len(view) < _PREFIX.size:
        raise FrameError("a message ends within its prefix")
    continuation, length = _PREFIX.unpack_from(view)
    if continuation != _CONTINUATION or length < 0 or length % 8:
        raise FrameError("a message does not begin with a continuation mark and a length")
    return int(_PREFIX.size + length)


def header_end(head: Buffer) -> int:
    """Return the offset of the first record batch, from the first 16 bytes of a file."""
    view = memoryview(head)
    if len(view) < len(MAGIC) + _PREFIX.size or bytes(view[: len(MAGIC)]) != MAGIC:
        raise FrameError("not an Arrow IPC file")
    return len(MAGIC) + metadata_length(view[len(MAGIC) :])


def read_schema(head: Buffer, end: int) -> pa.Schema:
    """Decode the schema from at least the first ``end`` bytes of a file (its ``header_end``).

    With ``MARK_BYTES`` more, it also checks that the next message or the end of the stream begins
    at ``end``: Arrow accepts a schema with a slightly wrong length.
    """
    view = memoryview(head)
    if len(view) < end:
        raise FrameError(f"the file ends within its header ({len(view)} of {end} bytes)")
    if len(view) >= end + MARK_BYTES and bytes(view[end : end + MARK_BYTES]) != _MARK:
        raise FrameError("no message begins where the header ends")
    try:
        return pa.ipc.read_schema(pa.py_buffer(view[len(MAGIC) : end]))
    except UNDECODABLE as error:
        raise FrameError(f"the schema message cannot be decoded: {error}") from error


def read_columns(message: Buffer, schema: pa.Schema, columns: Sequence[str]) -> pa.RecordBatch:
    """Decode some columns of a record batch message, in that order, without the others."""
    wanted = [schema.get_field_index(name) for name in columns]
    stream = b"".join([schema_message(schema), memoryview(message)])
    options = pa.ipc.IpcReadOptions(included_fields=sorted(wanted))
    batch = pa.ipc.open_stream(stream, options=options).read_next_batch()
    return batch.select(list(columns))


def assemble(schema: bytes, messages: Sequence[Buffer]) -> Content:
    """Make a whole file from record batch messages.

    Args:
        schema: an encapsulated schema message (``schema_message``).
        messages: encapsulated record batch messages; lengths are multiples of 8.
    """
    blocks = []
    offset = len(MAGIC) + len(schema)
    for message in messages:
        size = memoryview(message).nbytes
        blocks.append((offset, metadata_length(message), size))
        offset += size
    return Content([MAGIC, schema, *messages, trailer(schema, blocks)])


def trailer(schema: bytes, blocks: Iterable[tuple[int, int, int]]) -> bytes:
    """Return the bytes of a file after the last message.

    Args:
        schema: the encapsulated schema message at the head of the file.
        blocks: offset, metadata length and size of each record batch message.

    Raises:
        FrameError: the schema message is damaged, if it was read from a file.
    """
    try:
        footer = _footer(schema[_PREFIX.size :], list(blocks))
    except struct.error as error:
        raise FrameError(f"the schema message is damaged: {error}") from error
    return b"".join([END_OF_STREAM, footer, struct.pack("<i", len(footer)), MAGIC[:6]])


def _footer(message: bytes, blocks: list[tuple[int, int, int]]) -> bytes:
    # The Schema table is not built again. The whole Message around it is embedded after the
    # blocks, and the footer points into it. Its inner offsets are relative, so they stay valid.
    embedded_at = _FOOTER_HEAD.size + _BLOCK.size * len(blocks)
    schema_at = embedded_at + _schema_table(message)
    assert embedded_at % 8 == 0
    head = _FOOTER_HEAD.pack(
        16,  # root table
        *(12, 20, 16, 4, 8, 12),
        12,
        schema_at - 20,
        36 - 24,
        44 - 28,
        _METADATA_VERSION_5,
        0,
        len(blocks),
    )
    packed = b"".join(
        _BLOCK.pack(offset, metadata, size - metadata) for offset, metadata, size in blocks
    )
    return head + packed + message


def _schema_table(message: bytes) -> int:
    """Return the offset of the Schema in a flatbuffer whose root is a Message around it."""
    (table,) = struct.unpack_from("<I", message)
    (back,) = struct.unpack_from("<i", message, table)
    (field,) = struct.unpack_from("<H", message, table - back + 4 + 2 * 2)  # field 2: header
    (forward,) = struct.unpack_from("<I", message, table + field)
    return int(table + field + forward)
