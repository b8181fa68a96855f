"""Records: the content of one slot or one copy.

A writer puts an ``ADD``; a ``FENCE`` has no owner; a ``COPY`` is outside the slots. Each is an
Arrow IPC file whose schema metadata is the header. The header lists every entry with its length,
size and digest, and has a digest itself. So the header alone proves which entries a record holds,
and each entry is verified when it is read.

Source: SLOT-LOG, "Objects"; ``FORMAT.md``.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import accumulate, chain, groupby, repeat
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie import framing
from spark_bookkeeper.bookie.decoding import read_batch
from spark_bookkeeper.bookie.digest import Digester, crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, PartRef, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.lazy import given_of, lazy
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.location import NO_ROW, Location
from spark_bookkeeper.bookie.messages import (
    NOTHING,
    EncodedEntries,
    Int64Array,
    encode_entries,
    int64s,
    payload_message,
    read_only,
)
from spark_bookkeeper.bookie.schema import (
    COPY_DIGITS,
    DIGEST_KEY,
    DIGESTS_KEY,
    ENTRIES_KEY,
    FORMAT_VERSION,
    RECORD_KEY,
    LedgerPaths,
    copy_name,
)
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.protocol.ids import NO_ENTRY
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.storage.storage import Content

_HEADER_KEYS: Final = (RECORD_KEY, ENTRIES_KEY, DIGESTS_KEY, DIGEST_KEY)

_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

_FEW: Final = 64
"""The most entries whose locations a record caches."""

_FENCE_ENCODING: Final = LedgerEncoding(pa.schema([]))
"""The encoding of a fence, which has no owner, so no password, and no rows."""


class RecordKind(enum.Enum):
    """The kinds of record."""

    ADD = "ADD"
    FENCE = "FENCE"
    COPY = "COPY"


@dataclass(frozen=True, eq=False)
class Record:
    """A decoded, verified header. Columns are in storage order.

    Two records are the same if their bytes are (SLOT-LOG rule R3), so headers do not compare.

    Storage order: payload entries (rows of the first message), then batch entries (a message
    each), then the entries of each part.
    """

    kind: RecordKind
    token: str
    """The writer session that made an ADD; empty for other kinds."""

    slot: int
    """-1 for a COPY, and for a FENCE, which is the same bytes in every slot."""

    first: int
    """Lowest entry id. For an ADD without entries, ``last`` is its ``last_add_confirmed`` and
    ``first`` the entry after that, so that slots ascend in entry ids."""

    last: int
    last_add_confirmed: int
    parts: tuple[PlacedPart, ...]
    spans: tuple[tuple[int, int], ...]
    """Ranges of entries, first and last, each written by one task."""

    header_bytes: int
    """Offset of the first record batch message."""

    row_count: int
    """Number of payload entries; they share the first message."""

    row_extent: int
    """Size of that message in bytes, 0 if there is none."""

    row_crc32c: int
    inline_count: int
    """Number of entries within the record itself, of both forms."""

    ids: Int64Array
    lengths: Int64Array
    sizes: Int64Array
    digests: bytes
    digest_width: int
    times: tuple[tuple[int, int | None], ...] = ()
    """When entries were appended, by their writer's clock: runs ``(number, ms since 1970)`` in
    storage order. Empty in records of an earlier version."""

    _few: tuple[str, tuple[Location, ...]] = field(default=("", ()), init=False, repr=False)
    """The last result of ``few``, with its path."""

    def __getstate__(self) -> dict[str, Any]:
        return given_of(self)

    @lazy
    def _offsets(self) -> Int64Array:
        offsets: Int64Array = np.zeros(len(self.ids), dtype=np.int64)
        offsets[: self.row_count] = self.header_bytes
        _lay_out(
            offsets, self.sizes, self.row_count, self.inline_count,
            self.header_bytes + self.row_extent
        )  # fmt: skip
        at = self.inline_count
        for part in self.parts:
            end = at + len(part.entry_ids)
            _lay_out(offsets, self.sizes, at, end, part.ref.first_offset)
            at = end
        return offsets

    def digest(self, position: int) -> bytes:
        """Return the digest of the entry at an index in the columns."""
        return self.digests[position * self.digest_width : (position + 1) * self.digest_width]

    @lazy
    def _ends(self) -> Int64Array:
        """Return the ends, in the columns, of the record's own entries and of each part's."""
        counts = [self.inline_count, *(len(part.entry_ids) for part in self.parts)]
        return int64s(accumulate(counts))

    @lazy
    def messages(self) -> Int64Array:
        """Return for each entry, in storage order, the first entry of its message."""
        numbers: Int64Array = np.arange(len(self.ids), dtype=np.int64)
        numbers[: self.row_count] = 0
        return read_only(numbers)

    @lazy
    def is_rising(self) -> bool:
        """Whether the record holds its entries in ascending order, each once."""
        return bool((self.ids[1:] > self.ids[:-1]).all())

    def few(self, at: LedgerPaths, path: str) -> Sequence[Location]:
        """Return the locations of all its entries if they are few; else ``None``.

        They are computed once: the record has the same path on every bookie.
        """
        if not 0 < len(self.ids) <= _FEW:
            return ()
        of_path, known = self._few
        if of_path != path:
            if (
                len(self.ids) == self.inline_count == 1
            ):  # as in most small files: faster than columns
                known = (self._only_place(path),)
            else:
                known = tuple(self.locations(np.arange(len(self.ids)), at, path))
            object.__setattr__(self, "_few", (path, known))  # all threads compute equal values
        return known

    def _only_place(self, path: str) -> Location:
        size = int(self.sizes[0])
        return Location(
            self.first,
            path,
            self.header_bytes,
            self.row_extent if self.row_count else size,
            self.row_crc32c,
            0 if self.row_count else NO_ROW,
            size,
            int(self.lengths[0]),
            self.last_add_confirmed,
            self.digests,
            self.times[0][1] if self.times else None,
        )

    def location(self, position: int, at: LedgerPaths, path: str) -> Location:
        """Return the location of the entry at an index in the columns; ``path`` is the record's."""
        return next(self.locations(np.array([position]), at, path))

    def locations(self, positions: Int64Array, at: LedgerPaths, path: str) -> Iterator[Location]:
        """Return many locations, computed by column: there may be thousands of small entries."""
        paths = [path, *(at.part(part.ref.name) for part in self.parts)]
        files = self._ends.searchsorted(positions, side="right").tolist()
        sizes = self.sizes[positions]
        is_row = positions < self.row_count
        return map(
            Location,
            self.ids[positions].tolist(),
            (paths[file] for file in files) if self.parts else repeat(path),
            self._offsets[positions].tolist(),
            np.where(is_row, self.row_extent, sizes).tolist(),
            repeat(self.row_crc32c),
            np.where(is_row, positions, NO_ROW).tolist(),
            sizes.tolist(),
            self.lengths[positions].tolist(),
            repeat(self.last_add_confirmed),
            map(self.digest, positions.tolist()),
            self._times(positions),
        )

    @lazy
    def times_ms(self) -> Int64Array:
        """Return the time at which each entry was appended, -1 if unknown."""
        if not self.times:
            return read_only(np.full(len(self.ids), -1, dtype=np.int64))
        counts = [count for count, _ in self.times]
        values = [-1 if time_ms is None else time_ms for _, time_ms in self.times]
        return read_only(np.repeat(np.array(values, dtype=np.int64), counts))

    def _times(self, positions: Int64Array) -> Iterator[int | None]:
        """Return the times at which the entries at some indices in the columns were appended."""
        if len(self.times) <= 1:  # an ADD has one time
            return repeat(self.times[0][1] if self.times else None)
        ends = np.cumsum([count for count, _ in self.times])
        return (self.times[run][1] for run in ends.searchsorted(positions, side="right").tolist())


def encode_add(
    key: LedgerKey,
    encoding: LedgerEncoding,
    token: str,
    slot: int,
    last_add_confirmed: int,
    entries: Sequence[NewEntry] | EncodedEntries = (),
    parts: Sequence[PlacedPart] = (),
    spans: Sequence[tuple[int, int]] = (),
    appended_at_ms: int | None = None,
) -> bytes:
    """Encode an ADD slot. The bytes are fixed before the first put; repeats are equal (rule R3).

    Args:
        key: the ledger's life.
        encoding: the ledger's.
        token: the writer session's, never used before (rule R16).
        slot: the number of the slot; part of the bytes, so that a record is valid in one slot only.
        last_add_confirmed: the last entry that is confirmed already (rule R10).
        entries: entries within the record; encode them once for all bookies of a write set.
            Without any, and without parts, the record is an explicit LAC.
        parts: files written by tasks, synced, listed by this record alone (rule R15).
        spans: ranges of entries, first and last, each written by one task.
        appended_at_ms: the time of the writer's clock for all its entries, for people.
    """
    if not isinstance(entries, EncodedEntries):
        entries = encode_entries(encoding, entries)
    header = {
        "version": FORMAT_VERSION,
        "kind": RecordKind.ADD.value,
        "token": token,
        "slot": slot,
        "last_add_confirmed": last_add_confirmed,
        "spans": [list(span) for span in spans],
    }
    if appended_at_ms is not None:
        header["time_ms"] = appended_at_ms
    return bytes(_encode(key, encoding, header, entries, parts))


def encode_fence(key: LedgerKey) -> bytes:
    """Encode a FENCE: the same bytes in every slot and from every client, since it has no owner."""
    header = {"version": FORMAT_VERSION, "kind": RecordKind.FENCE.value}
    return bytes(_encode(key, _FENCE_ENCODING, header, NOTHING, ()))


def encode_copy(
    key: LedgerKey,
    encoding: LedgerEncoding,
    entries: Sequence[StoredEntry],
    parts: Sequence[PlacedPart] = (),
    *,
    era: str,
) -> tuple[str, Content]:
    """Encode a COPY; return its name and its bytes.

    The name follows from the entries (ids, lengths, digests, bytes) and ends in ``LedgerRef.era``.
    So all clients that copy the same entries to a bookie write the same file, and another one
    after copies were removed there.
    """
    assert entries or parts, "a copy holds something"
    rows = sorted((e for e in entries if e.is_payload), key=lambda e: e.entry_id)
    batches = sorted((e for e in entries if not e.is_payload), key=lambda e: e.entry_id)
    ordered = [*rows, *batches]
    messages: list[Buffer] = []
    row_crc32c = 0
    if rows:
        message = _shared_message(rows)
        if message is not None:
            row_crc32c = rows[0].message_crc32c
        else:
            message = payload_message(encoding, [bytes(entry.data) for entry in rows])
            row_crc32c = crc(message)
        messages.append(message)
    encoded = EncodedEntries(
        messages=(*messages, *(entry.data for entry in batches)),
        row_count=len(rows),
        row_crc32c=row_crc32c,
        ids=[entry.entry_id for entry in ordered],
        lengths=[entry.length_after for entry in ordered],
        sizes=[entry.size_bytes for entry in ordered],
        digests=b"".join(entry.digest for entry in ordered),
    )
    header = {
        "version": FORMAT_VERSION,
        "kind": RecordKind.COPY.value,
        "last_add_confirmed": max(
            (entry.last_add_confirmed for entry in entries), default=NO_ENTRY
        ),
    }
    times = _runs(
        [entry.appended_at_ms for entry in ordered]
        + [part.appended_at_ms for part in parts for _ in part.entry_ids]
    )
    if any(time is not None for _, time in times):
        header["times"] = times
    ids, lengths = list(encoded.ids), encoded.lengths
    identity = sha256(f"{LedgerPaths(key).directory}\n{tuple(ids)}\n{tuple(lengths)}\n".encode())
    identity.update(encoded.digests)
    checksums = encoded.digests  # verified when the entries were read
    if encoding.digest_type is not DigestType.CRC32C:
        checksums = Digester(DigestType.CRC32C, b"").digests([entry.data for entry in ordered])
    identity.update(checksums)
    for part in parts:
        identity.update(f"{part.ref!r}\n{part.entry_ids}\n{part.lengths_after}\n".encode())
    ids += [entry_id for part in parts for entry_id in part.entry_ids]
    name = copy_name(min(ids), max(ids), identity.hexdigest()[:COPY_DIGITS], era)
    return name, _encode(key, encoding, header, encoded, parts)


def _runs(times: Sequence[int | None]) -> list[tuple[int, int | None]]:
    """Return runs of equal times: how many, and the time."""
    return [(len(list(same)), time) for time, same in groupby(times)]


def _shared_message(rows: Sequence[StoredEntry]) -> Buffer | None:
    """Return the message that the payloads were read from, if it holds just them, in this order."""
    message = rows[0].message
    if message is None:
        return None
    if any(entry.message is not message or entry.row != n for n, entry in enumerate(rows)):
        return None
    batch = read_batch(message, rows[0].schema)
    return message if batch.num_rows == len(rows) else None


def _encode(
    key: LedgerKey,
    encoding: LedgerEncoding,
    header: dict[str, Any],
    entries: EncodedEntries,
    parts: Sequence[PlacedPart],
) -> Content:
    for part in parts:
        assert len(part.entry_ids) == len(part.ref.sizes) == len(part.lengths_after)
    ids = [*entries.ids, *chain.from_iterable(part.entry_ids for part in parts)]
    lengths = chain(entries.lengths, *(part.lengths_after for part in parts))
    sizes = chain(entries.sizes, *(part.ref.sizes for part in parts))
    confirmed = header.get("last_add_confirmed", NO_ENTRY)
    behind = confirmed + 1 if header["kind"] == RecordKind.ADD.value else NO_ENTRY
    header |= {
        "ledger_id": key.ledger_id,
        "nonce": key.nonce,
        "digest_type": encoding.digest_type.name,
        "first": min(ids, default=behind),
        "last": max(ids, default=confirmed),
        "inline": len(entries.ids),
        "rows": [entries.row_count, entries.row_extent, entries.row_crc32c],
        "parts": [
            {
                "name": part.ref.name,
                "bytes": part.ref.size_bytes,
                "crc32c": part.ref.crc32c,
                "first_offset": part.ref.first_offset,
                "entries": len(part.entry_ids),
            }
            for part in parts
        ],
    }
    values = (
        _JSON.encode(header).encode(),
        struct.pack(f"<{3 * len(ids)}q", *ids, *lengths, *sizes),
        b"".join([entries.digests, *(d for part in parts for d in part.ref.digests)]),
    )
    digest = encoding.digester().header_digest(values)
    metadata = dict(zip(_HEADER_KEYS, (*values, digest), strict=True))
    return framing.assemble(framing.header_message(encoding.schema, metadata), entries.messages)


def decode(
    data: Buffer, key: LedgerKey, encoding: LedgerEncoding, *, bookie_id: str = "", path: str = ""
) -> Record:
    """Decode and verify a record's header. ``data`` may end anywhere behind the header.

    Raises:
        CorruptEntryError: it is damaged, cut short, of another ledger, or not a record.
    """
    try:
        # The bookies of a write set have the same bytes, and a recovery reads all of them.
        end = framing.header_end(data)
        source = None
        if end <= _HEADER_KEPT_BYTES:
            data = bytes(memoryview(data)[: end + framing.MARK_BYTES])
            source = id(encoding), key.ledger_id, key.nonce, data
            if (known := _decoded.get(source)) is not None:
                return known[1]
        record = _decode(data, end, key, encoding)
    except framing.UNDECODABLE as error:
        raise CorruptEntryError(
            f"{bookie_id} {path}: not a valid record of ledger {key.ledger_id} ({error}); "
            "use another replica",
            bookie_id=bookie_id,
            path=path,
        ) from error
    if source is not None:
        if len(_decoded) >= _DECODED_KEPT:
            _decoded.clear()
        _decoded[source] = encoding, record
    return record


_HEADER_KEPT_BYTES: Final = 4096
"""The largest header that is cached with its decoded values."""

_DECODED_KEPT: Final = 1024
"""The number of cached headers at which the cache is cleared."""

_Source: TypeAlias = tuple[int, int, str, bytes]
"""The encoding's identity, which is faster than its hash; the parts of the ledger's key, which are
faster than the key; and the decoded bytes.
"""

_decoded: dict[_Source, tuple[LedgerEncoding, Record]] = {}
"""Short headers that were decoded last, with the encoding, because its identity is in the key."""


def _decode(data: Buffer, header_bytes: int, key: LedgerKey, encoding: LedgerEncoding) -> Record:
    metadata = framing.read_schema(data, header_bytes).metadata or {}
    if missing := [key for key in _HEADER_KEYS if key not in metadata]:
        raise ValueError(f"its header lacks {missing[0].decode()}")
    values = (metadata[RECORD_KEY], metadata[ENTRIES_KEY], metadata[DIGESTS_KEY])
    # Nothing is decoded before its digest is verified.
    digester = encoding.digester()
    if metadata[DIGEST_KEY] != digester.header_digest(values):
        encoding = _FENCE_ENCODING
        digester = encoding.digester()
        if metadata[DIGEST_KEY] != digester.header_digest(values):
            raise ValueError("the header does not match its digest")
    header = json.loads(values[0].decode())
    if header["version"] > FORMAT_VERSION:
        raise ValueError(f"format version {header['version']} is newer than this library")
    kind = RecordKind(header["kind"])
    if kind is RecordKind.FENCE:
        encoding = _FENCE_ENCODING
        digester = encoding.digester()
    elif encoding is _FENCE_ENCODING:
        raise ValueError("the header does not match its digest")
    if (header["ledger_id"], header["nonce"]) != (key.ledger_id, key.nonce):
        raise ValueError(f"it belongs to ledger {header['ledger_id']}-{header['nonce']}")
    if header["digest_type"] != encoding.digest_type.name:
        raise ValueError(f"digest type {header['digest_type']} is not the ledger's")
    columns = np.frombuffer(values[1], dtype="<i8").reshape(3, -1)  # of bytes: read-only
    count = columns.shape[1]
    width = digester.width
    if len(values[2]) != width * count:
        raise ValueError("there are not as many digests as entries")
    times = _times_of(header, count)
    parts, at = [], int(header["inline"])
    for part in header["parts"]:
        end = at + int(part["entries"])
        placed = _placed(part, columns[:, at:end], values[2], width, at)
        parts.append(replace(placed, appended_at_ms=_time_at(times, at)))
        at = end
    if at != count:
        raise ValueError("the columns do not fit the parts")
    record = Record.__new__(Record)  # ``__init__`` of a frozen class has a call for each value
    record.__dict__.update(
        kind=kind,
        token=header.get("token", ""),
        slot=header.get("slot", -1),
        first=header["first"],
        last=header["last"],
        last_add_confirmed=header.get("last_add_confirmed", NO_ENTRY),
        parts=tuple(parts),
        spans=tuple((first, last) for first, last in header.get("spans", ())),
        header_bytes=header_bytes,
        row_count=header["rows"][0],
        row_extent=header["rows"][1],
        row_crc32c=header["rows"][2],
        inline_count=header["inline"],
        ids=columns[0],
        lengths=columns[1],
        sizes=columns[2],
        digests=values[2],
        digest_width=width,
        times=times,
    )
    return record


def _times_of(header: dict[str, Any], count: int) -> tuple[tuple[int, int | None], ...]:
    if "time_ms" in header:
        return ((count, int(header["time_ms"])),)
    return tuple((int(n), None if ms is None else int(ms)) for n, ms in header.get("times", ()))


def _time_at(times: Sequence[tuple[int, int | None]], index: int) -> int | None:
    for count, time in times:
        index -= count
        if index < 0:
            return time
    return None


def _placed(
    part: dict[str, Any], columns: Int64Array, digests: bytes, width: int, at: int
) -> PlacedPart:
    count = columns.shape[1]
    ref = PartRef(
        name=part["name"],
        size_bytes=part["bytes"],
        crc32c=part["crc32c"],
        first_offset=part["first_offset"],
        sizes=tuple(columns[2].tolist()),
        digests=tuple(digests[(at + i) * width : (at + i + 1) * width] for i in range(count)),
    )
    return PlacedPart(ref, tuple(columns[0].tolist()), tuple(columns[1].tolist()))


def _lay_out(offsets: Int64Array, sizes: Int64Array, start: int, end: int, first: int) -> None:
    """Yield messages that follow each other without gaps, from the offset ``first`` on."""
    if start < end:
        ends = list(accumulate(sizes[start:end].tolist(), initial=first))
        offsets[start:end] = ends[:-1]
