"""Compaction of a closed ledger on one bookie: fewer files, the same entries, at every moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from spark_bookkeeper.bookie import compaction
from spark_bookkeeper.bookie.bookie import (
    Compacted,
    Compaction,
    LedgerRef,
    NewCopies,
    NewRecord,
    RangeRef,
)
from spark_bookkeeper.bookie.compaction import Compactor
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PartRef, StoredEntry
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import encode_add, encode_fence
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    CookieMismatchError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.testing.counting import CountingStorage
from spark_bookkeeper.testing.ground import Killed
from spark_bookkeeper.testing.memory_storage import Faults, MemoryStorage, Moment
from tests.bookie.conftest import formatted
from tests.support.damage import TYPED, Specimen
from tests.support.slotlog import Bookie, damaged_paths

LAST: Final = 5
"""Of a ``Specimen``."""

ENCODINGS: Final = {
    f"{name} {digest.name}": LedgerEncoding(schema, digest, b"secret", compression)
    for name, schema, compression in (
        ("bytes", LedgerEncoding().schema, None),
        ("typed", TYPED, "zstd"),
    )
    for digest in DigestType
}


def filled(
    *, has_directories: bool = True, encoding: LedgerEncoding | None = None
) -> Callable[[], Bookie]:
    """Gives a bookie with a ``Specimen``, all of it durable, as often as it is asked for one."""
    first = formatted(has_directories=has_directories, encoding=encoding)
    Specimen.write(first.log())
    first.disk.durable.update(first.disk.files)
    return partial(copy_of, first)


def copy_of(bookie: Bookie) -> Bookie:
    return replace(bookie, disk=deepcopy(bookie.disk))


_TOKENS: Final = itertools.count(1)


def token() -> str:
    return f"{next(_TOKENS):032x}"


def wish(bookie: Bookie, *, last: int = LAST, dry_run: bool = False) -> Compaction:
    return Compaction(bookie.ref, last, token(), files_least=2, dry_run=dry_run)


def compact(bookie: Bookie, faults: Faults | None = None) -> Compacted:
    return bookie.face(faults).compact(wish(bookie))


def content(bookie: FileBookie, of: Bookie, last: int = LAST) -> dict[int, tuple[bytes, bytes]]:
    """Every entry that can be read and verified: its bytes and digest."""
    delivery = bookie.read(of.ref, list(range(last + 1)))
    return {e.entry_id: (bytes(e.data), e.digest) for e in delivery.found}


def files(bookie: Bookie) -> list[str]:
    return sorted(path for path in bookie.disk.files if bookie.paths.directory in path)


def one_each(bookie: Bookie, count: int) -> LedgerLog:
    """A ledger with one entry in each slot, whose writer closed it."""
    log = bookie.writer()
    for number in range(count):
        log.add(number, bookie.record(number, number, lac=number - 1))
    return log


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS.keys())
@pytest.mark.parametrize("has_directories", [True, False], ids=["disk", "bucket"])
def test_every_sort_of_file_becomes_one_and_every_entry_is_the_same(
    encoding: LedgerEncoding, has_directories: bool
) -> None:
    bookie = formatted(has_directories=has_directories, encoding=encoding)
    Specimen.write(bookie.log())
    before = content(bookie.face(), bookie)
    assert len(before) == LAST + 1
    assert len(files(bookie)) == 7
    planned = bookie.face().compact(wish(bookie, dry_run=True))
    assert len(files(bookie)) == 7

    done = compact(bookie)

    assert content(bookie.face(), bookie) == before
    assert [path.split("/")[2] for path in files(bookie)] == ["copies", "slots"]
    assert bookie.disk.files[bookie.slot_path(3)] == encode_fence(bookie.key)
    assert (done.removed, done.written, done.entries) == (6, 1, 6)
    assert planned == done
    assert damaged_paths(bookie.log()) <= {bookie.slot_path(0)}  # the slots that went
    assert compact(bookie) == Compacted()


class At:
    """Does something at the n-th operation of whoever has it as hook.

    What comes behind one operation is what comes before the next.
    """

    def __init__(self, number: int, do: Callable[[], object]) -> None:
        self.number = number
        self.count = 0
        self.do = do

    def __call__(self, operation: str, path: str, moment: Moment) -> None:
        if moment == "after":
            return
        number, self.count = self.count, self.count + 1
        if number == self.number:
            self.do()

    @classmethod
    def each(cls, again: Callable[[], Bookie]) -> Iterator[tuple[Bookie, At]]:
        """A bookie for every operation, and a hook whose ``do`` is to be set for it."""
        for number in itertools.count():
            hook = cls(number, lambda: None)
            yield again(), hook
            if hook.count <= number:
                return


def kill() -> None:
    raise Killed


@pytest.mark.parametrize(
    ("has_directories", "encoding", "cut"),
    [
        (True, "bytes CRC32C", True),
        (False, "bytes CRC32C", False),
        pytest.param(True, "bytes CRC32C", False, marks=pytest.mark.full),
        pytest.param(True, "typed MAC", True, marks=pytest.mark.full),
        pytest.param(False, "typed MAC", False, marks=pytest.mark.full),
    ],
)
def test_killed_at_every_step_it_loses_nothing_and_the_next_one_ends_it(
    has_directories: bool, encoding: str, cut: bool
) -> None:
    number = 0
    steps: list[str] = []
    again = filled(has_directories=has_directories, encoding=ENCODINGS[encoding])
    before = content(again().face(), again())
    while True:
        bookie = again()
        hook = At(number, kill)
        try:
            compact(bookie, hook)
        except Killed:
            steps.append(f"{number}")
        else:
            break
        if cut:
            bookie.disk.power_cut()
        assert content(bookie.face(), bookie) == before, f"killed at operation {number}"
        assert bookie.log().tail() is not None
        compact(bookie)
        assert content(bookie.face(), bookie) == before, f"ended after a kill at {number}"
        kinds = {path.split("/")[2] for path in files(bookie) if "/parts/" not in path}
        assert kinds == {"copies", "slots"}, f"killed at operation {number}: {files(bookie)}"
        assert len(files(bookie)) <= 3
        with pytest.raises(LedgerFencedError):
            bookie.log().add(3, encode_add(bookie.key, bookie.encoding, "w1", 3, LAST))
        number += 1
    assert len(steps) > 20


@pytest.mark.parametrize("has_directories", [True, False], ids=["disk", "bucket"])
def test_readers_in_the_middle_go_on(has_directories: bool) -> None:
    """One that looked before, one that has read before, and one that comes now."""
    for bookie, hook in At.each(filled(has_directories=has_directories)):
        early, busy = bookie.face(), bookie.face()
        before = content(busy, bookie)
        (known,) = early.holdings([RangeRef(bookie.ref, 0, LAST)])

        def read(
            early: FileBookie = early,
            busy: FileBookie = busy,
            bookie: Bookie = bookie,
            before: object = before,
            known: object = known,
        ) -> None:
            found = early.read(bookie.ref, list(range(LAST + 1)), value_of(known)).found  # type: ignore[arg-type]
            assert {e.entry_id: (bytes(e.data), e.digest) for e in found} == before
            assert content(busy, bookie) == before
            assert content(bookie.face(), bookie) == before
            rows = early.scan(bookie.ref, list(range(LAST + 1)), value_of(known))  # type: ignore[arg-type]
            assert not rows.refused

        hook.do = read
        compact(bookie, hook)
        read()
    assert hook.number > 20


def test_a_reader_that_is_overtaken_between_looking_and_reading_looks_again() -> None:
    """At each of its own operations the ledger is compacted, and then once more."""
    again = filled()
    before = content(again().face(), again())
    for bookie, hook in At.each(again):

        def overtake(bookie: Bookie = bookie) -> None:
            compact(bookie)
            log = bookie.log()
            entries = log.reader.entries([log.locate(0).places(e)[0] for e in (0, 1)])
            log.write_copy(list(entries))
            compact(bookie)

        hook.do = overtake
        assert content(bookie.face(hook), bookie) == before, f"overtaken at {hook.number}"
    assert hook.number > 5


@pytest.mark.parametrize("limit", [1, pytest.param(1 << 20, marks=pytest.mark.full)])
def test_two_at_once_lose_nothing(limit: int) -> None:
    """At every operation of one, another begins and ends, with another limit for a call."""
    again = filled()
    before = content(again().face(), again())
    for bookie, hook in At.each(again):
        wanted = Compaction(bookie.ref, LAST, token(), files_least=2, bytes_most=limit)
        hook.do = partial(bookie.face().compact, wanted)
        with suppress(BookieUnavailableError):
            compact(bookie, hook)
        assert content(bookie.face(), bookie) == before, f"met at operation {hook.number}"
        compact(bookie)
        assert content(bookie.face(), bookie) == before


def test_reading_opens_few_files_afterwards() -> None:
    bookie = formatted()
    one_each(bookie, 100)
    counted = CountingStorage(MemoryStorage(bookie.disk))

    def read() -> int:
        counted.calls.clear()
        found = FileBookie(counted).scan(bookie.ref, list(range(100))).found
        assert sum(rows.batch.num_rows for rows in found) == 100
        return len({call.path for call in counted.calls if call.operation == "read_range"})

    assert read() >= 100
    FileBookie(counted).compact(wish(bookie, last=99))
    assert read() <= 3
    assert len(counted.calls) <= 10


def test_every_small_file_is_read_once() -> None:
    bookie = formatted()
    one_each(bookie, 400)
    counted = CountingStorage(MemoryStorage(bookie.disk))

    FileBookie(counted).compact(wish(bookie, last=399))

    slots = [path for operation, path in counted.calls if operation == "read_range"]
    slots = [path for path in slots if path.startswith(f"{bookie.paths.slots}/")]
    assert len(slots) <= 400 + 2  # of the end, what the fence stands on
    assert counted.count()["list"] <= 8
    assert len(counted.calls) <= 400 + 400 + 40


def test_records_go_before_the_parts_that_they_list() -> None:
    bookie = filled()()
    removed: list[str] = []

    def note(operation: str, path: str, moment: Moment) -> None:
        if operation == "delete" and moment == "before":
            removed.append(path.split("/")[2])

    compact(bookie, note)

    assert "parts" in removed
    assert removed == sorted(removed, key=lambda kind: kind == "parts")


def test_a_writer_that_slept_meets_the_fence() -> None:
    bookie = formatted()
    log = one_each(bookie, 3)

    compact_all(bookie, 2)

    with pytest.raises(LedgerFencedError):
        log.add(3, bookie.record(3, 3), (3, 3))
    face = bookie.face()
    with pytest.raises(LedgerFencedError):
        face.add(bookie.ref, NewRecord(3, 3, 3, bookie.record(3, 3)))


def test_an_add_that_lands_at_any_step_is_refused_or_kept() -> None:
    """The ledger was closed while the add was on its way to this bookie, which was slow."""
    number = landed = 0
    while True:
        bookie = formatted()
        log = one_each(bookie, 4)
        added: list[bytes] = []

        def add(log: LedgerLog = log, bookie: Bookie = bookie, added: list[bytes] = added) -> None:
            data = bookie.record(4, 4, lac=3)
            with suppress(LedgerFencedError):
                log.add(4, data, (4, 4))
                added.append(data)

        hook = At(number, add)
        bookie.face(hook).compact(wish(bookie, last=4))
        if hook.count <= number:
            break
        found = content(bookie.face(), bookie, 4)
        assert found.keys() == set(range(4 + len(added))), f"added at operation {number}"
        landed += len(added)
        number += 1
    assert 0 < landed < number


def compact_all(bookie: Bookie, last: int) -> None:
    bookie.face().compact(wish(bookie, last=last))


def test_without_compact_fence_a_writer_that_slept_would_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LedgerLog, "ends_in_fence", lambda _: True)
    bookie = formatted()
    log = one_each(bookie, 3)

    compact_all(bookie, 2)

    log.add(3, bookie.record(3, 3), (3, 3))


def spoil_new_copy(bookie: Bookie) -> Faults:
    """Damages a copy when it was read back, before its entries are verified."""

    def faults(operation: str, path: str, moment: Moment) -> None:
        if operation == "list" and moment == "after" and path == bookie.paths.copies:
            for found in [p for p in bookie.disk.files if p.startswith(path)]:
                bookie.disk.corrupt(found, lambda d: d.replace(b"\x01\x00\x00\x00", b"\x02" * 4))
                bookie.disk.files[found] = bookie.disk.files[found][:-900] + bytes(900)

    return faults


def test_what_is_not_read_back_as_it_was_removes_nothing() -> None:
    bookie = formatted()
    one_each(bookie, 6)
    before = content(bookie.face(), bookie)

    with suppress(BookieUnavailableError):
        compact(bookie, spoil_new_copy(bookie))

    assert content(bookie.face(), bookie) == before
    assert {bookie.slot_path(number) for number in range(6)} <= set(files(bookie))


def test_without_compact_verified_it_would_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compactor, "_verified", lambda self, before, kept, ids: set(range(6)))
    bookie = formatted()
    one_each(bookie, 6)

    compact(bookie, spoil_new_copy(bookie))

    assert content(bookie.face(), bookie) == {}


def sleeps_over_a_removal_at_every_step(*, has_directories: bool, lands_late: bool) -> None:
    """Whoever compacts stands still at some step, while the copies go and are brought again.

    Args:
        lands_late: copies of the time before the removal land behind it once more.
    """

    def put(ref: LedgerRef, entries: Sequence[StoredEntry], bookie: Bookie) -> None:
        copies = [NewCopies(ref, [entry], ()) for entry in entries]
        for answer in bookie.face().write_copies(copies):
            value_of(answer)

    first = filled(has_directories=has_directories)()
    entries = first.face().read(first.ref, list(range(LAST + 1))).found
    former, now = (replace(first.ref, cleared=cleared, era_alone=True) for cleared in (1, 2))
    first.face().clear(first.ref)
    put(former, entries, first)
    before = content(first.face(), first)

    def meanwhile(bookie: Bookie) -> None:
        bookie.face().clear(bookie.ref)
        if lands_late:
            put(former, entries, bookie)
        found = value_of(bookie.face().holdings([RangeRef(now, 0, LAST)])[0])
        put(now, [entry for entry in entries if entry.entry_id not in found], bookie)

    steps = itertools.count()
    for step in steps:
        bookie = copy_of(first)
        sleeper = At(step, partial(meanwhile, bookie))

        with suppress(BookieUnavailableError):
            bookie.face(sleeper).compact(wish(bookie))

        assert content(bookie.face(), bookie) == before, step
        if sleeper.count <= step:
            break
    assert next(steps) > 20


@pytest.mark.parametrize("lands_late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("has_directories", [True, False], ids=["disk", "bucket"])
def test_who_sleeps_over_a_removal_removes_nothing_that_was_brought_since(
    has_directories: bool, lands_late: bool
) -> None:
    sleeps_over_a_removal_at_every_step(has_directories=has_directories, lands_late=lands_late)


@pytest.mark.parametrize("lands_late", [False, True], ids=["at once", "late"])
def test_without_copy_era_it_would_be_removed(
    monkeypatch: pytest.MonkeyPatch, lands_late: bool
) -> None:
    if lands_late:
        monkeypatch.setattr(EntryIndex, "only", lambda index, counts: index)
    else:
        monkeypatch.setattr(LedgerRef, "era", "")

    with pytest.raises(AssertionError):
        sleeps_over_a_removal_at_every_step(has_directories=True, lands_late=lands_late)


def test_what_is_brought_has_another_name_in_every_era() -> None:
    bookie = formatted()
    part = PartRef("a-0-0.arrow", 10, 1, 0, (10,), (b"",))
    eras = [bookie.ref, replace(bookie.ref, cleared=1), replace(bookie.ref, cleared=2)]

    def name(ref: LedgerRef, part: PartRef) -> str:
        return FileBookie(MemoryStorage(bookie.disk)).find_part(ref, part).name

    names = [name(ref, part) for ref in eras]

    assert len({part.name, *names}) == 4
    for named in names:  # as another bookie tells of it, which was brought it, too
        assert [name(ref, replace(part, name=named)) for ref in eras] == names


def test_a_part_of_a_task_that_lands_behind_a_removal_does_not_count() -> None:
    bookie = formatted()
    part = PartRef("a-0-0.arrow", 4, crc(b"part"), 0, (4,), (b"",))
    sink = bookie.log().parts.create(part.name)
    sink.write(b"part")
    sink.finish()

    def is_there(*, era_alone: bool) -> bool:
        ref = replace(bookie.ref, cleared=1, era_alone=era_alone)
        return bookie.face().find_part(ref, part).is_there

    assert (is_there(era_alone=False), is_there(era_alone=True)) == (True, False)


def test_what_is_damaged_is_left_as_it_is() -> None:
    bookie = formatted()
    one_each(bookie, 6)
    bookie.disk.corrupt(bookie.slot_path(2), lambda data: data[:100])
    before = files(bookie)

    done = compact(bookie)

    assert done.removed == 0
    assert done.reason is not None
    assert "repair" in done.reason
    assert files(bookie) == before


def test_an_entry_that_cannot_be_read_keeps_its_files() -> None:
    bookie = formatted()
    one_each(bookie, 6)
    path = bookie.slot_path(2)
    bookie.disk.corrupt(path, lambda data: data.replace(b"2", b"9"))
    intact = bookie.disk.files[path]
    bookie.disk.corrupt(path, lambda _: intact)

    done = compact(bookie)

    assert done.removed == 0
    assert path in files(bookie)


@pytest.mark.parametrize(("bytes_most", "slots"), [(10, 1000), (1000, 10)])
def test_a_call_does_a_bounded_piece_and_the_next_one_goes_on(
    bytes_most: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "ROWS", 10)
    monkeypatch.setattr(compaction, "SLOTS", slots)
    bookie = formatted()
    one_each(bookie, 100)
    before = content(bookie.face(), bookie, 99)
    calls = []

    def call() -> Compacted:
        wanted = Compaction(bookie.ref, 99, token(), files_least=2, bytes_most=bytes_most)
        return bookie.face().compact(wanted)

    while (done := call()).removed:
        calls.append(done)
        assert content(bookie.face(), bookie, 99) == before

    assert len(calls) > 3
    assert all(done.is_partial for done in calls[:-1])
    assert sum(done.entries for done in calls) == 100
    assert len(files(bookie)) == 11


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_part_stays_while_a_slot_that_was_not_looked_at_lists_it(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SLOTS", slots)
    bookie = filled(encoding=ENCODINGS["typed CRC32C"])()
    log = bookie.log()
    before = content(bookie.face(), bookie)

    while bookie.face().compact(replace(wish(bookie), files_least=1)).removed:
        assert content(bookie.face(), bookie) == before
        log.look_again()
        listed = {part.ref.name for r in (*log.records(), *log.copied()) for part in r.parts}
        there = {path.rpartition("/")[2] for path in files(bookie) if "/parts/" in path}
        assert listed == there

    assert [path.split("/")[2] for path in files(bookie)] == ["copies", "slots"]


def test_large_parts_stay_and_are_listed_by_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FILE_BYTES", 1000)
    bookie = formatted(encoding=ENCODINGS["typed CRC32C"])
    Specimen.write(bookie.log())
    before = content(bookie.face(), bookie)

    compact(bookie)

    assert content(bookie.face(), bookie) == before
    assert any("/parts/" in path for path in files(bookie))


def test_what_is_beyond_the_end_goes() -> None:
    bookie = formatted()
    one_each(bookie, 10)

    compact_all(bookie, 4)

    assert list(bookie.log().locate(0)) == [0, 1, 2, 3, 4]


def test_another_incarnation_and_a_deleted_ledger_are_refused() -> None:
    bookie = formatted()
    one_each(bookie, 4)
    face = bookie.face()
    other = formatted()
    other.disk, other.marker = bookie.disk, other.marker
    ref = bookie.ref
    wanted = Compaction(LedgerRef(ref.key, "another", ref.encoding), 3, token(), files_least=2)
    with pytest.raises(CookieMismatchError):
        face.compact(wanted)
    face.retire(bookie.key)
    with pytest.raises(NoSuchLedgerError):
        face.compact(wish(bookie, last=3))
