"""Each role killed at each step: whoever comes next brings the cluster to the same end.

The table of steps is made by a run in which nobody dies: every operation on the metadata or on a
bookie's storage that the role asks for is one. In each following run the role dies at one of them,
its session ends, and another process does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written
from spark_bookkeeper.testing.ground import Ground, Hook, KillAt, Killed

Role = Callable[[Process], object]

ROLES: dict[str, Role] = {
    "auditor": lambda process: process.audit(),
    "worker": lambda process: process.work(),
    "recovery": lambda process: process.work(),
    "check": lambda process: process.audit(),
    "repair": lambda process: process.work(),
}
"""A worker copies the fragments of a closed ledger; in the recovery it closes an open one first.
The check finds a damaged replica on a bookie that is there, and the repair makes it again there."""

STEPS: dict[str, set[str]] = {
    "auditor": {"stand", "is_enabled", "read_delay", "cookies", "ledger_ids", "read_ledger"}
    | {"registrations", "mark", "set_checked"},
    "worker": {"is_enabled", "locks", "task_ids", "read_task", "lock", "read_ledger", "list"}
    | {"read_range", "put_if_absent", "write_ledger", "delete_register", "remove_task", "unlock"},
    "recovery": {"lock", "read_register", "write_ledger", "list", "put_if_absent", "remove_task"}
    | {"unlock"},
    "check": {"read_range", "mark", "set_checked"},
    "repair": {"lock", "read_range", "put_if_absent", "remove_task", "unlock"},
}
"""Operations that must be among those at which a role dies, so that the table stays complete."""


def situation(directory: Path, role: str) -> Ground:
    """A ledger that lost a bookie, up to where the role begins."""
    ground = Ground(directory)
    writer = written(ground, count=2, close=role != "recovery")
    lost = writer.metadata.last_fragment.ensemble[0]
    if role in ("check", "repair"):
        ground.files(lost, "slots")[0].write_bytes(b"")
    else:
        ground.stop(lost, destroy=True)
    if role not in ("auditor", "check"):
        Process(ground, "before").audit()
    if role == "recovery":  # the time of its writer is over
        Process(ground, "waiting").work()
        Notes(ground.context.store.registers).change(
            LedgerId(writer.ledger_id),
            lambda note: replace(note, open_since_ms=0, next_try_at_ms=0),
        )
    ground.forget()
    return ground


def run_role(ground: Ground, role: str, *hooks: Hook) -> None:
    process = Process(ground, "killed", *hooks)
    with suppress(Killed):
        ROLES[role](process)
    process.context.store.faults = None  # type: ignore[attr-defined]  # the dead do nothing more
    process.die()


def finish(ground: Ground) -> None:
    """Another process does whatever is left."""
    process = Process(ground, "next")
    for _ in range(3):
        process.audit()
        process.work()
        process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)


def end_of(ground: Ground) -> tuple[object, ...]:
    """What must be the same in every run."""
    store = ground.context.store
    report = check_ledgers(ground.context, LocalRunner(ground.context), None, 100)
    found = store.read_ledger(LedgerId(0))
    assert isinstance(found, Versioned)
    alive = {each.bookie_id for each in store.registrations()}
    return (
        report.counts,
        found.value.state,
        found.value.last_entry_id,
        found.value.bookies() <= alive,
        list(store.underreplication.ledger_ids()),
        dict(store.underreplication.locks()),
        list(Notes(store.registers).ledger_ids()),
    )


@pytest.mark.parametrize("role", ROLES)
def test_killed_at_a_step_the_cluster_ends_the_same(tmp_path: Path, role: str) -> None:
    killed_at_some_of(tmp_path, role, 10)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_killed_at_any_step_the_cluster_ends_the_same(tmp_path: Path, role: str) -> None:
    killed_at_some_of(tmp_path, role, 1 << 30)


def killed_at_some_of(directory: Path, role: str, most: int) -> None:
    ground = situation(directory / "whole", role)
    counting = KillAt(-1)
    run_role(ground, role, counting)
    seen = {step.operation for step in ground.steps}
    assert seen >= STEPS[role], STEPS[role] - seen
    finish(ground)
    expected = end_of(ground)
    assert expected[3:] == (True, [], {}, [])
    steps = counting.operations
    assert steps > 5

    tried = sorted({steps * n // most for n in range(most)} if most < steps else range(steps))
    for number in tried:
        ground = situation(directory / str(number), role)
        killed = KillAt(number)
        run_role(ground, role, killed)
        assert killed.is_dead, "it died where it was to die"
        finish(ground)
        assert end_of(ground) == expected, f"killed at step {number} of {steps}"
