"""Damage to files, bit by bit and byte by byte, and a ledger with every kind of file to damage."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, PartRef, PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.schema import LedgerPaths
from tests.support.slotlog import Log, every_place

TYPED: Final = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("name", pa.string())])),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("at", pa.timestamp("us", tz="Europe/Zurich")),
        ("price", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("is_good", pa.bool_()),
    ]
)
"""Columns of every sort: with and without nulls, nested, dictionary-encoded, with a zone."""


def typed_rows(start: int, count: int) -> pa.RecordBatch:
    """Rows of ``TYPED``, from row ``start`` on."""
    zone = datetime.timezone.utc
    rows = [
        {
            "n": n,
            "small": None if n % 3 == 0 else n % 100,
            "text": None if n % 4 == 1 else f"row {n}",
            "tags": None if n % 5 == 2 else [f"t{k}" for k in range(n % 3)],
            "place": None if n % 5 == 3 else {"x": n / 8, "name": f"p{n}"},
            "kind": ["red", "green", None][n % 3],
            "at": datetime.datetime(2024, 3, 31, 1, n % 60, tzinfo=zone),
            "price": Decimal(n) / 4 if n % 2 else None,
            "day": datetime.date(2024, 1, 1 + n % 28),
            "is_good": None if n % 6 == 0 else n % 2 == 0,
        }
        for n in range(start, start + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=TYPED)


@dataclass(frozen=True, slots=True)
class Damage:
    """One way in which a file is not as it was written."""

    kind: Literal["flip", "cut", "junk"]
    at: int
    """The bit that is flipped, the length that is left, or how many bytes are added."""

    def apply(self, data: bytes) -> bytes:
        """The damaged content."""
        if self.kind == "flip":
            changed = bytearray(data)
            changed[self.at // 8] ^= 1 << self.at % 8
            return bytes(changed)
        if self.kind == "cut":
            return data[: self.at]
        return data + random.Random(self.at).randbytes(self.at)


def every_damage(size_bytes: int) -> Iterator[Damage]:
    """Each bit flipped, the file cut at each length, and junk behind its end."""
    for bit in range(size_bytes * 8):
        yield Damage("flip", bit)
    for length in range(size_bytes):
        yield Damage("cut", length)
    for count in (1, 8, 1000):
        yield Damage("junk", count)


def some_damages(dice: random.Random, size_bytes: int, count: int) -> list[Damage]:
    """The same, drawn: flips evenly over the file, so that no part of it is left out, and cuts."""
    step = size_bytes / count
    flips = [
        Damage("flip", 8 * min(size_bytes - 1, int((n + dice.random()) * step)) + dice.randrange(8))
        for n in range(count)
    ]
    cuts = [Damage("cut", length) for length in {0, 1, size_bytes - 1, dice.randrange(size_bytes)}]
    return [*flips, *cuts, Damage("junk", dice.randrange(1, 100))]


def write_part(
    log: LedgerLog, name: str, batches: Sequence[pa.RecordBatch], first: int
) -> PlacedPart:
    """A part on a bookie, an entry for each batch from ``first`` on."""
    sink = log.parts.create(name)
    encoder = PartEncoder(log.key, log.encoding, sink.write)
    for batch in batches:
        encoder.add(batch)
    ref: PartRef = encoder.finish(name)
    sink.finish()
    ids = tuple(range(first, first + len(batches)))
    return PlacedPart(ref, ids, tuple(1000 * (entry_id + 1) for entry_id in ids))


@dataclass(frozen=True, slots=True)
class Specimen:
    """A small ledger on one bookie: every kind of record, and of file."""

    rows: dict[int, pa.RecordBatch]
    """What each entry holds, under the ledger's schema."""

    @classmethod
    def write(cls, log: Log) -> Specimen:
        """Write it: slots with entries of both forms and with a part, copies of both kinds (one of
        them lists the part that a slot lists too), a fence, and the tombstone of another ledger.
        """
        has_payload = log.encoding.has_payload
        given: dict[int, bytes | pa.RecordBatch] = {}
        for entry_id in range(6):
            if has_payload and entry_id in (0, 1, 4):
                given[entry_id] = b"payload %d" % entry_id
            elif has_payload:
                values = pa.array([b"row", b"of %d" % entry_id, None], pa.binary())
                given[entry_id] = pa.record_batch([values], schema=log.encoding.schema)
            else:
                given[entry_id] = typed_rows(2 * entry_id, entry_id % 3 + 1).cast(
                    log.encoding.schema
                )

        def add(slot: int, entries: Sequence[int], parts: Sequence[PlacedPart] = ()) -> None:
            new = [NewEntry(e, 1000 * (e + 1), given[e]) for e in entries]
            log.add(slot, encode_add(log.key, log.encoding, "w1", slot, -1, new, parts))

        log.prepare()
        add(0, (0, 1, 2))
        part = write_part(log, "a-0-0.arrow", [cls._rows(log.encoding, given[3])], 3)
        add(1, (), (part,))
        add(2, (4, 5))
        log.write_copy(list(log.reader.entries(every_place(log.locate(1, 2)))))
        log.write_copy((), (part,))
        log.fence()
        other = LedgerKey(log.key.ledger_id + 1, "n2")
        log.storage.put_if_absent(LedgerPaths(other).tombstone, b"")
        return cls({e: cls._rows(log.encoding, payload) for e, payload in given.items()})

    @staticmethod
    def _rows(encoding: LedgerEncoding, payload: bytes | pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(payload, bytes):
            return pa.record_batch([pa.array([payload], pa.binary())], schema=encoding.schema)
        return payload
