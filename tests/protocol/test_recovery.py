"""Recovery's machine: its stories, and every small case against a second, slower definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal

import pytest

from spark_bookkeeper.errors import VersionConflictError
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.recovery import (
    Decision,
    FencedAnswer,
    Recovery,
    Undecided,
    UnknownAnswer,
    Verify,
)
from spark_bookkeeper.testing.describe import (
    DAMAGED,
    NOT_STORED,
    NOT_STRIPED,
    STORED,
    UNKNOWN,
    describe,
)

NAMES = tuple(BookieId(name) for name in "abcde")
DOWN = UnknownAnswer("does not answer")


def machine(quorum: Quorum, fragment_first: int = 0) -> Recovery:
    ensemble = NAMES[: quorum.ensemble_size]
    fragments = [Fragment(EntryId(0), ensemble)]
    if fragment_first:
        earlier = tuple(BookieId(f"old-{b}") for b in ensemble)
        fragments = [Fragment(EntryId(0), earlier), Fragment(EntryId(fragment_first), ensemble)]
    return Recovery(LedgerMetadata(quorum, LedgerState.IN_RECOVERY, tuple(fragments)))


def fenced(*held: int, lac: int = -1, doubt: tuple[int, int] | None = None) -> FencedAnswer:
    doubtful = () if doubt is None else ((EntryId(doubt[0]), EntryId(doubt[1])),)
    return FencedAnswer(EntryId(lac), frozenset(map(EntryId, held)), doubtful)


def verify(position: int, *entries: int) -> Verify:
    return Verify(position, tuple(map(EntryId, entries)))


def decided(found: Decision | Undecided) -> Decision:
    assert isinstance(found, Decision), found
    return found


def undecided(found: Decision | Undecided) -> Undecided:
    assert isinstance(found, Undecided), found
    return found


def test_an_empty_ledger_ends_before_its_first_entry() -> None:
    recovery = machine(Quorum(3, 3, 2))
    for position in range(3):
        recovery.answered(position, fenced())

    decision = decided(recovery.decide())

    assert decision.last_entry_id == NO_ENTRY
    assert not decision.missing
    assert not decision.sources


def test_one_copy_of_an_entry_keeps_it_and_the_others_are_made_again() -> None:
    recovery = machine(Quorum(3, 3, 2))
    recovery.answered(0, fenced(5, 6, lac=4))
    recovery.answered(1, fenced(5, lac=4))
    recovery.answered(2, fenced(lac=3))

    decision = decided(recovery.decide())

    assert (decision.first_recovered, decision.last_entry_id) == (5, 6)
    assert decision.missing == {1: (6,), 2: (5, 6)}
    assert decision.sources == {5: (0, 1), 6: (0,)}


def test_r8_reading_forward_never_begins_below_the_last_fragment() -> None:
    recovery = machine(Quorum(3, 3, 2), fragment_first=10)
    for position in range(3):
        recovery.answered(position, fenced())

    assert decided(recovery.decide()).last_entry_id == 9


def test_reading_forward_begins_behind_the_highest_lac() -> None:
    recovery = machine(Quorum(3, 3, 2))
    recovery.answered(0, fenced(lac=7))
    recovery.answered(1, fenced(4, 5, 6, 7, lac=3))
    recovery.answered(2, DOWN)

    assert recovery.first_recovered == 8
    assert decided(recovery.decide()).last_entry_id == 7


def test_a_bookie_that_does_not_answer_gets_its_copies_elsewhere() -> None:
    recovery = machine(Quorum(3, 3, 2))
    recovery.answered(0, fenced(0))
    recovery.answered(1, fenced())
    recovery.answered(2, DOWN)

    decision = decided(recovery.decide())

    assert decision.unknown == frozenset({2})
    assert decision.missing == {1: (0,), 2: (0,)}


def test_too_few_fences_leave_the_ledger_undecided_and_name_the_blockers() -> None:
    recovery = machine(Quorum(3, 3, 2))
    recovery.answered(0, fenced(lac=4))
    recovery.answered(1, DOWN)
    recovery.answered(2, DOWN)

    found = undecided(recovery.decide())

    assert found.entry_id == 5
    assert found.lacks_fences
    assert found.blockers == ("b", "c")
    assert found.answers == {"a": "fenced", "b": "does not answer", "c": "does not answer"}


def test_without_fences_an_entry_that_is_held_does_not_count_as_doubtful() -> None:
    recovery = machine(Quorum(2, 2, 1))
    recovery.answered(0, fenced(0, 1))
    recovery.answered(1, DOWN)

    found = undecided(recovery.decide())

    assert found.lacks_fences
    assert found.answers == {"a": "fenced", "b": "does not answer"}
    assert found.blockers == ("b",)


def test_every_bookie_whose_fence_is_missing_is_named_also_outside_the_first_write_set() -> None:
    recovery = machine(Quorum(4, 2, 1))  # entries are striped: a b, b c, c d, d a
    recovery.answered(0, fenced())
    recovery.answered(1, DOWN)
    recovery.answered(2, DOWN)
    recovery.answered(3, fenced())

    assert undecided(recovery.decide()).blockers == ("b", "c")


def test_a_damaged_copy_on_a_fenced_bookie_does_not_block_its_fence() -> None:
    recovery = machine(Quorum(3, 3, 1))
    recovery.answered(0, fenced(0))
    recovery.refute(0, EntryId(0), "digest does not match")
    recovery.answered(1, fenced(0))
    recovery.answered(2, DOWN)

    assert undecided(recovery.decide()).blockers == ("c",)


def test_r5_a_damaged_copy_is_neither_a_hit_nor_a_miss() -> None:
    recovery = machine(Quorum(3, 3, 3))
    for position in range(3):
        recovery.answered(position, fenced(0))
    for position in range(3):
        recovery.refute(position, EntryId(0), "digest does not match")

    found = undecided(recovery.decide())

    assert found.entry_id == 0
    assert found.blockers == ("a", "b", "c")
    assert found.answers[NAMES[0]] == "holds a damaged copy: digest does not match"


def test_a_rescued_entry_is_kept_and_copied_to_every_position() -> None:
    recovery = machine(Quorum(3, 3, 3))
    for position in range(3):
        recovery.answered(position, fenced(0, 1, 2) if position < 2 else fenced(0, doubt=(1, 2)))
    for position, entry_id in [(0, 1), (1, 1), (1, 2)]:
        recovery.refute(position, EntryId(entry_id), "digest does not match")
    assert undecided(recovery.decide()).entry_id == 1
    assert recovery.refuted_from(EntryId(1)) == [1, 2]

    recovery.rescue([EntryId(1)])

    decision = decided(recovery.decide())
    assert decision.last_entry_id == 2
    assert decision.sources == {0: (0, 1, 2), 1: (), 2: (0,)}
    assert decision.missing == {0: (1,), 1: (1, 2), 2: (1, 2)}


def test_r5_without_fences_a_rescued_entry_decides_nothing() -> None:
    recovery = machine(Quorum(3, 3, 2))
    recovery.answered(0, fenced(0))
    recovery.answered(1, DOWN)
    recovery.answered(2, DOWN)
    recovery.refute(0, EntryId(0), "digest does not match")
    recovery.rescue([EntryId(0)])

    assert undecided(recovery.decide()).lacks_fences


def test_r5_an_entry_that_may_be_in_a_damaged_file_is_no_miss() -> None:
    recovery = machine(Quorum(3, 3, 3))
    recovery.answered(0, fenced(doubt=(0, 2)))
    recovery.answered(1, DOWN)
    recovery.answered(2, DOWN)

    found = undecided(recovery.decide())

    assert found.answers[NAMES[0]] == "fenced, but the entry may be in a damaged file"
    assert "a" in found.blockers


def test_r5_an_answer_from_outside_the_write_set_says_nothing() -> None:
    recovery = machine(Quorum(4, 2, 1))  # entry 0 is striped to a and b
    recovery.answered(0, fenced())
    recovery.answered(1, fenced(doubt=(0, 0)))
    recovery.answered(2, fenced())
    recovery.answered(3, fenced())

    assert undecided(recovery.decide()).entry_id == 0


def test_everything_that_would_count_is_verified_first() -> None:
    recovery = machine(Quorum(3, 2, 2))
    recovery.answered(0, fenced(0, 2))
    recovery.answered(1, fenced(0, 1))
    recovery.answered(2, fenced(1, 2))

    assert recovery.verifications() == [verify(0, 0, 2), verify(1, 0, 1), verify(2, 1, 2)]
    recovery.refute(1, EntryId(1), "cut short")
    assert recovery.verifications() == [verify(0, 0, 2), verify(1, 0), verify(2, 1, 2)]


def test_recovery_refuses_a_ledger_that_is_not_in_recovery() -> None:
    metadata = LedgerMetadata(Quorum(3, 3, 2), LedgerState.OPEN, (Fragment(EntryId(0), NAMES[:3]),))

    with pytest.raises(VersionConflictError, match="not IN_RECOVERY"):
        Recovery(metadata)


# Every small case: what each bookie of a write set says about each of three entries

Said = Literal["held", "miss", "damaged", "unknown"]
ENTRIES = tuple(map(EntryId, range(3)))
Case = Mapping[tuple[int, EntryId], Said]

QUORUMS = [
    Quorum(e, qw, qa)
    for e in range(1, 5)
    for qw in range(1, min(e, 3) + 1)
    for qa in range(1, qw + 1)
]


def every_case(quorum: Quorum) -> Iterator[Case]:
    """A bookie is unknown as a whole, or says of each entry striped to it one of three things."""
    per_bookie: list[list[dict[tuple[int, EntryId], Said]]] = []
    choices: tuple[Said, ...] = ("held", "miss", "damaged")
    for position in range(quorum.ensemble_size):
        cells = [(position, e) for e in ENTRIES if quorum.holds(position, e)]
        known = [
            dict(zip(cells, said, strict=True)) for said in product(choices, repeat=len(cells))
        ]
        per_bookie.append([dict.fromkeys(cells, "unknown"), *known])
    for parts in product(*per_bookie):
        yield {cell: said for part in parts for cell, said in part.items()}


def recovery_of(quorum: Quorum, case: Case) -> Recovery:
    recovery = machine(quorum)
    refuted: list[tuple[int, EntryId]] = []
    for position in range(quorum.ensemble_size):
        cells = {e: case[position, e] for e in ENTRIES if quorum.holds(position, e)}
        if "unknown" in cells.values():
            recovery.answered(position, DOWN)
            continue
        damaged = [e for e, said in cells.items() if said == "damaged"]
        # Damage shows in two ways: in the entry itself, or in the file it may have been in.
        here = [e for e in damaged if (position + e) % 2]
        refuted += [(position, e) for e in here]
        held = {e for e, said in cells.items() if said == "held"} | set(here)
        doubts = tuple((e, e) for e in damaged if e not in here)
        recovery.answered(position, FencedAnswer(NO_ENTRY, frozenset(held), doubts))
    for position, entry_id in refuted:
        recovery.refute(position, entry_id, "damaged")
    return recovery


def drawn(quorum: Quorum, case: Case) -> str:
    shapes = {"held": STORED, "miss": NOT_STORED, "damaged": DAMAGED, "unknown": UNKNOWN}
    names = NAMES[: quorum.ensemble_size]

    def cell(position: int, entry_id: EntryId) -> str:
        said = case.get((position, entry_id))
        return NOT_STRIPED if said is None else shapes[said]

    return describe(quorum, names, ENTRIES, cell)


def could_have_been_acknowledged(quorum: Quorum, case: Case, entry_id: EntryId) -> bool:
    """Whether Qa bookies of the write set may hold it, as far as anybody can know."""
    may_hold = [p for p in quorum.write_set(entry_id) if case.get((p, entry_id)) != "miss"]
    return len(may_hold) >= quorum.ack_quorum_size


def is_silent(quorum: Quorum, case: Case, position: int) -> bool:
    return any(case.get((position, e)) == "unknown" for e in ENTRIES)


def slow_end(quorum: Quorum, case: Case) -> tuple[str, int]:
    """The last entry, or the entry that stays undecided."""
    silent = {p for p in range(quorum.ensemble_size) if is_silent(quorum, case, p)}
    for entry_id in map(EntryId, range(quorum.ensemble_size)):
        if len(silent & set(quorum.write_set(entry_id))) >= quorum.ack_quorum_size:
            return "undecided", -1  # a writer could still be acknowledged: nothing is decided
    for entry_id in ENTRIES:
        said = [case[p, entry_id] for p in quorum.write_set(entry_id)]
        if "held" in said:
            continue
        if could_have_been_acknowledged(quorum, case, entry_id):
            return "undecided", entry_id
        return "ends", entry_id - 1
    return "ends", ENTRIES[-1]  # nobody who is not silent holds an entry after these


@pytest.mark.parametrize(
    "quorum", QUORUMS, ids=lambda q: f"{q.ensemble_size}{q.write_quorum_size}{q.ack_quorum_size}"
)
def test_every_small_case_ends_where_the_slow_definition_says(quorum: Quorum) -> None:
    for case in every_case(quorum):
        recovery = recovery_of(quorum, case)
        found = recovery.decide()
        kind, entry_id = slow_end(quorum, case)
        if isinstance(found, Undecided):
            assert kind == "undecided", drawn(quorum, case)
            assert entry_id in (-1, found.entry_id), drawn(quorum, case)
            continue
        assert (kind, entry_id) == ("ends", found.last_entry_id), drawn(quorum, case)
        for recovered in map(EntryId, range(found.last_entry_id + 1)):
            holders = tuple(p for p in quorum.write_set(recovered) if case[p, recovered] == "held")
            assert found.sources[recovered] == holders, drawn(quorum, case)
            lacking = [p for p, share in found.missing.items() if recovered in share]
            write_set = sorted(quorum.write_set(recovered))
            assert sorted((*holders, *lacking)) == write_set, drawn(quorum, case)


@pytest.mark.parametrize(
    "quorum", [Quorum(3, 3, 1), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 3, 2)]
)
def test_blockers_that_answer_move_the_decision(quorum: Quorum) -> None:
    """Were all blockers to answer, whatever it is, another entry would be decided upon."""
    number = {name: position for position, name in enumerate(NAMES)}
    for case in every_case(quorum):
        found = recovery_of(quorum, case).decide()
        if not isinstance(found, Undecided) or found.entry_id not in ENTRIES:
            continue
        blockers = {number[b] for b in found.blockers}
        assert blockers, f"somebody can unblock it{drawn(quorum, case)}"
        if found.lacks_fences:
            assert all(is_silent(quorum, case, p) for p in blockers), drawn(quorum, case)
        else:
            said_nothing = [case.get((p, found.entry_id)) for p in blockers]
            assert {*said_nothing} <= {"unknown", "damaged"}, drawn(quorum, case)
        for answer in ("held", "miss"):
            better = {
                cell: answer if cell[0] in blockers and said in ("unknown", "damaged") else said
                for cell, said in case.items()
            }
            moved = recovery_of(quorum, better).decide()
            if isinstance(moved, Undecided):
                before = (found.entry_id, found.lacks_fences)
                assert (moved.entry_id, moved.lacks_fences) != before, drawn(quorum, case)
