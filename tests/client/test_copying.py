"""Copies of entries on another bookie: which files, what is read back, how much is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import record
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, PlacedPart
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.memory import Faults, MemoryDisk, MemoryStorage, Moment
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.client import copying
from spark_bookkeeper.client.copying import TargetError, copy_entries
from spark_bookkeeper.client.runtime import ThreadRuntime
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.slotlog import Bookie

FROM, TO = BookieId("10.0.0.1:3181"), BookieId("10.0.0.2:3181")


def formatted(name: str, encoding: LedgerEncoding | None = None) -> Bookie:
    disk = MemoryDisk(name)
    marker = Marker(name, f"incarnation of {name}", "instance")
    MemoryStorage(disk).put_if_absent(MARKER_PATH, marker.encode())
    return Bookie(disk, marker, encoding=encoding or LedgerEncoding())


def slot(source: Bookie, number: int, payloads: Sequence[bytes], first: int) -> None:
    entries = [NewEntry(first + n, 0, payload) for n, payload in enumerate(payloads)]
    data = encode_add(source.key, source.encoding, "w1", number, -1, entries)
    source.writer().add(number, data)


def copy(source: Bookie, target: Bookie, count: int, faults: Faults | None = None) -> int:
    log = target.log(faults)
    log.prepare()
    return copy_entries(
        ThreadRuntime(),
        LedgerId(7),
        Quorum(2, 2, 1),
        (FROM, TO),
        [EntryId(e) for e in range(count)],
        {0: source.log()},
        [0],
        log,
    )


def copies(bookie: Bookie) -> list[str]:
    return sorted(path for path in bookie.disk.files if "/copies/" in path)


def test_a_slot_that_is_copied_whole_is_not_encoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = formatted(FROM), formatted(TO)
    slot(source, 0, [b"a" * 100, b"", b"c" * 100], 0)

    def encode_again(*_: object) -> bytes:
        raise AssertionError("its message is there already")

    monkeypatch.setattr(record, "payload_message", encode_again)

    assert copy(source, target, 3) == 200
    log = target.log()
    assert [e.payload for e in log.read_many(log.locate(0).locations())] == [
        b"a" * 100,
        b"",
        b"c" * 100,
    ]


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


def test_a_keyed_digest_decides_about_a_part_whose_checksum_was_made_to_fit() -> None:
    keyed = LedgerEncoding(digest_type=DigestType.MAC, password=b"secret")
    source, target = formatted(FROM, keyed), formatted(TO, keyed)
    forged = write_part(source, b"rows of the part", forged_digest=bytes(32))

    with pytest.raises(TargetError, match="cannot be read back, entry 0"):
        copy(source, target, 1)
    assert forged in "".join(target.disk.files), "the whole file was copied, as its checksum fits"


def write_part(source: Bookie, payload: bytes, forged_digest: bytes | None = None) -> str:
    log = source.writer()
    sink = log.parts.create("a-0-0.arrow")
    encoder = PartEncoder(source.key, source.encoding, sink.write)
    encoder.add(pa.record_batch([pa.array([payload], pa.binary())], names=["payload"]))
    ref = encoder.finish("a-0-0.arrow")
    sink.finish()
    if forged_digest is not None:
        ref = replace(ref, digests=(forged_digest,))
    placed = [PlacedPart(ref, (0,), (len(payload),))]
    log.add(0, encode_add(source.key, source.encoding, "w1", 0, -1, (), placed))
    return ref.name
