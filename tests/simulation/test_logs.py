"""Logs under seeds: two invariants of their own, and each step of a writer crashed.

Each rule that a log rests on is switched off in turn: a lifetime must break an invariant, and with
the rule not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.logs import opening, truncation
from spark_bookkeeper.logs import writer as log_writer
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import LogHead
from tests.simulation.tiers import tiers
from tests.simulator.checkers import InvariantError
from tests.simulator.log_lifetime import LogScript, run_log_lifetime

STEPS: Final = 100
"""More than the first writer of ``LogScript.crashing`` takes."""


@pytest.mark.parametrize("seeds", tiers(plain=20, full=320, exhaustive=2_000))
def test_logs_keep_every_invariant_under_drawn_lifetimes(seeds: range) -> None:
    told = [run_log_lifetime(seed).acknowledged for seed in seeds]

    assert sum(told) > 3 * len(seeds), "it is about writers that write"


@pytest.mark.parametrize(
    "steps",
    [
        range(0, STEPS, 3),
        *(pytest.param(range(n, STEPS, 3), marks=pytest.mark.full) for n in (1, 2)),
    ],
    ids=str,
)
def test_a_writer_crashes_at_every_step_of_taking_over_rolling_and_truncating(steps: range) -> None:
    for step in steps:
        if run_log_lifetime(step, LogScript.crashing(step)).first_ended_itself:
            break
    assert 80 < step < steps[-1]


Patch = pytest.MonkeyPatch
MUTANTS: Final[dict[str, tuple[Callable[[Patch], None], int]]] = {}
"""What takes each rule out, and the seed of a lifetime that breaks then."""


def mutant(seed: int) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        MUTANTS[apply.__name__] = apply, seed

    return note


@mutant(0)
def add_before_writing(patch: Patch) -> None:
    """A writer serves appends before its ledger is in the list."""
    patch.setattr(opening, "add_to_list", lambda *_: None)


@mutant(0)
def add_by_compare_and_swap(patch: Patch) -> None:
    """A ledger is added behind whatever is the end of the list by now."""

    def add(context: ClientContext, name: str, head: LogHead, ledger_id: LedgerId) -> None:
        def step(old: LogHead) -> LogHead | None:
            if old.may_hold(ledger_id):
                return None
            return old.with_ledger(ledger_id) if ledger_id > (old.newest or 0) else None

        logs.change_log(context.store.registers, name, head.nonce, step)

    patch.setattr(opening, "add_to_list", add)
    patch.setattr(log_writer, "add_to_list", add)


@mutant(30)
def fence_the_last_two(patch: Patch) -> None:
    """Only the last ledger is fenced, and the writer may be in the one before it."""
    patch.setattr(LogHead, "to_fence", property(lambda head: head.recent[-1:]))


@mutant(0)
def close_the_previous(patch: Patch) -> None:
    """A writer that rolls leaves the ledger before open."""
    patch.setattr(LogWriter, "_close_previous", lambda self: setattr(self, "_previous", None))


@mutant(1)
def mark_before_deleting(patch: Patch) -> None:
    """A truncation deletes ledgers first, and takes them off the list afterwards."""
    truncate = truncation.truncate

    def deleting(context: ClientContext, name: str, nonce: str, before: LedgerId) -> list[LedgerId]:
        head, listed = list_ledgers(context, name, nonce)
        for ledger_id in listed:
            if ledger_id < before and ledger_id not in head.to_fence:
                lifecycle.delete_ledger(context, ledger_id)
        return truncate(context, name, nonce, before)

    patch.setattr(truncation, "truncate", deleting)


@mutant(0)
def keep_what_is_listed(patch: Patch) -> None:
    """Adding a ledger takes the one before the newest off the list."""
    with_ledger = LogHead.with_ledger

    def forgetting(self: LogHead, ledger_id: LedgerId) -> LogHead:
        head = with_ledger(self, ledger_id)
        return replace(head, chunks=(), recent=head.recent[-1:])

    patch.setattr(LogHead, "with_ledger", forgetting)


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_log_breaks_without_the_rule_and_not_with_it(rule: str) -> None:
    apply, first = MUTANTS[rule]
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        broken = next(filter(breaks, range(first, first + 1_000)), None)

    assert broken is not None, f"no lifetime noticed that {rule} is gone"
    run_log_lifetime(broken)


def breaks(seed: int) -> bool:
    try:
        run_log_lifetime(seed)
    except InvariantError:
        return True
    return False
