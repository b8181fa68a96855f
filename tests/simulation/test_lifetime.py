"""Lifetimes of ledgers: thousands from seeds, and every small one that few deviations make."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_bookkeeper.protocol.quorum import Quorum
from tests.simulation.processes import HASHES, printed_there
from tests.simulation.tiers import tiers
from tests.simulator.choices import EnumeratedChoices, explore
from tests.simulator.damage import WAYS
from tests.simulator.faults import (
    FAULT_KINDS,
    NO_FAULTS,
    Disaster,
    FaultPlan,
    Rates,
)
from tests.simulator.lifetime import (
    LifetimeError,
    Outcome,
    Script,
    run_lifetime,
)
from tests.simulator.upkeep import Keeper

USUAL, PAIR = Quorum(3, 3, 2), Quorum(2, 2, 2)
PACKAGE = "tests.simulator"
RARE = (226, 242, 271, 3027)
"""Seeds of lifetimes that meet what none of the first does."""


@pytest.mark.parametrize("seeds", tiers(plain=60, full=660, exhaustive=6_060, block=200))
def test_lifetimes_keep_every_invariant(seeds: range, only_seed: int | None) -> None:
    if only_seed is not None:
        seeds = range(only_seed, only_seed + (seeds.start == 0))

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


@pytest.mark.full
def test_lifetimes_meet_whatever_can_happen() -> None:
    """The first 160 do, and those in ``RARE``; after a change of the code perhaps others."""
    lacking = {
        *("crash", "pause", "resume", "will arrive late", "hangs", "hangs with its bookie"),
        *("visible, never made durable", "visible, not made durable, answer lost"),
        *("acknowledged", "closed", "returned", "was told"),
        *("several fragments", "recovered something", "finish", "bulk of a striped ledger"),
        *("a part was copied to a successor", "replicated", "left", "deleted"),
        *(kind for kind in FAULT_KINDS if not kind.startswith("damage: ")),
        # Each file is damaged, and each way is taken; not each of both, which takes many more.
        *(f"damage: {name}" for file, ways in WAYS.items() for name in (file, *ways)),
    }
    for seed in (*range(160), *RARE, *range(160, 1_000)):
        for what in met_in_lifetime(seed):
            lacking -= {what, *damaged(what)}
        if not lacking:
            break

    assert sorted(lacking) == []


def damaged(what: str) -> Iterator[str]:
    """The file and the way of a damage."""
    if what.startswith("damage: "):
        for name in what.removeprefix("damage: ").split(" ", 1):
            yield f"damage: {name}"


def successors_took_parts(outcome: Outcome) -> bool:
    """Whether parts came to a bookie that the ledger's first ensemble did not name."""
    first = next((e for e in outcome.history.events if e[1] == "OPEN"), None)
    named = str(first[-1]).split() if first else []
    return any(e[1] == "finish" and e[2] not in named for e in outcome.history.events)


def small(
    plan: FaultPlan = NO_FAULTS, recoverer_at: int = 12, quorum: Quorum = USUAL, entries: int = 2
) -> Script:
    """A writer of few entries and one recoverer that comes while they are written."""
    return Script(
        quorum=quorum,
        bookies=quorum.ensemble_size + 1,
        payloads=tuple(b"%d" % number for number in range(entries)),
        waits=frozenset({0}),
        ending="close",
        recoverers=(recoverer_at,),
        reader_at=None,
        plan=plan,
    )


@pytest.mark.parametrize(
    ("quorum", "entries", "recoverer_at", "least"),
    [
        (PAIR, 1, 10, 200),
        (PAIR, 2, 20, 80),
        *(pytest.param(USUAL, 2, at, 100, marks=pytest.mark.full) for at in (10, 20, 30)),
    ],
)
def test_every_lifetime_that_one_deviation_makes(
    quorum: Quorum, entries: int, recoverer_at: int, least: int
) -> None:
    script = small(recoverer_at=recoverer_at, quorum=quorum, entries=entries)

    assert explore(lambda c: lived(script, c), deviations=1, faults=0) > least


def lived(script: Script, choices: EnumeratedChoices) -> None:
    run_lifetime(0, script, choices)


@pytest.mark.parametrize(
    ("quorum", "entries"), [(PAIR, 1), pytest.param(USUAL, 2, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(
    ("rates", "least"),
    [
        (Rates(request_lost=0.5, answer_lost=0.5), 70),
        (Rates(late_effect=0.5), 8),
        (Rates(crash=0.5), 70),
        (Rates(pause=0.5), 70),
        (Rates(hang=0.5), 40),
    ],
    ids=["lost", "late", "crash", "pause", "hang"],
)
def test_every_lifetime_that_one_fault_makes(
    rates: Rates, least: int, quorum: Quorum, entries: int
) -> None:
    plan = FaultPlan(storage=rates, metadata=replace(rates, hang=0.0))
    script = small(plan, quorum=quorum, entries=entries)

    assert explore(lambda c: lived(script, c), deviations=0, faults=1) > least


@pytest.mark.parametrize("bookie", [0, pytest.param(2, marks=pytest.mark.full)])
def test_every_moment_at_which_a_bookie_begins_to_hang_for_ever(bookie: int) -> None:
    operations = run_lifetime(0, small()).operations
    for at_operation in range(1, operations + 1):
        plan = FaultPlan(disasters=(Disaster("hang", bookie, at_operation, math.inf),))
        outcome = run_lifetime(0, small(plan))
        assert outcome.closed is not None


def test_compactors_that_meet_at_a_ledger_do_not_chase_each_other() -> None:
    for seed in range(12):
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
@pytest.mark.parametrize("limit", [30, pytest.param(300, marks=pytest.mark.full)])
def test_lifetimes_that_two_deviations_make(recoverer_at: int, limit: int) -> None:
    script = small(recoverer_at=recoverer_at)

    assert explore(lambda c: lived(script, c), deviations=2, faults=0, limit=limit) == limit


def test_the_history_of_a_seed_does_not_depend_on_the_process() -> None:
    printed = printed_there("-m", PACKAGE, "--seed", "11", "--count", "2", "--verbose")

    for seed in (11, 12):
        assert run_lifetime(seed).history.digest() in printed, HASHES
