"""Each safety rule switched off in turn: a lifetime must break an invariant, and with the rule not.

Source: SLOT-LOG, "Rules" (the names in brackets) and "How the rules were checked".

Some have no mutant here. ``gc_tombstone``: nobody here judges what a deleted ledger takes.
``compact_fence`` and ``part_mark``: what they prevent needs a process that sleeps while a ledger is
written, closed and compacted, or files that have times; ``copy_era``, one that sleeps while copies
go and come again. ``tests/bookie`` has these four.
``wb_sealed`` (an ADD behind a fence counts): a lane puts a slot only when it has won the one below,
so that no ADD of this writer ever stands behind a fence. ``fence_no_hole`` (a hole below a fence is
fenced): what may have been in a hole is in doubt whether a fence fills it or not, and a writer that
had won it is stopped by the fence above all. For the last two ``tests/bookie`` lays such slots
down.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from spark_bookkeeper.testing.simulation import checkers
from spark_bookkeeper.testing.simulation.checkers import Checker, InvariantError
from spark_bookkeeper.testing.simulation.evidence import Evidence
from spark_bookkeeper.testing.simulation.ground import Life, SimCluster
from spark_bookkeeper.testing.simulation.lifetime import LifetimeError, Script, run_lifetime


def _beside(name: str) -> ModuleType:
    """A module in this directory, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutants = _beside("mutants")
lifetimes = _beside("lifetimes")

INVARIANTS: Final = re.compile(
    "(acked-entries-are-readable|closed-entries-reach-ack-quorum|all-closes-agree"
    "|confirmed-never-exceeds-last-entry|entries-in-write-order|replicas-are-identical"
    "|nothing-named-is-deleted|lac-is-confirmed|fragments-are-sorted-and-valid"
    "|no-count-behind-a-fence|ledger-gets-closed|left-bookies-are-whole): "
)

SEEDS_TRIED: Final = 1000
"""From the first one on; so that a harmless change of the code does not end the search."""

Family = Callable[[int], Script]

CASES: Final[dict[str, tuple[Family, int]]] = {
    "prefix_ack": (Script.drawn, 35),
    "exists_check": (Script.drawn, 19),
    "content_fixed": (Script.drawn, 40),
    "contiguous_ack": (Script.drawn, 20),
    "ec_cas_first": (lifetimes.stalling, 170),
    "ec_recount": (lifetimes.changing, 45),
    "lac_confirmed": (Script.drawn, 0),
    "explicit_lac_confirmed": (lifetimes.pausing, 0),
    "writer_close_cas": (Script.drawn, 670),
    "cookie_ack": (lifetimes.losing, 6),
    "durable_ack": (Script.drawn, 0),
    "leave_whole": (lifetimes.leaving, 0),
    "back_certain": (lifetimes.leaving, 10),
    "back_ascending": (lifetimes.leaving, 0),
    "fence_first_hole": (Script.drawn, 65),
    "fence_on_durable": (lifetimes.darkening, 225),
    "fenced_negative": (lifetimes.losing, 16),
    "fresh_negative": (lifetimes.losing, 550),
    "cookie_neg": (lifetimes.losing, 20),
    "observe_sync": (Script.drawn, 32),
    "neg_writeset": (lifetimes.damaging, 8),
    "neg_quorum": (lifetimes.doubting, 165),
    "wb_quorum": (Script.drawn, 9),
    "frag_start": (lifetimes.changing, 230),
    "in_recovery": (lifetimes.stalling, 170),
    "rec_reads_orig": (lifetimes.stalling, 72),
    "rec_ec_at_close": (Script.drawn, 95),
    "close_cas": (Script.drawn, 44),
    "rw_closed_only": (Script.drawn, 90),
    "late_answer": (lifetimes.hanging, 120),
    "hole_negative": (lifetimes.tearing, 180),
    "hole_below_fence": (lifetimes.tearing, 450),
    "slot_number": (lifetimes.tearing, 410),
    "same_nonce": (lifetimes.reusing, 50),
    "compact_verified": (lifetimes.keeping, 36),
    "compact_own": (lifetimes.keeping, 20),
    "gc_register": (lifetimes.moving, 70),
    "gc_named": (lifetimes.moving, 22),
}
"""For each rule: the family of lifetimes, and a seed from which on one is soon found to fail."""


def test_every_mutant_has_its_case() -> None:
    assert CASES.keys() == mutants.MUTANTS.keys()


@pytest.mark.parametrize("rule", CASES)
def test_a_ledger_breaks_without_the_rule_and_not_with_it(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, first = CASES[rule]
    with monkeypatch.context() as patch:
        mutants.MUTANTS[rule](patch)
        seed = _first_broken(family, first)

    assert seed is not None, f"no lifetime of {SEEDS_TRIED} noticed that {rule} is gone"
    run_lifetime(seed, family(seed))


@pytest.mark.parametrize(
    "rule", ["fence_first_hole", "fenced_negative", "fresh_negative", "cookie_neg"]
)
def test_a_fence_in_a_bucket_needs_the_rule_as_well(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it is put in rounds, also that of one ledger."""
    family, first = CASES[rule]
    with monkeypatch.context() as patch:
        mutants.MUTANTS[rule](patch)
        seed = _first_broken(in_buckets(family), first)

    assert seed is not None, f"no lifetime of {SEEDS_TRIED} noticed that {rule} is gone"
    run_lifetime(seed, in_buckets(family)(seed))


def in_buckets(family: Family) -> Family:
    """The same lifetimes with bookies that are like buckets, of which few are drawn."""
    return lambda seed: replace(family(seed), has_directories=False)


def _first_broken(family: Family, first: int) -> int | None:
    """The first seed whose lifetime breaks a named invariant; other failures prove nothing."""
    for seed in range(first, first + SEEDS_TRIED):
        try:
            run_lifetime(seed, family(seed))
        except LifetimeError as error:
            if INVARIANTS.match(str(error)):
                return seed
    return None


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
    lifetimes.reusing,
    lifetimes.pausing,
    lifetimes.leaving,
    lifetimes.gathering,
    lifetimes.keeping,
    lifetimes.moving,
)
HOSTILE_SEEDS: Final = 50


@pytest.mark.parametrize("family", HOSTILE)
def test_hostile_lifetimes_keep_every_invariant(family: Family) -> None:
    for seed in range(HOSTILE_SEEDS):
        run_lifetime(seed, family(seed))
        run_lifetime(seed, in_buckets(family)(seed))


@pytest.mark.slow
@pytest.mark.parametrize("family", HOSTILE)
def test_many_more_hostile_lifetimes_keep_every_invariant(family: Family) -> None:
    for seed in range(HOSTILE_SEEDS, 500):
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


@pytest.mark.parametrize(
    ("rule", "seeds"),
    [
        (None, 200),
        ("frag_start", 120),
        ("in_recovery", 140),
        ("rw_closed_only", 40),
        ("wb_quorum", 40),
    ],
)
def test_what_is_asked_after_a_change_finds_as_much_as_asking_everything(
    rule: str | None, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    for seed in range(first, first + seeds):
        with contextlib.suppress(LifetimeError):
            run_lifetime(seed, family(seed))

    assert [whole for whole, _ in found] == [newest for _, newest in found]
    assert any(whole is not None for whole, _ in found) == (rule is not None)


def said(evidence: Evidence, which: tuple[Checker, ...]) -> str | None:
    """What the first checker that complains says."""
    try:
        checkers.check(evidence, which)
    except InvariantError as error:
        return str(error)
    return None
