"""Many runs of plain code over one storage: what they ask for together, and what each is told."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from typing_extensions import override

from spark_bookkeeper.bookie import reading, verification
from spark_bookkeeper.bookie.bookie import NewestRecord, RangeRef, Verification
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.schema import MARKER_PATH, LedgerPaths
from spark_bookkeeper.errors import BookieUnavailableError, BookKeeperError, CorruptEntryError
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.storage.batching import MOST_BYTES, MOST_RUNS, BatchingStorage
from spark_bookkeeper.storage.storage import Request, nothing
from spark_bookkeeper.testing.conformance.bookie import record
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.bookie.ledgers import BOOKIE, fill, ledgers, partition


class Gathered(MemoryStorage):
    """A bucket that notes what it is asked together."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.rounds: list[list[Request]] = []
        self.lost_round: int | None = None
        """The number of one that has no answers."""

    @override
    def ask_all(
        self, requests: Sequence[Request], progress: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        self.rounds.append(list(requests))
        if len(self.rounds) - 1 == self.lost_round:
            raise BookieUnavailableError("no answer", bookie_id=BOOKIE)
        return super().ask_all(requests, progress)


@pytest.fixture
def bucket() -> MemoryDisk:
    return partition(has_directories=False)


@pytest.fixture
def storage(bucket: MemoryDisk) -> Gathered:
    return Gathered(bucket)


@pytest.fixture
def rounds(storage: Gathered) -> BatchingStorage:
    return BatchingStorage(storage)


def paths_of(storage: Gathered) -> list[list[str]]:
    return [[request.path for request in requests] for requests in storage.rounds]


def test_each_goes_on_with_its_own_answers(rounds: BatchingStorage, storage: Gathered) -> None:
    for number in range(3):
        storage.put_if_absent(f"{number}", b"next/%d" % number)
        storage.put_if_absent(f"next/{number}", b"%d" % number)

    def follow(number: int) -> tuple[bytes | None, bool]:
        first = rounds.read(str(number))
        assert first is not None
        return rounds.read(first.decode()), rounds.put_if_absent(f"new/{number}", b"")

    answers = rounds.together([partial(follow, number) for number in range(3)])

    assert answers == [(b"%d" % number, True) for number in range(3)]
    assert paths_of(storage) == [
        [f"{step}{number}" for number in range(3)] for step in ("", "next/", "new/")
    ]


def test_those_that_need_more_rounds_hold_up_nobody_and_are_waited_for(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    def ask(count: int) -> int:
        for number in range(count):
            rounds.size(f"{count}/{number}")
        return count

    answers = rounds.together([partial(ask, count) for count in (3, 0, 1)])

    assert answers == [3, 0, 1]
    assert paths_of(storage) == [["3/0", "1/0"], ["3/1"], ["3/2"]]


def test_what_many_ask_for_is_asked_once_in_a_round_and_what_changes_anything_each_time(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    storage.put_if_absent("marker", b"m")

    def look() -> tuple[bytes | None, bool, bytes | None]:
        return rounds.read("marker"), rounds.put_if_absent("name", b"x"), rounds.read("marker")

    answers = rounds.together([look] * 4)

    assert answers == [(b"m", number == 0, b"m") for number in range(4)]
    assert paths_of(storage) == [["marker"], ["name"] * 4, ["marker"]]


def test_what_one_asks_for_together_is_part_of_the_round(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    storage.put_if_absent("a", b"a")

    def several() -> Sequence[Any]:
        rounds.sync("a", "a")
        return rounds.ask_all([Request("read", "a"), Request("sync", "gone")])

    first, second = map(value_of, rounds.together([several, several]))

    assert paths_of(storage) == [["a"] * 4, ["a", "gone", "gone"]]
    for answers in (first, second):
        assert answers[0] == b"a"
        assert isinstance(answers[1], BookieUnavailableError)


def test_an_error_is_that_of_one_and_may_be_handled_by_it(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    def sync(path: str) -> str:
        try:
            rounds.sync(path)
        except BookieUnavailableError:
            if path == "handled":
                return "handled"
            raise
        return path

    storage.put_if_absent("a", b"")

    a, gone, handled = rounds.together([partial(sync, path) for path in ("a", "b", "handled")])

    assert (a, handled) == ("a", "handled")
    assert isinstance(gone, BookieUnavailableError)


def test_when_a_round_has_no_answers_each_of_its_runs_is_told_so(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    storage.lost_round = 1
    told: list[str] = []

    def ask(count: int) -> int:
        for number in range(count):
            try:
                rounds.size(f"{count}/{number}")
            except BookieUnavailableError as error:
                told.append(f"{count}/{number}: {error}")
                raise
        return count

    answers = rounds.together([partial(ask, count) for count in (1, 2, 3)])

    assert [isinstance(answer, BookieUnavailableError) for answer in answers] == [
        False, True, True,
    ]  # fmt: skip
    assert told == ["2/1: no answer", "3/1: no answer"]
    assert len(storage.rounds) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_any_other_exception_ends_all_of_them_and_nothing_more_is_asked(
    rounds: BatchingStorage, storage: Gathered, error: type[BaseException]
) -> None:
    ended: list[int] = []

    def ask(number: int) -> None:
        try:
            rounds.size("a")
            if number == 1:
                raise error
            rounds.size("b")
        finally:
            ended.append(number)
            if number != 1:
                rounds.size("c")

    with pytest.raises(error):
        rounds.together([partial(ask, number) for number in range(3)])

    assert sorted(ended) == [0, 1, 2]
    assert paths_of(storage) == [["a"]]


def test_all_of_them_are_ended_also_when_one_raises_at_that(rounds: BatchingStorage) -> None:
    """As when Ctrl-C is pressed once more."""
    ended: list[int] = []

    def ask(number: int) -> None:
        try:
            rounds.size("a")
            if number == 0:
                raise ValueError
        finally:
            ended.append(number)
            if number in (1, 2):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rounds.together([partial(ask, number) for number in range(4)])

    assert sorted(ended) == [0, 1, 2, 3]


def test_an_interrupt_while_answers_are_waited_for_ends_all_of_them(bucket: MemoryDisk) -> None:
    class Interrupted(Gathered):
        def ask_all(self, *_: Any) -> Sequence[Any]:
            raise KeyboardInterrupt

    rounds, ended = BatchingStorage(Interrupted(bucket)), Counter[str]()

    def ask() -> None:
        try:
            rounds.size("a")
        except Exception:
            ended["handled"] += 1
        finally:
            ended["ended"] += 1

    with pytest.raises(KeyboardInterrupt):
        rounds.together([ask] * 3)

    assert ended == {"ended": 3}, "nobody takes it for an answer"


def test_so_many_are_begun_and_no_more(rounds: BatchingStorage, storage: Gathered) -> None:
    under_way = most = 0

    def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for step in range(1 + number % 3):
            rounds.size(f"{number}/{step}")
        under_way -= 1
        return number

    answers = rounds.together([partial(ask, number) for number in range(3 * MOST_RUNS)])

    assert answers == list(range(3 * MOST_RUNS))
    assert most == MOST_RUNS
    assert max(map(len, storage.rounds)) == MOST_RUNS


def test_no_round_asks_for_more_bytes_than_may_be_held(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    """Those that were begun first go on, as they may still hold what they read before."""
    piece = MOST_BYTES // 4

    def read(number: int) -> int:
        rounds.size(f"{number}")
        for at in range(2):
            rounds.read_range(f"{number}", at * piece, piece)
        return number

    answers = rounds.together([partial(read, number) for number in range(7)])

    assert answers == list(range(7))
    assert [[int(path) for path in paths] for paths in paths_of(storage)] == [
        list(range(7)),
        *[[0, 1, 2, 3]] * 2,
        *[[4, 5, 6]] * 2,
    ]


def test_what_is_more_by_itself_is_asked_alone_and_holds_up_no_little_question(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    def read(path: str, length: int) -> int:
        rounds.read_range(path, 0, length)
        rounds.read(path)
        return length

    lengths = [MOST_BYTES + 1, 1, MOST_BYTES]
    answers = rounds.together([partial(read, f"{n}", length) for n, length in enumerate(lengths)])

    assert answers == lengths
    assert paths_of(storage) == [["0"], ["0", "1"], ["1", "2"], ["2"]]


def test_elsewhere_it_is_asked_at_once(rounds: BatchingStorage, storage: Gathered) -> None:
    other = BatchingStorage(storage)

    def ask() -> tuple[bool, int | None]:
        return other.put_if_absent("a", b"x"), rounds.size("a")

    assert rounds.together([ask]) == [(True, 1)]
    assert rounds.size("a") == 1
    assert paths_of(storage) == [["a"]], "the other's requests, and those of nobody, by themselves"


def test_nothing_is_asked_for_nobody(rounds: BatchingStorage, storage: Gathered) -> None:
    assert rounds.together([]) == []
    assert storage.rounds == []


def test_nothing_is_kept_of_runs_that_have_ended(rounds: BatchingStorage) -> None:
    class Held:
        pass

    def ask() -> None:
        held = Held()
        rounds.size("a")
        del held

    rounds.together([ask] * 5)
    gc.collect()

    assert not [one for one in gc.get_objects() if isinstance(one, Held)]


# Ledgers in a bucket


LEDGERS = ledgers(5)


def test_a_fence_of_many_takes_as_many_rounds_as_one(bucket: MemoryDisk, storage: Gathered) -> None:
    fill(bucket, LEDGERS)

    tails = [value_of(tail) for tail in FileBookie(storage).fence(LEDGERS)]

    assert all(tail.is_fenced for tail in tails)
    asked = [Counter(request.operation for request in requests) for requests in storage.rounds]
    assert asked == [
        {"list": 5},  # the slots that there are
        {"read_range": 5},  # the header of the highest
        {"put_if_absent": 5},  # the fences
        {"read_range": 5},  # the header of the one below, since nothing says that it is confirmed
        {"list": 5},  # of copies, behind the fences
        {"read": 1},  # the marker, one for all
        {"exists": 1},  # the witness
    ]
    for each in LEDGERS:
        assert LedgerPaths(each.key).slot(2) in bucket.files


def test_what_is_wrong_with_one_ledger_keeps_back_no_other(
    bucket: MemoryDisk, storage: Gathered
) -> None:
    fill(bucket, LEDGERS)
    FileBookie(MemoryStorage(bucket)).retire(LEDGERS[1].key)
    for path in [
        path for path in bucket.files if path.startswith(LedgerPaths(LEDGERS[1].key).slots)
    ]:
        del bucket.files[path]
    stray = LedgerPaths(LEDGERS[2].key).slot(10**6)
    bucket.files[stray] = b"junk"

    answers = FileBookie(storage).fence(LEDGERS)

    kinds = [type(a).__name__ if isinstance(a, BookKeeperError) else "" for a in answers]
    assert kinds == ["", "NoSuchLedgerError", "CorruptEntryError", "", ""]
    assert isinstance(answers[2], CorruptEntryError)


def test_a_marker_that_is_gone_is_read_after_everything_else(
    bucket: MemoryDisk, storage: Gathered
) -> None:
    """What was wiped while it was read says nothing about any of them."""
    fill(bucket, LEDGERS)

    def wipe(operation: str, path: str, moment: str) -> None:
        if operation == "list" and path.endswith("/copies"):
            bucket.files.pop(MARKER_PATH, None)

    storage.faults = wipe
    answers = FileBookie(storage).holdings([RangeRef(each, 0) for each in LEDGERS])

    assert {type(answer).__name__ for answer in answers} == {"CookieMismatchError"}


def test_the_front_of_many_is_told_in_rounds(bucket: MemoryDisk, storage: Gathered) -> None:
    fill(bucket, LEDGERS)

    found = FileBookie(storage).newest(LEDGERS)

    assert found == [NewestRecord(-1, None)] * 5
    assert {len(requests) for requests in storage.rounds} == {5}


def test_headers_of_many_slots_are_read_together_and_more_of_them_each_time(
    bucket: MemoryDisk, storage: Gathered
) -> None:
    fill(bucket, LEDGERS, slots=20)

    (alone,) = FileBookie(storage).holdings([RangeRef(LEDGERS[0], 0)])

    assert list(value_of(alone).entry_ids) == list(range(40))
    headers = [len(requests) for requests in storage.rounds]
    assert headers == [3, 7, 5], "but those that bisection has read, one by one"

    storage.rounds.clear()
    answers = FileBookie(storage).holdings([RangeRef(each, 0) for each in LEDGERS])

    assert all(list(value_of(answer).entry_ids) == list(range(40)) for answer in answers)
    assert max(map(len, storage.rounds)) <= storage.requests_at_once
    assert len(storage.rounds) < 15


def test_headers_that_were_read_ahead_for_nothing_are_not_kept(
    bucket: MemoryDisk, storage: Gathered
) -> None:
    fill(bucket, LEDGERS, slots=20)
    bookie = FileBookie(storage)

    bookie.holdings([RangeRef(LEDGERS[0], 0, 7)])

    read = [request.path for requests in storage.rounds for request in requests]
    assert LedgerPaths(LEDGERS[0].key).slot(6) in read, "more than are needed"
    assert bookie.log(LEDGERS[0])._slots._heads == {}


def test_entries_in_many_slots_are_read_together(bucket: MemoryDisk, storage: Gathered) -> None:
    fill(bucket, LEDGERS, slots=20)
    bookie = FileBookie(storage)
    known = value_of(bookie.holdings([RangeRef(LEDGERS[0], 0)])[0])
    storage.rounds.clear()

    found = bookie.read(LEDGERS[0], range(40), known).found

    assert sorted(entry.entry_id for entry in found) == list(range(40))
    assert [len(requests) for requests in storage.rounds] == [20]


def test_of_files_that_are_read_together_one_that_is_gone_refuses_its_entries_alone(
    bucket: MemoryDisk, storage: Gathered
) -> None:
    fill(bucket, LEDGERS, slots=20)
    bookie = FileBookie(storage)
    known = value_of(bookie.holdings([RangeRef(LEDGERS[0], 0)])[0])
    del bucket.files[LedgerPaths(LEDGERS[0].key).slot(7)]

    delivered = bookie.read(LEDGERS[0], range(40), known)

    assert sorted(delivered.refused) == [14, 15]
    assert "is gone" in delivered.refused[14]
    assert len(delivered.found) == 38


def test_no_more_is_read_together_than_one_read_may_bring(
    bucket: MemoryDisk, storage: Gathered, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bucket, LEDGERS, slots=20)
    bookie = FileBookie(storage)
    known = value_of(bookie.holdings([RangeRef(LEDGERS[0], 0)])[0])
    storage.rounds.clear()
    slot = len(bucket.files[LedgerPaths(LEDGERS[0].key).slot(0)])
    monkeypatch.setattr(reading, "_READ_BYTES", slot)

    bookie.read(LEDGERS[0], range(40), known)

    sizes = [sum(r.arguments[1] for r in requests) for requests in storage.rounds]
    assert sizes
    assert max(sizes) < 2 * slot


def test_the_files_of_a_ledger_are_looked_at_together_to_their_ends(
    bucket: MemoryDisk, storage: Gathered
) -> None:
    fill(bucket, LEDGERS, slots=20)
    damaged = LedgerPaths(LEDGERS[0].key).slot(5)
    bucket.corrupt(damaged, lambda data: data[:-1])
    storage.rounds.clear()
    wanted = [Verification(each, range(40), with_files=True) for each in LEDGERS]

    (alone,) = FileBookie(storage).verify(wanted[:1])
    rounds_of_one = len(storage.rounds)
    answers = FileBookie(storage).verify(wanted)

    assert list(value_of(alone).spoilt) == [10, 11]
    assert [list(value_of(answer).spoilt) for answer in answers] == [[10, 11], [], [], [], []]
    reads = [
        sum(r.operation == "read" and "slots" in r.path for r in each) for each in storage.rounds
    ]
    assert list(filter(None, reads[:rounds_of_one])) == [16, 4]
    assert max(reads[rounds_of_one:]) == 5 * (64 // 5)


def test_records_that_are_looked_at_to_their_ends_are_no_more_than_one_read_may_bring(
    bucket: MemoryDisk, storage: Gathered, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bucket, LEDGERS, slots=20)
    slots = LedgerPaths(LEDGERS[0].key).slots
    sizes = [len(data) for path, data in bucket.files.items() if path.startswith(slots)]
    monkeypatch.setattr(verification, "_READ_BYTES", 3 * max(sizes))

    (verdict,) = FileBookie(storage).verify([Verification(LEDGERS[0], range(40), with_files=True)])

    assert value_of(verdict).spoilt == {}
    together = [[r.path for r in each if r.operation == "read"] for each in storage.rounds]
    whole = [paths for paths in together if paths and paths != [MARKER_PATH]]
    assert sum(map(len, whole)) == 20
    assert 3 <= max(map(len, whole)) <= 6, "what is around the entries is not counted exactly"


def test_runs_within_a_run_are_part_of_its_round(
    rounds: BatchingStorage, storage: Gathered
) -> None:
    def inner(path: str) -> int | None:
        return rounds.size(path)

    def outer(number: int) -> list[int | None]:
        rounds.size("first")
        runs = [partial(inner, f"{number}/{each}") for each in range(2)]
        return [value_of(answer) for answer in rounds.together(runs)]

    answers = rounds.together([partial(outer, number) for number in range(2)])

    assert answers == [[None, None]] * 2
    assert paths_of(storage) == [["first"], ["0/0", "0/1", "1/0", "1/1"]]


def test_a_record_in_a_bucket_is_put_and_then_all_is_looked_at_at_once(
    bucket: MemoryDisk, storage: Gathered
) -> None:
    bookie = FileBookie(storage)
    bookie.prepare(LEDGERS[0])
    storage.rounds.clear()
    puts: list[int] = []
    storage.faults = lambda operation, path, _: (
        puts.append(len(storage.rounds)) if (operation == "put") else None
    )

    bookie.add(LEDGERS[0], record(0, [0, 1], ledger=LEDGERS[0]))

    assert set(puts) == {0}, "before"
    assert [{request.path for request in each} for each in storage.rounds] == [
        {MARKER_PATH, LedgerPaths(LEDGERS[0].key).tombstone}
    ]
