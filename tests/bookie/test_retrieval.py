"""What a bookie really has: how often its files are read to know, also where they are bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import reading
from spark_bookkeeper.bookie.bookie import RangeRef, Verification
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.location import Location
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.verdict import RefusalKind
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.testing.memory_storage import Moment
from tests.bookie.conftest import formatted
from tests.support.slotlog import Bookie, every_place

COUNT = 200
ALL = list(range(COUNT))
SCHEMA = pa.schema([("n", pa.int64())])
MAC = LedgerEncoding(digest_type=DigestType.MAC, password=b"secret")


def payload(entry_id: int) -> bytes:
    return b"entry %d" % entry_id


def slot(bookie: Bookie, number: int, entry_ids: Sequence[int]) -> None:
    entries = [NewEntry(entry_id, 0, payload(entry_id)) for entry_id in entry_ids]
    data = encode_add(bookie.key, bookie.encoding, "w1", number, -1, entries)
    bookie.writer().add(number, data)


def spoil(bookie: Bookie, entry_id: int) -> None:
    """One bit of the file with the entry is another one."""
    for path, data in bookie.disk.files.items():
        if payload(entry_id) in data:
            at = data.index(payload(entry_id))
            bookie.disk.files[path] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class Reads:
    """Reads of files, headers and the marker included."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, operation: str, path: str, moment: Moment) -> None:
        if (operation, moment) == ("read", "before"):
            self.count += 1


def retrieval(log: LedgerLog) -> Retrieval:
    return Retrieval(log, ALL, log.locate(ALL[0], ALL[-1]))


def payloads(log: LedgerLog) -> Mapping[int, bytes]:
    return {e.entry_id: e.payload for e in retrieval(log).read().found}


def scanned(log: LedgerLog) -> Mapping[int, bytes]:
    return {
        int(entry_id): value
        for rows in retrieval(log).scan().found
        for entry_id, value in zip(rows.entry_ids, rows.batch.column(0).to_pylist(), strict=True)
    }


def verified(log: LedgerLog) -> Mapping[int, bytes]:
    return {entry_id: payload(entry_id) for entry_id in retrieval(log).verify().good}


WAYS = pytest.mark.parametrize("way", [payloads, scanned, verified])


@WAYS
def test_entries_that_two_files_have_in_turn_are_read_once(
    way: Callable[[LedgerLog], Mapping[int, bytes]],
) -> None:
    # As a bookie has them that took over a stripe: some entries from one source, some from another.
    bookie = formatted()
    source = formatted()
    slot(source, 0, ALL)
    log = source.log()
    stored = list(log.reader.entries(every_place(log.locate(0))))
    bookie.log().write_copy(stored[0::2])
    bookie.log().write_copy(stored[1::2])
    reads = Reads()

    assert way(bookie.log(reads)) == {e: payload(e) for e in ALL}

    assert reads.count <= 5  # the marker, and a header and a message of each


@WAYS
@pytest.mark.parametrize("encoding", [LedgerEncoding(), MAC], ids=["CRC32C", "MAC"])
def test_behind_a_damaged_message_nothing_is_read_entry_by_entry(
    way: Callable[[LedgerLog], Mapping[int, bytes]], encoding: LedgerEncoding
) -> None:
    bookie = formatted(encoding=encoding)
    for number in range(4):
        slot(bookie, number, ALL[number * 50 : number * 50 + 50])
    spoil(bookie, 60)
    reads = Reads()

    assert way(bookie.log(reads)) == {e: payload(e) for e in ALL if not 50 <= e < 100}

    assert reads.count <= 5 + 2 * 4


@WAYS
def test_where_one_file_is_damaged_another_of_the_same_bookie_serves(
    way: Callable[[LedgerLog], Mapping[int, bytes]],
) -> None:
    bookie = formatted()
    slot(bookie, 0, ALL)
    log = bookie.log()
    stored = list(log.reader.entries(every_place(log.locate(0))))
    spoil(bookie, 60)
    bookie.log().write_copy(stored[50:])
    reads = Reads()

    assert way(bookie.log(reads)) == {e: payload(e) for e in ALL if e >= 50}

    assert reads.count <= 10


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.MAC])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_rows_are_verified_without_decoding_them(
    digest_type: DigestType, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = LedgerEncoding(SCHEMA, digest_type, b"secret", compression)
    bookie = formatted(encoding=encoding)
    batches = [pa.record_batch([range(n, n + 10)], schema=SCHEMA) for n in range(3)]
    entries = [NewEntry(n, 0, batch) for n, batch in enumerate(batches)]
    bookie.writer().add(0, encode_add(bookie.key, encoding, "w1", 0, -1, entries))
    decoded: list[object] = []
    monkeypatch.setattr(reading, "read_batch", lambda *_: decoded.append(_))

    verdict = bookie.face().verify([Verification(bookie.ref, [0, 1, 2])])

    assert value_of(verdict[0]).good.keys() == {0, 1, 2}
    assert decoded == []


def test_small_entries_are_verified_by_the_checksum_that_they_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bookie = formatted()
    slot(bookie, 0, ALL)
    decoded: list[object] = []
    monkeypatch.setattr(reading, "read_batch", lambda *_: decoded.append(_))

    assert verified(bookie.log()).keys() == set(ALL)
    assert decoded == []


def test_without_digests_decoding_is_the_only_check() -> None:
    encoding = LedgerEncoding(SCHEMA, DigestType.DUMMY)
    bookie = formatted(encoding=encoding)
    batch = pa.record_batch([range(10)], schema=SCHEMA)
    data = encode_add(bookie.key, encoding, "w1", 0, -1, [NewEntry(0, 0, batch)])
    bookie.writer().add(0, data)
    (place,) = bookie.log().locate(0).places(0)
    bookie.disk.corrupt(
        bookie.slot_path(0),
        lambda content: content[: place.offset + 16] + bytes(64) + content[place.offset + 80 :],
    )

    (verdict,) = bookie.face().verify([Verification(bookie.ref, [0])])

    assert value_of(verdict).refused[0].kind is RefusalKind.DAMAGED


def test_what_is_known_to_be_nothing_is_not_looked_for_again() -> None:
    bookie = formatted()
    slot(bookie, 0, ALL)
    reads = Reads()
    face = bookie.face(reads)
    (nothing,) = face.holdings([RangeRef(bookie.ref, COUNT, COUNT + 9)])
    assert len(value_of(nothing)) == 0
    reads.count = 0

    (verdict,) = face.verify([Verification(bookie.ref, [COUNT, COUNT + 1], value_of(nothing))])

    assert value_of(verdict).refused.keys() == {COUNT, COUNT + 1}
    assert reads.count == 0


@pytest.mark.parametrize("encoding", [LedgerEncoding(), MAC])
def test_a_damaged_entry_that_is_alone_in_a_file_which_was_read_whole_is_refused(
    encoding: LedgerEncoding,
) -> None:
    bookie = formatted(encoding=encoding)
    slot(bookie, 0, [0])
    path, reader = bookie.slot_path(0), bookie.log().reader
    whole = bytes(bookie.disk.files[path])
    (place,) = every_place(bookie.log().locate(0))
    start, end = place.offset, place.offset + place.extent

    def found(place: Location, data: bytes) -> list[bytes]:
        bookie.disk.files[path] = data
        (read,), (unread,) = (
            reader.messages([place], reading.Wanted.ENTRIES, read=files)
            for files in ({path: data}, {})
        )
        assert repr(read.refused) == repr(unread.refused)
        assert bool(read.refused) != bool(read.places)
        return [e.payload for e in read.entries(encoding.schema)] if read.places else []

    assert found(place, whole) == [payload(0)]
    for extent in (place.extent + len(whole), end - len(whole) - start):  # as a header may say
        assert not found(place._replace(extent=extent), whole)
        assert not found(place._replace(extent=extent), whole[:end])
    assert found(place, whole[:end]) == [payload(0)]
    for at in range(start, end):
        spoilt = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert not found(place, spoilt), at
        assert not found(place, whole[:at]), at
        forged = place._replace(extent_crc32c=crc(spoilt[start:end]))
        assert found(forged, spoilt) in ([], [payload(0)]), "the digest is compared too"


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_large_message_that_is_summed_while_it_comes_has_the_verdict_of_one_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, has_rows: bool
) -> None:
    bookie = formatted(encoding=LedgerEncoding(SCHEMA) if has_rows else None)
    rows = pa.record_batch({"n": [1, 2, 3]}, schema=SCHEMA)
    content: Sequence[bytes | pa.RecordBatch] = [rows] if has_rows else [b"one", b"two", b"three"]
    entries = [NewEntry(n, 0, each) for n, each in enumerate(content)]
    data = encode_add(bookie.key, bookie.encoding, "w1", 0, -1, entries)
    bookie.writer().add(0, data)
    path, reader = bookie.slot_path(0), bookie.log().reader
    places = every_place(bookie.log().locate(0))
    whole = bytes(bookie.disk.files[path])
    start, end = places[0].offset, places[0].offset + places[0].extent

    def verdict(large_bytes: int) -> tuple[list[int], list[str]]:
        monkeypatch.setattr(reading, "_LARGE_BYTES", large_bytes)
        (message,) = reader.messages(places, reading.Wanted.NOTHING)
        assert (message.data is None) == (large_bytes == 0 or bool(message.refused))
        good = [place.entry_id for place in message.places]
        return good, [f"{type(e).__name__} {e}" for _, e in message.refused]

    cuts = [whole[:size] for size in range(start, end + 1)]
    flips = [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(start - 1, end + 1)
    ]
    for damaged in (whole, None, *cuts, *flips):
        bookie.disk.files.pop(path, None)
        if damaged is not None:
            bookie.disk.files[path] = damaged
        kept = verdict(1 << 20)
        assert verdict(0) == kept
        is_good = damaged is not None and damaged[start:end] == whole[start:end]
        assert bool(kept[0]) == is_good
