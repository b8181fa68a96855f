"""Entries and parts on their way into and out of a bookie.

An entry has one of two forms. *Payload*: plain bytes, one row of a batch that many entries
share; its own bytes are the payload. *Batch*: rows, its own bytes are one encapsulated Arrow
IPC record batch message. The form, like the bytes, is the same on every replica.
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
    """The one row of a payload. Not by ``pa.array``, which looks for pandas every time."""
    ends = pa.py_buffer(array("i", (0, len(payload))))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(payload)])
    return pa.RecordBatch.from_arrays([column], schema=schema)


class NewEntry(NamedTuple):
    """An entry to be stored within a record."""

    entry_id: int
    length_after: int
    """Bytes in the ledger up to and including this entry (BookKeeper's length)."""

    payload: bytes | pa.RecordBatch


@dataclass(frozen=True, slots=True)
class PartRef:
    """A part as the task that wrote it knows it: entry ids are assigned later by the driver.

    Raises:
        ValueError: its name is not a plain one.
    """

    name: str
    """File name within the ledger's ``parts``."""

    size_bytes: int
    crc32c: int
    """Of the whole file."""

    first_offset: int
    """Where the first entry's message begins; the others follow without gaps."""

    sizes: tuple[int, ...]
    """Bytes of each entry's message, in order."""

    digests: tuple[bytes, ...]
    """Digest of each entry, in order."""

    def __post_init__(self) -> None:
        plain_name("a part's name", self.name, signs="._-")  # a record says anything


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A part whose entries have their ids. Ascending, as many as the part has entries."""

    ref: PartRef
    entry_ids: tuple[int, ...]
    lengths_after: tuple[int, ...]
    appended_at_ms: int | None = None
    """See ``StoredEntry``."""


class StoredEntry(NamedTuple):
    """An entry that was read and verified against its digest. There may be very many."""

    entry_id: int
    length_after: int
    last_add_confirmed: int
    """Carried by the record it was read from; confirmed when that was written."""

    digest: bytes
    is_payload: bool
    """Which of the two forms it has."""

    data: Buffer
    """The entry's own bytes: the payload, or the record batch message."""

    schema: pa.Schema
    """The ledger's."""

    message: Buffer | None = None
    """Of a payload, the message that it was read from, as other entries have it too."""

    message_crc32c: int = 0
    """The checksum of that message, with which it was compared."""

    row: int = -1
    """Its row there."""

    appended_at_ms: int | None = None
    """When its writer took it, in milliseconds since 1970 by the writer's clock: for people, and
    never for a decision (SLOT-LOG rule R17). ``None`` where an earlier version wrote it."""

    rows: pa.RecordBatch | None = None
    """What ``batch`` gives, where somebody has asked for it and kept it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the entry itself."""
        return memoryview(self.data).nbytes

    @property
    def payload(self) -> bytes:
        """The payload of an entry of the default schema.

        An entry that is a batch of that schema with one row has one too.
        """
        if self.is_payload:
            return bytes(self.data)
        batch = self.batch()
        assert batch.schema.equals(PAYLOAD_SCHEMA, check_metadata=False)
        assert batch.num_rows == 1
        value = batch.column(0)[0].as_py()
        return bytes(value) if value is not None else b""

    def batch(self) -> pa.RecordBatch:
        """The entry's rows under the ledger's schema.

        Raises:
            CorruptEntryError: they cannot be decoded, though they match their digest.
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
