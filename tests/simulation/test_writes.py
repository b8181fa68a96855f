"""Writes to a log in one step under seeds: each batch once, whole and in order, whoever commits it.

Each rule that they rest on is switched off in turn: a lifetime must break an invariant, and with
the rule not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.logs import atomic
from spark_bookkeeper.logs import staged_writes as begun_writes
from spark_bookkeeper.logs.opening import OvertakenError
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import LogHead
from spark_bookkeeper.protocol.transactions import MicroBatch, Transaction
from tests.simulation.tiers import tiers
from tests.simulation.writes import run_writes
from tests.simulator.checkers import InvariantError

Patch = pytest.MonkeyPatch
MUTANTS: Final[dict[str, tuple[Callable[[Patch], None], int]]] = {}
"""What takes each rule out, and the seed of a lifetime that breaks then."""


@pytest.mark.parametrize("seeds", tiers(plain=10, full=300, exhaustive=3_000))
def test_writes_keep_every_invariant_under_drawn_lifetimes(
    seeds: range, only_seed: int | None
) -> None:
    for seed in seeds if only_seed is None else [only_seed]:
        run_writes(seed)


def mutant(seed: int) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        MUTANTS[apply.__name__] = apply, seed

    return note


@mutant(4)
def look_in_the_step_that_adds(patch: Patch) -> None:
    """A number is looked for before, and not where the ledger is added."""

    def step_to_add(
        head: LogHead, ledger_id: LedgerId, transaction: Transaction | None
    ) -> Callable[[LogHead], LogHead | None]:
        def step(old: LogHead) -> LogHead | None:
            if old.newest == ledger_id:
                return None
            if old.newest != head.newest:
                raise OvertakenError
            added = old.with_ledger(ledger_id)
            if transaction is None or added.transactions.done(transaction) is not None:
                return added
            return added.with_transaction(transaction)

        return step

    patch.setattr(atomic, "_step_to_add", step_to_add)


@mutant(10)
def remember_in_the_step_that_adds(patch: Patch) -> None:
    """A number is remembered when its ledger is in the list already."""
    add_sealed = atomic.add_sealed

    def add_first(
        context: ClientContext, name: str, nonce: str, ledger_id: LedgerId, of: Transaction
    ) -> LogHead:
        add_sealed(context, name, nonce, ledger_id, None)

        def step(old: LogHead) -> LogHead | None:
            return None if old.transactions.done(of) else old.with_transaction(of)

        return logs.change_log(context.store.registers, name, nonce, step)

    patch.setattr(atomic, "add_sealed", add_first)


@mutant(4)
def refuse_a_batch_that_is_planned_anew(patch: Patch) -> None:
    """A batch whose number is not above the last one is dropped, whatever it is."""
    patch.setattr(MicroBatch, "check_repeats", lambda *_: None)


@mutant(0)
def fence_before_adding(patch: Patch) -> None:
    """A write is added behind a ledger whose writer goes on."""
    patch.setattr(atomic, "recover_last", lambda *_: None)


@mutant(10)
def leave_what_may_be_added(patch: Patch) -> None:
    """What a write has left is removed, although somebody may be about to add it."""

    def discard(context: ClientContext, name: str, nonce: str, ledger_id: LedgerId) -> bool:
        lifecycle.delete_ledger(context, ledger_id)
        return True

    patch.setattr(begun_writes, "_discard_ledger", discard)


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_write_breaks_without_the_rule_and_not_with_it(rule: str) -> None:
    apply, first = MUTANTS[rule]
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        broken = next(filter(breaks, range(first, first + 1_000)), None)

    assert broken is not None, f"no lifetime noticed that {rule} is gone"
    run_writes(broken)


def breaks(seed: int) -> bool:
    try:
        run_writes(seed)
    except InvariantError:
        return True
    return False
