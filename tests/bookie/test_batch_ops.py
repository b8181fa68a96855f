"""Many ledgers of one bookie taken from step to step together: what each of them must not lose."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.bookie import framing
from spark_bookkeeper.bookie.bookie import EntriesRef, LedgerRef, NewCopies, RangeRef, Verification
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.holdings import LedgerTail
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import RecordKind
from spark_bookkeeper.bookie.schema import MARKER_PATH, LedgerPaths
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CookieMismatchError,
    LedgerFencedError,
    NoSuchLedgerError,
)
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.storage import file_system, local, new_file
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.conformance.bookie import record
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.bookie.ledgers import BOOKIE, fill, ledgers, partition

OTHER = "10.0.0.2:3181"
COUNT = 6
LEDGERS = ledgers(COUNT)


class Cut(Exception):
    """The power is gone, and with it who asked."""


@pytest.fixture
def disk() -> MemoryDisk:
    """Of a bookie with nothing on it."""
    return partition()


@pytest.fixture
def filled(disk: MemoryDisk) -> MemoryDisk:
    """With two slots of each ledger."""
    fill(disk, LEDGERS)
    return disk


def fence_of(storage: MemoryStorage, each: LedgerRef) -> list[int]:
    """The slots of a ledger with a fence."""
    records = LedgerLog(storage, each).records()
    return [found.slot for found in records if found.kind is RecordKind.FENCE]


def test_all_are_fenced_as_each_by_itself_is(disk: MemoryDisk) -> None:
    fill(disk, LEDGERS[:3])  # the others were never here
    other = MemoryDisk(BOOKIE)
    other.files, other.directories = dict(disk.files), set(disk.directories)
    other.durable = set(disk.durable)

    together = FileBookie(MemoryStorage(disk)).fence(LEDGERS)
    alone = [FileBookie(MemoryStorage(other)).fence([each])[0] for each in LEDGERS]

    assert disk.files == other.files
    assert disk.durable == other.durable
    for one, two in zip(together, alone, strict=True):
        assert isinstance(one, LedgerTail)
        assert isinstance(two, LedgerTail)
        assert (one.is_fenced, one.last_add_confirmed) == (two.is_fenced, two.last_add_confirmed)
        assert one.entries.entry_ids.tolist() == two.entries.entry_ids.tolist()


def test_they_are_put_in_one_call_and_relied_on_in_one(filled: MemoryDisk) -> None:
    calls: list[tuple[str, int]] = []

    class Noting(MemoryStorage):
        def put_all(self, files, *others, **named):  # type: ignore[no-untyped-def]
            calls.append(("put", len(files)))
            return super().put_all(files, *others, **named)

        def sync_all(self, paths, progress=lambda: None):  # type: ignore[no-untyped-def]
            calls.append(("sync", len(paths)))
            super().sync_all(paths, progress)

    bookie = FileBookie(Noting(filled))
    wanted = verifications(bookie)
    verdicts = [value_of(verdict) for verdict in bookie.verify(wanted)]

    # What the fences stand on is made durable with them, and not again when it is verified.
    assert calls == [("put", COUNT), ("sync", COUNT), ("sync", COUNT)]
    assert all(list(verdict.good) == [0, 1, 2, 3] for verdict in verdicts)


def test_observe_sync_what_counts_is_durable_though_it_was_synced_for_the_fence(
    filled: MemoryDisk,
) -> None:
    slots = [LedgerPaths(each.key).slot(slot) for each in LEDGERS for slot in range(2)]
    filled.durable.difference_update(slots)
    bookie = FileBookie(MemoryStorage(filled))

    verdicts = bookie.verify(verifications(bookie))

    assert all(list(value_of(verdict).good) == [0, 1, 2, 3] for verdict in verdicts)
    assert filled.durable.issuperset(slots)


def test_damage_behind_a_header_is_found_in_what_the_fence_has_read(filled: MemoryDisk) -> None:
    damaged = LEDGERS[2]
    filled.corrupt(LedgerPaths(damaged.key).slot(1), flipped)
    bookie = FileBookie(MemoryStorage(filled))

    verdicts = [value_of(verdict) for verdict in bookie.verify(verifications(bookie))]

    good = [list(verdict.good) for verdict in verdicts]
    assert good == [[0, 1] if each is damaged else [0, 1, 2, 3] for each in LEDGERS]
    assert list(verdicts[2].refused) == [2, 3]


@pytest.mark.parametrize("is_formatted", [False, True])
def test_what_is_wiped_between_the_fence_and_its_verification_is_not_good(
    disk: MemoryDisk, is_formatted: bool
) -> None:
    """The fence has read the entries and made them durable, so nothing else asks for a file."""
    fill(disk, LEDGERS, slots=1)
    bookie = FileBookie(MemoryStorage(disk))
    wanted = verifications(bookie)
    disk.wipe()
    if is_formatted:
        Partition(MemoryStorage(disk)).furnish(Marker(BOOKIE, "another", "cluster"))

    answers = bookie.verify(wanted)

    assert all(isinstance(each, BookKeeperError) or not each.good for each in answers)


def test_entries_are_verified_with_one_look_at_the_marker(filled: MemoryDisk) -> None:
    looks = Counter[str]()

    def faults(operation: str, path: str, moment: str) -> None:
        looks[operation] += path == MARKER_PATH and moment == "before"

    bookie = FileBookie(MemoryStorage(filled, faults))
    wanted = verifications(bookie)
    looks.clear()

    assert all(list(value_of(verdict).good) == [0, 1, 2, 3] for verdict in bookie.verify(wanted))
    assert looks["read"] == 1


def test_observe_sync_what_an_earlier_fence_has_synced_is_synced_again(disk: MemoryDisk) -> None:
    """It may have been lost since, and put again by somebody."""
    fill(disk, LEDGERS, slots=1)
    slots = [LedgerPaths(each.key).slot(0) for each in LEDGERS]
    bookie = FileBookie(MemoryStorage(disk))
    bookie.fence(LEDGERS)
    disk.durable.difference_update(slots)

    verdicts = bookie.verify(verifications(bookie))

    assert all(list(value_of(verdict).good) == [0, 1] for verdict in verdicts)
    assert disk.durable.issuperset(slots)


def test_what_an_earlier_fence_has_read_is_read_again(disk: MemoryDisk) -> None:
    fill(disk, LEDGERS, slots=4)  # no more of them are kept
    bookie = FileBookie(MemoryStorage(disk))
    bookie.fence(LEDGERS)
    damaged = LEDGERS[2]
    disk.corrupt(LedgerPaths(damaged.key).slot(0), flipped)
    wanted = [one for each in LEDGERS for one in verifications(bookie, [each])]

    verdicts = [value_of(verdict) for verdict in bookie.verify(wanted)]

    assert [list(verdict.good) for verdict in verdicts] == [
        list(range(2 if each is damaged else 0, 8)) for each in LEDGERS
    ]


def verifications(bookie: FileBookie, ledgers: Sequence[LedgerRef] = LEDGERS) -> list[Verification]:
    """Of all that a fence of these ledgers has told."""
    return [
        Verification(each, tail.entries.entry_ids.tolist(), tail.entries)
        for each, tail in zip(ledgers, map(value_of, bookie.fence(ledgers)), strict=True)
    ]


def flipped(data: bytes) -> bytes:
    """With another byte in its first message."""
    at = framing.header_end(data) + 100
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_where_entries_are_is_told_with_one_look_at_the_marker(filled: MemoryDisk) -> None:
    looks = Counter[str]()

    def faults(operation: str, path: str, moment: str) -> None:
        looks[operation] += path == MARKER_PATH and moment == "before"

    found = FileBookie(MemoryStorage(filled, faults)).holdings(
        [RangeRef(each, 1, 2) for each in LEDGERS]
    )

    assert [value_of(held).entry_ids.tolist() for held in found] == [[1, 2]] * COUNT
    assert looks["read"] == 1


@pytest.mark.parametrize("before", ["list", "range", "marker"])
def test_cookie_neg_where_entries_are_is_told_of_one_incarnation(
    filled: MemoryDisk, before: str
) -> None:

    def is_due(operation: str, path: str) -> bool:
        if before == "marker":
            return path == MARKER_PATH and operation == "read"
        return operation == ("list" if before == "list" else "read")

    bookie = FileBookie(wiped_before(filled, is_due))

    assert all(
        isinstance(held, BookKeeperError)
        for held in bookie.holdings([RangeRef(each, 0, 3) for each in LEDGERS])
    )


def test_a_small_slot_is_read_once_for_its_places_and_its_entries(filled: MemoryDisk) -> None:
    looks = Counter[tuple[str, bool]]()

    def faults(operation: str, path: str, moment: str) -> None:
        looks[operation, path == MARKER_PATH] += moment == "before"

    bookie = FileBookie(MemoryStorage(filled, faults))
    found = bookie.read_small([EntriesRef(each, range(4)) for each in LEDGERS], 1 << 20)

    assert [[e.entry_id for e in value_of(one)] for one in found] == [[0, 1, 2, 3]] * COUNT
    assert looks["read", False] == 2 * COUNT, "two slots of each"
    assert looks["read", True] == 1


def test_cookie_neg_copies_are_not_taken_for_another_incarnation(disk: MemoryDisk) -> None:
    """The partition is formatted anew between the looks for tombstones and that at the marker."""

    def is_due(operation: str, path: str) -> bool:
        return operation == "list"

    wanted = [EntriesRef(each, range(4)) for each in LEDGERS]
    for answer in FileBookie(wiped_before(disk, is_due)).lacking(wanted):
        assert isinstance(answer, CookieMismatchError)


@pytest.mark.parametrize("before", ["list", "read"])
def test_cookie_neg_entries_are_read_of_one_incarnation(filled: MemoryDisk, before: str) -> None:
    """It would say of every entry that it is not there."""
    bookie = FileBookie(
        wiped_before(filled, lambda operation, path: operation == before and path != MARKER_PATH)
    )

    answers = bookie.read_small([EntriesRef(each, range(4)) for each in LEDGERS], 1 << 20)

    assert all(isinstance(answer, BookKeeperError) for answer in answers)


def test_what_was_read_does_not_stay_when_a_look_up_fails(filled: MemoryDisk) -> None:

    def faults(operation: str, path: str, moment: str) -> None:
        if operation == "list" and path.endswith("/copies"):
            raise BookieUnavailableError("no answer", bookie_id=BOOKIE)

    bookie = FileBookie(MemoryStorage(filled, faults))
    answers = bookie.read_small([EntriesRef(each, range(4)) for each in LEDGERS], 1 << 20)

    assert all(isinstance(answer, BookKeeperError) for answer in answers)
    assert [dict(bookie.log(each).take_whole()) for each in LEDGERS] == [{}] * COUNT


def test_damaged_entries_are_not_among_those_that_are_copied(filled: MemoryDisk) -> None:
    path = LedgerPaths(LEDGERS[2].key).slot(1)
    filled.corrupt(path, flipped)
    wanted = [EntriesRef(each, range(4)) for each in LEDGERS]

    found = FileBookie(MemoryStorage(filled)).read_small(wanted, 1 << 20)

    counts = [len(value_of(one)) for one in found]
    assert counts == [2 if each is LEDGERS[2] else 4 for each in LEDGERS]


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-8], lambda data: data + b"x", lambda data: b"?" + data[1:]]
)
def test_a_copy_that_is_not_read_back_as_it_was_written_is_not_stored(
    filled: MemoryDisk, spoil: Callable[[bytes], bytes]
) -> None:
    copies = copies_from(filled)
    target = partition(OTHER)
    damaged = LedgerPaths(LEDGERS[2].key).copies

    def faults(operation: str, path: str, moment: str) -> None:
        if operation == "put" and path.startswith(damaged) and moment == "after":
            target.corrupt(path, spoil)

    answers = FileBookie(MemoryStorage(target, faults)).write_copies(copies)

    # Its name is taken by then; alone it is put under another, and spoilt again.
    assert [answer is None for answer in answers] == [each is not LEDGERS[2] for each in LEDGERS]


def test_what_is_unusual_about_one_is_its_own_affair(filled: MemoryDisk) -> None:
    storage = MemoryStorage(filled)
    bookie = FileBookie(storage)
    fenced, holed, damaged, gone, strange = LEDGERS[:5]
    bookie.fence([fenced])
    del filled.files[LedgerPaths(holed.key).slot(0)]
    path = LedgerPaths(damaged.key).slot(1)
    filled.corrupt(path, lambda data: data[:40])
    bookie.retire(gone.key)
    bookie.delete(gone.key)
    asked = [*LEDGERS[:4], replace(strange, incarnation="another"), LEDGERS[5]]

    answers = FileBookie(MemoryStorage(filled)).fence(asked)

    assert isinstance(answers[3], NoSuchLedgerError)
    assert isinstance(answers[4], CookieMismatchError)
    tails = [value_of(answers[number]) for number in (0, 1, 2, 5)]
    assert [tail.is_fenced for tail in tails] == [True] * 4
    assert [tail.entries.entry_ids.tolist() for tail in tails] == [
        [0, 1, 2, 3],
        [2, 3],
        [0, 1],
        [0, 1, 2, 3],
    ]
    assert [bool(tail.entries.doubts) for tail in tails] == [False, True, True, False]
    assert fence_of(storage, fenced) == [2]
    assert fence_of(storage, holed) == [0, 2]


def test_a_race_that_is_lost_is_run_again(filled: MemoryDisk) -> None:
    """A writer's record comes between the listing and the put."""
    late = LEDGERS[2]

    def faults(operation: str, path: str, moment: str) -> None:
        if operation == "sync" and path.startswith(LedgerPaths(late.key).slots):
            data = record(2, [4], ledger=late).data
            MemoryStorage(filled).put_if_absent(LedgerPaths(late.key).slot(2), data)

    tails = FileBookie(MemoryStorage(filled, faults)).fence(LEDGERS)

    assert [value_of(tail).entries.entry_ids.tolist()[-1] for tail in tails] == [3, 3, 4, 3, 3, 3]
    assert fence_of(MemoryStorage(filled), late) == [3]


@pytest.mark.parametrize("operation", ["put", "sync", "read"])
@pytest.mark.parametrize("nth", range(0, 3 * COUNT, 2))
def test_a_lost_answer_costs_nobody_anything(filled: MemoryDisk, operation: str, nth: int) -> None:
    met: Counter[str] = Counter()

    def faults(asked: str, path: str, moment: str) -> None:
        if asked == operation:
            met[asked] += 1
            if met[asked] == nth + 1:
                raise BookieUnavailableError("no answer", bookie_id=BOOKIE)

    answers = FileBookie(MemoryStorage(filled, faults)).fence(LEDGERS)

    for each, answer in zip(LEDGERS, answers, strict=True):
        tail = value_of(FileBookie(MemoryStorage(filled)).fence([each])[0])
        assert tail.entries.entry_ids.tolist() == [0, 1, 2, 3]
        if not isinstance(answer, BookKeeperError):
            assert fence_of(MemoryStorage(filled), each) == [2], (
                "one fence, found and not put again"
            )
            with pytest.raises(LedgerFencedError):
                FileBookie(MemoryStorage(filled)).add(each, record(2, [4], ledger=each))


@pytest.mark.parametrize("nth", range(8 * COUNT))
def test_fence_on_durable_no_power_cut_leaves_a_fence_above_a_hole(
    filled: MemoryDisk, nth: int
) -> None:
    """The last record of each was put and never synced; the cut takes all that is not durable."""
    for each in LEDGERS:
        filled.durable.discard(LedgerPaths(each.key).slot(1))
    left = nth

    def faults(operation: str, path: str, moment: str) -> None:
        nonlocal left
        if operation in ("put", "sync"):
            left -= 1
            if left < 0:
                raise Cut

    try:
        FileBookie(MemoryStorage(filled, faults)).fence(LEDGERS)
    except Cut:
        filled.power_cut()

    for each in LEDGERS:
        slots = {path for path in filled.files if path.startswith(LedgerPaths(each.key).slots)}
        assert LedgerPaths(each.key).slot(2) not in slots or len(slots) == 3


def wiped_before(disk: MemoryDisk, is_due: Callable[[str, str], bool]) -> MemoryStorage:
    """A partition that is wiped and formatted anew before an operation, once."""
    is_over = False

    def faults(operation: str, path: str, moment: str) -> None:
        nonlocal is_over
        if not is_over and is_due(operation, path):
            is_over = True
            disk.wipe()
            Partition(MemoryStorage(disk)).furnish(Marker(BOOKIE, "another", "cluster"))

    return MemoryStorage(disk, faults)


@pytest.mark.parametrize("before", ["list", "sync", "put", "copies", "marker"])
def test_cookie_neg_another_incarnation_says_nothing_whenever_it_comes(
    filled: MemoryDisk, before: str
) -> None:
    """It would say of every entry that it is absent."""
    at_marker = before == "marker"

    def is_due(operation: str, path: str) -> bool:
        if path == MARKER_PATH:
            return at_marker and operation == "read"
        if before == "copies":
            return operation == "list" and path.endswith("/copies")
        return operation == before

    answers = FileBookie(wiped_before(filled, is_due)).fence(LEDGERS)

    assert all(isinstance(answer, BookKeeperError) for answer in answers)


def test_copies_count_only_in_the_incarnation_that_took_them(filled: MemoryDisk) -> None:
    copies = copies_from(filled)
    target = partition(OTHER)
    storage = wiped_before(target, lambda operation, path: path == MARKER_PATH)

    lost = FileBookie(storage).write_copies(copies)

    assert all(isinstance(answer, BookKeeperError) for answer in lost)


@pytest.mark.parametrize("operation", ["make_directory", "put", "list", "read"])
@pytest.mark.parametrize("has_directories", [True, False])
def test_cookie_neg_copies_that_are_put_after_a_wipe_do_not_count(
    filled: MemoryDisk, operation: str, has_directories: bool
) -> None:
    """The partition is formatted anew, and then takes them and reads them back."""
    target = partition(has_directories=has_directories)
    storage = wiped_before(target, lambda asked, path: asked == operation and path != MARKER_PATH)

    answers = FileBookie(storage).write_copies(copies_from(filled))

    assert all(isinstance(answer, BookKeeperError) for answer in answers)


@pytest.mark.parametrize("number", [1, COUNT])
def test_copies_that_nobody_would_find_are_not_stored(filled: MemoryDisk, number: int) -> None:
    """However many a target is sent together: a listing does not show what was put."""

    class Hiding(MemoryStorage):
        def list(self, directory: str) -> Sequence[str]:
            return [] if directory.endswith("/copies") else super().list(directory)

    target = partition(OTHER)

    answers = FileBookie(Hiding(target)).write_copies(copies_from(filled)[:number])

    assert [type(answer) for answer in answers] == [BookieUnavailableError] * number


def copies_from(disk: MemoryDisk) -> list[NewCopies]:
    """Of the first entries of every ledger."""
    source = FileBookie(MemoryStorage(disk))
    return [NewCopies(each, source.read(each, [0, 1, 2]).found) for each in LEDGERS]


def test_copies_are_those_that_each_makes_by_itself(filled: MemoryDisk) -> None:
    copies = copies_from(filled)
    targets = [partition(OTHER) for _ in range(2)]
    together, alone = (FileBookie(MemoryStorage(target)) for target in targets)

    for _ in range(2):  # repeating it changes nothing
        assert together.write_copies(copies) == [None] * COUNT
    for copy in copies:
        alone.write_copies([copy])

    assert targets[0].files == targets[1].files
    assert targets[0].durable == targets[1].durable


# On a disk


SYNCED_AS_A_WHOLE = pytest.mark.skipif(
    not file_system.is_fit("."), reason="no file system that is synced as a whole"
)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path, BOOKIE)
    for number in range(COUNT):
        storage.make_directory(f"d{number}")
    return storage


def files(count: int = COUNT) -> list[tuple[str, bytes]]:
    return [(f"d{number}/a", b"%d" % number) for number in range(count)]


@SYNCED_AS_A_WHOLE
def test_contents_are_synced_before_names_and_names_before_it_returns(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = file_system.FileSystem.sync

    def sync(self: file_system.FileSystem) -> None:
        seen.append(sum(storage.size(path) is not None for path, _ in files()))
        real(self)

    monkeypatch.setattr(file_system.FileSystem, "sync", sync)
    monkeypatch.setattr(file_system, "_dirty_bytes", lambda: 0.0)

    assert storage.put_all(files()) == [True] * COUNT
    assert seen == [0, COUNT]


@SYNCED_AS_A_WHOLE
def test_what_new_files_rely_on_costs_no_sync_more(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        file_system.FileSystem, "sync", lambda _: seen.append(names_of_new(storage))
    )
    monkeypatch.setattr(file_system, "_dirty_bytes", lambda: 0.0)
    below = [(f"d{number}/below", b"") for number in range(COUNT)]
    storage.put_all(below)
    seen.clear()

    assert storage.put_all(files(), relied_on=[path for path, _ in below]) == [True] * COUNT

    assert seen == [0, COUNT], "durable before any of the new ones has its name"


@SYNCED_AS_A_WHOLE
def test_what_new_files_rely_on_in_a_file_system_mounted_below_is_synced_there(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_stat, real_sync = os.stat, new_file.sync_directory
    storage.put_if_absent("d0/below", b"")

    def stat(path: str, **named: bool | int | None) -> os.stat_result:
        found = real_stat(path, **named)  # type: ignore[arg-type]
        if not str(path).endswith("d0/below"):
            return found
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))

    def sync_directory(path: str) -> None:
        assert names_of_new(storage) == 0 or path.rpartition("/")[2] != "d0"
        if path.startswith(storage._root):  # a cluster of other tests may end beside this one
            synced.append(path.rpartition("/")[2])
        real_sync(path)

    monkeypatch.setattr(file_system, "_dirty_bytes", lambda: 0.0)
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(local, "sync_directory", sync_directory)

    assert storage.put_all(files(), relied_on=["d0/below"]) == [True] * COUNT

    assert synced == ["d0"], "durable before any of the new ones has its name"


def names_of_new(storage: LocalStorage) -> int:
    return sum(storage.size(path) is not None for path, _ in files())


@SYNCED_AS_A_WHOLE
def test_what_a_sync_of_the_whole_reports_is_told(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: file_system.FileSystem) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_system.FileSystem, "sync", fail)
    monkeypatch.setattr(file_system, "_dirty_bytes", lambda: 0.0)

    with pytest.raises(BookieUnavailableError, match="Input/output error"):
        storage.put_all(files())
    assert storage.size("d0/a") is None, "no name before its content is durable (R1)"
    for path, data in files():
        storage.put_if_absent(path, data)
    with pytest.raises(BookieUnavailableError, match="Input/output error"):
        storage.sync_all([path for path, _ in files()])
    with pytest.raises(BookieUnavailableError, match="Input/output error"):
        storage.make_directories([f"d{number}/sub" for number in range(COUNT)])


@SYNCED_AS_A_WHOLE
def test_a_journal_that_had_failed_before_is_told_by_the_sync_after_it(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``syncfs`` says that all is well, and a sync of what is in the same journal does not."""
    real = os.fsync
    root = os.stat(storage.uri.removeprefix("file://"))

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) == (root.st_dev, root.st_ino):
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(file_system, "_dirty_bytes", lambda: 0.0)

    with pytest.raises(BookieUnavailableError, match="Input/output error"):
        storage.put_all(files())
    assert all(storage.size(path) is None for path, _ in files())


def test_while_others_write_much_each_directory_is_synced_by_itself(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = new_file.sync_directory
    monkeypatch.setattr(file_system, "_dirty_bytes", lambda: float("inf"))

    def sync_directory(path: str) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(local, "sync_directory", sync_directory)

    assert storage.put_all(files()) == [True] * COUNT
    storage.sync_all([path for path, _ in files()])

    assert len(synced) == COUNT
    assert [storage.read(path) for path, _ in files()] == [data for _, data in files()]


def test_a_file_system_is_fit_only_where_a_mount_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not file_system._is_fit(0)
    monkeypatch.setattr(file_system, "_release", lambda: (5, 7))
    assert not file_system._is_fit.__wrapped__(1)


def test_progress_is_told_and_stops_what_is_given_up(storage: LocalStorage) -> None:
    told: list[int] = []

    def stop() -> None:
        told.append(1)
        raise BookieUnavailableError("given up", bookie_id=BOOKIE)

    with pytest.raises(BookieUnavailableError, match="given up"):
        storage.put_all(files(), stop)
    with pytest.raises(BookieUnavailableError, match="given up"):
        MemoryStorage(MemoryDisk()).make_directories(["e", "f"], stop)
    assert len(told) == 2
