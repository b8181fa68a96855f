"""Which fragments lack which replicas."""

from __future__ import annotations

from itertools import combinations, pairwise

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.underreplication import (
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
