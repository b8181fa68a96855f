"""Lifetimes of ledgers: thousands from seeds, and every small one that few deviations make."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.simulation.choices import EnumeratedChoices, explore
from spark_bookkeeper.testing.simulation.damage import WAYS
from spark_bookkeeper.testing.simulation.faults import (
    FAULT_KINDS,
    NO_FAULTS,
    Disaster,
    FaultPlan,
    Rates,
)
from spark_bookkeeper.testing.simulation.lifetime import (
    LifetimeError,
    Outcome,
    Script,
    run_lifetime,
)
from spark_bookkeeper.testing.simulation.upkeep import Keeper

PACKAGE = "spark_bookkeeper.testing.simulation"
BLOCKS, MORE_BLOCKS = 5, 50
"""Among the others, and with the slow ones."""
SEEDS_PER_BLOCK = 120
HANGING_SEEDS = 60


@pytest.mark.parametrize(
    "block",
    [
        *range(BLOCKS),
        *(pytest.param(block, marks=pytest.mark.slow) for block in range(BLOCKS, MORE_BLOCKS)),
    ],
)
def test_lifetimes_keep_every_invariant(block: int, only_seed: int | None) -> None:
    seeds = range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK)
    if only_seed is not None:
        seeds = range(only_seed, only_seed + (block == 0))

    for seed in seeds:
        try:
            met_in_lifetime(seed)
        except LifetimeError as error:
            pytest.fail(
                f"{error}\nor with `python -m pytest tests/simulation "
                f"-k lifetimes_keep --seed {seed}`"
            )


@functools.cache
def met_in_lifetime(seed: int) -> Counter[str]:
    """What a lifetime met; each is lived once, whichever test asks first."""
    met: Counter[str] = Counter()
    outcome = run_lifetime(seed)
    met.update(outcome.happened)
    met.update({str(event[1]) for event in outcome.history.events})
    met.update({str(event[-1]) for event in outcome.history.events})
    met.update({str(event[2]) for event in outcome.history.events if event[1] == "row"})
    met["a part was copied to a successor"] += successors_took_parts(outcome)
    if outcome.closed is not None:
        met["several fragments"] += len(outcome.closed.fragments) > 1
        met["bulk of a striped ledger"] += (
            outcome.script.quorum.ensemble_size > outcome.script.quorum.write_quorum_size
            and any(event[1] == "finish" for event in outcome.history.events)
        )
        met["recovered something"] += len(outcome.history.acknowledged) < 1 + (
            outcome.closed.last_entry_id or 0
        )
    return met


def test_lifetimes_meet_what_they_are_for() -> None:
    met: Counter[str] = Counter()
    for seed in range(300):
        met += met_in_lifetime(seed)

    for what in (
        *("crash", "pause", "resume", "will arrive late", "hangs", "hangs with its bookie"),
        *("visible, never made durable", "visible, not made durable, answer lost"),
        *("acknowledged", "closed", "returned", "was told"),
        *("several fragments", "recovered something", "finish", "bulk of a striped ledger"),
        *("a part was copied to a successor", "replicated", "left", "deleted"),
    ):
        assert met[what] > 0, f"no lifetime of 300 met: {what}"


def test_lifetimes_meet_every_kind_of_fault() -> None:
    met: Counter[str] = Counter()
    for seed in range(BLOCKS * SEEDS_PER_BLOCK):
        met += met_in_lifetime(seed)
    for seed in range(HANGING_SEEDS):
        met += Counter(run_lifetime(seed, hanging_in_bulk(seed)).happened)
    # Each file is damaged, and each way is taken; not each of both, which takes many more.
    for what, count in list(met.items()):
        if what.startswith("damage: "):
            file, way = what.removeprefix("damage: ").split(" ", 1)
            met[f"damage: {file}"] += count
            met[f"damage: {way}"] += count
    damaged = {f"damage: {name}" for file, ways in WAYS.items() for name in (file, *ways)}
    others = {kind for kind in FAULT_KINDS if not kind.startswith("damage: ")}

    assert sorted(kind for kind in damaged | others if not met[kind]) == []


def hanging_in_bulk(seed: int) -> Script:
    """A lifetime that appends tables in bulk: few that are drawn do, and fewer meet a hang then."""
    return replace(
        Script.drawn(seed),
        payloads=((b"0", b"1", b"2", b"3"),) * 4,
        entry_target_bytes=1,
        plan=FaultPlan(storage=Rates(hang=0.1)),
    )


def successors_took_parts(outcome: Outcome) -> bool:
    """Whether parts came to a bookie that the ledger's first ensemble did not name."""
    first = next((e for e in outcome.history.events if e[1] == "OPEN"), None)
    named = str(first[-1]).split() if first else []
    return any(e[1] == "finish" and e[2] not in named for e in outcome.history.events)


def small(plan: FaultPlan = NO_FAULTS, recoverer_at: int = 12) -> Script:
    """A writer of two entries and one recoverer that comes while they are written."""
    return Script(
        quorum=Quorum(3, 3, 2),
        bookies=4,
        payloads=(b"0", b"1"),
        waits=frozenset({0}),
        ending="close",
        recoverers=(recoverer_at,),
        reader_at=None,
        plan=plan,
    )


@pytest.mark.parametrize("recoverer_at", [10, 20, 30])
def test_every_lifetime_that_one_deviation_makes(recoverer_at: int) -> None:
    def run(choices: EnumeratedChoices) -> None:
        run_lifetime(0, small(recoverer_at=recoverer_at), choices)

    runs = explore(run, deviations=1, faults=0)

    assert runs > 100


@pytest.mark.parametrize(
    "rates",
    [
        Rates(request_lost=0.5, answer_lost=0.5),
        Rates(late_effect=0.5),
        Rates(crash=0.5),
        Rates(pause=0.5),
        Rates(hang=0.5),
    ],
    ids=["lost", "late", "crash", "pause", "hang"],
)
def test_every_lifetime_that_one_fault_makes(rates: Rates) -> None:
    def run(choices: EnumeratedChoices) -> None:
        at_metadata = replace(rates, hang=0.0)
        run_lifetime(0, small(FaultPlan(storage=rates, metadata=at_metadata)), choices)

    runs = explore(run, deviations=0, faults=1)

    assert runs > 10


@pytest.mark.parametrize("bookie", [0, 2])
def test_every_moment_at_which_a_bookie_begins_to_hang_for_ever(bookie: int) -> None:
    operations = run_lifetime(0, small()).operations
    for at_operation in range(1, operations + 1):
        plan = FaultPlan(disasters=(Disaster("hang", bookie, at_operation, math.inf),))
        outcome = run_lifetime(0, small(plan))
        assert outcome.closed is not None


def test_compactors_that_meet_at_a_ledger_do_not_chase_each_other() -> None:
    for seed in range(40):
        script = replace(
            small(),
            recoverers=(),
            ending="close",
            keepers=tuple(Keeper("compactor", 60) for _ in range(4)),
        )
        events = run_lifetime(seed, script).history.events
        put = Counter(actor for actor, what, *_ in events if what == "put")
        compactors = [f"compactor-{number}" for number in range(4)]
        a_fence_and_a_copy = 2
        assert max(put[name] for name in compactors) <= a_fence_and_a_copy * script.bookies, seed
        assert any(put[name] for name in compactors)


@pytest.mark.parametrize("recoverer_at", [10, 20, 30])
def test_lifetimes_that_two_deviations_make(recoverer_at: int) -> None:
    def run(choices: EnumeratedChoices) -> None:
        run_lifetime(0, small(recoverer_at=recoverer_at), choices)

    explore(run, deviations=2, faults=0, limit=300)


def test_the_history_of_a_seed_does_not_depend_on_the_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-m", PACKAGE, "--seed", "11", "--count", "5", "--verbose"],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(outputs) == 1
    for seed in range(11, 16):
        assert run_lifetime(seed).history.digest() in next(iter(outputs))
