"""Parts: streamed by tasks, listed by a record, copied as files."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.bookie import NewCopies, RangeRef
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.part import PartEncoder, part_name
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.support.slotlog import Bookie, every_place, read_one, scan

SCHEMA = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.struct([("t", pa.string())])))])


def rows(entry: int, count: int) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(range(entry * 1000, entry * 1000 + count), pa.int64()),
            pa.array(
                [None if n % 3 else [{"t": f"{entry}/{n}"}] for n in range(count)],
                SCHEMA.field(1).type,
            ),
        ],
        schema=SCHEMA,
    )


def write_part(bookie: Bookie, name: str, batches: list[pa.RecordBatch]) -> PartRef:
    sink = bookie.log().parts.create(name)
    encoder = PartEncoder(bookie.key, bookie.encoding, sink.write)
    for batch in batches:
        encoder.add(batch)
    ref = encoder.finish(name)
    sink.finish()
    return ref


def another(bookie: Bookie) -> Bookie:
    """A second bookie with the same ledger, and nothing of it yet."""
    disk = MemoryDisk("b2")
    Partition(MemoryStorage(disk)).furnish(bookie.marker)
    return Bookie(disk, bookie.marker, bookie.key, bookie.encoding)


def copy(source: Bookie, target: Bookie, ref: PartRef) -> PartRef:
    """Copy a part from one bookie to the other."""
    return Replica(target.face(), target.ref).copy_part(Replica(source.face(), source.ref), ref)


def place(ref: PartRef, first: int, step: int = 1) -> PlacedPart:
    ids = tuple(first + step * n for n in range(len(ref.sizes)))
    return PlacedPart(ref, ids, tuple((entry_id + 1) * 1000 for entry_id in ids))


@pytest.fixture(
    params=[(None, DigestType.CRC32C), ("lz4", DigestType.MAC), ("zstd", DigestType.CRC32)]
)
def typed(bookie: Bookie, request: pytest.FixtureRequest) -> Bookie:
    """The bookie with a ledger of nested rows."""
    compression, digest_type = request.param
    bookie.encoding = LedgerEncoding(SCHEMA, digest_type, b"secret", compression)
    return bookie


def test_a_part_is_an_arrow_file_whose_entries_are_read_one_by_one(typed: Bookie) -> None:
    typed.writer()
    batches = [rows(0, 5), rows(1, 0), rows(2, 2000)]
    name = part_name("attempt", 0, 0)

    ref = write_part(typed, name, batches)
    data = encode_add(typed.key, typed.encoding, "w", 0, -1, parts=[place(ref, 0)], spans=[(0, 2)])
    typed.log().add(0, data)

    content = typed.disk.files[typed.paths.part(name)]
    assert (len(content), crc(content)) == (ref.size_bytes, ref.crc32c)
    table = pa.ipc.open_file(content).read_all()
    assert table.equals(pa.Table.from_batches(batches), check_metadata=False)
    log = typed.log()
    index = log.locate(0)
    assert [e.batch() for e in log.reader.entries(every_place(index))] == batches
    assert [scanned.batch for scanned in scan(log, every_place(index))] == batches
    assert read_one(log, index.places(2)[0]).length_after == 3000
    assert next(log.records()).spans == ((0, 2),)


def test_entries_of_stripes_are_told_apart_in_one_record(typed: Bookie) -> None:
    writer = typed.writer()
    first = write_part(typed, "a-0-0.arrow", [rows(0, 3), rows(2, 3)])
    second = write_part(typed, "a-0-1.arrow", [rows(1, 3), rows(3, 3)])

    parts = [place(first, 0, 2), place(second, 1, 2)]
    writer.add(0, encode_add(typed.key, typed.encoding, "w", 0, -1, parts=parts))

    index = writer.locate(1, 2)
    assert list(index) == [1, 2]
    assert [e.batch() for e in writer.reader.entries(every_place(index))] == [
        rows(1, 3),
        rows(2, 3),
    ]


def test_a_part_in_which_a_bit_flipped_loses_that_entry_alone(typed: Bookie) -> None:
    writer = typed.writer()
    ref = write_part(typed, "a-0-0.arrow", [rows(0, 50), rows(1, 50)])
    writer.add(0, encode_add(typed.key, typed.encoding, "w", 0, -1, parts=[place(ref, 0)]))
    at = ref.first_offset + ref.sizes[0] + ref.sizes[1] // 2
    typed.disk.corrupt(
        typed.paths.part(ref.name), lambda d: d[:at] + bytes([d[at] ^ 16]) + d[at + 1 :]
    )

    log = typed.log()
    good, bad = every_place(log.locate(0))
    assert read_one(log, good).batch() == rows(0, 50)
    with pytest.raises(CorruptEntryError, match="entry 1"):
        read_one(log, bad)


def test_a_part_is_copied_as_a_file_and_its_entries_are_found_through_a_copy(typed: Bookie) -> None:
    typed.writer()
    ref = write_part(typed, "a-0-0.arrow", [rows(0, 50), rows(1, 50)])
    target = another(typed)

    copied = copy(typed, target, ref)
    target.log().write_copy(parts=[place(copied, 0)])

    assert copied == replace(ref, name=copied.name)
    assert copy(typed, target, ref) == copied, "repeating it changes nothing"
    log = target.log()
    assert [e.batch() for e in log.reader.entries(every_place(log.locate(0)))] == [
        rows(0, 50),
        rows(1, 50),
    ]
    target.disk.power_cut()
    assert typed.paths.part(copied.name) in target.disk.files


def test_r9b_a_part_that_was_merely_found_is_synced_before_it_counts(typed: Bookie) -> None:
    typed.writer()
    ref = write_part(typed, "a-0-0.arrow", [rows(0, 50)])
    target = another(typed)
    path = typed.paths.part(copy(typed, target, ref).name)
    target.disk.durable.discard(path)  # another's, whose answer is due

    copy(typed, target, ref)

    target.disk.power_cut()
    assert path in target.disk.files


def test_a_damaged_part_is_not_copied(typed: Bookie) -> None:
    typed.writer()
    ref = write_part(typed, "a-0-0.arrow", [rows(0, 50)])
    typed.disk.corrupt(typed.paths.part(ref.name), lambda d: d[:-1])
    target = another(typed)

    with pytest.raises(CorruptEntryError, match="checksum"):
        copy(typed, target, ref)

    assert not [path for path in target.disk.files if typed.paths.parts in path]


def test_a_part_takes_another_name_where_its_own_is_taken_by_damage(typed: Bookie) -> None:
    typed.writer()
    ref = write_part(typed, "a-0-0.arrow", [rows(0, 50)])
    target = another(typed)
    free = target.log().parts.find(ref, is_copy=True).name
    target.log().parts.create(free).finish()

    assert copy(typed, target, ref).name == free.replace(".arrow", "-1.arrow")


@pytest.mark.parametrize("way", ["part", "copy"])
def test_what_one_bookie_tells_is_read_from_the_files_of_another(typed: Bookie, way: str) -> None:
    """Copies and parts have other names on every bookie, as each has an era of its own."""
    typed.writer()
    ref = write_part(typed, "a-0-0.arrow", [rows(0, 50), rows(1, 50)])
    other = another(typed)
    mine, others = replace(typed.ref, cleared=1), replace(other.ref, cleared=2)
    both = ((typed, mine), (other, others))
    source = Replica(typed.face(), typed.ref)
    for bookie, era in both:
        copied = Replica(bookie.face(), era).copy_part(source, ref)
        value_of(bookie.face().write_copies([NewCopies(era, (), [place(copied, 0)])])[0])
    if way == "copy":
        entries = typed.face().read(mine, [0, 1]).found
        for bookie, era in both:
            for path in [p for p in bookie.disk.files if bookie.paths.directory in p]:
                del bookie.disk.files[path]
            value_of(bookie.face().write_copies([NewCopies(era, entries)])[0])
    (record,) = (p for p in typed.disk.files if typed.paths.copies in p)
    typed.disk.corrupt(record, lambda d: d[:300] + bytes([d[300] ^ 1]) + d[301:])
    assert not typed.face().read(mine, [0, 1]).found

    told = value_of(other.face().holdings([RangeRef(others, 0, 1)])[0])
    delivery = typed.face().read(mine, [0, 1], told)

    assert [entry.entry_id for entry in delivery.found] == [0, 1]
    assert not delivery.refused


def test_large_entries_are_passed_on_as_they_are_and_small_ones_gathered() -> None:
    pieces: list[int] = []
    encoding = LedgerEncoding(pa.schema([("b", pa.binary())]))
    encoder = PartEncoder(
        LedgerKey(1, "n"), encoding, lambda d: pieces.append(memoryview(d).nbytes)
    )
    large = pa.record_batch([pa.array([b"x" * 1000] * 4000)], schema=encoding.schema)
    small = pa.record_batch([pa.array([b"x"])], schema=encoding.schema)

    encoder.add(large)
    for _ in range(100):
        encoder.add(small)
    ref = encoder.finish("p")

    assert sum(pieces) == ref.size_bytes == encoder.size_bytes
    assert ref.sizes[0] in pieces
    assert len(pieces) == 3  # what is before it, the large one, and all the rest


def test_rows_of_another_schema_were_not_fitted_before_and_both_are_shown() -> None:
    encoder = PartEncoder(LedgerKey(1, "n"), LedgerEncoding(SCHEMA), lambda data: None)

    with pytest.raises(AssertionError, match="n: int64") as caught:
        encoder.add(pa.record_batch([pa.array(["x"])], names=["other"]))

    assert "other: string" in str(caught.value)
