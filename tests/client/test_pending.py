"""Entries between append and the last bookie's answer, as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_bookkeeper.client.write.pending import BulkBlock, PendingEntries
from spark_bookkeeper.protocol.ids import EntryId

MANY = 1000


def pending(*sizes: int) -> PendingEntries:
    entries = PendingEntries()
    for n, size in enumerate(sizes):
        assert entries.push(bytes(size), size) == n
    return entries


def block(first: int, last: int) -> BulkBlock:
    return BulkBlock(EntryId(first), EntryId(last), spans=[], parts=[], classes={})


def test_a_run_takes_what_has_gathered() -> None:
    run = pending(5, 0, 7).run(1, MANY, MANY)

    assert (run.first, run.last, run.bulk) == (1, 2, None)
    assert run.payloads == [b"", bytes(7)]
    assert run.lengths_after == [5, 12]


def test_a_run_ends_at_either_limit_but_has_an_entry() -> None:
    entries = pending(10, 10, 10, 50, 1)

    assert entries.run(0, 2, MANY).last == 1
    assert entries.run(0, MANY, 29).last == 1
    assert entries.run(0, MANY, 30).last == 2
    assert entries.run(3, MANY, 30).last == 3, "larger than the limit, it goes alone"


def test_a_bulk_append_is_a_run_of_its_own() -> None:
    entries = pending(10)
    bulk = block(1, 3)
    entries.push_block(bulk, [100, 100, 100])
    entries.push(b"x", 1)

    assert entries.run(0, MANY, MANY).last == 0
    run = entries.run(1, MANY, 1)
    assert (run.first, run.last, run.bulk) == (1, 3, bulk)
    assert run.lengths_after == [110, 210, 310]
    assert entries.run(2, MANY, MANY).first == 2, "a replacement begins behind the LAC"
    assert entries.run(4, MANY, MANY).payloads == [b"x"]
    assert entries.length == 311


def test_bytes_are_held_until_nobody_needs_them_and_those_of_tasks_are_not() -> None:
    entries = pending(10, 20)
    entries.push_block(block(2, 4), [100, 100, 100])
    entries.push(bytes(5), 5)
    assert entries.size_bytes == 35

    held = []
    for needed in (0, 1, 1, 3, 5, 6):
        entries.forget_below(needed)
        held.append(entries.size_bytes)
    assert held == [35, 25, 25, 5, 5, 0]
    assert entries.length_after(5) == 335, "of the last one that is not held"
    assert entries.push(b"y", 1) == 6
    assert entries.length_after(6) == 336


class Interrupted(list[Any]):
    """Ctrl-C comes when the next thing is taken in."""

    def append(self, value: object) -> None:
        super().append(value)
        raise KeyboardInterrupt

    def __iadd__(self, values: Any) -> Any:  # type: ignore[misc]  # it returns nothing
        super().__iadd__(values)
        raise KeyboardInterrupt


COLUMNS = ["_payloads", "_lengths_after"]


@pytest.mark.parametrize(
    ("column", "take"),
    [(column, lambda entries: entries.push(b"lost", 4)) for column in COLUMNS]
    + [
        (column, lambda entries: entries.push_block(block(4, 5), [7, 7]))
        for column in [*COLUMNS, "_blocks"]
    ],
)
def test_an_entry_that_ctrl_c_kept_from_being_taken_has_no_part_in_the_next(
    column: str, take: Callable[[PendingEntries], None]
) -> None:
    entries = pending(10, 20)
    entries.push_block(block(2, 3), [100, 100])
    entries.forget_below(1)
    setattr(entries, column, Interrupted(getattr(entries, column)))

    with pytest.raises(KeyboardInterrupt):
        take(entries)
    setattr(entries, column, list(getattr(entries, column)))

    assert (entries.last, entries.length, entries.size_bytes) == (3, 230, 20)
    assert entries.push(b"next", 4) == 4
    run = entries.run(4, MANY, MANY)
    assert (run.payloads, run.lengths_after) == ([b"next"], [234])
    assert run.bulk is None
    assert entries.run(2, MANY, MANY).last == 3
