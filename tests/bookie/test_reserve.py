"""Whoever adds data leaves the last space of a partition to the ends of ledgers.

How much that is, with many writers at once, is in ``client/test_readonly.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from spark_bookkeeper.bookie.bookie import Compaction, LedgerRef, NewCopies
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.errors import BookieReadOnlyError
from spark_bookkeeper.runtime.answer import value_of
from spark_bookkeeper.testing.conformance.bookie import record
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.bookie.ledgers import fill, ledgers, partition

LEDGERS = ledgers(3)
TOTAL = 1_000_000


def full() -> MemoryDisk:
    """Of a bookie that has only its last space."""
    disk = partition()
    fill(disk, LEDGERS)
    disk.total_bytes, disk.free_bytes = TOTAL, TOTAL // 100
    return disk


def add(bookie: FileBookie, ledger: LedgerRef) -> None:
    bookie.add(ledger, record(2, [4], ledger=ledger))


def part(bookie: FileBookie, ledger: LedgerRef) -> None:
    bookie.begin_part(ledger, "part").write(b"data")


def copy(bookie: FileBookie, ledger: LedgerRef) -> None:
    entries = bookie.read(ledger, [0]).found
    value_of(bookie.write_copies([NewCopies(ledger, entries)])[0])


def copy_of_many(bookie: FileBookie, ledger: LedgerRef) -> None:
    among = [replace(each, may_take_last=ledger.may_take_last) for each in LEDGERS]
    copies = [NewCopies(each, bookie.read(each, [0]).found) for each in among]
    for answer in bookie.write_copies(copies):
        value_of(answer)


def compact(bookie: FileBookie, ledger: LedgerRef) -> None:
    bookie.compact(Compaction(ledger, 3, "1", files_least=2))


ADDING = [add, part, copy, copy_of_many, compact]


@pytest.mark.parametrize("adds", ADDING)
def test_the_last_space_is_not_for_data(adds: Callable[[FileBookie, LedgerRef], None]) -> None:
    disk = full()
    before = dict(disk.files)

    with pytest.raises(BookieReadOnlyError):
        adds(FileBookie(MemoryStorage(disk)), LEDGERS[0])

    new = [path for path in disk.files if path not in before and "/slots/" not in path]
    assert new == []
    assert before.items() <= disk.files.items()
    disk.free_bytes = TOTAL // 2
    adds(FileBookie(MemoryStorage(disk)), LEDGERS[0])


def test_where_few_inodes_are_left_they_are_the_last_space(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = full()
    disk.free_bytes = TOTAL // 2
    monkeypatch.setattr(MemoryStorage, "inodes", lambda _: (5, 1_000))

    with pytest.raises(BookieReadOnlyError, match="as 5 of 1,000 inodes are free"):
        add(FileBookie(MemoryStorage(disk)), LEDGERS[0])

    bookie = FileBookie(MemoryStorage(disk))
    assert bookie.compact(Compaction(LEDGERS[0], 1, "1", files_least=2)).removed, "frees inodes"


@pytest.mark.parametrize("adds", [part, copy, copy_of_many])
def test_it_is_for_copies_that_end_a_ledger(adds: Callable[[FileBookie, LedgerRef], None]) -> None:
    adds(FileBookie(MemoryStorage(full())), replace(LEDGERS[0], may_take_last=True))


def test_where_there_is_room_for_some_copies_those_are_stored() -> None:
    disk = full()
    bookie = FileBookie(MemoryStorage(disk))
    copies = [NewCopies(each, bookie.read(each, [0]).found) for each in LEDGERS]
    looks = count()

    def space() -> tuple[int, int]:
        return TOTAL // 100 + (TOTAL if next(looks) == 1 else 0), TOTAL

    bookie.storage.space = space  # type: ignore[method-assign]  # first all of them ask, then each

    answers = bookie.write_copies(copies)

    assert [type(answer) for answer in answers[1:]] == [BookieReadOnlyError] * 2
    assert answers[0] is None
