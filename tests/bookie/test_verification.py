"""Looking at every byte: what is damaged is named, and what is good stays good."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import reading
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.bookie.messages import encode_batches
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.testing.counting import CountingStorage
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from tests.support.slotlog import Bookie, damaged_paths, every_place, read_one, scan


def holding_everything(bookie: Bookie) -> None:
    """Slot 0 with payloads, slot 1 with a part, and a copy of the entry 0."""
    log = bookie.writer()
    log.add(0, bookie.record(0, 0, 3))
    sink = log.parts.create("a-0-0.arrow")
    encoder = PartEncoder(bookie.key, bookie.encoding, sink.write)
    encoder.add(pa.record_batch([pa.array([b"x"] * 100)], schema=bookie.encoding.schema))
    ref = encoder.finish("a-0-0.arrow")
    sink.finish()
    part = PlacedPart(ref, (4,), (1000,))
    log.add(1, encode_add(bookie.key, bookie.encoding, "w1", 1, 3, parts=[part]))
    log.write_copy([read_one(log, log.locate(0, 0).places(0)[0])])


def test_what_is_whole_has_no_damage(bookie: Bookie) -> None:
    holding_everything(bookie)
    bookie.log().fence()

    assert bookie.log().spoilt_files(bookie.log().locate(0)) == {}
    assert damaged_paths(bookie.log()) == set()


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda d: d[: at % len(d)] + bytes([d[at % len(d)] ^ 8]) + d[at % len(d) + 1 :]


def test_a_missing_part_is_found(bookie: Bookie) -> None:
    holding_everything(bookie)
    path = bookie.paths.part("a-0-0.arrow")
    del bookie.disk.files[path]

    assert bookie.log().spoilt_files(bookie.log().locate(0)) == {path: "it is gone"}


@pytest.mark.parametrize("where", ["head", "end"])
def test_only_a_part_that_may_be_damaged_around_its_entries_is_read_whole(
    bookie: Bookie, where: str
) -> None:
    holding_everything(bookie)
    path = bookie.paths.part("a-0-0.arrow")
    index = bookie.log().locate(0)

    def looked() -> tuple[dict[str, str], int]:
        storage = CountingStorage(MemoryStorage(bookie.disk))
        found = bookie.log_on(storage).spoilt_files(index)
        return found, storage.count()["read_range"]

    assert looked() == ({}, 2), "what is before the entries, and what is behind them"
    bookie.disk.corrupt(path, flip(20 if where == "head" else -20))
    assert looked() == ({path: "it does not match its checksum"}, 3)


def test_encoding_no_batches_gives_no_messages(bookie: Bookie) -> None:
    assert encode_batches(bookie.encoding, []) == []


@pytest.mark.parametrize("digest_type", [DigestType.MAC, DigestType.CRC32C])
def test_a_checksum_that_was_made_to_fit_does_not_make_up_for_a_keyed_digest(
    bookie: Bookie, digest_type: DigestType, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie.encoding = LedgerEncoding(digest_type=digest_type, password=b"secret")
    bookie.writer().add(0, bookie.record(0, 10, 19))
    places = list(every_place(bookie.log().locate(0)))
    tampered = bookie.disk.files[bookie.slot_path(0)].replace(b"101112", b"101113")
    assert tampered != bookie.disk.files[bookie.slot_path(0)]
    bookie.disk.files[bookie.slot_path(0)] = tampered
    monkeypatch.setattr(reading, "crc", lambda data: places[0].extent_crc32c)

    scanned = scan(bookie.log(), places)

    if digest_type is DigestType.MAC:  # whoever has no password cannot forge the entry
        with pytest.raises(CorruptEntryError, match="entry 12"):
            list(scanned)
    else:  # the same checksum twice would say no more than it does once
        assert [piece.batch.num_rows for piece in scanned] == [10]
