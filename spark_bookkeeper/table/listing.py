"""The list of a released ledger's entries: all facts about each that its rows do not have.

An Arrow file below the table (``_spark_bookkeeper/<ledger>/<sha256>.arrow``; Delta ignores names
with an underscore, also when it vacuums). The ledger's metadata holds the list's SHA-256, which
binds the contents of the table to the ledger. ``TABLE.md`` describes the format.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.table.snapshot import TableFiles

DIRECTORY: Final = "_spark_bookkeeper"

HEADER_KEY: Final = b"spark-bookkeeper.listing"

ENTRIES: Final = 65_536
"""Number of entries in one batch of the file; only the last batch may have fewer."""

LISTING: Final = pa.schema(
    [
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("length_after", pa.int64(), nullable=False),
        pa.field("last_add_confirmed", pa.int64(), nullable=False),
        pa.field("appended_at_ms", pa.int64()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("is_payload", pa.bool_(), nullable=False),
        pa.field("digest", pa.binary(), nullable=False),
        pa.field("values", pa.binary(16), nullable=False),
        pa.field("patch", pa.binary()),
    ]
)


def listing_path(key: LedgerKey, digest: str) -> str:
    """Return the path of a ledger's list, below its table."""
    return f"{DIRECTORY}/{key}/{digest}.arrow"


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry as the list describes it."""

    entry_id: int
    length_after: int
    last_add_confirmed: int
    appended_at_ms: int | None
    size: int
    rows: int
    is_payload: bool
    digest: bytes
    values: bytes
    """The digest of the values of its rows (``values.py``)."""
    patch: bytes | None
    """Turns the bytes that Arrow makes of the entry's rows into the entry's own bytes; ``None``:
    they are the same."""


class Listing:
    """A list, decoded batch by batch when entries are needed."""

    def __init__(self, data: bytes, key: LedgerKey) -> None:
        """Raise ``ValueError`` (also Arrow's) if it is no list, or that of another ledger."""
        self._reader = pa.ipc.open_file(pa.BufferReader(data))
        header = json.loads((self._reader.schema.metadata or {})[HEADER_KEY])
        if header["format"] != 1 or header["ledger"] != str(key):
            raise ValueError(f"it is the list of ledger {header['ledger']}")
        self.files = TableFiles(header["version"], tuple(header["files"]), header["columns"])
        self.count = int(header["entries"])
        self._batches: dict[int, pa.RecordBatch] = {}

    def entry(self, entry_id: int) -> Listed | None:
        """Return one entry; ``None``: the ledger has no entry with this id."""
        if not 0 <= entry_id < self.count:
            return None
        batch = self._batch(entry_id // ENTRIES)
        row = entry_id % ENTRIES
        return Listed(*(column[row].as_py() for column in batch.columns))

    def table(self, first: int, last: int) -> pa.Table:
        """Return the entries ``first .. last`` as they are in the file (``LISTING``)."""
        last = min(last, self.count - 1)
        if first > last:
            return LISTING.empty_table()
        numbers = range(first // ENTRIES, last // ENTRIES + 1)
        whole = pa.Table.from_batches([self._batch(n) for n in numbers], schema=LISTING)
        return whole.slice(first - numbers[0] * ENTRIES, last - first + 1)

    def _batch(self, number: int) -> pa.RecordBatch:
        found = self._batches.get(number)
        if found is None:
            try:
                found = self._reader.get_batch(number)
                found.validate(full=True)  # without it Arrow trusts the offsets
            except (pa.ArrowException, OSError) as error:
                raise CorruptEntryError(
                    f"the list of a released ledger's entries cannot be decoded ({error}), though "
                    "it has the digest that its name says; restore the ledger from a backup",
                    bookie_id="",
                    path="",
                ) from error
            found = self._batches[number] = pa.RecordBatch.from_arrays(
                found.columns, schema=LISTING
            )
            assert found.column(0)[0].as_py() == number * ENTRIES, "entries are listed in order"
        return found


def encode_listing(key: LedgerKey, files: TableFiles, pieces: Iterable[pa.Table]) -> bytes:
    """Return the bytes of a list. ``pieces`` have the schema ``LISTING``, and have no gaps.

    Raises:
        ValueError: the entries are not those from 0 on without gaps.
    """
    entries = pa.concat_tables(pieces)
    ids = entries["entry_id"].to_numpy()
    if not np.array_equal(ids, np.arange(len(ids))):
        raise ValueError("entries are listed without gaps, from 0 on")
    header = {
        "format": 1,
        "ledger": str(key),
        "entries": len(ids),
        "version": files.version,
        "files": list(files.paths),
        "columns": dict(files.columns),
    }
    told = {HEADER_KEY: json.dumps(header, sort_keys=True).encode()}
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    schema = LISTING.with_metadata(told)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for start in range(0, len(ids), ENTRIES):
            (batch,) = entries.slice(start, ENTRIES).combine_chunks().to_batches()
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    return sink.getvalue()


def digest_of(listing: bytes) -> str:
    """Return the name of a list, which the ledger's metadata holds, too."""
    return sha256(listing).hexdigest()


def to_table(entries: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return entries as a table of the file's schema."""
    return pa.Table.from_pylist(list(entries), schema=LISTING)


def patch_of(made: bytes, original: bytes) -> bytes | None:
    """Return what turns ``made`` into ``original``; ``None`` when they are the same.

    It is tiny where only bytes under nulls or between values differ.
    """
    if made == original:
        return None
    if len(made) != len(original):
        return b"w" + zlib.compress(original)
    return b"x" + zlib.compress(_xor(made, original))


def patched(made: bytes, patch: bytes | None) -> bytes | None:
    """Return the original; ``None`` when ``made`` is not what the patch was made for."""
    if patch is None:
        return made
    data = zlib.decompress(patch[1:])
    if patch[:1] == b"w":
        return data
    return _xor(made, data) if len(made) == len(data) else None


def _xor(one: bytes, other: bytes) -> bytes:
    left, right = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
    return bytes(np.bitwise_xor(left, right).tobytes())
