"""Recovery's machine: its stories, and every small case against a second, slower definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Literal

import pytest
from _pytest.mark import ParameterSet

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
from tests.support.describe import (
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
    return Recovery(ledger(quorum, fragment_first))


def answered(
    quorum: Quorum, *answers: FencedAnswer | UnknownAnswer, fragment_first: int = 0
) -> Recovery:
    """What each bookie said, in the order of the ensemble."""
    recovery = machine(quorum, fragment_first)
    for position, answer in enumerate(answers):
        recovery.answered(position, answer)
    return recovery


@cache
def ledger(quorum: Quorum, fragment_first: int) -> LedgerMetadata:
    ensemble = NAMES[: quorum.ensemble_size]
    fragments = [Fragment(EntryId(0), ensemble)]
    if fragment_first:
        earlier = tuple(BookieId(f"old-{b}") for b in ensemble)
        fragments = [Fragment(EntryId(0), earlier), Fragment(EntryId(fragment_first), ensemble)]
    return LedgerMetadata(quorum, LedgerState.IN_RECOVERY, tuple(fragments))


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
    recovery = answered(Quorum(3, 3, 2), fenced(), fenced(), fenced())

    decision = decided(recovery.decide())

    assert decision.last_entry_id == NO_ENTRY
    assert not decision.missing
    assert not decision.sources


def test_one_copy_of_an_entry_keeps_it_and_the_others_are_made_again() -> None:
    recovery = answered(Quorum(3, 3, 2), fenced(5, 6, lac=4), fenced(5, lac=4), fenced(lac=3))

    decision = decided(recovery.decide())

    assert (decision.first_recovered, decision.last_entry_id) == (5, 6)
    assert decision.missing == {1: (6,), 2: (5, 6)}
    assert decision.sources == {5: (0, 1), 6: (0,)}


def test_r8_reading_forward_never_begins_below_the_last_fragment() -> None:
    recovery = answered(Quorum(3, 3, 2), fenced(), fenced(), fenced(), fragment_first=10)

    assert decided(recovery.decide()).last_entry_id == 9


def test_reading_forward_begins_behind_the_highest_lac() -> None:
    recovery = answered(Quorum(3, 3, 2), fenced(lac=7), fenced(4, 5, 6, 7, lac=3), DOWN)

    assert recovery.first_recovered == 8
    assert decided(recovery.decide()).last_entry_id == 7


def test_a_bookie_that_does_not_answer_gets_its_copies_elsewhere() -> None:
    recovery = answered(Quorum(3, 3, 2), fenced(0), fenced(), DOWN)

    decision = decided(recovery.decide())

    assert decision.unknown == frozenset({2})
    assert decision.missing == {1: (0,), 2: (0,)}


def test_too_few_fences_leave_the_ledger_undecided_and_name_the_blockers() -> None:
    recovery = answered(Quorum(3, 3, 2), fenced(lac=4), DOWN, DOWN)

    found = undecided(recovery.decide())

    assert found.entry_id == 5
    assert found.lacks_fences
    assert found.blockers == ("b", "c")
    assert found.answers == {"a": "fenced", "b": "does not answer", "c": "does not answer"}


def test_without_fences_an_entry_that_is_held_does_not_count_as_doubtful() -> None:
    recovery = answered(Quorum(2, 2, 1), fenced(0, 1), DOWN)

    found = undecided(recovery.decide())

    assert found.lacks_fences
    assert found.answers == {"a": "fenced", "b": "does not answer"}
    assert found.blockers == ("b",)


def test_every_bookie_whose_fence_is_missing_is_named_also_outside_the_first_write_set() -> None:
    # entries are striped: a b, b c, c d, d a
    recovery = answered(Quorum(4, 2, 1), fenced(), DOWN, DOWN, fenced())

    assert undecided(recovery.decide()).blockers == ("b", "c")


def test_a_damaged_copy_on_a_fenced_bookie_does_not_block_its_fence() -> None:
    recovery = answered(Quorum(3, 3, 1), fenced(0), fenced(0), DOWN)
    recovery.refute(0, EntryId(0), "digest does not match")

    assert undecided(recovery.decide()).blockers == ("c",)


def test_r5_a_damaged_copy_is_neither_a_hit_nor_a_miss() -> None:
    recovery = answered(Quorum(3, 3, 3), fenced(0), fenced(0), fenced(0))
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
    recovery = answered(Quorum(3, 3, 2), fenced(0), DOWN, DOWN)
    recovery.refute(0, EntryId(0), "digest does not match")
    recovery.rescue([EntryId(0)])

    assert undecided(recovery.decide()).lacks_fences


def test_r5_an_entry_that_may_be_in_a_damaged_file_is_no_miss() -> None:
    recovery = answered(Quorum(3, 3, 3), fenced(doubt=(0, 2)), DOWN, DOWN)

    found = undecided(recovery.decide())

    assert found.answers[NAMES[0]] == "fenced, but the entry may be in a damaged file"
    assert "a" in found.blockers


def test_r5_an_answer_from_outside_the_write_set_says_nothing() -> None:
    # entry 0 is striped to a and b
    recovery = answered(Quorum(4, 2, 1), fenced(), fenced(doubt=(0, 0)), fenced(), fenced())

    assert undecided(recovery.decide()).entry_id == 0


def test_everything_that_would_count_is_verified_first() -> None:
    recovery = answered(Quorum(3, 2, 2), fenced(0, 2), fenced(0, 1), fenced(1, 2))

    assert recovery.verifications() == [verify(0, 0, 2), verify(1, 0, 1), verify(2, 1, 2)]
    recovery.refute(1, EntryId(1), "cut short")
    assert recovery.verifications() == [verify(0, 0, 2), verify(1, 0), verify(2, 1, 2)]


def test_recovery_refuses_a_ledger_that_is_not_in_recovery() -> None:
    metadata = LedgerMetadata(Quorum(3, 3, 2), LedgerState.OPEN, (Fragment(EntryId(0), NAMES[:3]),))

    with pytest.raises(VersionConflictError, match="not IN_RECOVERY"):
        Recovery(metadata)


# Every small case: what each bookie of a write set says about each of the first entries

Said = Literal["held", "miss", "damaged", "unknown"]
Answer = dict[int, Said]
"""What one bookie says of each entry that is striped to it."""

QUORUMS = [
    Quorum(e, qw, qa)
    for e in range(1, 5)
    for qw in range(1, min(e, 3) + 1)
    for qa in range(1, qw + 1)
]


@dataclass(frozen=True)
class Case:
    """What bookies say, by position and entry, about each entry that is striped to them."""

    quorum: Quorum
    entries: range
    said: Mapping[tuple[int, int], Said]

    def of(self, position: int) -> dict[int, Said]:
        """What one bookie says."""
        return {e: self.said[position, e] for e in self.entries if (position, e) in self.said}

    @property
    def silent(self) -> set[int]:
        """The positions of bookies that say nothing at all."""
        return {position for (position, _), said in self.said.items() if said == "unknown"}

    def __str__(self) -> str:
        shapes = {"held": STORED, "miss": NOT_STORED, "damaged": DAMAGED, "unknown": UNKNOWN}

        def cell(position: int, entry_id: EntryId) -> str:
            said = self.said.get((position, entry_id))
            return NOT_STRIPED if said is None else shapes[said]

        return describe(self.quorum, NAMES[: self.quorum.ensemble_size], self.entries, cell)


def every_case(quorum: Quorum, count: int) -> Iterator[Case]:
    """A bookie is unknown as a whole, or says of each entry striped to it one of three things.

    Where every entry is on all bookies, it does not matter which of them says what.
    """
    per_bookie = [every_answer(quorum, p, count) for p in range(quorum.ensemble_size)]
    if quorum.is_striped:
        choices: Iterable[tuple[Answer, ...]] = product(*per_bookie)
    else:
        choices = combinations_with_replacement(per_bookie[0], quorum.ensemble_size)
    for answers in choices:
        said = {(p, e): what for p, answer in enumerate(answers) for e, what in answer.items()}
        yield Case(quorum, range(count), said)


def every_answer(quorum: Quorum, position: int, count: int) -> list[Answer]:
    shares = [e for e in range(count) if quorum.holds(position, EntryId(e))]
    choices: tuple[Said, ...] = ("held", "miss", "damaged")
    known = [dict(zip(shares, said, strict=True)) for said in product(choices, repeat=len(shares))]
    return [dict.fromkeys(shares, "unknown"), *known]


def recovery_of(case: Case) -> Recovery:
    recovery = machine(case.quorum)
    refuted: list[tuple[int, EntryId]] = []
    for position in range(case.quorum.ensemble_size):
        cells = case.of(position)
        if "unknown" in cells.values():
            recovery.answered(position, DOWN)
            continue
        damaged = [EntryId(e) for e, said in cells.items() if said == "damaged"]
        # Damage shows in two ways: in the entry itself, or in the file it may have been in.
        here = [e for e in damaged if (position + e) % 2]
        refuted += [(position, e) for e in here]
        held = {EntryId(e) for e, said in cells.items() if said == "held"} | set(here)
        doubts = tuple((e, e) for e in damaged if e not in here)
        recovery.answered(position, FencedAnswer(NO_ENTRY, frozenset(held), doubts))
    for position, entry_id in refuted:
        recovery.refute(position, entry_id, "damaged")
    return recovery


def slow_end(case: Case) -> tuple[str, int]:
    """The last entry, or the entry that stays undecided."""
    quorum, silent = case.quorum, case.silent
    for entry_id in map(EntryId, range(quorum.ensemble_size)):
        if len(silent & set(quorum.write_set(entry_id))) >= quorum.ack_quorum_size:
            return "undecided", -1  # a writer could still be acknowledged: nothing is decided
    for entry_id in map(EntryId, case.entries):
        said = [case.said[p, entry_id] for p in quorum.write_set(entry_id)]
        if "held" in said:
            continue
        may_hold = [answer for answer in said if answer != "miss"]  # as far as anybody can know
        if len(may_hold) >= quorum.ack_quorum_size:
            return "undecided", entry_id
        return "ends", entry_id - 1
    return "ends", case.entries[-1]  # nobody who is not silent holds an entry after these


def is_large(quorum: Quorum) -> bool:
    return (quorum.ensemble_size, quorum.write_quorum_size) == (4, 3)


def cases_of(quorums: list[Quorum]) -> list[ParameterSet]:
    """Quorums, and how many entries bookies are asked about.

    With four bookies and write sets of three, a third entry makes 17 times as many cases.
    """
    return [
        pytest.param(
            quorum,
            count,
            id=f"{quorum.ensemble_size}{quorum.write_quorum_size}{quorum.ack_quorum_size}-{count}",
            marks=[pytest.mark.full] if is_large(quorum) and count == 3 else [],
        )
        for quorum in quorums
        for count in ((2, 3) if is_large(quorum) else (3,))
    ]


@pytest.mark.parametrize(("quorum", "count"), cases_of(QUORUMS))
def test_every_small_case_ends_where_the_slow_definition_says(quorum: Quorum, count: int) -> None:
    for case in every_case(quorum, count):
        found = recovery_of(case).decide()
        kind, entry_id = slow_end(case)
        if isinstance(found, Undecided):
            assert kind == "undecided", case
            assert entry_id in (-1, found.entry_id), case
            continue
        assert (kind, entry_id) == ("ends", found.last_entry_id), case
        for recovered in map(EntryId, range(found.last_entry_id + 1)):
            write_set = quorum.write_set(recovered)
            holders = tuple(p for p in write_set if case.said[p, recovered] == "held")
            assert found.sources[recovered] == holders, case
            lacking = [p for p, share in found.missing.items() if recovered in share]
            assert sorted((*holders, *lacking)) == sorted(write_set), case


@pytest.mark.parametrize(
    ("quorum", "count"),
    cases_of([Quorum(3, 3, 1), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 3, 2)]),
)
def test_blockers_that_answer_move_the_decision(quorum: Quorum, count: int) -> None:
    """Were all blockers to answer, whatever it is, another entry would be decided upon."""
    number = {name: position for position, name in enumerate(NAMES)}
    for case in every_case(quorum, count):
        found = recovery_of(case).decide()
        if not isinstance(found, Undecided) or found.entry_id not in case.entries:
            continue
        blockers = {number[b] for b in found.blockers}
        assert blockers, f"somebody can unblock it{case}"
        if found.lacks_fences:
            assert blockers <= case.silent, case
        else:
            said_nothing = {case.said.get((p, found.entry_id)) for p in blockers}
            assert said_nothing <= {"unknown", "damaged"}, case
        answers: tuple[Said, ...] = ("held", "miss")
        for answer in answers:
            better = {
                cell: answer if cell[0] in blockers and said in ("unknown", "damaged") else said
                for cell, said in case.said.items()
            }
            moved = recovery_of(replace(case, said=better)).decide()
            if isinstance(moved, Undecided):
                before = (found.entry_id, found.lacks_fences)
                assert (moved.entry_id, moved.lacks_fences) != before, case


# What a person gives up


def given_up(quorum: Quorum, gone: str, *answers: FencedAnswer | UnknownAnswer) -> Recovery:
    recovery = answered(quorum, *answers)
    recovery.give_up(map(BookieId, gone))
    return recovery


@pytest.mark.parametrize(
    ("quorum", "gone", "answers", "last", "missing"),
    [
        pytest.param((3, 3, 2), "ab", (DOWN, DOWN, fenced(0)), 0, ((1, None),), id="tail"),
        pytest.param((3, 3, 2), "ab", (DOWN, DOWN, fenced()), -1, ((0, None),), id="nothing-left"),
        pytest.param((3, 3, 2), "abc", (DOWN, DOWN, DOWN), -1, ((0, None),), id="nobody-left"),
        pytest.param(
            (3, 3, 2), "ab", (DOWN, DOWN, fenced(5, 6, lac=4)), 6, ((7, None),), id="behind-the-lac"
        ),
        pytest.param(
            (3, 3, 2), "b", (fenced(0), DOWN, fenced()), 0, (), id="what-can-be-decided-is-decided"
        ),
        pytest.param(
            (5, 3, 2), "ab", (DOWN, DOWN, fenced(1), fenced(1), fenced(4)), 1, ((0, 0),), id="hole"
        ),
        pytest.param(
            (4, 2, 2),
            "ab",
            (DOWN, DOWN, fenced(2), fenced(2)),
            -1,
            ((0, 0),),
            id="an-entry-that-was-certainly-never-acknowledged-ends-the-loss",
        ),
        pytest.param(
            (3, 3, 2), "abc", (DOWN, DOWN, fenced(0, doubt=(1, 4))), 0, ((1, None),), id="damaged"
        ),
    ],
)
def test_with_bookies_given_up_the_ledger_ends_at_the_last_entry_that_exists(
    quorum: tuple[int, int, int],
    gone: str,
    answers: tuple[FencedAnswer | UnknownAnswer, ...],
    last: int,
    missing: tuple[tuple[int, int | None], ...],
) -> None:
    decision = decided(given_up(Quorum(*quorum), gone, *answers).decide())

    assert decision.last_entry_id == last
    assert decision.given_up == missing


@pytest.mark.parametrize(
    ("quorum", "gone", "answers", "awaited"),
    [
        pytest.param((3, 3, 2), "a", (DOWN, DOWN, fenced(0)), "b", id="b-was-not-given-up"),
        pytest.param(
            (3, 3, 2),
            "ab",
            (DOWN, DOWN, fenced(0, doubt=(1, 1))),
            "c",
            id="in-doubt-where-it-lives",
        ),
        pytest.param(
            (3, 3, 2), "ab", (DOWN, DOWN, fenced(0, doubt=(9, 9))), "c", id="in-doubt-far-behind"
        ),
        pytest.param(
            (5, 2, 1), "ab", (DOWN, DOWN, fenced(), DOWN, fenced()), "d", id="another-is-silent"
        ),
        pytest.param(
            (4, 2, 2),
            "a",
            (DOWN, fenced(), fenced(), DOWN),
            "d",
            id="fenced-enough-but-one-is-silent",
        ),
    ],
)
def test_nothing_is_given_up_while_a_bookie_could_still_tell(
    quorum: tuple[int, int, int],
    gone: str,
    answers: tuple[FencedAnswer | UnknownAnswer, ...],
    awaited: str,
) -> None:
    recovery = given_up(Quorum(*quorum), gone, *answers)

    undecided(recovery.decide())
    assert [bookie for bookie in recovery.untold if bookie not in gone] == list(awaited)


def test_damage_to_an_entry_that_another_bookie_has_stands_in_nobodys_way() -> None:
    """Else whoever accepts the loss would have to name a bookie that is whole but for that."""
    answers = (DOWN, DOWN, fenced(1, 2), fenced(2), fenced(2))
    recovery = given_up(Quorum(5, 3, 2), "ab", *answers)
    recovery.refute(3, EntryId(2), "damaged")

    decision = decided(recovery.decide())

    assert (decision.last_entry_id, decision.given_up) == (2, ((0, 0),))
    recovery.refute(2, EntryId(2), "damaged")
    recovery.refute(4, EntryId(2), "damaged")
    undecided(recovery.decide())


@pytest.mark.parametrize(("quorum", "count"), cases_of([Quorum(3, 3, 2), Quorum(3, 2, 2)]))
def test_giving_up_changes_no_decision_and_keeps_whatever_is_held(
    quorum: Quorum, count: int
) -> None:
    """What can be decided is decided as without it. Else each entry is kept, as a bookie has it, or
    named, or was certainly never acknowledged; and nothing is given up for damage where it lives.
    """
    for case in every_case(quorum, count):
        recovery = recovery_of(case)
        before = recovery.decide()
        recovery.give_up(recovery.ensemble[position] for position in case.silent)
        after = recovery.decide()
        if isinstance(before, Decision):
            assert after == before, case
            continue
        held = {entry_id for (_, entry_id), said in case.said.items() if said == "held"}
        damaged = {entry_id for (_, entry_id), said in case.said.items() if said == "damaged"}
        if isinstance(after, Undecided):
            assert damaged, case
            continue
        assert not (after.given_up and damaged - held), case
        is_over = False  # an entry was certainly never acknowledged, nor any behind it
        for entry_id in map(EntryId, case.entries):
            said = [case.said[p, entry_id] for p in quorum.write_set(entry_id)]
            if "held" not in said and said.count("miss") >= quorum.misses_needed:
                is_over = True
            is_kept = entry_id <= after.last_entry_id and "held" in said
            is_named = any(
                first <= entry_id and (last is None or entry_id <= last)
                for first, last in after.given_up
            )
            assert is_kept != (is_over or is_named), case
