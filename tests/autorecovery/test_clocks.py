"""Machines whose clocks are hours apart, or jump: nothing is done too early, and nothing waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typing_extensions import override

from spark_bookkeeper.autorecovery.table import underreplicated_table
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerState
from spark_bookkeeper.protocol.task_notes import WAIT_FOR_EVENT_MS
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.whole import assert_replicated

NOON_MS = 1_700_000_000_000
HOURS_S = 5 * 3_600.0
YEAR_MS = 365 * 86_400_000


class World:
    """The time as it is, which is also that of the metadata store."""

    def __init__(self, ground: Ground) -> None:
        self.seconds = 0.0
        self._ground = ground
        ground.cluster.clock_ms = self.now_ms

    def now_ms(self) -> int:
        return NOON_MS + round(self.seconds * 1000)

    def process(
        self, name: str, ahead_s: float = 0.0, config: AutorecoveryConfig = CONFIG
    ) -> Process:
        return Process(self._ground, name, config=config, runtime=Machine(self, ahead_s))


class Machine(InlineRuntime):
    """One whose calendar is so much ahead of the world's."""

    def __init__(self, world: World, ahead_s: float) -> None:
        super().__init__()
        self._world = world
        self.ahead_s = ahead_s

    @override
    def now(self) -> float:
        return self._world.seconds

    @override
    def wall_ms(self) -> int:
        return self._world.now_ms() + round(self.ahead_s * 1000)

    @override
    def sleep(self, seconds: float) -> None:
        self._world.seconds += seconds


@pytest.fixture
def world(ground: Ground) -> World:
    return World(ground)


def state_of(ground: Ground, ledger_id: int) -> LedgerState:
    return ground.context.store.read_ledger(LedgerId(ledger_id)).value.state


@pytest.mark.parametrize("ahead_s", [HOURS_S, -HOURS_S])
def test_a_writer_has_its_time_whatever_the_clocks_of_the_workers(
    ground: Ground, world: World, ahead_s: float
) -> None:
    writer = written(ground, close=False)
    right, wrong = world.process("right"), world.process("wrong", ahead_s)
    right.audit()
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    right.audit()

    for process in (right, wrong, right):
        process.work()
    assert state_of(ground, writer.ledger_id) is LedgerState.OPEN
    assert [*right.work(), *wrong.work()] == [], "it is left alone until the time is over"
    world.seconds += CONFIG.open_ledger_grace_ms / 1000 + 1
    wrong.work()

    assert_replicated(ground, writer)


@pytest.mark.parametrize("ahead_s", [HOURS_S, -HOURS_S])
def test_what_waits_is_not_tried_by_turns_by_workers_whose_clocks_differ(
    ground: Ground, world: World, ahead_s: float
) -> None:
    """Each would find that the other's next try is over, or cannot be meant."""
    writer = written(ground)
    right, wrong = world.process("right"), world.process("wrong", ahead_s)
    right.audit()
    first, second, *_ = ground.bookie_ids
    for bookie in (first, second):
        ground.stop(bookie)
    wrong.audit()
    right.audit()

    for process in (right, wrong, right, wrong):
        process.work()

    (row,) = underreplicated_table(ground.context).to_pylist()
    assert (row["ledger_id"], row["attempts"]) == (writer.ledger_id, 1)
    world.seconds += WAIT_FOR_EVENT_MS / 1000 + 1  # nobody else could take a copy
    assert wrong.work() != []


def test_a_check_that_was_done_by_a_clock_a_year_ahead_is_done_an_interval_from_now(
    ground: Ground, world: World
) -> None:
    tree = ground.context.store.underreplication
    written(ground)
    tree.set_checked_at_ms(Check.ALL_LEDGERS, world.now_ms() + YEAR_MS)
    process = world.process("one", config=replace(CONFIG, ledger_check_interval_s=100))
    process.audit()
    world.seconds += 99
    process.audit()
    assert tree.checked_at_ms(Check.ALL_LEDGERS) == NOON_MS, "an interval from when it was seen"

    world.seconds += 2
    process.audit()

    assert tree.checked_at_ms(Check.ALL_LEDGERS) == world.now_ms()


def test_an_auditor_whose_clock_is_set_back_looks_for_bookies_all_the_same(
    ground: Ground, world: World
) -> None:
    writer = written(ground)
    process = world.process("one", config=replace(CONFIG, bookie_check_interval_s=100))
    process.audit()
    assert isinstance(process.runtime, Machine)
    process.runtime.ahead_s = -HOURS_S
    store = ground.context.store
    found = store.read_ledger(LedgerId(writer.ledger_id))
    ensemble = (BookieId("ghost:3181"), *found.value.last_fragment.ensemble[1:])
    ghostly = replace(found.value, fragments=(Fragment(EntryId(0), ensemble),))
    store.write_ledger(LedgerId(writer.ledger_id), ghostly, found)

    world.seconds += 101
    process.audit()

    assert list(store.underreplication.ledger_ids()) == [writer.ledger_id]


def test_how_long_a_ledger_lacked_copies_is_told_by_one_clock(ground: Ground, world: World) -> None:
    writer = written(ground)
    auditor, worker = world.process("auditor", HOURS_S), world.process("worker", -HOURS_S)
    auditor.audit()
    ground.stop(writer.metadata.last_fragment.ensemble[0], destroy=True)
    auditor.audit()
    world.seconds += 7

    rows = worker.work()

    assert [row.reason for row in rows if row.action == "task"] == [
        "fully replicated, 7.0 s after it was published"
    ]
