"""Each safety rule switched off in turn: a lifetime must break an invariant, and with the rule not.

Source: SLOT-LOG, "Rules" (the names in brackets) and "How the rules were checked".

Some have no mutant here. ``gc_tombstone``: nobody here judges what a deleted ledger takes.
``compact_fence`` and ``part_mark``: what they prevent needs a process that sleeps while a ledger is
written, closed and compacted, or files that have times; ``copy_era``, one that sleeps while copies
go and come again. ``tests/bookie`` has these four.
``wb_sealed`` (an ADD behind a fence counts): a channel puts a slot only when it has won the one
below, so that no ADD of this writer ever stands behind a fence. ``fence_no_hole`` (a hole below a
fence is fenced): what may have been in a hole is in doubt whether a fence fills it or not, and a
writer that had won it is stopped by the fence above all. For the last two ``tests/bookie`` lays
such slots down."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.simulation import lifetimes, mutants
from tests.simulation.tiers import tiers
from tests.simulator import checkers
from tests.simulator.checkers import Checker, InvariantError
from tests.simulator.evidence import Evidence
from tests.simulator.ground import Life, SimCluster
from tests.simulator.lifetime import LifetimeError, Script, run_lifetime

INVARIANTS: Final = re.compile(
    "(acked-entries-are-readable|closed-entries-reach-ack-quorum|all-closes-agree"
    "|confirmed-never-exceeds-last-entry|entries-in-write-order|replicas-are-identical"
    "|nothing-named-is-deleted|lac-is-confirmed|fragments-are-sorted-and-valid"
    "|no-count-behind-a-fence|ledger-gets-closed|left-bookies-are-whole): "
)

SEEDS_TRIED: Final = 1000
"""From the seed in ``CASES`` on: a harmless change of the code makes others fail."""

Family = Callable[[int], Script]

CASES: Final[dict[str, tuple[Family, int]]] = {
    "prefix_ack": (Script.drawn, 44),
    "exists_check": (Script.drawn, 19),
    "content_fixed": (Script.drawn, 77),
    "contiguous_ack": (Script.drawn, 23),
    "ec_cas_first": (lifetimes.stalling, 177),
    "ec_recount": (lifetimes.changing, 49),
    "lac_confirmed": (Script.drawn, 0),
    "explicit_lac_confirmed": (lifetimes.pausing, 0),
    "writer_close_cas": (Script.drawn, 676),
    "cookie_ack": (lifetimes.losing, 9),
    "durable_ack": (Script.drawn, 0),
    "leave_whole": (lifetimes.leaving, 0),
    "back_certain": (lifetimes.leaving, 11),
    "back_ascending": (lifetimes.leaving, 2),
    "fence_first_hole": (Script.drawn, 65),
    "fence_on_durable": (lifetimes.darkening, 229),
    "fenced_negative": (lifetimes.losing, 16),
    "fresh_negative": (lifetimes.losing, 558),
    "cookie_neg": (lifetimes.losing, 24),
    "observe_sync": (Script.drawn, 42),
    "neg_writeset": (lifetimes.damaging, 12),
    "neg_quorum": (lifetimes.doubting, 169),
    "wb_quorum": (Script.drawn, 9),
    "frag_start": (lifetimes.changing, 234),
    "in_recovery": (lifetimes.stalling, 175),
    "rec_reads_orig": (lifetimes.stalling, 80),
    "rec_ec_at_close": (Script.drawn, 100),
    "close_cas": (Script.drawn, 48),
    "rw_closed_only": (Script.drawn, 100),
    "late_answer": (lifetimes.hanging, 122),
    "hole_negative": (lifetimes.tearing, 185),
    "hole_below_fence": (lifetimes.tearing, 3200),
    "slot_number": (lifetimes.tearing, 415),
    "same_nonce": (lifetimes.reusing, 55),
    "compact_verified": (lifetimes.keeping, 44),
    "compact_own": (lifetimes.keeping, 22),
    "gc_register": (lifetimes.moving, 86),
    "gc_named": (lifetimes.moving, 23),
}
"""For each rule: the family of lifetimes, and the seed of one that fails without it."""


def test_every_mutant_has_its_case() -> None:
    assert CASES.keys() == mutants.MUTANTS.keys()


@pytest.mark.parametrize("rule", CASES)
def test_a_ledger_breaks_without_the_rule_and_not_with_it(rule: str) -> None:
    family, first = CASES[rule]
    assert_broken_only_without(rule, family, first)


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ("fence_first_hole", 65),
        ("fenced_negative", 16),
        ("fresh_negative", 600),
        ("cookie_neg", 24),
    ],
)
def test_a_fence_in_a_bucket_needs_the_rule_as_well(rule: str, first: int) -> None:
    """There it is put in rounds, also that of one ledger."""
    assert_broken_only_without(rule, in_buckets(CASES[rule][0]), first)


def in_buckets(family: Family) -> Family:
    """The same lifetimes with bookies that are like buckets, of which few are drawn."""
    return lambda seed: replace(family(seed), has_directories=False)


def assert_broken_only_without(rule: str, family: Family, first: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutants.MUTANTS[rule](patch)
        tried = range(first, first + SEEDS_TRIED)
        seed = next((seed for seed in tried if breaks(seed, family)), None)

    assert seed is not None, f"no lifetime of {SEEDS_TRIED} noticed that {rule} is gone"
    run_lifetime(seed, family(seed))


def breaks(seed: int, family: Family) -> bool:
    """Whether a lifetime breaks a named invariant; other failures prove nothing."""
    try:
        run_lifetime(seed, family(seed))
    except LifetimeError as error:
        return INVARIANTS.match(str(error)) is not None
    return False


HOSTILE: Final = (
    lifetimes.changing,
    lifetimes.stalling,
    lifetimes.cutting,
    lifetimes.darkening,
    lifetimes.doubting,
    lifetimes.damaging,
    lifetimes.losing,
    lifetimes.tearing,
    lifetimes.hanging,
    lifetimes.hanging_in_bulk,
    lifetimes.reusing,
    lifetimes.pausing,
    lifetimes.leaving,
    lifetimes.gathering,
    lifetimes.keeping,
    lifetimes.moving,
)


@pytest.mark.parametrize("seeds", tiers(plain=3, full=30, exhaustive=500))
@pytest.mark.parametrize("family", HOSTILE)
def test_hostile_lifetimes_keep_every_invariant(family: Family, seeds: range) -> None:
    for seed in seeds:
        run_lifetime(seed, family(seed))
        run_lifetime(seed, in_buckets(family)(seed))


WHOLE: Final[tuple[Checker, ...]] = (
    checkers.all_closes_agree,
    checkers.confirmed_never_exceeds_last_entry,
    checkers.acked_entries_are_readable,
    checkers.closed_entries_reach_ack_quorum,
    checkers.fragments_are_sorted_and_valid,
)
"""What ``AFTER_METADATA`` asks, without remembering anything."""


@pytest.mark.parametrize("least", [8, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize("rule", [None, "frag_start", "in_recovery", "rw_closed_only", "wb_quorum"])
def test_what_is_asked_after_a_change_finds_as_much_as_asking_everything(
    rule: str | None, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In so many lifetimes, and further ones until one is found that breaks without the rule."""
    found: list[tuple[str | None, str | None]] = []
    check = SimCluster._check

    def compare(self: SimCluster, which: tuple[Checker, ...], life: Life | None = None) -> None:
        if which is checkers.AFTER_METADATA:
            assert life is not None
            found.append((said(life.evidence, WHOLE), said(life.evidence, which)))
        check(self, which, life)

    monkeypatch.setattr(SimCluster, "_check", compare)
    family, first = CASES[rule] if rule else (Script.drawn, 0)
    if rule:
        mutants.MUTANTS[rule](monkeypatch)
    is_found = rule is None
    for seed in range(first, first + SEEDS_TRIED):
        if is_found and seed >= first + least:
            break
        breaks(seed, family)
        is_found |= any(whole is not None for whole, _ in found)

    assert [whole for whole, _ in found] == [newest for _, newest in found]
    assert any(whole is not None for whole, _ in found) == (rule is not None)


def said(evidence: Evidence, which: tuple[Checker, ...]) -> str | None:
    """What the first checker that complains says."""
    try:
        checkers.check(evidence, which)
    except InvariantError as error:
        return str(error)
    return None
