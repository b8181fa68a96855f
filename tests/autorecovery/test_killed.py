"""Each role killed at each step: whoever comes next brings the cluster to the same end.

``STEPS`` has the steps of each role in order, in words and as the operation on the metadata or on a
bookie's storage that it is. A role dies as it begins one of them, its session ends, and another
process does the rest. What is between two of them, mostly reading, is an operation too: in the
slow tests a role dies at every single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written
from spark_bookkeeper.testing.ground import Ground, Hook, KillAt, Killed

Role = Callable[[Process], object]

BATCH: Final = 4

ROLES: dict[str, Role] = {
    "auditor": lambda process: process.audit(),
    "worker": lambda process: process.work(),
    "beside": lambda process: process.work(),
    "batch": lambda process: process.work(),
    "recovery": lambda process: process.work(),
    "check": lambda process: process.audit(),
    "repair": lambda process: process.work(),
}
"""A worker copies the fragments of a closed ledger, to any bookie or, beside one, to that; in a
batch those of several ledgers together; in the recovery it closes an open one first. The check
finds a damaged replica on a bookie that is there, and the repair makes it again there."""


class Step(NamedTuple):
    """One row of the table: the first such operation after the row before."""

    words: str
    operation: str
    path: str = ""
    """A part of it."""


TAKES: Final = (
    Step("sees that it may work", "is_enabled"),
    Step("asks who has locks", "locks"),
    Step("lists the tasks", "task_ids"),
    Step("reads a task", "read_task"),
    Step("reads how endangered its ledger is", "read_ledger"),
    Step("locks it", "lock"),
    Step("sees again that it may work", "is_enabled"),
)
COPIES: Final = (
    Step("sees what sources have", "list", "/slots"),
    Step("reads entries", "read_range", "/slots/"),
    Step("makes room for the copy", "make_directory", "/copies"),
    Step("stores the copy", "put_if_absent", "/copies/"),
    Step("reads it again", "read_range", "/copies/"),
)
NAMES: Final = Step("names the new bookie in the metadata", "write_ledger")
ENDS: Final = (
    Step("forgets its note", "delete_register", "notes/"),
    Step("removes the task", "remove_task"),
    Step("looks who went meanwhile", "registrations"),
    Step("releases the lock", "unlock"),
)
WATCHES: Final = (
    Step("stands for election", "stand"),
    Step("sees that it may work", "is_enabled"),
    Step("reads how long a bookie may be away", "read_delay"),
    Step("reads which bookies there were", "cookies"),
    Step("reads which there are", "registrations"),
    Step("lists the ledgers", "ledger_ids"),
    Step("reads one", "read_ledger"),
)
CHECKED: Final = Step("remembers when it has checked", "set_checked")

STEPS: dict[str, Sequence[Step]] = {
    "auditor": (*WATCHES, Step("publishes a task", "mark"), CHECKED),
    "worker": (*TAKES, *COPIES, NAMES, *ENDS),
    "beside": (*TAKES, *COPIES, NAMES, *ENDS),
    "batch": (
        *(*TAKES[:-1], *[Step("locks another", "lock")] * (BATCH - 1), TAKES[-1]),
        *COPIES[:1],
        Step("stores a copy", "put_if_absent", "/copies/"),
        *[Step("stores the copy of another", "put_if_absent", "/copies/")] * (BATCH - 1),
        *[NAMES] * BATCH,
        *[step for _ in range(BATCH) for step in ENDS[:2]],
        *[ENDS[-1]] * BATCH,
    ),
    "recovery": (
        *TAKES,
        Step("flags the ledger as in recovery", "write_ledger"),
        Step("fences a bookie", "put_if_absent", "/slots/"),
        Step("fences another", "put_if_absent", "/slots/"),
        *(*COPIES, Step("closes the ledger", "write_ledger"), *COPIES, NAMES, *ENDS),
    ),
    "check": (
        *WATCHES,
        Step("begins to check", "ledger_ids"),
        Step("reads a replica", "read_range", "/slots/"),
        Step("publishes what is damaged", "mark"),
        CHECKED,
    ),
    "repair": (
        *TAKES,
        Step("looks at the replica", "read_range", "/slots/"),
        *(*COPIES, *ENDS),
    ),
}


class KillAtStep:
    """A hook that ends the process as it begins a row of a table, and ever after."""

    def __init__(self, steps: Sequence[Step], number: int) -> None:
        self._steps = steps
        self._number = number
        self.reached = 0
        """Rows that were met, in order."""
        self.is_dead = False

    def __call__(self, place: str, operation: str, path: str) -> None:
        if not self.is_dead and self.reached < len(self._steps):
            wanted = self._steps[self.reached]
            if operation == wanted.operation and wanted.path in path:
                self.is_dead = self.reached == self._number
                self.reached += 1
        if self.is_dead:
            raise Killed(f"{self._steps[self._number].words}: {operation} {path} on {place}")


def situation(directory: Path, role: str) -> Ground:
    """Ledgers that lost a bookie, up to where the role begins."""
    ground = Ground(directory)
    ground.stop(spare(ground))
    count = BATCH if role == "batch" else 1
    writer, *_ = [written(ground, count=2, close=role != "recovery") for _ in range(count)]
    ground.start(spare(ground))
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


def spare(ground: Ground) -> BookieId:
    """The bookie that no ledger names at first."""
    return ground.bookie_ids[-1]


def run_role(ground: Ground, role: str, *hooks: Hook) -> None:
    local = spare(ground) if role == "beside" else None
    process = Process(ground, "killed", *hooks, local=local)
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
    found = [each for _, each in store.read_ledgers(store.ledger_ids())]
    ledgers = [each.value for each in found if isinstance(each, Versioned)]
    assert len(ledgers) == len(found)
    alive = {each.bookie_id for each in store.registrations()}
    return (
        report.counts,
        [ledger.state for ledger in ledgers],
        [ledger.last_entry_id for ledger in ledgers],
        all(ledger.bookies() <= alive for ledger in ledgers),
        list(store.underreplication.ledger_ids()),
        dict(store.underreplication.locks()),
        list(Notes(store.registers).ledger_ids()),
    )


def whole(directory: Path, role: str, hook: Hook) -> tuple[object, ...]:
    """The end when nobody dies."""
    ground = situation(directory / "whole", role)
    run_role(ground, role, hook)
    finish(ground)
    end = end_of(ground)
    assert end[3:] == (True, [], {}, [])
    return end


@pytest.mark.parametrize("role", ROLES)
def test_killed_at_each_step_of_the_table_the_cluster_ends_the_same(
    tmp_path: Path, role: str
) -> None:
    steps = STEPS[role]
    nobody_dies = KillAtStep(steps, -1)
    expected = whole(tmp_path, role, nobody_dies)
    missed = [step.words for step in steps[nobody_dies.reached :]]
    assert not missed, "the table has steps that are not taken, or not in this order"

    for number, step in enumerate(steps):
        ground = situation(tmp_path / str(number), role)
        killed = KillAtStep(steps, number)
        run_role(ground, role, killed)
        assert killed.is_dead, f"it did not come to step {number}: {step.words}"
        finish(ground)
        assert end_of(ground) == expected, f"killed at step {number}: {step.words}"


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_killed_at_any_operation_the_cluster_ends_the_same(tmp_path: Path, role: str) -> None:
    counting = KillAt(-1)
    expected = whole(tmp_path, role, counting)
    assert counting.operations > len(STEPS[role])

    for number in range(counting.operations):
        ground = situation(tmp_path / str(number), role)
        run_role(ground, role, KillAt(number))  # a run may have an operation less than another
        finish(ground)
        assert end_of(ground) == expected, f"killed at {number} of {counting.operations}"
