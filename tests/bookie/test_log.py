"""The slot log: adding, fencing, finding. Each safety rule has a test that falls without it."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Callable

import pytest
from typing_extensions import Buffer

from spark_bookkeeper.bookie.framing import header_end
from spark_bookkeeper.bookie.index import Tail
from spark_bookkeeper.bookie.partition import format_partition, wipe_partition
from spark_bookkeeper.bookie.record import RecordKind, encode_fence
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.bookie.storage.storage import Content
from spark_bookkeeper.bookie.together import fence_together
from spark_bookkeeper.errors import (
    BookieError,
    BookieUnavailableError,
    CookieMismatchError,
    CorruptEntryError,
    InvalidArgumentError,
    LedgerFencedError,
    NoSuchLedgerError,
    SlotTakenError,
)
from spark_bookkeeper.testing.memory_storage import LateEffect, MemoryDisk, MemoryStorage, Moment
from spark_bookkeeper.testing.slotlog import BOOKIE_ID, Bookie, every_place, find, read_one


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


def test_r4_the_fence_takes_the_first_absent_slot_and_the_writer_cannot_go_on(
    bookie: Bookie,
) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))

    tail = bookie.log().fence()

    assert (tail.slots, tail.is_fenced) == (1, True)
    with pytest.raises(LedgerFencedError, match="has a fence of ledger 7 in slot 1"):
        writer.add(1, bookie.record(1, 1))


def test_r4_a_listing_that_lags_does_not_move_the_fence_up_or_hide_a_record(
    bookie: Bookie,
) -> None:
    writer = bookie.writer()
    for slot in range(3):
        writer.add(slot, bookie.record(slot, slot))

    class LaggingListing(MemoryStorage):
        def list(self, directory: str) -> list[str]:
            return [name for name in super().list(directory) if name.startswith("0" * 20)]

    tail = bookie.log_on(LaggingListing(bookie.disk)).fence()

    assert tail.slots == 3
    assert list(tail.entries) == [0, 1, 2]
    assert bookie.log_on(LaggingListing(bookie.disk)).locate(0).entry_ids.tolist() == [0, 1, 2]


def test_r4_a_fence_that_is_there_is_not_put_again(bookie: Bookie) -> None:
    bookie.writer()
    first = bookie.log().fence()

    again = bookie.log().fence()

    assert first == again
    assert [r.kind for r in bookie.log().records()] == [RecordKind.FENCE]


def test_r4_a_ledger_never_seen_here_is_fenced_too(bookie: Bookie) -> None:
    tail = bookie.log().fence()

    assert (tail.slots, tail.last_add_confirmed, len(tail.entries)) == (0, -1, 0)
    writer = bookie.writer()
    with pytest.raises(LedgerFencedError):
        writer.add(0, bookie.record(0, 0))


def test_r4_who_loses_the_race_for_a_slot_fences_the_next(bookie: Bookie) -> None:
    writer = bookie.writer()

    def writer_is_quicker(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("put", "before") and path == bookie.slot_path(0):
            writer.add(0, bookie.record(0, 0))

    tail = bookie.log(writer_is_quicker).fence()

    assert tail.slots == 1
    assert list(tail.entries) == [0]


def test_r4b_a_slot_that_vanishes_under_a_fencer_is_found_by_its_put(bookie: Bookie) -> None:
    writer = bookie.writer()
    for slot in range(3):
        writer.add(slot, bookie.record(slot, slot))

    def lose_it(op: str, path: str, moment: Moment) -> None:
        if (op, path, moment) == ("list", bookie.paths.slots, "after"):
            bookie.disk.files.pop(bookie.slot_path(1), None)

    bookie.log(lose_it).fence()  # it was in the listing

    tail = bookie.log().fence()

    assert tail.slots == 1
    assert list(tail.entries) == [0, 2]
    with pytest.raises(CorruptEntryError):
        tail.entries.check_absent(1)


def test_r4b_what_was_read_before_a_power_cut_is_read_again_by_the_next_fence(
    bookie: Bookie,
) -> None:
    bookie.writer().add(0, bookie.record(0, 0))
    bookie.disk.files[bookie.slot_path(1)] = bookie.record(1, 1)  # visible, not yet durable
    fencer = bookie.log()
    assert list(fencer.locate(0)) == [0, 1]
    bookie.disk.power_cut()
    assert bookie.log().fence().slots == 1

    assert find(fencer.fence().entries, 1) is None


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_r9b_what_a_fence_stands_on_is_durable_before_it(bookie: Bookie, slots: int) -> None:
    """Else a power cut could leave the fence and take what is below it: a hole, and no damage."""
    writer = bookie.writer()
    for slot in range(slots - 1):
        writer.add(slot, bookie.record(slot, slot))
    found = bookie.slot_path(slots - 1)
    bookie.disk.files[found] = bookie.record(slots - 1, slots - 1)  # visible, not yet durable
    fence = bookie.slot_path(slots)
    seen: list[bool] = []

    def watch(op: str, path: str, moment: Moment) -> None:
        if (op, path, moment) == ("put", fence, "visible"):
            seen.append(found in bookie.disk.durable)

    bookie.log(watch).fence()

    assert seen == [True]
    bookie.disk.power_cut()
    assert bookie.log().fence().slots == slots
    assert list(bookie.log().locate(0)) == list(range(slots))
    bookie.log().locate(0).check_absent(slots)


def test_r9b_no_fence_is_put_where_what_is_below_it_has_vanished(bookie: Bookie) -> None:
    bookie.writer().add(0, bookie.record(0, 0))
    bookie.disk.files[bookie.slot_path(1)] = bookie.record(1, 1)  # visible, not yet durable

    def cut(op: str, path: str, moment: Moment) -> None:
        if (op, path, moment) == ("list", bookie.paths.slots, "after"):
            bookie.disk.power_cut()

    with pytest.raises(BookieUnavailableError, match="gone before it was synced"):
        bookie.log(cut).fence()

    tail = bookie.log().fence()
    assert tail.slots == 1
    tail.entries.check_absent(1)


def test_r9b_whenever_a_power_cut_comes_no_fence_has_a_hole_below_it(bookie: Bookie) -> None:
    """While a writer's put is on its way, and between any two operations of a fencer."""
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))
    bookie.disk.files[bookie.slot_path(1)] = bookie.record(1, 1)  # visible, not yet durable
    files, durable = dict(bookie.disk.files), set(bookie.disk.durable)
    steps: list[str] = []
    cut_at = -1

    def cut(operation: str, path: str, moment: Moment) -> None:
        if len(steps) == cut_at:
            bookie.disk.power_cut(lambda path: path == bookie.slot_path(2))
        steps.append(f"{moment} {operation} {path}")

    bookie.log(cut).fence()

    count = len(steps)
    assert f"visible put {bookie.slot_path(2)}" in steps
    for cut_at in range(count):
        bookie.disk.files, bookie.disk.durable = dict(files), set(durable)
        steps.clear()
        with contextlib.suppress(BookieUnavailableError):
            bookie.log(cut).fence()
        assert len(steps) > cut_at
        slots = [path for path in sorted(bookie.disk.files) if "slots/" in path]
        assert slots == [bookie.slot_path(number) for number in range(len(slots))]
        tail = bookie.log().fence()
        assert list(tail.entries) in ([0], [0, 1])
        tail.entries.check_absent(2)


def test_r6b_an_add_behind_a_fence_is_found(bookie: Bookie) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))
    bookie.log().fence()
    writer.add(2, bookie.record(2, 2))  # pipelined; it will never be acknowledged

    assert list(bookie.log().fence().entries) == [0, 2]
    assert list(bookie.log().locate(0)) == [0, 2]


def test_r5_a_damaged_slot_makes_unknown_exactly_what_may_have_been_in_it(
    bookie: Bookie,
) -> None:
    writer = bookie.writer()
    for slot in range(4):
        writer.add(slot, bookie.record(slot, slot * 10, slot * 10 + 4))
    bookie.disk.corrupt(bookie.slot_path(2), lambda content: content[:100])

    for index in (bookie.log().fence().entries, bookie.log().locate(0)):
        assert find(index, 13) is not None
        for doubtful in (15, 20, 29):
            with pytest.raises(CorruptEntryError, match="slots/00000000000000000002"):
                find(index, doubtful)
        assert find(index, 30) is not None
        assert find(index, 35) is None


def test_r5_a_damaged_last_slot_leaves_nothing_certain_after_it(bookie: Bookie) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))
    writer.add(1, bookie.record(1, 1))
    bookie.disk.corrupt(bookie.slot_path(1), lambda content: content[:-1] and b"")

    tail = bookie.log().fence()

    assert find(tail.entries, 0) is not None
    with pytest.raises(CorruptEntryError):
        find(tail.entries, 1_000_000)


def test_r5_a_hole_below_existing_slots_is_unknown(bookie: Bookie) -> None:
    writer = bookie.writer()
    for slot in range(5):
        writer.add(slot, bookie.record(slot, slot))
    for slot in (1, 2):
        del bookie.disk.files[bookie.slot_path(slot)]

    index = bookie.log().locate(0)

    assert find(index, 3) is not None
    for entry_id in (1, 2):
        with pytest.raises(BookieUnavailableError, match="missing"):
            find(index, entry_id)


def test_r5_a_slot_that_vanishes_while_its_log_is_fenced_is_unknown(bookie: Bookie) -> None:
    log = bookie.writer()
    for slot in range(3):
        log.add(slot, bookie.record(slot, slot))

    def power_cut_before_the_fence(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("put", "before"):
            del bookie.disk.files[bookie.slot_path(1)]

    entries = bookie.log(power_cut_before_the_fence).fence().entries

    assert list(entries) == [0, 2]
    with pytest.raises(BookieUnavailableError, match="it is gone"):
        entries.check_absent(1)


def test_r5_a_damaged_copy_makes_its_entries_unknown_and_no_others(bookie: Bookie) -> None:
    log = bookie.writer()
    log.add(0, bookie.record(0, 0, 9))
    copy = log.write_copy(list(log.reader.entries(every_place(log.locate(2, 4)))))
    bookie.disk.files[bookie.slot_path(0)] = encode_fence(bookie.key)  # it never had the slot
    bookie.disk.corrupt(copy, lambda content: content[:50])

    for entries in (bookie.log().locate(0), bookie.log().fence().entries):
        assert list(entries) == []
        with pytest.raises(CorruptEntryError):
            entries.check_absent(3)
        entries.check_absent(1)
        entries.check_absent(5)


def test_r5_another_incarnation_answers_nothing(bookie: Bookie, token: Callable[[], str]) -> None:
    bookie.writer()
    storage = MemoryStorage(bookie.disk)
    wipe_partition(storage)
    format_partition(storage, BOOKIE_ID, "cluster", token=token, is_probe_required=False)

    with pytest.raises(CookieMismatchError, match=bookie.marker.incarnation):
        bookie.log().fence()
    with pytest.raises(CookieMismatchError):
        bookie.log().tail()
    with pytest.raises(CookieMismatchError):
        bookie.log().locate(0)


def test_r5_a_partition_wiped_while_it_answers_answers_nothing(bookie: Bookie) -> None:
    bookie.writer().add(0, bookie.record(0, 0))

    def wipe_after_listing(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("list", "before"):
            wipe_partition(MemoryStorage(bookie.disk))

    with pytest.raises((CookieMismatchError, BookieUnavailableError)):
        bookie.log(wipe_after_listing).locate(0)


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


def test_r11_a_wiped_partition_makes_the_put_fail(bookie: Bookie, token: Callable[[], str]) -> None:
    log = bookie.writer()
    storage = MemoryStorage(bookie.disk)
    wipe_partition(storage)
    format_partition(storage, BOOKIE_ID, "cluster", token=token, is_probe_required=False)

    with pytest.raises(BookieUnavailableError, match="no such directory"):
        log.add(0, bookie.record(0, 0))


def test_r11_an_add_to_a_partition_wiped_meanwhile_does_not_count(
    bookie: Bookie, token: Callable[[], str]
) -> None:
    bookie.writer()

    def wipe_before_the_put(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("put", "before"):
            storage = MemoryStorage(bookie.disk)
            wipe_partition(storage)
            format_partition(storage, BOOKIE_ID, "cluster", token=token, is_probe_required=False)
            storage.make_directory(bookie.paths.slots)  # as somebody who fences it would

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


def test_r12_a_ledger_that_was_deleted_here_takes_nothing(bookie: Bookie) -> None:
    MemoryStorage(bookie.disk).put_if_absent(bookie.paths.tombstone, b"")

    with pytest.raises(NoSuchLedgerError):
        bookie.log().prepare()
    with pytest.raises(NoSuchLedgerError):
        bookie.log().fence()


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


def test_a_damaged_fence_is_not_relied_on(bookie: Bookie) -> None:
    bookie.writer()
    bookie.log().fence()
    bookie.disk.corrupt(bookie.slot_path(0), lambda content: content[:60])

    tail = bookie.log().fence()

    assert tail.slots == 1
    with pytest.raises(CorruptEntryError):
        find(tail.entries, 0)


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


def test_r5_a_slot_lost_below_others_is_unknown_and_the_fence_goes_to_the_top(
    bookie: Bookie,
) -> None:
    writer = bookie.writer()
    for slot in range(4):
        writer.add(slot, bookie.record(slot, slot * 10, slot * 10 + 4))
    del bookie.disk.files[bookie.slot_path(1)]

    first = bookie.log().fence()
    second = bookie.log().fence()  # now there is a fence in its place

    assert (first.slots, second.slots) == (1, 4)
    for entries in (first.entries, second.entries, bookie.log().locate(0)):
        for entry_id in (5, 10, 19):
            with pytest.raises(CorruptEntryError, match="the add in it was lost"):
                entries.check_absent(entry_id)
        for entry_id in (40, 35):
            entries.check_absent(entry_id)
        assert {20, 34} <= set(entries)
    with pytest.raises(LedgerFencedError):  # it had won what was lost, and would go on
        writer.add(4, bookie.record(4, 40))


def test_r5_all_of_several_slots_that_were_lost_are_unknown(bookie: Bookie) -> None:
    writer = bookie.writer()
    for slot in range(9):
        writer.add(slot, bookie.record(slot, slot))
    for slot in (0, 1, 4, 6, 7):
        del bookie.disk.files[bookie.slot_path(slot)]

    entries = bookie.log().fence().entries

    assert list(entries) == [2, 3, 5, 8]
    for entry_id in (0, 1, 4, 6, 7):
        with pytest.raises(BookieError):
            entries.check_absent(entry_id)
    entries.check_absent(9)


@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("becomes", ["gone", "a fence"])
def test_r5_a_slot_lost_below_nothing_but_a_fence_is_unknown(
    bookie: Bookie, lost: list[int], becomes: str
) -> None:
    writer = bookie.writer()
    for slot in range(3):
        writer.add(slot, bookie.record(slot, slot * 10, slot * 10 + 4))
    bookie.log().fence()
    for slot in lost:
        if becomes == "gone":
            del bookie.disk.files[bookie.slot_path(slot)]
        else:
            bookie.disk.files[bookie.slot_path(slot)] = encode_fence(bookie.key)
    before = bookie.log().locate(0)

    first = bookie.log().fence()
    second = bookie.log().fence()  # now there is a fence in its place

    for entries in (before, first.entries, second.entries, bookie.log().locate(0)):
        for slot in range(3):
            if slot in lost:
                with pytest.raises(BookieError):
                    entries.check_absent(slot * 10)
            else:
                assert slot * 10 + 4 in entries
    with pytest.raises(LedgerFencedError):
        writer.add(3, bookie.record(3, 30))


def test_r5_a_fence_with_nothing_above_it_is_no_doubt(bookie: Bookie) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))

    for _ in range(2):
        tail = bookie.log().fence()
        tail.entries.check_absent(1)
        assert not tail.entries.doubts


def test_r5_a_slot_with_the_bytes_of_a_fence_is_unknown_to_who_listed_before_that_fence(
    bookie: Bookie,
) -> None:
    """Else the fence looks like the first absent slot, with nothing below it and above it."""
    bookie.writer().add(0, bookie.record(0, 0))
    is_fenced: list[bool] = []

    def be_quicker(op: str, path: str, moment: Moment) -> None:
        if (op, path) == ("sync", bookie.slot_path(0)) and not is_fenced:
            is_fenced.append(True)
            bookie.log().fence()
            bookie.disk.files[bookie.slot_path(0)] = bookie.disk.files[bookie.slot_path(1)]

    tail = bookie.log(be_quicker).fence()

    assert is_fenced
    with pytest.raises(CorruptEntryError, match="lost, and its place fenced"):
        tail.entries.check_absent(0)


def test_r5_a_slot_with_its_neighbours_bytes_is_unknown(bookie: Bookie) -> None:
    writer = bookie.writer()
    for slot in range(3):
        writer.add(slot, bookie.record(slot, slot))
    bookie.disk.corrupt(bookie.slot_path(2), lambda _: bookie.record(1, 1))

    for entries in (bookie.log().fence().entries, bookie.log().locate(0), bookie.log().tail()):
        entries = entries.entries if isinstance(entries, Tail) else entries
        assert list(entries) == [0, 1]
        with pytest.raises(CorruptEntryError, match="holds the record of slot 1"):
            entries.check_absent(2)


def test_r5_a_slot_with_the_bytes_of_a_copy_and_a_copy_with_others_bytes_are_unknown(
    bookie: Bookie,
) -> None:
    log = bookie.writer()
    log.add(0, bookie.record(0, 0, 5))
    stored = list(log.reader.entries(every_place(log.locate(0))))
    copies = [log.write_copy(stored[:2]), log.write_copy(stored[2:4]), log.write_copy(stored[4:])]
    files = bookie.disk.files
    bookie.disk.corrupt(copies[0], lambda _: files[bookie.slot_path(0)])
    bookie.disk.corrupt(copies[1], lambda _: files[copies[2]])
    bookie.disk.corrupt(bookie.slot_path(0), lambda _: files[copies[2]])

    entries = bookie.log().locate(0)

    assert list(entries) == [0, 1, 2, 3, 4, 5], "wherever it stands, what is verified counts (R6b)"
    assert {doubt.path for doubt in entries.doubts} == {bookie.slot_path(0), *copies[:2]}
    for entry_id in range(4):
        with pytest.raises(CorruptEntryError, match="it holds"):
            entries.check_absent(entry_id)


@pytest.mark.parametrize("number", [5_000_000, 10**19])
@pytest.mark.parametrize("has_bytes_of_another", [False, True])
def test_a_stray_file_with_the_name_of_a_slot_keeps_nobody_for_long(
    bookie: Bookie, number: int, has_bytes_of_another: bool
) -> None:
    writer = bookie.writer()
    for slot in range(3):
        writer.add(slot, bookie.record(slot, slot, lac=slot - 1))
    bookie.disk.files[bookie.slot_path(number)] = (
        bookie.record(1, 1) if has_bytes_of_another else b"stray"
    )

    with pytest.raises(CorruptEntryError, match=f"{number}.arrow are missing"):
        bookie.log().fence()
    assert bookie.log().tail().last_add_confirmed == 1
    entries = bookie.log().locate(0)
    assert list(entries) == [0, 1, 2]
    with pytest.raises(BookieError):
        entries.check_absent(3)


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


def lose_the_ledgers(bookie: Bookie) -> None:
    MemoryStorage(bookie.disk).delete_directory("ledgers")


@pytest.mark.parametrize("has_directories", [True, False])
def test_r5_a_bookie_whose_ledgers_were_removed_is_fenced_by_nobody(
    token: Callable[[], str], has_directories: bool
) -> None:
    disk = MemoryDisk("b1")
    disk.has_directories = has_directories
    marker = format_partition(
        MemoryStorage(disk), BOOKIE_ID, "cluster", token=token, is_probe_required=False
    )
    bookie = Bookie(disk, marker)
    log = bookie.writer()
    log.add(0, bookie.record(0, 0))
    entries = list(log.reader.entries(every_place(log.locate(0))))
    lose_the_ledgers(bookie)

    with pytest.raises(BookieUnavailableError, match="recover the bookie and format it anew"):
        bookie.log().fence()
    if has_directories:
        for use in (
            bookie.log().prepare,
            lambda: bookie.log().write_copy(entries),
            lambda: bookie.log().parts.create("a-0-0.arrow"),
        ):
            with pytest.raises(BookieUnavailableError, match="ledgers is gone"):
                use()
        assert not any(path.startswith("ledgers") for path in (*disk.files, *disk.directories))


@pytest.mark.parametrize("landed", ["a fence", "the first add, late"])
def test_r5_a_bucket_whose_ledgers_were_removed_is_believed_by_nobody_who_finds_something_there(
    token: Callable[[], str], landed: str
) -> None:
    disk = MemoryDisk("b1", has_directories=False)
    marker = format_partition(
        MemoryStorage(disk), BOOKIE_ID, "cluster", token=token, is_probe_required=False
    )
    bookie = Bookie(disk, marker)
    log = bookie.writer()
    log.add(0, bookie.record(0, 0))
    log.add(1, bookie.record(1, 1))
    first = disk.files[bookie.slot_path(0)]
    lose_the_ledgers(bookie)
    if landed == "a fence":  # of a recovery that was told of the loss afterwards
        with pytest.raises(BookieUnavailableError):
            bookie.log().fence()
    else:
        MemoryStorage(disk).put_if_absent(bookie.slot_path(0), first)

    assert bookie.slot_path(0) in disk.files
    with pytest.raises(BookieUnavailableError, match="recover the bookie and format it anew"):
        bookie.log().fence()
    together = bookie.log()
    assert fence_together(together.storage, {0: together}) == {}


def test_a_partition_that_an_older_version_formatted_is_fenced_in_a_bucket_too(
    token: Callable[[], str],
) -> None:
    disk = MemoryDisk("b1")
    disk.has_directories = False
    marker = format_partition(
        MemoryStorage(disk), BOOKIE_ID, "cluster", token=token, is_probe_required=False
    )
    old = dataclasses.replace(marker, has_witness=False)
    disk.files = {MARKER_PATH: old.encode()}
    assert b"has_witness" not in disk.files[MARKER_PATH]

    assert Bookie(disk, old).log().fence().is_fenced
