"""Copies of entries on another bookie: which files, what is read back, how much is held."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import record
from spark_bookkeeper.bookie.bookie import EntriesRef
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, PlacedPart
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.client.recover import copying
from spark_bookkeeper.client.recover.copying import TargetError, copy_entries
from spark_bookkeeper.errors import EntryUnreadableError
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_storage import Faults, MemoryDisk, MemoryStorage, Moment
from tests.support.slotlog import Bookie, every_place

FROM, OTHER, TO = (BookieId(f"10.0.0.{n}:3181") for n in (1, 2, 3))


def formatted(name: str, encoding: LedgerEncoding | None = None) -> Bookie:
    disk = MemoryDisk(name)
    marker = Marker(name, f"incarnation of {name}", "instance")
    Partition(MemoryStorage(disk)).furnish(marker)
    return Bookie(disk, marker, encoding=encoding or LedgerEncoding())


def slot(source: Bookie, number: int, payloads: Sequence[bytes], first: int) -> None:
    entries = [NewEntry(first + n, 0, payload) for n, payload in enumerate(payloads)]
    data = encode_add(source.key, source.encoding, "w1", number, -1, entries)
    source.writer().add(number, data)


def copy(source: Bookie, target: Bookie, count: int, faults: Faults | None = None) -> int:
    return copy_from({0: source}, target, count, faults)


def copy_from(
    sources: Mapping[int, Bookie], target: Bookie, count: int, faults: Faults | None = None
) -> int:
    replica = Replica(target.face(faults), target.ref)
    replica.prepare()
    return copy_entries(
        ThreadRuntime(),
        LedgerId(7),
        Quorum(3, 3, 2),
        (FROM, OTHER, TO),
        [EntryId(e) for e in range(count)],
        {position: Replica(source.face(), source.ref) for position, source in sources.items()},
        sorted(sources),
        replica,
    )


def copies(bookie: Bookie) -> list[str]:
    return sorted(path for path in bookie.disk.files if "/copies/" in path)


def test_a_slot_that_is_copied_whole_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = formatted(FROM), formatted(TO)
    slot(source, 0, [b"a" * 100, b"", b"c" * 100], 0)

    def again(*_: object) -> bytes:
        raise AssertionError("its message is there already, and was compared with its checksum")

    monkeypatch.setattr(record, "payload_message", again)
    monkeypatch.setattr(record, "crc", again)

    assert copy(source, target, 3) == 200
    log = target.log()
    assert [e.payload for e in log.reader.entries(every_place(log.locate(0)))] == [
        b"a" * 100,
        b"",
        b"c" * 100,
    ]


def test_small_entries_are_not_looked_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = formatted(FROM), formatted(TO)
    slot(source, 0, [b"a", b"b", b"c"], 0)
    slot(source, 1, [b"d", b"e"], 3)

    def one_by_one(*_: object) -> None:
        raise AssertionError("there may be hundreds of thousands")

    monkeypatch.setattr(EntryIndex, "places", one_by_one)
    monkeypatch.setattr(record.Record, "location", one_by_one)

    assert copy(source, target, 5) == 5
    assert list(target.log().locate(0)) == [0, 1, 2, 3, 4]


def test_a_part_of_a_slot_is_encoded_without_the_rest() -> None:
    source, target = formatted(FROM), formatted(TO)
    slot(source, 0, [b"one", b"two", b"three"], 0)

    copy(source, target, 2)

    assert list(target.log().locate(0)) == [0, 1]
    (path,) = copies(target)
    assert b"three" not in target.disk.files[path]


def test_large_slots_have_a_file_each_and_small_ones_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = formatted(FROM), formatted(TO)
    monkeypatch.setattr(copying, "COPY_BYTES", 1000)
    slot(source, 0, [b"x" * 400, b"x" * 400], 0)
    slot(source, 1, [b"x" * 400, b"x" * 400], 2)
    slot(source, 2, [b"x" * 100], 4)
    slot(source, 3, [b"x" * 100], 5)

    copy(source, target, 6)

    names = [path.rpartition("/")[2].split("-")[:2] for path in copies(target)]
    assert names == [["0", "1"], ["2", "3"], ["4", "5"]]


def spoils(part_of_path: str, target: Bookie) -> Faults:
    """What was written there is not what is read afterwards."""

    def faults(operation: str, path: str, moment: Moment) -> None:
        if operation in {"put", "finish"} and moment == "after" and part_of_path in path:
            target.disk.corrupt(path, lambda data: data[:-1] + bytes([data[-1] ^ 1]))

    return faults


def test_r13_a_copy_that_is_not_read_back_as_written_does_not_count() -> None:
    source, target = formatted(FROM), formatted(TO)
    slot(source, 0, [b"one"], 0)

    with pytest.raises(TargetError, match="not read back"):
        copy(source, target, 1, spoils("/copies/", target))


def test_r13_a_part_that_is_not_read_back_as_written_does_not_count() -> None:
    source, target = formatted(FROM), formatted(TO)
    write_part(source, b"rows of the part")

    with pytest.raises(TargetError, match="not read back"):
        copy(source, target, 1, spoils("/parts/", target))


KEYED = LedgerEncoding(digest_type=DigestType.MAC, password=b"secret")


GENERATOR = (1 | 0x82F63B78 << 1).to_bytes(5, "little")
"""Of CRC32C. Whoever changes bytes by it, or a multiple of it, leaves the checksum as it was."""


def forge(bookie: Bookie, rows: bytes = b"rows of the part") -> None:
    """Other rows in the bookie's part, with the same checksum."""
    (path,) = (path for path in bookie.disk.files if "/parts/" in path)

    def change(good: bytes) -> bytes:
        at = good.index(rows)
        changed = bytes(a ^ b for a, b in zip(good[at:], GENERATOR, strict=False))
        return good[:at] + changed + good[at + len(changed) :]

    before = crc(bookie.disk.files[path])
    bookie.disk.corrupt(path, change)
    assert crc(bookie.disk.files[path]) == before


def payloads_on(bookie: Bookie, entries: Sequence[int]) -> list[bytes]:
    """What the bookie delivers of entries, verified, from wherever it has a good copy."""
    log = bookie.log()
    delivery = Retrieval(log, entries, log.locate(entries[0], entries[-1])).read()
    assert not delivery.refused
    found = {stored.entry_id: stored.payload for stored in delivery.found}
    return [found[entry_id] for entry_id in entries]


def test_a_forged_part_is_refused_as_its_sources_and_the_next_source_is_taken() -> None:
    forged, good, target = (formatted(b, KEYED) for b in (FROM, OTHER, TO))
    for source in (forged, good):
        write_part(source, b"rows of the part")
    forge(forged)

    copied = copy_from({0: forged, 1: good}, target, 1)

    assert copied > 0
    assert payloads_on(target, [0]) == [b"rows of the part"]


def test_a_forged_part_alone_is_an_entry_that_cannot_be_read_and_no_fault_of_the_target() -> None:
    source, target = formatted(FROM, KEYED), formatted(TO, KEYED)
    write_part(source, b"rows of the part")
    forge(source)

    with pytest.raises(EntryUnreadableError, match=FROM):
        copy(source, target, 1)
    assert list(target.log().locate(0)) == []


def test_a_forged_slot_whose_rows_lie_beyond_its_message_is_refused_as_its_sources() -> None:
    source, target = formatted(FROM, KEYED), formatted(TO, KEYED)
    slot(source, 0, [b"one", b"two", b"three"], 0)
    ends = struct.pack("<4i", 0, 3, 6, 11)
    (path,) = (path for path in source.disk.files if "/slots/" in path)
    before = crc(source.disk.files[path])
    at = source.disk.files[path].index(ends) + 4
    source.disk.corrupt(
        path,
        lambda good: (
            good[:at]
            + bytes(a ^ b for a, b in zip(good[at:], GENERATOR, strict=False))
            + good[at + 5 :]
        ),
    )
    assert crc(source.disk.files[path]) == before

    with pytest.raises(EntryUnreadableError, match=FROM):
        copy(source, target, 3)


def forge_length(bookie: Bookie) -> None:
    """The message of a slot with two payloads says that its offsets take 13 bytes and not 12.

    What lies behind the offsets is made to fit, so that all checksums are as they were.
    """
    (path,) = (path for path in bookie.disk.files if "/slots/" in path)
    good = bookie.disk.files[path]
    lengths, ends = struct.pack("<2q", 0, 12), struct.pack("<3i", 0, 3, 6)
    forged = bytearray(good.replace(lengths, struct.pack("<2q", 0, 13)))
    assert forged != good
    at = good.index(ends) + len(ends)

    def behind(number: int) -> int:
        return crc(forged[:at] + struct.pack("<I", number) + forged[at + 4 :])

    # Each bit behind them changes the checksum in its own way: those whose changes add up.
    zero = behind(0)
    changes: dict[int, tuple[int, int]] = {}

    def reduced(change: int, bits: int) -> tuple[int, int]:
        for top in sorted(changes, reverse=True):
            if change >> top & 1:
                change, bits = change ^ changes[top][0], bits ^ changes[top][1]
        return change, bits

    for bit in range(32):
        change, bits = reduced(behind(1 << bit) ^ zero, 1 << bit)
        changes[change.bit_length() - 1] = change, bits
    _, bits = reduced(crc(good) ^ zero, 0)
    struct.pack_into("<I", forged, at, bits)
    bookie.disk.files[path] = bytes(forged)
    assert crc(bookie.disk.files[path]) == crc(good)


def test_a_forged_slot_whose_offsets_have_no_length_is_refused_as_its_sources() -> None:
    forged, good, target = (formatted(b, KEYED) for b in (FROM, OTHER, TO))
    for source in (forged, good):
        slot(source, 0, [b"one", b"two"], 0)
    forge_length(forged)

    with pytest.raises(EntryUnreadableError, match=FROM):
        copy(forged, target, 2)
    copy_from({0: forged, 1: good}, target, 2)

    assert payloads_on(target, [0, 1]) == [b"one", b"two"]


def test_a_forged_slot_is_no_fault_of_the_other_ledgers_that_are_looked_for_with_it() -> None:
    forged = formatted(FROM, KEYED)
    slot(forged, 0, [b"one", b"two"], 0)
    forge_length(forged)
    good = Bookie(forged.disk, forged.marker, LedgerKey(8, "n"), encoding=KEYED)
    slot(good, 0, [b"three", b"four"], 0)
    bookie = FileBookie(MemoryStorage(forged.disk))
    wanted = [EntriesRef(each.ref, [0, 1]) for each in (forged, good)]

    found = [[e.entry_id for e in value_of(one)] for one in bookie.read_small(wanted, 1 << 20)]
    lacking = [value_of(one) for one in bookie.lacking(wanted)]

    assert found == [[], [0, 1]]
    assert lacking == [[0, 1], []]


def test_a_forged_part_is_repaired_where_it_is() -> None:
    source, target = formatted(FROM, KEYED), formatted(TO, KEYED)
    for bookie in (source, target):
        write_part(bookie, b"rows of the part")
    forge(target)

    copy(source, target, 1)

    assert payloads_on(target, [0]) == [b"rows of the part"]


def test_a_good_entry_of_a_forged_part_is_copied_without_the_others() -> None:
    source, target = formatted(FROM, KEYED), formatted(TO, KEYED)
    write_part(source, b"rows of the part", b"more rows")
    forge(source)

    with pytest.raises(EntryUnreadableError, match="entry 0"):
        copy(source, target, 2)
    assert payloads_on(target, [1]) == [b"more rows"]


def test_a_part_that_is_copied_whole_is_verified_with_the_keyed_digest_too() -> None:
    source, target = formatted(FROM, KEYED), formatted(TO, KEYED)
    write_part(source, b"rows of the part", b"more rows")

    copy(source, target, 2)

    assert payloads_on(target, [0, 1]) == [b"rows of the part", b"more rows"]
    assert [len(r.record.parts) for r in target.log().locate(0).holdings] == [1]


def write_part(source: Bookie, *rows: bytes) -> None:
    """Slot 0: a part with an entry for each of the rows."""
    log = source.writer()
    sink = log.parts.create("a-0-0.arrow")
    encoder = PartEncoder(source.key, source.encoding, sink.write)
    for row in rows:
        encoder.add(pa.record_batch([pa.array([row], pa.binary())], names=["payload"]))
    ref = encoder.finish("a-0-0.arrow")
    sink.finish()
    lengths = tuple(accumulate(map(len, rows)))
    placed = [PlacedPart(ref, tuple(range(len(rows))), lengths)]
    log.add(0, encode_add(source.key, source.encoding, "w1", 0, -1, (), placed))
