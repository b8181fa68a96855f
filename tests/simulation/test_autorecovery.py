"""Auditors and replication workers under seeds: what they promise, and what they must never do.

Each rule that they keep is switched off in turn: a lifetime must break an invariant of that name,
and with the rule not.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from spark_bookkeeper.agent import collection
from spark_bookkeeper.agent.collection import Collector
from spark_bookkeeper.autorecovery import auditor, checks, replication, task_jobs
from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.compaction import Compactor
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.client.cluster_clock import ClusterClock
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.protocol.lost_bookies import LostBookies
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.testing.memory_underreplication import MemoryUnderreplication
from tests.simulation.tiers import tiers
from tests.simulator import autorecovery_lifetime
from tests.simulator.autorecovery_lifetime import (
    AutorecoveryScript,
    run_autorecovery_lifetime,
)
from tests.simulator.faults import Disaster, FaultPlan, Rates
from tests.simulator.scheduler import SimulationError
from tests.simulator.upkeep import KINDS, Keeper

Family = Callable[[int], AutorecoveryScript]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", tiers(plain=12, full=132, exhaustive=2_000))
def test_a_cluster_makes_itself_whole_after_drawn_lifetimes(seeds: range) -> None:
    outcomes = [run_autorecovery_lifetime(seed) for seed in seeds]

    assert sum(each.published for each in outcomes) > 0, "it is about what was lost"
    assert sum(each.fully_replicated for each in outcomes) > len(seeds) // 2


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "seeds",
    [
        range(12, 24),  # among these is garbage to be deleted
        pytest.param(range(24, 90), marks=pytest.mark.full),
        pytest.param(range(1_000), marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_collectors_and_compactors_come_while_it_makes_itself_whole(seeds: range) -> None:
    outcomes = [run_autorecovery_lifetime(seed, keeping(seed)) for seed in seeds]

    happened = sum((each.happened for each in outcomes), Counter[str]())
    assert happened["upkeep: deleted"] > 0
    assert happened["upkeep: compacted"] > 0
    assert sum(each.fully_replicated for each in outcomes) > 0


def test_the_same_seed_is_the_same_lifetime() -> None:
    digests = [run_autorecovery_lifetime(5).history.digest() for _ in range(2)]

    assert digests[0] == digests[1]


def losing_answers(seed: int) -> AutorecoveryScript:
    """One process, which often hears nothing of what it did, and bookies that go early."""
    drawn = AutorecoveryScript.drawn(seed)
    gone = tuple(Disaster("expire", bookie, 60 + 90 * bookie, math.inf) for bookie in range(2))
    plan = FaultPlan(metadata=Rates(answer_lost=0.15), disasters=gone)
    return replace(drawn, locals=(None,), switches=(), expiries=(), plan=plan)


def emptying(seed: int) -> AutorecoveryScript:
    """Bookies lose what they hold and are back at once, within the delay; nothing else looks."""
    drawn = AutorecoveryScript.drawn(seed)
    config = replace(drawn.config, bookie_check_interval_s=0, ledger_check_interval_s=0)
    lost = range(drawn.quorum.ack_quorum_size - 1)
    wiped = tuple(Disaster("wipe", bookie, 120 + 60 * bookie, 0.5) for bookie in lost)
    return replace(
        drawn, config=config, delay_seconds=20, switches=(), plan=FaultPlan(disasters=wiped)
    )


def keeping(seed: int) -> AutorecoveryScript:
    """Collectors and compactors come again and again while copies are made."""
    dice = random.Random(f"{seed}/autorecovery/keeping")
    return replace(
        AutorecoveryScript.drawn(seed),
        keepers=tuple(
            Keeper(dice.choice(KINDS), dice.randint(40, 1_000)) for _ in range(dice.randint(3, 8))
        ),
    )


def shuttling(seed: int) -> AutorecoveryScript:
    """Many collectors, no compactor, and bookies that are lost one after the other for good."""
    dice = random.Random(f"{seed}/autorecovery/shuttling")
    drawn = AutorecoveryScript.drawn(seed)
    gone = tuple(
        Disaster("expire", bookie, 60 + 120 * bookie, math.inf)
        for bookie in range(drawn.quorum.ack_quorum_size)
    )
    return replace(
        drawn,
        locals=(None, None),
        switches=(),
        expiries=(),
        plan=FaultPlan(Rates(delay=0.1, pause=0.02), Rates(delay=0.2, pause=0.02), disasters=gone),
        keepers=tuple(Keeper("collector", dice.randint(60, 900)) for _ in range(8)),
    )


Patch = pytest.MonkeyPatch
MUTANTS: Final[dict[str, tuple[Callable[[Patch], None], Family, int]]] = {}
"""What takes each rule out, and the family and the seed of a lifetime that breaks then.

By the invariant that it breaks and its name.
"""


def breaking(
    invariant: str, seed: int = 0, family: Family = AutorecoveryScript.drawn
) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        MUTANTS[f"{invariant}/{apply.__name__}"] = apply, family, seed

    return note


@breaking("workers-hold-their-locks")
def work_without_a_lock(patch: Patch) -> None:
    """A worker takes what another one has locked."""
    patch.setattr(MemoryUnderreplication, "lock", lambda *_: True)


@breaking("workers-hold-their-locks")
def release_before_it_is_done(patch: Patch) -> None:
    """A worker releases its locks when it begins."""
    job: Any = task_jobs.Job  # type: ignore[attr-defined]  # what it calls, under its name there

    def releasing(name: str, context: Any, *arguments: Any) -> Any:
        tree = context.store.underreplication
        for holder, _ in list(tree._state.locks.values()):
            tree.unlock(holder)
        return job(name, context, *arguments)

    patch.setattr(task_jobs, "Job", releasing)


@breaking("open-ledgers-get-their-grace", 201)
def fence_at_once(patch: Patch) -> None:
    """Nobody waits for the writer of an open ledger."""
    patch.setattr(replication._Replication, "_waits_for_writer", lambda *_: False)


@breaking("open-ledgers-get-their-grace", 214)
def ask_the_own_clock(patch: Patch) -> None:
    """Each worker counts a writer's time by the clock of its machine."""
    patch.setattr(ClusterClock, "now_ms", lambda self, store, runtime: runtime.wall_ms())
    patch.setattr(ClusterClock, "asked_ms", lambda self, store, runtime: runtime.wall_ms())


@breaking("healthy-replicas-are-not-marked")
def mark_who_is_slow(patch: Patch) -> None:
    """What could not be read in time counts as missing."""
    patch.setattr(checks, "CERTAIN", {*checks.CERTAIN, Outcome.UNREADABLE, Outcome.UNAVAILABLE})


@breaking("disabled-does-nothing")
def disregard_the_switch(patch: Patch) -> None:
    """Whoever disabled it is not heard."""
    patch.setattr(MemoryUnderreplication, "is_enabled", lambda self, changed=None: True)


@breaking("lost-copies-are-made-again")
def forget_who_was_away(patch: Patch) -> None:
    """An auditor that is new takes those that are away for bookies that never were."""
    patch.setattr(auditor, "LostBookies", lambda known: LostBookies())
    patch.setattr(auditor.Auditor, "_check_bookies", lambda self: None)


@breaking("lost-copies-are-made-again", family=losing_answers)
def keep_a_lock_whose_answer_was_lost(patch: Patch) -> None:
    """A worker releases only what it was told that it has."""
    lock = MemoryUnderreplication.lock

    def told(self: MemoryUnderreplication, ledger_id: Any, holder: Any) -> bool:
        try:
            return lock(self, ledger_id, holder)
        except Exception:
            if self._state.locks.get(ledger_id) == (holder, self._session()):
                self._state.locks[ledger_id] = Holder(holder.name), self._session()
            return False

    patch.setattr(MemoryUnderreplication, "lock", told)


@breaking("lost-copies-are-made-again")
def believe_a_task_that_is_done(patch: Patch) -> None:
    """A task goes as soon as its copies were tried, whatever came of them."""

    def settle(self: Any, nonce: bytes | None) -> None:
        self.finish(Outcome.REPLICATED, None)

    patch.setattr(replication._Replication, "_settle", settle)
    patch.setattr(auditor.Auditor, "_check_bookies", lambda self: None)


@breaking("lost-copies-are-made-again", 5, emptying)
def take_a_bookie_for_what_it_was(patch: Patch) -> None:
    """One that is back counts as back, whatever it lost."""

    def seen(self: LostBookies, available: Any, *others: float) -> Any:
        return self._seen(frozenset(available), *others)

    patch.setattr(LostBookies, "seen", seen)


@breaking("nothing-named-is-deleted", 538, shuttling)
def collect_what_a_worker_copies(patch: Patch) -> None:
    """A collector looks at neither task nor lock, and the register is not told that it removes."""

    def withdraw(context: Any, ledger: Any, bookie: Any, incarnation: str) -> bool:
        context.bookies.bookie(bookie).clear(LedgerRef(ledger.key, incarnation, ledger.encoding))
        return True

    def unlocked(self: Collector, ref: Any, ledger: Any) -> Any:
        return self._withdraw_locked(ref, ledger)

    patch.setattr(collection, "withdraw", withdraw)
    patch.setattr(Collector, "_withdraw", unlocked)
    patch.setattr(collection, "check_one", lambda *_: [])


@breaking("lost-copies-are-made-again", 31, keeping)
def compact_away_what_was_not_read(patch: Patch) -> None:
    """A compactor takes what it was to move for moved, while workers copy from there."""

    def removable(self: Compactor, survey: Any, kept: EntryIndex) -> list[str]:
        return [holding.path for holding in survey.leaving if holding.path not in kept.holdings]

    patch.setattr(Compactor, "_removable", removable)
    patch.setattr(Retrieval, "_reasons", lambda self: {})


@breaking("more than", 2)
def take_a_long_wait_for_another_clock(patch: Patch) -> None:
    """Workers look again at once at what is to be left alone for long.

    They would do so for ever; usual lifetimes take less than half of these steps.
    """
    patch.setattr(autorecovery_lifetime, "STEPS", 10_000)
    patch.setattr(TaskNote, "is_due", lambda *_: True)


@pytest.mark.parametrize("rule", MUTANTS)
def test_without_a_rule_a_lifetime_breaks_and_with_it_none(rule: str) -> None:
    invariant = rule.split("/")[0]
    apply, family, first = MUTANTS[rule]
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        tried = range(first, first + 1_000)
        broken = next((seed for seed in tried if breaks(seed, family, invariant)), None)

    assert broken is not None, f"no lifetime noticed {rule}"
    run_autorecovery_lifetime(broken, family(broken))


def breaks(seed: int, family: Family, invariant: str) -> bool:
    try:
        run_autorecovery_lifetime(seed, family(seed))
    except SimulationError as error:
        return str(error).startswith(invariant)
    return False
