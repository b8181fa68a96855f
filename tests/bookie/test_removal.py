"""What a bookie removes besides compacting: deleted ledgers, copies, parts that nothing lists."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import removal
from spark_bookkeeper.bookie.bookie import Compacted, Compaction, NewCopies
from spark_bookkeeper.bookie.entry import PlacedPart, StoredEntry
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.part_files import REMOVING, PartFiles
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CorruptEntryError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum, Share
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.counting import CountingStorage
from spark_bookkeeper.testing.ground import GroundStorage
from spark_bookkeeper.testing.memory_storage import Faults, MemoryStorage, Moment
from tests.bookie.conftest import formatted
from tests.support.damage import Specimen, write_part
from tests.support.slotlog import BOOKIE_ID, Bookie, Log, every_place

LAST: Final = 5
"""Of a ``Specimen``."""

WHOLE: Final = (Share(Quorum(1, 1, 1), 0, EntryId(0), EntryId(LAST)),)
"""Every entry of one."""


class OnDisk:
    """A bookie in a directory, for files have times there."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        self.root = root
        self.storage = LocalStorage(str(root), BOOKIE_ID)
        self.bookie = formatted(self.storage)

    def log(self, hook: Callable[[str, str], None] = lambda operation, path: None) -> Log:
        return self.bookie.log_on(GroundStorage(self.storage, hook, lambda operation, path: None))

    def face(self, hook: Callable[[str, str], None] = lambda operation, path: None) -> FileBookie:
        return FileBookie(self.log(hook).storage)

    def part(self, name: str) -> Path:
        return self.root / self.bookie.paths.part(name)

    def age(self, path: Path) -> None:
        os.utime(path, (1, 1))


@pytest.fixture
def on_disk(tmp_path: Path) -> OnDisk:
    return OnDisk(tmp_path / "bookie")


def closed(on_disk: OnDisk) -> LedgerLog:
    """A ledger of three entries, closed by its writer."""
    log = on_disk.log()
    log.prepare()
    for number in range(3):
        log.add(number, on_disk.bookie.record(number, number))
    return log


def brought(on_disk: OnDisk, name: str = "a-0-0.arrow") -> PlacedPart:
    """A part with the entries 3 and 4 that somebody has brought, and not listed yet."""
    log = on_disk.log()
    batch = next(iter(Specimen.write(formatted().log()).rows.values()))
    part = write_part(log, name, [batch, batch], 3)
    on_disk.age(on_disk.part(name))
    return part


def test_old_parts_that_nothing_lists_go_and_others_stay(on_disk: OnDisk) -> None:
    closed(on_disk)
    unlisted, listed = brought(on_disk), brought(on_disk, "b-0-0.arrow")
    value_of(on_disk.face().write_copies([NewCopies(on_disk.bookie.ref, (), (listed,))])[0])
    write_part(on_disk.log(), "young-0-0.arrow", [], 9)
    ref = on_disk.bookie.ref
    before_ms = 10_000

    assert on_disk.face().sweep(ref, before_ms, WHOLE, dry_run=True).files == 1
    assert on_disk.part(unlisted.ref.name).exists()
    assert on_disk.face().sweep(ref, before_ms, WHOLE).files == 1

    assert not on_disk.part(unlisted.ref.name).exists()
    assert on_disk.part(listed.ref.name).exists()
    assert on_disk.part("young-0-0.arrow").exists()
    assert list(on_disk.log().locate(0)) == [0, 1, 2, 3, 4]
    with pytest.raises(LedgerFencedError):
        on_disk.log().add(3, on_disk.bookie.record(3, 3))
    assert on_disk.face().sweep(ref, before_ms, WHOLE).files == 0


def lists_it_at_every_step(root: Path) -> None:
    """At every operation of a sweep somebody lists the part, and the other way round: whoever was
    told that it is listed finds it.
    """
    for sweeps_first in (True, False):
        number = 0
        while True:
            on_disk = OnDisk(root / f"{sweeps_first}-{number}")
            closed(on_disk)
            part = brought(on_disk)
            count, told = [0], [False]

            def sweep(face: FileBookie) -> None:
                face.sweep(on_disk.bookie.ref, 10_000, WHOLE)  # noqa: B023

            def list_it(face: FileBookie) -> None:
                answer = face.write_copies([NewCopies(on_disk.bookie.ref, (), (part,))])[0]  # noqa: B023
                told[0] = answer is None  # noqa: B023

            first, second = (sweep, list_it) if sweeps_first else (list_it, sweep)

            def hook(operation: str, path: str) -> None:
                count[0] += 1  # noqa: B023
                if count[0] == number:  # noqa: B023
                    second(on_disk.face())  # noqa: B023

            first(on_disk.face(hook))
            log = on_disk.log()
            if told[0]:
                index = log.locate(3, 4)
                assert len(list(log.reader.entries(every_place(index)))) == 2, number
            if count[0] < number:
                break
            number += 1
        assert number > 5


def test_a_part_that_is_about_to_be_listed_stays(tmp_path: Path) -> None:
    lists_it_at_every_step(tmp_path)


def test_without_part_mark_it_would_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartFiles, "check_kept", lambda *_: None)

    with pytest.raises(BookieUnavailableError, match="is gone"):
        lists_it_at_every_step(tmp_path)


def test_a_name_that_was_removed_is_not_used_again(on_disk: OnDisk) -> None:
    """A process that slept, and removes the part once more, finds nothing of that name."""
    closed(on_disk)
    part = brought(on_disk)
    on_disk.face().sweep(on_disk.bookie.ref, 10_000, WHOLE)

    place = on_disk.face().find_part(on_disk.bookie.ref, part.ref)

    assert place.name != part.ref.name
    assert not place.is_there
    assert on_disk.part(part.ref.name + REMOVING).exists()

    on_disk.face().clear(on_disk.bookie.ref)
    assert on_disk.face().find_part(on_disk.bookie.ref, part.ref) == place


def test_writes_that_were_never_finished_go_when_they_are_old(on_disk: OnDisk) -> None:
    closed(on_disk)
    old, young = (on_disk.root / on_disk.bookie.paths.slots / f".{n}.tmp" for n in ("a", "b"))
    for path in (old, young):
        path.write_bytes(b"12345")
    on_disk.age(old)

    swept = on_disk.face().sweep(on_disk.bookie.ref, 10_000, WHOLE)

    assert (swept.files, swept.size_bytes) == (1, 5)
    assert (old.exists(), young.exists()) == (False, True)


# A fence that lands after a ledger was compacted: the slots of adds that went become fences


def compact(bookie: Bookie, token: int, faults: Faults | None = None) -> Compacted:
    wanted = Compaction(bookie.ref, LAST, f"{token:032x}", files_least=2)
    return bookie.face(faults).compact(wanted)


def readable(bookie: Bookie) -> dict[int, tuple[bytes, bytes]]:
    delivery = bookie.face().read(bookie.ref, list(range(LAST + 1)))
    assert not delivery.refused, delivery.refused
    return {e.entry_id: (bytes(e.data), e.digest) for e in delivery.found}


@pytest.mark.parametrize("fence_is_slow", [False, True], ids=["compacting", "fencing"])
def test_whenever_a_late_fence_lands_the_ledger_is_compacted_and_swept_again(
    monkeypatch: pytest.MonkeyPatch, bookie: Bookie, fence_is_slow: bool
) -> None:
    """At every step of a compaction another client fences, and at every step of that fence the
    ledger is compacted. What was in it can be read, and what comes later is done as ever.
    """
    monkeypatch.setattr(MemoryStorage, "modified_ms", lambda self, path: 0)  # all is old
    Specimen.write(bookie.log())
    batch = pa.record_batch([pa.array([b"left"], pa.binary())], schema=bookie.encoding.schema)
    leftover = f"{bookie.paths.parts}/z-0-0.arrow"
    write_part(bookie.log(), "z-0-0.arrow", [batch], LAST)
    before = readable(bookie)
    assert len(before) == LAST + 1
    disk, filled_slots, number = bookie.disk, 0, 0
    while True:
        bookie.disk, count = deepcopy(disk), [0]

        def faults(
            operation: str, path: str, moment: Moment, count: list[int] = count, at: int = number
        ) -> None:
            count[0] += moment != "after"  # which comes before the next
            if count[0] != at or moment == "after":
                return
            if fence_is_slow:
                compact(bookie, 1)
            else:
                bookie.log().fence()

        with suppress(BookKeeperError):  # who was overtaken may have to say so
            if fence_is_slow:
                bookie.log(faults).fence()
            else:
                compact(bookie, 1, faults)
        bookie.log().fence()
        assert readable(bookie) == before, f"step {number}"
        filled_slots += sum(bookie.log().is_fence(slot) for slot in range(3))

        log = bookie.log()
        log.write_copy(list(log.reader.entries([log.locate(0).places(e)[0] for e in (0, 1)])))
        done = compact(bookie, 2)
        assert (done.reason, done.removed > 0) == (None, True), f"step {number}"
        assert readable(bookie) == before, f"step {number}"
        assert leftover in bookie.disk.files
        assert bookie.face().sweep(bookie.ref, 10_000, WHOLE).files == 1, f"step {number}"
        assert leftover not in bookie.disk.files
        assert readable(bookie) == before, f"step {number}"
        with pytest.raises(LedgerFencedError):
            bookie.log().add(3, encode_add(log.key, log.encoding, "w1", 3, LAST))
        if count[0] < number:
            break
        number += 1
    assert number > 5
    assert filled_slots > 3


def lost_slot(on_disk: OnDisk, how: str) -> Path:
    """A ledger of which the slot is gone that lists the only part of entry 3."""
    Specimen.write(on_disk.log())
    for name in on_disk.log().storage.list(on_disk.bookie.paths.copies):
        (on_disk.root / on_disk.bookie.paths.copy(name)).unlink()
    slot = on_disk.root / on_disk.bookie.slot_path(1)
    slot.unlink()
    if how == "fence":
        on_disk.log().fence()
        assert on_disk.log().is_fence(1)
    on_disk.age(on_disk.part("a-0-0.arrow"))
    return on_disk.part("a-0-0.arrow")


@pytest.mark.parametrize("how", ["hole", "fence"])
def test_a_part_that_a_lost_slot_may_have_listed_stays_until_its_entries_are_here(
    on_disk: OnDisk, how: str
) -> None:
    part = lost_slot(on_disk, how)
    with pytest.raises(CorruptEntryError, match="nobody knows which parts"):
        on_disk.face().sweep(on_disk.bookie.ref, 10_000, WHOLE)
    assert part.exists()

    # Of a striped ledger, what is striped to others need not be here.
    quorum = Quorum(6, 1, 1)
    shares = [Share(quorum, p, EntryId(0), EntryId(LAST)) for p in range(6) if p != 3]
    assert on_disk.face().sweep(on_disk.bookie.ref, 10_000, shares, dry_run=True).files == 1
    beyond = (Share(Quorum(1, 1, 1), 0, EntryId(0), EntryId(2)),)
    assert on_disk.face().sweep(on_disk.bookie.ref, 10_000, beyond, dry_run=True).files == 1

    (entry,) = entries_of_another()
    value_of(on_disk.face().write_copies([NewCopies(on_disk.bookie.ref, (entry,))])[0])
    assert on_disk.face().sweep(on_disk.bookie.ref, 10_000, WHOLE).files == 1
    assert list(on_disk.log().locate(0)) == list(range(LAST + 1))


def test_a_record_that_tells_of_what_is_gone_lets_no_other_part_go(on_disk: OnDisk) -> None:
    part = lost_slot(on_disk, "hole")
    gone = replace(brought(on_disk, "z-0-0.arrow"), entry_ids=(3, 4))
    on_disk.log().write_copy((), (gone,))
    on_disk.part(gone.ref.name).unlink()
    assert 3 in on_disk.log().locate(0)

    with pytest.raises(CorruptEntryError, match="nobody knows which parts"):
        on_disk.face().sweep(on_disk.bookie.ref, 10_000, WHOLE)

    assert part.exists()


def entries_of_another() -> list[StoredEntry]:
    """Entry 3, as another replica has it."""
    log = formatted().log()
    Specimen.write(log)
    return list(log.reader.entries([log.locate(3, 3).places(3)[0]]))


def test_without_looking_for_them_it_would_go(
    on_disk: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = lost_slot(on_disk, "fence")
    monkeypatch.setattr(removal, "_is_here", lambda *_: True)

    on_disk.face().sweep(on_disk.bookie.ref, 10_000, WHOLE)

    assert not part.exists()


# Tombstones


@pytest.mark.parametrize("way", ["prepare", "fence"])
def test_r12_whoever_begins_while_a_ledger_is_collected_stores_nothing(
    bookie: Bookie, way: str
) -> None:
    """At every operation of a client's first step, all that is here of the ledger is removed."""
    number = 0
    while True:
        bookie.disk.files = {p: d for p, d in bookie.disk.files.items() if p == "BOOKIE"}
        count = [0]

        def faults(operation: str, path: str, moment: Moment) -> None:
            count[0] += 1  # noqa: B023
            if count[0] == number:  # noqa: B023
                face = bookie.face()
                face.retire(bookie.key)
                face.delete(bookie.key)

        log = bookie.log(faults)
        try:
            if way == "prepare":
                log.prepare()
                bookie.face().retire(bookie.key)
                bookie.face().delete(bookie.key)
                with pytest.raises((BookieUnavailableError, NoSuchLedgerError)):
                    log.add(0, bookie.record(0, 0))
            else:
                log.fence()
        except (NoSuchLedgerError, BookieUnavailableError):
            pass
        stored = [p for p in bookie.disk.files if p.endswith(".arrow")]
        assert stored == [] or count[0] < number or number == 0 or way == "fence"
        assert all("slots" in path for path in stored)
        if count[0] < number:
            break
        number += 1
    assert number > 3


def test_without_gc_tombstone_a_writer_that_slept_would_begin_anew(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bookie.writer()
    log.add(0, bookie.record(0, 0))
    bookie.face().retire(bookie.key)
    bookie.face().delete(bookie.key)
    with pytest.raises(NoSuchLedgerError):
        bookie.log().prepare()
    monkeypatch.setattr(LedgerLog, "check_tombstone", lambda _: None)

    late = bookie.log()
    late.prepare()
    late.add(0, bookie.record(0, 0))


def test_the_fence_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk = OnDisk(tmp_path / "bookie")
    closed(on_disk).fence()
    removed: list[str] = []
    unlink = os.unlink

    def note(path: str, **options: int) -> None:
        removed.append(str(path))
        unlink(path, **options)

    on_disk.face().retire(on_disk.bookie.key)
    monkeypatch.setattr(os, "unlink", note)
    on_disk.face().delete(on_disk.bookie.key)

    assert [path[-7:-6] for path in removed if "slots" in path] == ["0", "1", "2", "3"]


def test_clearing_keeps_the_fence_and_nothing_else(bookie: Bookie) -> None:
    Specimen.write(bookie.log())

    bookie.face().clear(bookie.ref)

    left = [path for path in bookie.disk.files if bookie.paths.directory in path]
    assert left == [bookie.slot_path(3)]
    with pytest.raises(LedgerFencedError):
        bookie.log().add(3, bookie.record(3, 3))
    counted = CountingStorage(MemoryStorage(bookie.disk))
    FileBookie(counted).clear(bookie.ref)
    assert counted.count()["put_if_absent"] == 0


def test_clearing_what_was_never_fenced_fences_it(bookie: Bookie) -> None:
    log = bookie.writer()
    log.add(0, bookie.record(0, 0))

    bookie.face().clear(bookie.ref)

    with pytest.raises(LedgerFencedError):
        log.add(1, bookie.record(1, 1))
