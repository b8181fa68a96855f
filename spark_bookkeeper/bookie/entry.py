"""Entries and parts as they are passed to and from a bookie.

An entry has one of two forms. A *payload* is plain bytes: one row of a batch that many entries
share. Its own bytes are the payload. A *batch* has rows: its own bytes are one encapsulated Arrow
IPC record batch message. Both the form and the bytes are the same on every replica.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie.decoding import read_batch
from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA
from spark_bookkeeper.bookie.framing import UNDECODABLE
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.protocol.plain_names import plain_name


def payload_batch(payload: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch with a payload as its row. ``pa.array`` would look for pandas every time."""
    ends = pa.py_buffer(array("i", (0, len(payload))))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(payload)])
    return pa.RecordBatch.from_arrays([column], schema=schema)


class NewEntry(NamedTuple):
    """An entry to store within a record."""

    entry_id: int
    length_after: int
    """The bytes of the ledger up to and including this entry (BookKeeper's length)."""

    payload: bytes | pa.RecordBatch


@dataclass(frozen=True, slots=True)
class PartRef:
    """A part, described by the task that wrote it. The driver assigns its entry ids later.

    Raises:
        ValueError: its name is not a plain name.
    """

    name: str
    """The file name within the ledger's ``parts``."""

    size_bytes: int
    crc32c: int
    """The checksum of the whole file."""

    first_offset: int
    """The offset of the first entry's message; the others follow without gaps."""

    sizes: tuple[int, ...]
    """The bytes of each entry's message, in order."""

    digests: tuple[bytes, ...]
    """The digest of each entry, in order."""

    def __post_init__(self) -> None:
        plain_name("a part's name", self.name, signs="._-")  # a record may have any text


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A part with the ids of its entries: ascending, one for each entry."""

    ref: PartRef
    entry_ids: tuple[int, ...]
    lengths_after: tuple[int, ...]
    appended_at_ms: int | None = None
    """See ``StoredEntry``."""


class StoredEntry(NamedTuple):
    """An entry that was read and verified against its digest. A named tuple: there may be many."""

    entry_id: int
    length_after: int
    last_add_confirmed: int
    """The value in the record that it was read from, confirmed when that was written."""

    digest: bytes
    is_payload: bool
    """Whether it is a payload; otherwise it is a batch."""

    data: Buffer
    """The entry's own bytes: the payload, or the record batch message."""

    schema: pa.Schema
    """The ledger's schema."""

    message: Buffer | None = None
    """For a payload, the message that it was read from, which other entries may share."""

    message_crc32c: int = 0
    """The verified checksum of that message."""

    row: int = -1
    """Its row in that message."""

    appended_at_ms: int | None = None
    """When its writer accepted it, in milliseconds since 1970 by the writer's clock: for display,
    never for a decision (SLOT-LOG rule R17). ``None`` if an earlier version wrote it."""

    rows: pa.RecordBatch | None = None
    """The result of ``batch``, if a caller has kept it."""

    @property
    def size_bytes(self) -> int:
        """The bytes of the entry itself."""
        return memoryview(self.data).nbytes

    @property
    def payload(self) -> bytes:
        """The payload of an entry with the default schema.

        A batch of that schema with one row has a payload, too.
        """
        if self.is_payload:
            return bytes(self.data)
        batch = self.batch()
        assert batch.schema.equals(PAYLOAD_SCHEMA, check_metadata=False)
        assert batch.num_rows == 1
        value = batch.column(0)[0].as_py()
        return bytes(value) if value is not None else b""

    def batch(self) -> pa.RecordBatch:
        """Return the entry's rows with the ledger's schema.

        Raises:
            CorruptEntryError: the rows match their digest, but cannot be decoded.
        """
        if self.is_payload:
            return payload_batch(bytes(self.data), self.schema)
        if self.rows is not None:
            return self.rows
        try:
            return read_batch(self.data, self.schema)
        except UNDECODABLE as error:
            raise CorruptEntryError(
                f"entry {self.entry_id} cannot be used: its rows cannot be decoded ({error}), as "
                "they were written or as somebody has put them there; read another replica",
                bookie_id="",
                path="",
                entry_id=self.entry_id,
            ) from error
