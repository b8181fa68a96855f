"""The slot log: adding, finding, copying. Each safety rule has a test that falls without it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from typing_extensions import Buffer

from spark_bookkeeper.bookie.framing import header_end
from spark_bookkeeper.bookie.record import encode_fence
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    CookieMismatchError,
    CorruptEntryError,
    InvalidArgumentError,
    NoSuchLedgerError,
    SlotTakenError,
)
from spark_bookkeeper.storage.storage import Content
from spark_bookkeeper.testing.memory_storage import LateEffect, MemoryStorage, Moment
from tests.bookie.conftest import format_anew
from tests.support.slotlog import BOOKIE_ID, Bookie, every_place, find, read_one


def fail_once(operation: str, when: Moment) -> Callable[[str, str, Moment], None]:
    """A hook that fails the first such operation on a slot at that moment."""
    left = [True]

    def faults(op: str, path: str, moment: Moment) -> None:
        if left and (op, moment) == (operation, when) and "slots/" in path:
            left.clear()
            raise BookieUnavailableError("injected", bookie_id="b:1")

    return faults


def flip_last_byte(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_what_was_added_is_found_and_read_back(bookie: Bookie) -> None:
    log = bookie.writer()

    log.add(0, bookie.record(0, 0, 9))
    log.add(1, bookie.record(1, 10, 19, lac=9))

    index = log.locate(5, 14)
    assert list(index) == list(range(5, 15))
    entries = list(log.reader.entries(every_place(index)))
    assert [e.payload for e in entries] == [str(n).encode() for n in range(5, 15)]
    assert [e.length_after for e in entries] == list(range(6, 16))
    assert [e.last_add_confirmed for e in entries] == [-1] * 5 + [9] * 5


def test_r3_a_lost_answer_is_repeated_and_found_to_be_ours(bookie: Bookie) -> None:
    bookie.writer()
    log = bookie.log(fail_once("put", "after"))
    data = bookie.record(0, 0)

    with pytest.raises(BookieUnavailableError):
        log.add(0, data)

    log.add(0, data)


def test_r3_a_slot_of_another_writer_is_not_ours(bookie: Bookie) -> None:
    log = bookie.writer()
    bookie.log().add(0, bookie.record(0, 0, token="other"))

    with pytest.raises(SlotTakenError, match="other"):
        log.add(0, bookie.record(0, 0))


def test_r3_a_slot_that_cannot_be_read_is_not_ours(bookie: Bookie) -> None:
    log = bookie.writer()
    data = bookie.record(0, 0)
    log.add(0, data)
    bookie.disk.corrupt(bookie.slot_path(0), lambda content: content[:40])

    with pytest.raises(SlotTakenError, match="unreadable"):
        log.add(0, data)


def test_r3_other_bytes_in_a_retry_are_a_mistake_of_the_caller(bookie: Bookie) -> None:
    log = bookie.writer()
    log.add(0, bookie.record(0, 0, 3))

    with pytest.raises(AssertionError, match="content_fixed"):
        log.add(0, bookie.record(0, 0, 2))


def test_r3_a_put_that_lands_late_is_found_by_the_retry(bookie: Bookie) -> None:
    bookie.writer()
    data = bookie.record(0, 0)

    def late(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("put", "before"):
            raise LateEffect("gave up", bookie_id="b:1")

    with pytest.raises(BookieUnavailableError):
        bookie.log(late).add(0, data)
    assert bookie.disk.land(bookie.disk.pending[0])

    bookie.log().add(0, data)


def test_slots_that_do_not_ascend_in_entry_ids_are_refused(bookie: Bookie) -> None:
    log = bookie.writer()
    log.add(0, bookie.record(0, 5, 9))

    with pytest.raises(AssertionError, match="entries-in-write-order"):
        log.add(1, bookie.record(1, 9, 12))


@pytest.mark.parametrize("handed_bytes", [1, 3, 100])
def test_r9_a_copy_is_there_only_if_every_byte_of_it_is_read_back(
    bookie: Bookie, handed_bytes: int
) -> None:
    class InPieces(MemoryStorage):
        def read_through(
            self, path: str, offset: int, length: int, take: Callable[[Buffer], None]
        ) -> bool:
            data = self.read_range(path, offset, length)
            if data is None:
                return False
            for start in range(0, len(data), handed_bytes):
                take(data[start : start + handed_bytes])
            return True

    written = b"abcdefgh"
    log = bookie.log_on(InPieces(bookie.disk))
    others = {written[:end] for end in range(8)} | {written + b"h", b"xabcdefgh"}
    others |= {written[:at] + b"?" + written[at + 1 :] for at in range(8)}
    for cut in range(9):
        content = Content([written[:cut], b"", written[cut:]])
        for number, found in enumerate([written, *sorted(others)]):
            path = f"ledgers/{cut}-{number}-{handed_bytes}"
            bookie.disk.files[path] = found

            assert log.holds(path, content) == (found == written)
            assert log.holds(path, written) == (found == written)
        assert not log.holds("ledgers/nothing", content)


def test_r9_an_add_that_was_acknowledged_survives_a_power_cut(bookie: Bookie) -> None:
    bookie.writer().add(0, bookie.record(0, 0))

    bookie.disk.power_cut()

    assert list(bookie.log().locate(0)) == [0]


@pytest.mark.parametrize("who", ["writer", "fencer", "copier"])
def test_r9b_what_was_merely_found_is_synced_before_it_counts(bookie: Bookie, who: str) -> None:
    log = bookie.writer()
    if who == "writer":
        data = bookie.record(0, 0)
        path = bookie.slot_path(0)
        bookie.disk.files[path] = data
        log.add(0, data)
    elif who == "fencer":
        path = bookie.slot_path(0)
        bookie.disk.files[path] = encode_fence(bookie.key)
        log.fence()
    else:
        log.add(0, bookie.record(0, 0))
        entries = list(log.reader.entries(every_place(log.locate(0))))
        path = log.write_copy(entries)
        bookie.disk.durable.discard(path)
        assert log.write_copy(entries) == path

    bookie.disk.power_cut()

    assert path in bookie.disk.files


def test_r11_a_wiped_partition_makes_the_put_fail(bookie: Bookie) -> None:
    log = bookie.writer()
    format_anew(bookie)

    with pytest.raises(BookieUnavailableError, match="no such directory"):
        log.add(0, bookie.record(0, 0))


def test_r11_an_add_to_a_partition_wiped_meanwhile_does_not_count(bookie: Bookie) -> None:
    bookie.writer()

    def wipe_before_the_put(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("put", "before"):
            format_anew(bookie)
            bookie.disk.directories.add(bookie.paths.slots)  # as somebody who fences it makes it

    with pytest.raises(CookieMismatchError):
        bookie.log(wipe_before_the_put).add(0, bookie.record(0, 0))


def test_r11_a_copy_on_a_partition_wiped_meanwhile_does_not_count(bookie: Bookie) -> None:
    log = bookie.writer()
    log.add(0, bookie.record(0, 0))
    entries = list(log.reader.entries(every_place(log.locate(0))))

    def wipe_begins_behind_the_put(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("put", "after") and path.startswith(bookie.paths.copies):
            MemoryStorage(bookie.disk).delete(MARKER_PATH)  # wiping deletes it first

    with pytest.raises(CookieMismatchError):
        bookie.log(wipe_begins_behind_the_put).write_copy(entries)


def test_the_tail_begins_behind_the_last_add_confirmed(bookie: Bookie) -> None:
    writer = bookie.writer()
    for slot in range(100):
        writer.add(slot, bookie.record(slot, slot, lac=max(-1, slot - 3)))
    reads: list[str] = []
    log = bookie.log(lambda op, path, moment: reads.append(path) if op == "read" else None)

    tail = log.fence()

    assert (tail.slots, tail.last_add_confirmed) == (100, 96)
    assert list(tail.entries) == [97, 98, 99]
    assert find(tail.entries, 100) is None
    assert len(set(reads)) < 8
    with pytest.raises(InvalidArgumentError, match="covers"):
        find(tail.entries, 96)


def test_a_reader_that_follows_lists_once_and_sees_what_comes(bookie: Bookie) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))
    operations: list[str] = []
    log = bookie.log(lambda op, path, moment: operations.append(op))
    assert log.tail().last_add_confirmed == -1

    writer.add(1, bookie.record(1, 1, lac=0))

    tail = log.tail()
    assert (tail.last_add_confirmed, list(tail.entries), tail.is_fenced) == (0, [1], False)
    assert operations.count("list") == 2  # before and after the same one


def test_a_range_in_the_middle_of_a_long_log_is_found_by_bisection(bookie: Bookie) -> None:
    writer = bookie.writer()
    for slot in range(200):
        writer.add(slot, bookie.record(slot, slot * 2, slot * 2 + 1))
    reads: list[str] = []
    log = bookie.log(lambda op, path, moment: reads.append(path) if op == "read" else None)

    index = log.locate(101, 104)

    assert list(index) == [101, 102, 103, 104]
    assert find(index, 103) is not None
    assert len(set(reads)) < 20


def test_copies_are_found_beside_slots_and_are_the_same_file_whoever_makes_them(
    bookie: Bookie,
) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0, 9))
    entries = list(writer.reader.entries(every_place(writer.locate(2, 4))))
    other = Bookie(bookie.disk, bookie.marker)

    path = writer.write_copy(entries)

    assert other.log().write_copy(list(reversed(entries))) == path
    del bookie.disk.files[bookie.slot_path(0)]
    index = other.log().locate(0)
    assert list(index) == [2, 3, 4]
    assert [e.payload for e in other.log().reader.entries(every_place(index))] == [b"2", b"3", b"4"]
    assert [e.digest for e in other.log().reader.entries(every_place(index))] == [
        e.digest for e in entries
    ]


def test_a_damaged_copy_is_left_alone_and_a_good_one_written_beside_it(bookie: Bookie) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))
    entries = list(writer.reader.entries(every_place(writer.locate(0))))
    path = writer.write_copy(entries)
    bookie.disk.corrupt(path, lambda content: content[:50])

    again = bookie.log().write_copy(entries)

    assert again != path
    assert len(bookie.log().locate(0).places(0)) == 2


def test_no_damaged_byte_is_handed_out(bookie: Bookie) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0, 3))
    index = writer.locate(0)
    location = find(index, 2)
    assert location is not None
    good = bookie.disk.files[bookie.slot_path(0)]

    for at in range(location.offset, location.offset + location.extent):
        damaged = good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]
        bookie.disk.files[bookie.slot_path(0)] = damaged
        with pytest.raises(CorruptEntryError, match="entry 2"):
            read_one(bookie.log(), location)


def test_a_file_that_is_gone_is_unavailable_and_not_absent(bookie: Bookie) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))
    location = find(writer.locate(0), 0)
    assert location is not None
    del bookie.disk.files[bookie.slot_path(0)]

    with pytest.raises(BookieUnavailableError, match="gone"):
        read_one(writer, location)


def test_r12_a_store_without_directories_asks_for_the_tombstone_after_the_put(
    bookie: Bookie,
) -> None:
    """A directory that the collector removed makes the put fail; in a bucket nothing does."""

    class Bucket(MemoryStorage):
        @property
        def has_directories(self) -> bool:
            return False

    bookie.writer()
    log = bookie.log_on(Bucket(bookie.disk))
    log.add(0, bookie.record(0, 0))
    MemoryStorage(bookie.disk).put_if_absent(bookie.paths.tombstone, b"")

    with pytest.raises(NoSuchLedgerError):
        log.add(1, bookie.record(1, 1))


def test_what_goes_wrong_names_the_bookie(bookie: Bookie) -> None:
    with pytest.raises(BookieUnavailableError, match=BOOKIE_ID) as caught:
        bookie.log().add(0, bookie.record(0, 0))  # its directory was not made

    assert caught.value.bookie_id == BOOKIE_ID


def test_a_header_that_claims_to_be_huge_is_not_read(bookie: Bookie) -> None:
    bookie.writer()
    data = bookie.record(0, 0, 5000)
    assert header_end(data) > 1 << 16
    claim = struct.pack("<i", 0x7FFFFFF8)
    bookie.disk.files[bookie.slot_path(0)] = data[:12] + claim + data[16:]
    asked: list[int] = []

    class Watched(MemoryStorage):
        def read_range(self, path: str, offset: int, length: int) -> bytes | None:
            asked.append(length)
            return super().read_range(path, offset, length)

    entries = bookie.log_on(Watched(bookie.disk)).locate(0)

    assert max(asked) < 1 << 20
    with pytest.raises(CorruptEntryError, match="ends within its header"):
        entries.check_absent(0)
