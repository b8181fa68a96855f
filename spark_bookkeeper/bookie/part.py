"""Parts: bulk entries that a task streams into a file of their own.

The encoder holds no more than Arrow's view of one batch: large buffers go to ``write`` as they
are, without a copy, so one encoder can feed the files of a whole write quorum.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie import framing
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.bookie.schema import FORMAT_VERSION, PART_KEY, LedgerKey
from spark_bookkeeper.protocol.metadata import DigestType

_COALESCED_BYTES: Final = 1 << 16
"""Pieces smaller than this are gathered before they are written."""

_PREFIX_BYTES: Final = 8
"""Of a message: continuation mark and length."""


class PartEncoder:
    """Encodes batches, an entry each, into one Arrow IPC file handed out piece by piece.

    Args:
        key: the ledger's life.
        encoding: the ledger's.
        write: takes the next bytes of the file; called with buffers of any size, in order.
    """

    def __init__(
        self, key: LedgerKey, encoding: LedgerEncoding, write: Callable[[Buffer], None]
    ) -> None:
        note = json.dumps(
            {"version": FORMAT_VERSION, "ledger_id": key.ledger_id, "nonce": key.nonce},
            sort_keys=True,
        )
        schema = encoding.schema
        schema = schema.with_metadata({**(schema.metadata or {}), PART_KEY: note})
        self._encoding = encoding
        self._schema_message = framing.schema_message(schema)
        self._first_offset = len(framing.MAGIC) + len(self._schema_message)
        self._blocks: list[tuple[int, int, int]] = []
        self._digests: list[bytes] = []
        self._sink = _Sink(write, encoding, skipped=len(self._schema_message))
        self._sink.emit(framing.MAGIC + self._schema_message)
        self._writer = pa.ipc.new_stream(
            pa.PythonFile(self._sink, "w"), schema, options=encoding.write_options
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the file so far."""
        return self._sink.position

    def add(self, batch: pa.RecordBatch) -> None:
        """Append one entry.

        Raises:
            InvalidArgumentError: the batch does not have the ledger's schema.
        """
        start = self._sink.position
        self._writer.write_batch(self._encoding.conform(batch))
        prefix, digest = self._sink.end_entry()
        metadata = framing.metadata_length(prefix)
        self._blocks.append((start, metadata, self._sink.position - start))
        self._digests.append(digest)

    def finish(self, name: str) -> PartRef:
        """Write the rest of the file. The caller makes it durable (SLOT-LOG rule R15)."""
        self._sink.emit(framing.trailer(self._schema_message, self._blocks))
        self._sink.drain()
        return PartRef(
            name=name,
            size_bytes=self._sink.position,
            crc32c=self._sink.crc32c,
            first_offset=self._first_offset,
            sizes=tuple(size for _, _, size in self._blocks),
            digests=tuple(self._digests),
        )


class _Sink:
    """What Arrow's stream writer writes to: counts, digests and passes on.

    Arrow writes the schema message once more, before the first batch; it is skipped.
    """

    closed = False

    def __init__(
        self, write: Callable[[Buffer], None], encoding: LedgerEncoding, skipped: int
    ) -> None:
        self.position = 0
        self.crc32c = 0
        self._write = write
        self._digester = encoding.digester()
        self._is_crc32c = encoding.digest_type is DigestType.CRC32C
        self._skipped = skipped
        self._small = bytearray()
        self._prefix = b""
        self._entry_crc32c = 0
        self._entry: list[Buffer] = []

    def write(self, data: Buffer) -> int:
        """Arrow's next piece of the stream."""
        size = memoryview(data).nbytes
        if self._skipped:
            self._skipped -= size
            assert self._skipped >= 0
            return size
        if len(self._prefix) < _PREFIX_BYTES:
            self._prefix += bytes(memoryview(data)[: _PREFIX_BYTES - len(self._prefix)])
        if self._is_crc32c:
            self._entry_crc32c = crc(data, self._entry_crc32c)
        else:
            self._entry.append(data)
        self.emit(data)
        return size

    def emit(self, data: Buffer) -> None:
        """The next piece of the file."""
        size = memoryview(data).nbytes
        self.position += size
        self.crc32c = crc(data, self.crc32c)
        if size < _COALESCED_BYTES:
            self._small += memoryview(data)
            if len(self._small) >= _COALESCED_BYTES:
                self.drain()
        else:
            self.drain()
            self._write(data)

    def end_entry(self) -> tuple[bytes, bytes]:
        """Prefix and digest of the message that has just been written."""
        if self._is_crc32c:
            digest = self._entry_crc32c.to_bytes(4, "little")
        else:
            digest = self._digester.digest(b"".join(self._entry))
        prefix, self._prefix, self._entry_crc32c = self._prefix, b"", 0
        self._entry.clear()
        return prefix, digest

    def drain(self) -> None:
        """Pass on what was gathered."""
        if self._small:
            self._write(bytes(self._small))
            self._small.clear()

    def flush(self) -> None:
        """Asked by Arrow; nothing to do."""

    def close(self) -> None:
        """Asked by Arrow; nothing to do."""
