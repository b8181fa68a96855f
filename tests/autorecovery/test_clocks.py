"""Machines whose clocks are hours apart, or jump: nothing is done too early, and nothing waits."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest
from typing_extensions import override

from spark_bookkeeper.autorecovery.checks import publish_finding
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.table import underreplicated_table
from spark_bookkeeper.client.cluster_clock import ASKED_SECONDS
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import BookKeeperError, MetadataError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Check, Task
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerState
from spark_bookkeeper.protocol.task_notes import WAIT_FOR_EVENT_MS
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.support.autorecovery import CONFIG, Process, written
from tests.whole import assert_replicated
from tests.worlds import there

NOON_MS = 1_700_000_000_000
HOURS_S = 5 * 3_600.0
YEAR_MS = 365 * 86_400_000


class Processes:
    """The time as it is, which is also that of the metadata store."""

    def __init__(self, ground: Ground) -> None:
        self.seconds = 0.0
        self.leader_ahead_s = 0.0
        """The clock of the store's leading server."""
        self._ground = ground
        self.fails_in: dict[str, BookKeeperError | None] = {}
        """How the clock answers, once, to who asks from within a function of that name."""
        ground.cluster.clock_ms = self.now_ms

    def now_ms(self) -> int | None:
        for frame in traceback.extract_stack():
            if frame.name in self.fails_in:
                error = self.fails_in.pop(frame.name)
                if error is not None:
                    raise error
                return None
        return self.at_ms + round(self.leader_ahead_s * 1000)

    @property
    def at_ms(self) -> int:
        return NOON_MS + round(self.seconds * 1000)

    def process(
        self, name: str, ahead_s: float = 0.0, config: AutorecoveryConfig = CONFIG
    ) -> Process:
        return Process(self._ground, name, config=config, runtime=Machine(self, ahead_s))


class Machine(InlineRuntime):
    """One whose calendar is so much ahead of the processes's."""

    def __init__(self, processes: Processes, ahead_s: float) -> None:
        super().__init__()
        self._world = processes
        self.ahead_s = ahead_s

    @override
    def now(self) -> float:
        return self._world.seconds

    @override
    def wall_ms(self) -> int:
        return self._world.at_ms + round(self.ahead_s * 1000)

    @override
    def sleep(self, seconds: float) -> None:
        self._world.seconds += seconds


@pytest.fixture
def processes(ground: Ground) -> Processes:
    return Processes(ground)


def state_of(ground: Ground, ledger_id: int) -> LedgerState:
    return ground.context.store.read_ledger(LedgerId(ledger_id)).value.state


@pytest.mark.parametrize("ahead_s", [HOURS_S, -HOURS_S])
def test_a_writer_has_its_time_whatever_the_clocks_of_the_workers(
    ground: Ground, processes: Processes, ahead_s: float
) -> None:
    right, wrong = processes.process("right"), processes.process("wrong", ahead_s)
    writer = an_open_ledger_that_lacks_a_bookie(ground, right)

    for process in (right, wrong, right):
        process.work()
    assert state_of(ground, writer.ledger_id) is LedgerState.OPEN
    assert [*right.work(), *wrong.work()] == [], "it is left alone until the time is over"
    processes.seconds += CONFIG.open_ledger_grace_ms / 1000 + 1
    wrong.work()

    assert_replicated(ground, writer)


@pytest.mark.parametrize("ahead_s", [HOURS_S, -HOURS_S])
def test_what_waits_is_not_tried_by_turns_by_workers_whose_clocks_differ(
    ground: Ground, processes: Processes, ahead_s: float
) -> None:
    """Each would find that the other's next try is over, or cannot be meant."""
    writer = written(ground)
    right, wrong = processes.process("right"), processes.process("wrong", ahead_s)
    right.audit()
    first, second, *_ = ground.bookie_ids
    for bookie in (first, second):
        ground.stop(bookie)
    wrong.audit()
    right.runtime.sleep(right.audit())
    right.audit()

    for process in (right, wrong, right, wrong):
        process.work()

    (row,) = underreplicated_table(ground.context).to_pylist()
    assert (row["ledger_id"], row["attempts"]) == (writer.ledger_id, 1)
    processes.seconds += WAIT_FOR_EVENT_MS / 1000 + 1  # nobody else could take a copy
    assert wrong.work() != []


def test_a_check_that_was_done_by_a_clock_a_year_ahead_is_done_an_interval_from_now(
    ground: Ground, processes: Processes
) -> None:
    tree = ground.context.store.underreplication
    written(ground)
    tree.set_checked_at_ms(Check.ALL_LEDGERS, processes.at_ms + YEAR_MS, None)
    process = processes.process("one", config=replace(CONFIG, ledger_check_interval_s=100))
    process.audit()
    processes.seconds += 99
    process.audit()
    seen = there(tree.checked_at_ms(Check.ALL_LEDGERS))
    assert seen.value == NOON_MS, "an interval from when it was seen"

    processes.seconds += 2
    process.audit()

    assert there(tree.checked_at_ms(Check.ALL_LEDGERS)).value == processes.at_ms


def test_an_auditor_whose_clock_is_set_back_looks_for_bookies_all_the_same(
    ground: Ground, processes: Processes
) -> None:
    writer = written(ground)
    process = processes.process("one", config=replace(CONFIG, bookie_check_interval_s=100))
    process.audit()
    assert isinstance(process.runtime, Machine)
    process.runtime.ahead_s = -HOURS_S
    store = ground.context.store
    found = store.read_ledger(LedgerId(writer.ledger_id))
    ensemble = (BookieId("ghost:3181"), *found.value.last_fragment.ensemble[1:])
    ghostly = replace(found.value, fragments=(Fragment(EntryId(0), ensemble),))
    store.write_ledger(LedgerId(writer.ledger_id), ghostly, found)

    processes.seconds += 101
    process.audit()

    assert list(store.underreplication.ledger_ids()) == [writer.ledger_id]


def test_how_long_a_ledger_lacked_copies_is_told_by_one_clock(
    ground: Ground, processes: Processes
) -> None:
    writer = written(ground)
    auditor, worker = processes.process("auditor", HOURS_S), processes.process("worker", -HOURS_S)
    auditor.audit()
    ground.stop(writer.metadata.last_fragment.ensemble[0], destroy=True)
    auditor.audit()
    processes.seconds += 7

    rows = worker.work()

    assert [row.reason for row in rows if row.action == "task"] == [
        "fully replicated, 7.0 s after it was published"
    ]


def an_open_ledger_that_lacks_a_bookie(ground: Ground, process: Process) -> LedgerWriter:
    writer = written(ground, close=False)
    process.audit()
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    process.audit()
    return writer


@pytest.mark.parametrize("told_before", [False, True])
@pytest.mark.parametrize("ahead_s", [HOURS_S, -HOURS_S])
@pytest.mark.parametrize("error", [None, MetadataError("no")])
def test_where_the_clock_does_not_answer_once_a_writer_keeps_its_time(
    ground: Ground,
    processes: Processes,
    told_before: bool,
    ahead_s: float,
    error: BookKeeperError | None,
) -> None:
    wrong = processes.process("wrong", ahead_s)
    writer = an_open_ledger_that_lacks_a_bookie(ground, wrong)
    if not told_before:  # an executor that has just begun
        wrong.context.clock.__init__()  # type: ignore[misc]
        processes.fails_in["round"] = error

    processes.fails_in["_waits_for_writer"] = error
    for _ in range(3):
        wrong.work()
        processes.seconds += CONFIG.open_ledger_grace_ms / 1000 / 4
    assert not processes.fails_in
    assert state_of(ground, writer.ledger_id) is LedgerState.OPEN
    processes.seconds += CONFIG.retry_most_ms / 1000
    wrong.work()
    processes.seconds += CONFIG.open_ledger_grace_ms / 1000
    wrong.work()

    assert_replicated(ground, writer)


def test_a_leader_that_is_hours_ahead_of_the_last_one_takes_no_writers_time(
    ground: Ground, processes: Processes
) -> None:
    one, other = processes.process("one"), processes.process("other")
    other.work()
    processes.seconds += ASKED_SECONDS - 1
    writer = an_open_ledger_that_lacks_a_bookie(ground, one)
    one.work()
    processes.seconds += 1

    processes.leader_ahead_s = HOURS_S
    assert other.work() != [], "it asks again, and meets the other clock"
    one.work()
    late = processes.process("late")
    assert late.work() == [], "the time has begun anew, and the note says so"
    assert state_of(ground, writer.ledger_id) is LedgerState.OPEN
    processes.seconds += CONFIG.open_ledger_grace_ms / 1000 + 1
    late.work()

    assert_replicated(ground, writer)


def test_a_leader_that_was_hours_ahead_keeps_nobody_waiting(
    ground: Ground, processes: Processes
) -> None:
    one = processes.process("one")
    writer = an_open_ledger_that_lacks_a_bookie(ground, one)
    one.work()
    for ahead_s in (HOURS_S, 0.0):
        processes.leader_ahead_s = ahead_s
        processes.seconds += ASKED_SECONDS
        one.work()

    processes.seconds += CONFIG.open_ledger_grace_ms / 1000 + 1
    one.work()

    assert_replicated(ground, writer)


def test_what_was_left_by_a_leader_that_was_hours_ahead_is_looked_at_when_it_is_right_again(
    ground: Ground, processes: Processes
) -> None:
    """The worker beside a member can do nothing, until the replica of another one is damaged."""
    lost, beside, other = written(ground).metadata.last_fragment.ensemble
    one = processes.process("one")
    one.audit()
    local = Process(ground, "two", local=beside, runtime=one.runtime)
    processes.leader_ahead_s = HOURS_S
    processes.seconds += ASKED_SECONDS
    ground.stop(lost)
    one.audit()
    assert local.work() == []
    processes.leader_ahead_s = 0.0
    processes.seconds += ASKED_SECONDS
    for path in ground.files(other, "slots"):
        path.unlink()
    (ledger_id,) = ground.context.store.underreplication.ledger_ids()
    publish_finding(ground.context, ledger_id, [other], 100)

    processes.seconds += max(CONFIG.retry_most_ms, CONFIG.open_ledger_grace_ms) / 1000

    assert ("copy", other) in {(row.action, row.target) for row in local.work()}


def test_a_clock_that_says_nothing_is_not_asked_again_for_a_while(
    ground: Ground, processes: Processes
) -> None:
    process = processes.process("one")
    asked: list[None] = []
    ground.cluster.clock_ms = lambda: asked.append(None)

    for _ in range(50):
        assert process.context.cluster_ms() == processes.at_ms
    assert len(asked) == 1
    processes.seconds += ASKED_SECONDS
    process.context.cluster_ms()

    assert len(asked) == 2


def test_what_the_clock_said_before_is_counted_on_where_it_says_nothing(
    ground: Ground, processes: Processes
) -> None:
    process = processes.process("wrong", HOURS_S)
    process.context.cluster_ms()
    ground.cluster.clock_ms = lambda: None

    processes.seconds += 10 * ASKED_SECONDS

    assert process.context.cluster_ms() == processes.at_ms


def test_a_ledger_that_is_whole_is_not_called_left_where_the_clock_fails_at_the_end(
    ground: Ground, processes: Processes
) -> None:
    """Before its task went, it may fail: then it is done again."""
    writer = written(ground)
    process = processes.process("one")
    process.audit()
    ground.stop(writer.metadata.last_fragment.ensemble[0], destroy=True)
    process.audit()
    tree = ground.context.store.underreplication
    remove = tree.remove

    def checked(task: Versioned[Task]) -> bool:
        processes.fails_in["finish"] = MetadataUnavailableError("no answer")
        processes.seconds += ASKED_SECONDS
        return remove(task)

    process.context.store.underreplication.remove = checked  # type: ignore[method-assign]
    rows = process.work()

    assert [row.status for row in rows if row.action == "task"] == [Outcome.REPLICATED]
    assert list(tree.ledger_ids()) == []
    assert list(Notes(ground.context.store.registers).ledger_ids()) == []
