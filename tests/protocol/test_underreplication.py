"""Which fragments lack which replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.underreplication import (
    blocked,
    entries_at,
    live_bookies,
    live_copies,
    missing_replicas,
)

A, B, C, D, E = (BookieId(f"{name}:3181") for name in "abcde")


def two_fragments() -> LedgerMetadata:
    return LedgerMetadata(
        quorum=Quorum(3, 2, 2),
        state=LedgerState.OPEN,
        fragments=(Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(5), (A, D, C))),
    )


def test_every_position_that_names_a_lost_bookie_is_found() -> None:
    metadata = two_fragments().closed(EntryId(9), 100)

    missing = [
        (m.fragment.first_entry_id, m.fragment.last_entry_id, m.position, m.bookie)
        for m in missing_replicas(metadata, {A, D})
    ]

    assert missing == [(0, 4, 0, A), (5, 9, 0, A), (5, 9, 1, D)]


def test_the_last_fragment_of_an_open_ledger_has_no_end_to_copy_up_to() -> None:
    first, last = missing_replicas(two_fragments(), {A})

    assert first.fragment.last_entry_id == 4
    assert last.fragment.last_entry_id is None


def test_a_ledger_without_the_lost_bookies_lacks_nothing() -> None:
    assert list(missing_replicas(two_fragments(), {E})) == []


def test_runs_of_entries_are_exactly_what_is_striped_to_a_position() -> None:
    for size in range(1, 6):
        for write in range(1, size + 1):
            quorum = Quorum(size, write, 1)
            for position in range(size):
                for first in range(4):
                    for last in range(first - 1, first + 9):
                        runs = entries_at(quorum, position, EntryId(first), EntryId(last))

                        wanted = [
                            e
                            for e in range(first, last + 1)
                            if position in quorum.write_set(EntryId(e))
                        ]
                        assert [e for run in runs for e in run] == wanted
                        assert all(len(run) > 0 for run in runs)
                        gaps = [b.start - a.stop for a, b in pairwise(runs)]
                        assert all(gap > 0 for gap in gaps), "runs are as long as they can be"


def test_live_copies_are_those_of_the_worst_write_set() -> None:
    members = (A, B, C, D)
    quorum = Quorum(4, 2, 2)
    metadata = LedgerMetadata(quorum, LedgerState.OPEN, (Fragment(EntryId(0), members),))
    (fragment,) = metadata.fragment_ranges()
    for count in range(5):
        for live in combinations(members, count):
            copies = [
                sum(members[p] in live for p in quorum.write_set(EntryId(e))) for e in range(8)
            ]

            assert live_copies(quorum, fragment, live) == min(copies)


def test_a_bookie_has_live_copies_when_it_is_registered_as_what_the_ledger_means() -> None:
    registered = {A: "a1", B: "b2", C: "c1", D: "d1"}
    meant = {A: "a1", B: "b1", C: "c1", E: "e1"}

    assert live_bookies(registered, meant) == {A, C, D}
    assert live_bookies(registered, meant, lost=(C,)) == {A, D}


def subsets(bookies: Sequence[BookieId]) -> Iterator[frozenset[BookieId]]:
    for size in range(len(bookies) + 1):
        yield from map(frozenset, combinations(bookies, size))


def test_a_ledger_is_blocked_exactly_when_no_share_could_be_copied() -> None:
    """Every size, number of entries, and set of bookies that are there or take data."""
    for size in range(1, 4):
        for write in range(1, size + 1):
            ensemble = (A, B, C)[:size]
            quorum = Quorum(size, write, 1)
            for last in range(-1, 4):
                metadata = LedgerMetadata(
                    quorum, LedgerState.OPEN, (Fragment(EntryId(0), ensemble),)
                ).closed(EntryId(last), 0)
                for live in subsets(ensemble):
                    for writable in subsets((A, B, C, D)):
                        lost = [p for p, bookie in enumerate(ensemble) if bookie not in live]
                        can_be_taken = bool(writable - set(ensemble))
                        copyable = [
                            position
                            for position in lost
                            if all(
                                any(ensemble[p] in live for p in quorum.write_set(EntryId(e)))
                                for run in entries_at(quorum, position, EntryId(0), EntryId(last))
                                for e in run
                            )
                        ]
                        expected = bool(lost) and not (can_be_taken and copyable)

                        said = blocked(metadata, live, writable)

                        assert (said is not None) == expected, (metadata, live, writable)


def test_what_a_ledger_is_blocked_by_is_said() -> None:
    metadata = two_fragments().closed(EntryId(9), 100)  # A, B, C, and from entry 5 A, D, C

    assert blocked(metadata, {A, B, C, D}, {E}) is None, "nothing is lacking"
    assert blocked(metadata, {A, B, D}, {A, B, D}) is None, "B and D are in one fragment each"
    needed = "a writable bookie outside its ensemble"
    assert blocked(metadata, {B, C, D}, set()) == needed
    away = f"{A} or {C} to come back: no other bookie has copies"
    assert blocked(metadata, {B, D}, {B, D, E}) == away, "of some entries of either share"
    single = LedgerMetadata(
        Quorum(1, 1, 1), LedgerState.OPEN, (Fragment(EntryId(0), (A,)),)
    ).closed(EntryId(3), 1)
    assert blocked(single, (), {B}) == f"{A} to come back: no other bookie has copies"
    assert blocked(single, (), {A}) == needed, "it was formatted again"
    empty = blocked(single, (), {A, B}, {A})
    assert empty is not None
    assert "nobody has" in empty
    assert "to come back" not in empty, "it is there, and has nothing"
    pair = LedgerMetadata(
        Quorum(2, 2, 1), LedgerState.OPEN, (Fragment(EntryId(0), (A, B)),)
    ).closed(EntryId(3), 1)
    refilled = blocked(pair, {B}, {A, B}, {A})
    assert refilled == f"{needed}, or `spark-bookkeeper bookie refill {A} --skip-open-ledgers`"
