"""Checking every byte that a bookie holds of a ledger: what ``check_ledgers`` asks for.

Reading verifies entries. This looks at whole files too: that nothing is cut off behind the
entries, and that any Arrow reader will find the batches where the footer says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_bookkeeper.bookie import framing
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import Location
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.messages import Int64Array
from spark_bookkeeper.bookie.reading import EntryReader
from spark_bookkeeper.bookie.record import Record
from spark_bookkeeper.bookie.schema import LedgerKey
from spark_bookkeeper.bookie.storage import Storage
from spark_bookkeeper.errors import BookieError

_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """Something on a bookie that is not as it was written."""

    path: str
    first: int
    """First entry that it concerns."""

    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What a bookie holds of a range of entries, every byte of it read."""

    entry_ids: Int64Array
    """Entries of which a good replica is here, ascending."""

    bytes_read: int
    damages: tuple[Damage, ...]
    """All that was found, also where another replica on the same bookie is good."""


def verify(
    storage: Storage, bookie_id: str, key: LedgerKey, encoding: LedgerEncoding, index: EntryIndex
) -> Verification:
    """Read everything that an index names, each file and each entry.

    Errors of single files become damages; nothing is raised for them.
    """
    reader = EntryReader(storage, bookie_id, encoding)
    damages = [Damage(d.path, d.first, d.last, d.reason) for d in index.doubts]
    good: list[int] = []
    bytes_read = 0
    for holding in index.holdings:
        record = holding.record
        own = _own_file(storage, holding.path, record, encoding)
        if own is not None:
            damages.append(Damage(holding.path, record.first, record.last, own))
        for part in record.parts:
            path = key.part(part.ref.name)
            reason = _part(storage, path, part.ref.size_bytes, part.ref.crc32c)
            if reason is not None:
                damages.append(Damage(path, min(part.entry_ids), max(part.entry_ids), reason))
        for location in record.locations(np.arange(len(record.ids)), key, holding.path):
            if not index.first <= location.entry_id <= index.last:
                continue
            reason = _entry(reader, location)
            if reason is None:
                good.append(location.entry_id)
                bytes_read += location.size
            else:
                damages.append(Damage(location.path, location.entry_id, location.entry_id, reason))
    return Verification(np.unique(np.array(good, dtype=np.int64)), bytes_read, tuple(damages))


def _entry(reader: EntryReader, location: Location) -> str | None:
    try:
        reader.read(location)
    except BookieError as error:
        return error.message
    return None


def _own_file(storage: Storage, path: str, record: Record, encoding: LedgerEncoding) -> str | None:
    """What is wrong with a record's file outside its entries, ``None`` if nothing is."""
    try:
        data = storage.read(path)
    except BookieError as error:
        return error.message
    if data is None:
        return "it is gone"
    try:
        if not framing.read_schema(data).equals(encoding.schema, check_metadata=False):
            return "its schema is not the ledger's"
        sizes = ([record.row_extent] if record.row_count else []) + [
            int(size) for size in record.sizes[record.row_count : record.inline_count]
        ]
        blocks, offset = [], record.header_bytes
        for size in sizes:
            blocks.append((offset, framing.metadata_length(data[offset : offset + 8]), size))
            offset += size
        schema = data[len(framing.MAGIC) : record.header_bytes]
        if data[offset:] != framing.trailer(schema, blocks):
            return "the end of the file is damaged or missing"
    except framing.FrameError as error:
        return str(error)
    return None


def _part(storage: Storage, path: str, size: int, checksum: int) -> str | None:
    value = 0
    try:
        actual = storage.size(path)
        if actual is None:
            return "it is missing"
        if actual != size:
            return f"it has {actual} bytes instead of {size}"
        for offset in range(0, size, _READ_BYTES):
            value = crc(storage.read_range(path, offset, _READ_BYTES) or b"", value)
    except BookieError as error:
        return error.message
    return None if value == checksum else "it does not match its checksum"
