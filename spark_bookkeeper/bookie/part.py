"""Parts: files of bulk entries, each streamed by one task.

The encoder holds at most one entry. It passes each large message to ``write`` without a copy, so
one encoder can write the files of a whole write quorum.
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
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.messages import encode_batches
from spark_bookkeeper.bookie.schema import FORMAT_VERSION, PART_KEY

_COALESCED_BYTES: Final = 1 << 16
"""Pieces smaller than this are joined before they are written."""


def part_name(attempt: str, part: int, stripe: int) -> str:
    """Return the name of a part: ``<attempt>-<part>-<stripe>.arrow``.

    Args:
        attempt: the token of one task attempt, never used before (SLOT-LOG rules R15, R16).
        part: the number of the part within the attempt.
        stripe: the stripe class (``entry_id mod E``), 0 if the ledger is not striped.
    """
    return f"{attempt}-{part}-{stripe}.arrow"


class PartEncoder:
    """Encodes batches, an entry each, into one Arrow IPC file that is written piece by piece.

    Args:
        key: the ledger's key.
        encoding: the ledger's encoding.
        write: receives the next bytes of the file. The buffers come in order, have any size, and
            do not change afterwards.
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
        self.size_bytes = 0
        """The bytes of the file so far."""
        self._crc32c = 0
        self._small = bytearray()
        self._write = write
        self._encoding = encoding
        self._digester = encoding.digester()
        self._schema_message = framing.schema_message(schema)
        self._first_offset = len(framing.MAGIC) + len(self._schema_message)
        self._blocks: list[tuple[int, int, int]] = []
        self._digests: list[bytes] = []
        self._emit(framing.MAGIC + self._schema_message)

    def add(self, batch: pa.RecordBatch) -> None:
        """Append one entry, whose rows have the ledger's schema."""
        (message,) = encode_batches(self._encoding, [batch])
        self._blocks.append((self.size_bytes, framing.metadata_length(message), message.size))
        self._digests.append(self._digester.digest(message))
        self._emit(message)

    def finish(self, name: str) -> PartRef:
        """Write the rest of the file. The caller makes it durable (SLOT-LOG rule R15)."""
        self._emit(framing.trailer(self._schema_message, self._blocks))
        self._drain()
        return PartRef(
            name=name,
            size_bytes=self.size_bytes,
            crc32c=self._crc32c,
            first_offset=self._first_offset,
            sizes=tuple(size for _, _, size in self._blocks),
            digests=tuple(self._digests),
        )

    def _emit(self, data: Buffer) -> None:
        size = memoryview(data).nbytes
        self.size_bytes += size
        self._crc32c = crc(data, self._crc32c)
        if size < _COALESCED_BYTES:
            self._small += memoryview(data)
        if size >= _COALESCED_BYTES or len(self._small) >= _COALESCED_BYTES:
            self._drain()
        if size >= _COALESCED_BYTES:
            self._write(data)

    def _drain(self) -> None:
        if self._small:
            self._write(bytes(self._small))
            self._small.clear()
