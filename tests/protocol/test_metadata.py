"""Ledger metadata: its invariants, its transitions, and that it travels."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spark_bookkeeper.errors import InvalidArgumentError, VersionConflictError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import (
    DigestType,
    Fragment,
    FragmentRange,
    LedgerMetadata,
    LedgerState,
)
from spark_bookkeeper.protocol.quorum import Quorum


def ensemble(*numbers: int) -> tuple[BookieId, ...]:
    return tuple(BookieId(f"b{n}:3181") for n in numbers)


def ledger(*fragments: tuple[int, tuple[BookieId, ...]]) -> LedgerMetadata:
    return LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        state=LedgerState.OPEN,
        fragments=tuple(
            Fragment(EntryId(first), bookies)
            for first, bookies in fragments or ((0, ensemble(1, 2, 3)),)
        ),
        digest_type=DigestType.CRC32C,
        password=b"secret",
        custom_metadata={"owner": b"me"},
    )


@pytest.mark.parametrize(
    "fragments",
    [
        (),
        (Fragment(EntryId(0), ensemble(1, 2)),),
        (Fragment(EntryId(0), ensemble(1, 2, 3)), Fragment(EntryId(0), ensemble(1, 2, 4))),
        (Fragment(EntryId(5), ensemble(1, 2, 3)), Fragment(EntryId(3), ensemble(1, 2, 4))),
    ],
    ids=["none", "too small", "the same entry twice", "backwards"],
)
def test_fragments_are_sorted_and_valid(fragments: tuple[Fragment, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        replace(ledger(), fragments=fragments)


def test_closed_and_the_end_come_together() -> None:
    for state in LedgerState:
        for last, length in ((None, None), (EntryId(3), 12), (EntryId(3), None), (None, 12)):
            is_valid = ((state is LedgerState.CLOSED) == (last is not None)) and (
                (last is None) == (length is None)
            )
            if is_valid:
                replace(ledger(), state=state, last_entry_id=last, length_bytes=length)
            else:
                with pytest.raises(InvalidArgumentError, match="exactly when CLOSED"):
                    replace(ledger(), state=state, last_entry_id=last, length_bytes=length)


def test_the_life_of_a_ledger() -> None:
    created = ledger()
    changed = created.with_new_ensemble(EntryId(5), ensemble(1, 4, 3))
    recovering = changed.in_recovery()
    closed = recovering.closed(EntryId(7), 80)

    assert [m.state.name for m in (created, changed, recovering, closed)] == [
        "OPEN",
        "OPEN",
        "IN_RECOVERY",
        "CLOSED",
    ]
    assert list(closed.fragment_ranges()) == [
        FragmentRange(0, EntryId(0), EntryId(4), ensemble(1, 2, 3), False),
        FragmentRange(1, EntryId(5), EntryId(7), ensemble(1, 4, 3), True),
    ]
    assert recovering.in_recovery() == recovering


def test_closed_is_never_left() -> None:
    closed = ledger().closed(EntryId(0), 1)

    with pytest.raises(AssertionError, match="all-closes-agree"):
        closed.in_recovery()
    with pytest.raises(AssertionError, match="all-closes-agree"):
        closed.closed(EntryId(1), 2)


def test_a_fragment_without_entries_is_replaced() -> None:
    twice = (
        ledger()
        .with_new_ensemble(EntryId(5), ensemble(1, 4, 3))
        .with_new_ensemble(EntryId(5), ensemble(1, 5, 3))
    )

    assert [f.first_entry_id for f in twice.fragments] == [0, 5]
    assert twice.last_fragment.ensemble == ensemble(1, 5, 3)


def test_a_new_ensemble_never_begins_below_the_last_fragment() -> None:
    changed = ledger().with_new_ensemble(EntryId(5), ensemble(1, 4, 3))

    with pytest.raises(VersionConflictError, match="fragments-are-sorted-and-valid"):
        changed.with_new_ensemble(EntryId(4), ensemble(1, 5, 3))


def test_an_entry_belongs_to_the_last_fragment_that_begins_at_or_below_it() -> None:
    metadata = ledger((0, ensemble(1, 2, 3)), (5, ensemble(4, 2, 3)), (6, ensemble(4, 5, 3)))

    firsts = [metadata.fragment_of(EntryId(e)).first_entry_id for e in (0, 4, 5, 6, 99)]

    assert firsts == [0, 0, 5, 6, 6]
    with pytest.raises(InvalidArgumentError):
        metadata.fragment_of(EntryId(-1))


def test_an_empty_last_fragment_ends_before_it_begins() -> None:
    metadata = ledger((0, ensemble(1, 2, 3)), (5, ensemble(4, 2, 3))).closed(EntryId(4), 50)

    last = list(metadata.fragment_ranges())[-1]

    assert (last.first_entry_id, last.last_entry_id) == (5, 4)


def test_one_bookie_of_one_fragment_is_replaced_and_nothing_else() -> None:
    metadata = ledger((0, ensemble(1, 2, 3)), (5, ensemble(1, 2, 4)))

    replaced = metadata.with_replaced_bookie(EntryId(0), 1, BookieId("b9:3181"))

    assert [f.ensemble for f in replaced.fragments] == [ensemble(1, 9, 3), ensemble(1, 2, 4)]
    assert metadata.bookies() == frozenset(ensemble(1, 2, 3, 4))


def test_the_token_of_a_write_says_nothing_about_the_ledger() -> None:
    assert replace(ledger(), ctoken=1) == replace(ledger(), ctoken=2)


def test_metadata_travels_and_cannot_be_changed_on_the_way() -> None:
    metadata = ledger((0, ensemble(1, 2, 3)), (5, ensemble(1, 2, 4))).closed(EntryId(9), 90)

    there = pickle.loads(pickle.dumps(metadata))

    assert there == metadata
    assert hash(there) == hash(metadata)
    assert there.custom_metadata == {"owner": b"me"}
    with pytest.raises(TypeError):
        there.custom_metadata["owner"] = b"you"
    assert metadata.with_custom(owner=b"you").custom_metadata == {"owner": b"you"}
    assert metadata.custom_metadata == {"owner": b"me"}
