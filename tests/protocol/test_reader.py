"""Which bookie is asked for an entry, and when a read has failed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.reader import Ask, Reader, Unreadable

ENSEMBLE = tuple(BookieId(name) for name in "abcd")


def reader(quorum: Quorum, count: int, preference: tuple[int, ...]) -> Reader:
    entries = [EntryId(e) for e in range(count)]
    return Reader(quorum, ENSEMBLE[: quorum.ensemble_size], entries, preference)


def asked(found: list[Ask] | Unreadable) -> dict[int, tuple[int, ...]]:
    assert not isinstance(found, Unreadable)
    return {ask.position: ask.entries for ask in found}


def test_a_whole_run_is_asked_of_the_preferred_bookie() -> None:
    machine = reader(Quorum(3, 3, 2), 5, (1, 0, 2))

    assert asked(machine.next()) == {1: (0, 1, 2, 3, 4)}


def test_a_striped_run_is_shared_out_to_who_holds_what() -> None:
    machine = reader(Quorum(4, 2, 2), 4, (0, 1, 2, 3))

    assert asked(machine.next()) == {0: (0, 3), 1: (1,), 2: (2,)}


def test_what_a_bookie_cannot_deliver_goes_to_the_next_one() -> None:
    machine = reader(Quorum(3, 3, 2), 3, (0, 1, 2))
    machine.delivered([EntryId(0), EntryId(2)])
    machine.refused(0, [EntryId(1)], "damaged")

    assert asked(machine.next()) == {1: (1,)}
    machine.delivered([EntryId(1)])
    assert machine.next() == []


def test_when_none_is_left_the_read_fails_and_names_each_bookie_and_why() -> None:
    machine = reader(Quorum(3, 2, 2), 1, (0, 1, 2))
    machine.refused(0, [EntryId(0)], "damaged")
    machine.refused(1, [EntryId(0)], "does not hold it")

    assert machine.next() == Unreadable(
        EntryId(0), {BookieId("a"): "damaged", BookieId("b"): "does not hold it"}
    )


def test_an_entry_is_delivered_exactly_when_some_bookie_of_its_write_set_can() -> None:
    for size, write in ((3, 3), (3, 2), (4, 2)):
        quorum = Quorum(size, write, 1)
        for good in product([False, True], repeat=size):
            for entry_id in map(EntryId, range(size)):
                machine = Reader(quorum, ENSEMBLE[:size], [entry_id], range(size))
                asks = 0
                while (found := machine.next()) and not isinstance(found, Unreadable):
                    (ask,) = found
                    asks += 1
                    if good[ask.position]:
                        machine.delivered(ask.entries)
                    else:
                        machine.refused(ask.position, ask.entries, "no")

                can = any(good[p] for p in quorum.write_set(entry_id))
                assert isinstance(found, Unreadable) == (not can)
                assert asks <= write, "nobody is asked twice"


def test_while_a_bookie_is_late_the_next_one_is_asked_for_the_same() -> None:
    machine = reader(Quorum(3, 3, 2), 2, (0, 1, 2))
    (first,) = asks_of(machine)
    assert machine.next([first]) == []

    (second,) = asks_of(machine, late=[first])
    assert (second.position, second.entries) == (1, first.entries)
    (third,) = asks_of(machine, late=[first, second])
    assert third.position == 2
    assert machine.next(late=[first, second, third]) == [], "late is not never"

    machine.delivered([EntryId(0)])
    machine.refused(1, [EntryId(1)], "damaged")
    machine.refused(2, [EntryId(1)], "damaged")
    assert machine.next(late=[first]) == []
    machine.refused(0, [EntryId(1)], "no answer")
    assert isinstance(machine.next(), Unreadable)


def asks_of(machine: Reader, late: Sequence[Ask] = ()) -> list[Ask]:
    found = machine.next(late=late)
    assert not isinstance(found, Unreadable)
    return found
