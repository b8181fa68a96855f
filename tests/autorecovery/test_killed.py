"""Each role killed at each step: whoever comes next brings the cluster to the same end.

``STEPS`` has the steps of each role in order, in words and as the operation on the metadata or on a
bookie's storage that it is. A role dies as it begins one of them, its session ends, and another
process does the rest. What is between two of them, mostly reading, is an operation too: in the
full run a role dies at every single one. Or a bookie dies then, one that is copied from or one
that is copied to, for a while or for good; the role goes on as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from typing_extensions import override

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, Hook, KillAt, Killed
from tests.snapshots import Snapshot
from tests.support.autorecovery import CONFIG, Process, written

Role = Callable[[Process], object]

BATCH: Final = 3

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
REMOVES: Final = Step("removes the task", "remove_task")
RELEASES: Final = Step("releases the lock", "unlock")
ENDS: Final = (REMOVES, Step("looks who went meanwhile", "registrations"), RELEASES)
ENDS_WITH_NOTE: Final = (
    *ENDS[:-1],
    Step("forgets its note", "delete_register", "notes/"),
    RELEASES,
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
BEGINS: Final = Step("says that it checks for the first time", "set_checked")
CHECKED: Final = Step("remembers when it has checked", "set_checked")

STEPS: dict[str, Sequence[Step]] = {
    "auditor": (*WATCHES, Step("publishes a task", "mark"), BEGINS, CHECKED),
    "worker": (*TAKES, *COPIES, NAMES, *ENDS),
    "beside": (*TAKES, *COPIES, NAMES, *ENDS),
    "batch": (
        *(*TAKES[:-1], *[Step("locks another", "lock")] * (BATCH - 1), TAKES[-1]),
        *COPIES[:1],
        Step("stores a copy", "put_if_absent", "/copies/"),
        *[Step("stores the copy of another", "put_if_absent", "/copies/")] * (BATCH - 1),
        *[NAMES] * BATCH,
        *[REMOVES] * BATCH,
        *[RELEASES] * BATCH,
    ),
    "recovery": (
        *TAKES,
        Step("flags the ledger as in recovery", "write_ledger"),
        Step("fences a bookie", "put_if_absent", "/slots/"),
        Step("fences another", "put_if_absent", "/slots/"),
        *(*COPIES, Step("closes the ledger", "write_ledger"), *COPIES, NAMES, *ENDS_WITH_NOTE),
    ),
    "check": (
        *(*WATCHES, BEGINS),
        Step("lists the ledgers again", "ledger_ids"),
        Step("reads a replica", "read_range", "/slots/"),
        Step("publishes what is damaged", "mark"),
        CHECKED,
    ),
    "repair": (
        *TAKES,
        Step("looks at the replica", "read_range", "/slots/"),
        *COPIES,
        Step("notes that all of it is to be looked at", "write_register", "notes/"),
        Step("looks at all of it", "read_range", "/copies/"),
        *ENDS_WITH_NOTE,
    ),
}


class AtStep:
    """A hook that calls something once, as a row of a table begins."""

    def __init__(self, steps: Sequence[Step], number: int, happen: Callable[[], None]) -> None:
        self._steps = steps
        self._number = number
        self._happen = happen
        self.reached = 0
        """Rows that were met, in order."""
        self.has_happened = False

    def __call__(self, place: str, operation: str, path: str) -> None:
        if self.has_happened or self.reached == len(self._steps):
            return
        wanted = self._steps[self.reached]
        if operation == wanted.operation and wanted.path in path:
            self.has_happened = self.reached == self._number
            self.reached += 1
            if self.has_happened:
                self._happen()


class KillAtStep(AtStep):
    """A hook that ends the process as it begins a row of a table, and ever after."""

    def __init__(self, steps: Sequence[Step], number: int) -> None:
        super().__init__(steps, number, lambda: None)

    @override
    def __call__(self, place: str, operation: str, path: str) -> None:
        super().__call__(place, operation, path)
        if self.has_happened:
            raise Killed(f"{operation} {path} on {place}")


def situation(directory: Path, role: str) -> Snapshot:
    """Ledgers that lost a bookie, up to where the role begins."""
    ground = Ground(directory / "situation")
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
        before = Process(ground, "before")
        before.audit()
        before.die()
    if role == "recovery":  # the time of its writer is over
        Process(ground, "waiting").work()
        Notes(ground.context.store.registers).change(
            LedgerId(writer.ledger_id),
            lambda note: replace(note, open_since_ms=0, next_try_at_ms=0),
        )
    return Snapshot(ground)


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


def whole(ground: Ground, role: str, hook: Hook) -> tuple[object, ...]:
    """The end when nobody dies."""
    run_role(ground, role, hook)
    finish(ground)
    end = end_of(ground)
    assert end[3:] == (True, [], {}, [])
    return end


def some_in_full(names: Collection[str], cases: Iterable[tuple[str, ...]]) -> Sequence[Any]:
    """The cases, of which those with such a role or name are no part of the plain run."""
    marks = ((), pytest.mark.full)
    return [pytest.param(*c, marks=marks[c[0] in names or "-".join(c) in names]) for c in cases]


@pytest.mark.parametrize("role", some_in_full({"beside"}, ((role,) for role in ROLES)))
def test_killed_at_each_step_of_the_table_the_cluster_ends_the_same(
    tmp_path: Path, role: str
) -> None:
    steps = STEPS[role]
    nobody_dies = KillAtStep(steps, -1)
    before = situation(tmp_path, role)
    expected = whole(before.copy(tmp_path / "whole"), role, nobody_dies)
    missed = [step.words for step in steps[nobody_dies.reached :]]
    assert not missed, "the table has steps that are not taken, or not in this order"

    for number, step in enumerate(steps):
        ground = before.copy(tmp_path / str(number))
        killed = KillAtStep(steps, number)
        run_role(ground, role, killed)
        assert killed.has_happened, f"it did not come to step {number}: {step.words}"
        finish(ground)
        assert end_of(ground) == expected, f"killed at step {number}: {step.words}"


@pytest.mark.full
@pytest.mark.parametrize("role", ROLES)
def test_killed_at_any_operation_the_cluster_ends_the_same(tmp_path: Path, role: str) -> None:
    counting = KillAt(-1)
    before = situation(tmp_path, role)
    expected = whole(before.copy(tmp_path / "whole"), role, counting)
    assert counting.operations > len(STEPS[role])

    for number in range(counting.operations):
        ground = before.copy(tmp_path / str(number))
        run_role(ground, role, KillAt(number))  # a run may have an operation less than another
        finish(ground)
        assert end_of(ground) == expected, f"killed at {number} of {counting.operations}"


COPIED: Final = [role for role in ROLES if role not in ("auditor", "check")]
"""Roles in which copies are made."""


def bookie_of(ground: Ground, role: str, which: str) -> BookieId:
    """One that is copied from, or the one that is copied to."""
    store = ground.context.store
    (_, found), *_ = store.read_ledgers(store.ledger_ids())
    assert isinstance(found, Versioned)
    damaged, source, *_ = found.value.last_fragment.ensemble
    if which == "source":
        return source
    return damaged if role in ("check", "repair") else spare(ground)


def wholeness(end: tuple[object, ...]) -> tuple[object, ...]:
    """The same without how many shares there are: a recovery that finds a bookie for the last
    fragment begins another one.
    """
    counts, *others = end
    assert isinstance(counts, dict)
    return set(counts), *others


Change = Callable[[Ground, BookieId], None]


def hurt_at_each_step(
    tmp_path: Path, role: str, which: str, hurt: Change, heal: Change = lambda ground, bookie: None
) -> None:
    """From a step on a bookie is hurt, and it is healed when the role has ended."""
    steps = STEPS[role]
    before = situation(tmp_path, role)
    nothing_happens = AtStep(steps, -1, lambda: None)
    expected = wholeness(whole(before.copy(tmp_path / "whole"), role, nothing_happens))

    for number, step in enumerate(steps):
        ground = before.copy(tmp_path / str(number))
        bookie = bookie_of(ground, role, which)
        hurts = AtStep(steps, number, partial(hurt, ground, bookie))
        run_role(ground, role, hurts)
        assert hurts.has_happened, f"it did not come to step {number}: {step.words}"
        heal(ground, bookie)
        finish(ground)
        end = wholeness(end_of(ground))
        assert end == expected, f"the {which} was hurt at step {number}: {step.words}"


@pytest.mark.parametrize(
    ("role", "which"),
    some_in_full(
        {"auditor", "beside", "batch", "check", "repair-source", "recovery-target"},
        [*((role, "source") for role in ROLES), *((role, "target") for role in COPIED)],
    ),
)
def test_a_bookie_away_for_a_while_from_any_step_on_changes_nothing_of_the_end(
    tmp_path: Path, role: str, which: str
) -> None:
    hurt_at_each_step(tmp_path, role, which, Ground.stop, Ground.start)


def lost_for_good(ground: Ground, bookie: BookieId) -> None:
    """Two new ones come in its place."""
    ground.stop(bookie, destroy=True)
    ground.add_bookie()
    ground.add_bookie()


@pytest.mark.full
@pytest.mark.parametrize(
    ("role", "which"),
    [
        # Of two bookies of its last fragment an open ledger needs one, or nobody finds its end.
        *((role, "source") for role in ROLES if role != "recovery"),
        *((role, "target") for role in COPIED if role != "beside"),
    ],
)
def test_a_bookie_lost_for_good_at_any_step_is_replaced_too(
    tmp_path: Path, role: str, which: str
) -> None:
    """A worker beside one has nowhere to copy to without it."""
    hurt_at_each_step(tmp_path, role, which, lost_for_good)
