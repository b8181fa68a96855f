"""Fences of the slot log: where one goes, and what is in doubt below it (rules R4, R5 and R9b)."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from spark_bookkeeper.bookie.batch_ops import fence_together
from spark_bookkeeper.bookie.index import Tail
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import RecordKind, encode_fence
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.errors import (
    BookieError,
    BookieUnavailableError,
    CookieMismatchError,
    CorruptEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from spark_bookkeeper.testing.memory_storage import MemoryStorage, Moment
from tests.bookie.conftest import format_anew, formatted, written_slots
from tests.support.slotlog import Bookie, every_place, find


def test_r4_the_fence_takes_the_first_absent_slot_and_the_writer_cannot_go_on(
    bookie: Bookie,
) -> None:
    writer = bookie.writer()
    writer.add(0, bookie.record(0, 0))

    tail = bookie.log().fence()

    assert (tail.slots, tail.is_fenced) == (1, True)
    with pytest.raises(LedgerFencedError, match="has a fence of ledger 7 in slot 1"):
        writer.add(1, bookie.record(1, 1))


def test_r4_a_listing_that_lags_does_not_move_the_fence_up_or_hide_a_record(bookie: Bookie) -> None:
    written_slots(bookie, 3)

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


def test_r4_who_loses_races_to_a_fast_writer_goes_to_the_end_at_once(bookie: Bookie) -> None:
    writer, tried = bookie.writer(), list[str]()

    def writer_is_quicker(op: str, path: str, moment: Moment) -> None:
        if (op, moment) == ("put", "before"):
            tried.append(path)
            for slot in range(9) if len(tried) == 1 else ():
                writer.add(slot, bookie.record(slot, slot))

    tail = bookie.log(writer_is_quicker).fence()

    assert (tail.slots, list(tail.entries)) == (9, [*range(9)])
    assert tried == [bookie.slot_path(0), bookie.slot_path(9)]


def test_r4b_a_slot_that_vanishes_under_a_fencer_is_found_by_its_put(bookie: Bookie) -> None:
    written_slots(bookie, 3)

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
    written_slots(bookie, slots - 1)
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


def test_r5_a_damaged_slot_makes_unknown_exactly_what_may_have_been_in_it(bookie: Bookie) -> None:
    written_slots(bookie, 4, width=5)
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
    written_slots(bookie, 5)
    for slot in (1, 2):
        del bookie.disk.files[bookie.slot_path(slot)]

    index = bookie.log().locate(0)

    assert find(index, 3) is not None
    for entry_id in (1, 2):
        with pytest.raises(BookieUnavailableError, match="missing"):
            find(index, entry_id)


def test_r5_a_slot_that_vanishes_while_its_log_is_fenced_is_unknown(bookie: Bookie) -> None:
    written_slots(bookie, 3)

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


def test_r5_another_incarnation_answers_nothing(bookie: Bookie) -> None:
    bookie.writer()
    format_anew(bookie)

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
            Partition(MemoryStorage(bookie.disk)).wipe()

    with pytest.raises((CookieMismatchError, BookieUnavailableError)):
        bookie.log(wipe_after_listing).locate(0)


def test_r12_a_ledger_that_was_deleted_here_takes_nothing(bookie: Bookie) -> None:
    MemoryStorage(bookie.disk).put_if_absent(bookie.paths.tombstone, b"")

    with pytest.raises(NoSuchLedgerError):
        bookie.log().prepare()
    with pytest.raises(NoSuchLedgerError):
        bookie.log().fence()


def test_a_damaged_fence_is_not_relied_on(bookie: Bookie) -> None:
    bookie.writer()
    bookie.log().fence()
    bookie.disk.corrupt(bookie.slot_path(0), lambda content: content[:60])

    tail = bookie.log().fence()

    assert tail.slots == 1
    with pytest.raises(CorruptEntryError):
        find(tail.entries, 0)


def test_r5_a_slot_lost_below_others_is_unknown_and_the_fence_goes_to_the_top(
    bookie: Bookie,
) -> None:
    writer = written_slots(bookie, 4, width=5)
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
    written_slots(bookie, 9)
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
    writer = written_slots(bookie, 3, width=5)
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
    written_slots(bookie, 3)
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


def lose_the_ledgers(bookie: Bookie) -> None:
    MemoryStorage(bookie.disk).delete_directory("ledgers")


@pytest.mark.parametrize("has_directories", [True, False])
def test_r5_a_bookie_whose_ledgers_were_removed_is_fenced_by_nobody(has_directories: bool) -> None:
    bookie = formatted(has_directories=has_directories)
    disk = bookie.disk
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
    landed: str,
) -> None:
    bookie = formatted(has_directories=False)
    disk = bookie.disk
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


def test_a_partition_that_an_older_version_formatted_is_fenced_in_a_bucket_too() -> None:
    bookie = formatted(has_directories=False)
    disk = bookie.disk
    old = dataclasses.replace(bookie.marker, has_witness=False)
    disk.files = {MARKER_PATH: old.encode()}
    assert b"has_witness" not in disk.files[MARKER_PATH]

    assert Bookie(disk, old).log().fence().is_fenced
