"""One bookie of several hangs, at any operation of its storage: nobody waits for it for ever.

Time is the simulation's, so a wait of a minute costs nothing, and one without an end is a deadlock
that is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.views import bookies_table, replicas_table
from spark_bookkeeper.client.write.bulk import FanOut
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.recover_ledgers import recover_ledgers
from spark_bookkeeper.replication.repair_ledgers import repair_ledgers
from spark_bookkeeper.replication.report import RecoveryReport, Row
from spark_bookkeeper.replication.runner import Failure, ItemT, LocalRunner, Progress, ResultT, Step
from spark_bookkeeper.replication.stragglers import Straggler
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.call import Call
from spark_bookkeeper.testing.hanging import OPERATIONS, Hang, HangingStorage
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from tests.simulator.faults import NO_FAULTS, FaultPlan
from tests.simulator.ground import SimCluster
from tests.simulator.runtime import SimRuntime
from tests.simulator.scheduler import Actor, DeadlockError, LivelockError, World
from tests.support.pieces import Piece, step

CONFIG = ClientConfig(add_timeout_ms=2_000, bookie_timeout_ms=1_000, bookie_retry_ms=5_000)

LONGEST_SECONDS = 30.0
"""Of the simulation's time: several bounds one after the other, and nothing like for ever."""

Culprit = Literal["member", "spare"]
"""Who hangs: a bookie of the closed ledger, or one that has nothing of it."""

SMALL = [b"%d" % number for number in range(6)]
TABLE = pa.table({"payload": [b"row %d" % number * 20 for number in range(40)]})


class HangingCluster(SimCluster):
    """Some bookies' storage hangs for clients that come from now on."""

    def __init__(self, world: World, bookies: int) -> None:
        super().__init__(world, bookies, NO_FAULTS)
        self.hanging: dict[BookieId, Hang] = {}

    def storage(self, actor: Actor, uri: str) -> Any:
        storage = super().storage(actor, uri)
        hang = self.hanging.get(BookieId(uri.removeprefix("memory://")))
        return storage if hang is None else HangingStorage(storage, hang)


@dataclass
class Stage:
    """A closed ledger, an open one, and a bookie that is about to hang."""

    cluster: HangingCluster
    actor: Actor
    closed: LedgerId
    open: LedgerId
    culprit: BookieId
    others: list[BookieId]
    hang: Hang
    said: list[str] = field(default_factory=list)
    """What the action said about bookies."""
    clients: list[ClientContext] = field(default_factory=list)
    seconds: float = 0.0

    def client(self) -> ClientContext:
        self.clients.append(self.cluster.context(self.actor, CONFIG))
        return self.clients[-1]

    def rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        self.said += [f"{row.source} {row.target} {row.reason}" for row in rows]
        return rows

    def read(self, ledger_id: LedgerId) -> list[bytes]:
        reader = lifecycle.open_ledger_no_recovery(self.client(), ledger_id)
        return [value for e in reader.entries() for value in e.batch.column(0).to_pylist()]


def expected(count: int = len(SMALL)) -> list[bytes]:
    return [*SMALL[:count], *TABLE.column(0).to_pylist()]


def create(context: ClientContext, suits: Callable[[set[BookieId]], bool]) -> LedgerWriter:
    """A ledger on bookies that suit."""
    while True:
        writer = lifecycle.create_ledger(context, Quorum(3, 3, 2), entry_target_bytes=512)
        if suits(set(writer.metadata.last_fragment.ensemble)):
            return writer
        writer.close()
        lifecycle.delete_ledger(context, writer.ledger_id)


def fill(writer: LedgerWriter) -> LedgerWriter:
    for payload in SMALL:
        writer.append(payload)
    writer.append(TABLE)
    return writer


# What a user may do while it hangs


def read_a_ledger(stage: Stage) -> None:
    assert stage.read(stage.closed) == expected()


def read_arrow(stage: Stage) -> None:
    reader = lifecycle.open_ledger(stage.client(), stage.closed)
    assert reader.read_arrow().column(0).to_pylist() == expected()


def open_with_recovery(stage: Stage) -> None:
    reader = lifecycle.open_ledger(stage.client(), stage.open)
    assert reader.read_arrow().column(0).to_pylist() == expected()


def read_the_lac(stage: Stage) -> None:
    reader = lifecycle.open_ledger_no_recovery(stage.client(), stage.open)
    assert reader.last_add_confirmed >= len(SMALL) - 1


def follow(stage: Stage) -> None:
    reader = lifecycle.open_ledger_no_recovery(stage.client(), stage.open)
    came = [v for e in reader.tail(timeout_ms=500) for v in e.batch.column(0).to_pylist()]
    assert came[: len(SMALL)] == SMALL


def append_little(stage: Stage) -> None:
    with create(stage.client(), lambda members: stage.culprit in members) as writer:
        for payload in SMALL:
            writer.append(payload)
    assert stage.read(writer.ledger_id) == SMALL


def append_in_bulk(stage: Stage) -> None:
    with create(stage.client(), lambda members: stage.culprit in members) as writer:
        fill(writer)
    assert stage.read(writer.ledger_id) == expected()


def close_a_writer(stage: Stage) -> None:
    with create(stage.client(), lambda members: stage.culprit in members) as writer:
        for payload in SMALL:
            writer.append_async(payload)
    assert stage.read(writer.ledger_id) == SMALL


def check(stage: Stage) -> None:
    context = stage.client()
    rows = check_ledgers(context, LocalRunner(context), [stage.closed], 100).rows
    stage.rows([row for row in rows if row.status == "unavailable"])
    for row in rows:
        assert row.status == "healthy" or (row.status, row.source) == ("unavailable", stage.culprit)


def repair(stage: Stage) -> None:
    context = stage.client()
    spoilt = next(
        name for name in stage.cluster.disks[stage.others[0]].files if name.endswith("0.arrow")
    )
    del stage.cluster.disks[stage.others[0]].files[spoilt]
    rows = stage.rows(repair_ledgers(context, LocalRunner(context), [stage.closed]).rows)
    for row in rows:
        assert row.status == ("left" if row.source == stage.culprit else "replicated")


def recover_all(stage: Stage) -> None:
    context = stage.client()
    report = recover_ledgers(context, LocalRunner(context), [stage.open])
    stage.rows(report.rows)
    assert [row.status for row in report.rows] == ["closed"]
    assert stage.read(stage.open) == expected()


def recover_another(stage: Stage) -> None:
    """It is a source of the shares of another bookie, and may be chosen as a target."""
    context = stage.client()
    wish = BookieRecovery((stage.others[0],), even_if_alive=True)
    rows = stage.rows(recover_bookie(context, LocalRunner(context), wish).rows)
    assert {row.status for row in rows} <= {"replicated", "closed"}
    metadata = context.store.read_ledger(stage.closed).value
    assert stage.others[0] not in metadata.bookies()
    assert stage.read(stage.closed) == expected()


def recover_it(stage: Stage) -> None:
    """It is the one whose shares are made again."""
    context = stage.client()
    wish = BookieRecovery((stage.culprit,), even_if_alive=True)
    rows = stage.rows(recover_bookie(context, LocalRunner(context), wish).rows)
    assert {row.status for row in rows} <= {"replicated", "closed"}
    assert stage.culprit not in context.store.read_ledger(stage.closed).value.bookies()


def recover_onto_it(stage: Stage) -> None:
    """It is the target that somebody asked for: what it does not take is left, with the reason."""
    context = stage.client()
    wish = BookieRecovery((stage.others[0],), even_if_alive=True, target=stage.culprit)
    rows = stage.rows(recover_bookie(context, LocalRunner(context), wish).rows)
    assert {row.status for row in rows} <= {"replicated", "closed", "left"}
    for row in rows:
        assert row.status != "left" or stage.culprit in (row.reason or "")


def compare_replicas(stage: Stage) -> None:
    rows = replicas_table(stage.client(), stage.closed).to_pylist()
    bad = [row for row in rows if row["status"] != "verified"]
    stage.said += [f"{row['bookie_id']} {row['reason']}" for row in bad]
    assert {row["bookie_id"] for row in bad} <= {stage.culprit}
    assert len(rows) > len(bad)


def look_at_slots(stage: Stage) -> None:
    context = stage.client()
    metadata = context.store.read_ledger(stage.closed).value
    info = LedgerInfo.of(stage.closed, metadata, context, lambda table: table)
    assert {row["bookie_id"] for row in info.slots_arrow().to_pylist()} >= set(stage.others)
    assert bookies_table(context).num_rows == len(stage.cluster.bookies)


ACTIONS: list[Callable[[Stage], None]] = [
    read_a_ledger,
    read_arrow,
    open_with_recovery,
    read_the_lac,
    follow,
    append_little,
    append_in_bulk,
    close_a_writer,
    check,
    repair,
    recover_all,
    recover_another,
    recover_it,
    compare_replicas,
    look_at_slots,
]


def play(seed: int, bookies: int, run: Callable[[HangingCluster, Actor, SimRuntime], None]) -> None:
    """One actor does this."""
    with World(seed, step_limit=10_000) as world:
        actor = world.actor("user")
        cluster = HangingCluster(world, bookies)
        world.start(actor, lambda: run(cluster, actor, SimRuntime(world, actor)))
        world.run_all()


def perform(
    hang_of: Callable[[Runtime], Hang], action: Callable[[Stage], None], culprit: Culprit = "member"
) -> Stage:
    """Let the action run while one bookie hangs; who was waited for must have been named."""
    stages: list[Stage] = []

    def run(cluster: HangingCluster, actor: Actor, runtime: SimRuntime) -> None:
        context = cluster.context(actor, CONFIG)
        closed = fill(create(context, lambda members: True))
        closed.close()
        members = closed.metadata.last_fragment.ensemble
        # The last one is among the targets that a recovery chooses by itself.
        *_, spare = (bookie for bookie in cluster.bookies if bookie not in members)
        bookie = members[0] if culprit == "member" else spare
        others = [b for b in members if b != bookie]
        left = fill(create(context, lambda m: members[0] in m and spare not in m))
        left.abandon()
        hang = hang_of(runtime)
        stage = Stage(cluster, actor, closed.ledger_id, left.ledger_id, bookie, others, hang)
        stages.append(stage)
        cluster.hanging[bookie] = hang
        began = runtime.now()
        action(stage)
        stage.seconds = runtime.now() - began
        for client in stage.clients:
            stage.said += [f"{bookie}: {what}" for bookie, what, _ in client.bookies.silent()]
        hang.release()

    play(1, 5, run)
    return stages[0]


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "spark_bookkeeper"):
        yield caplog


def judge(stage: Stage, log: pytest.LogCaptureFixture) -> None:
    assert stage.seconds < LONGEST_SECONDS
    if stage.hang.count and stage.seconds >= CONFIG.read_hedge_ms / 1000:
        assert stage.culprit in log.text + "".join(stage.said)


@pytest.mark.parametrize(
    ("culprit", "action"),
    [
        *(("member", action) for action in ACTIONS),
        ("spare", recover_onto_it),
        ("spare", recover_another),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_nobody_waits_for_ever_for_one_call(
    culprit: Culprit, action: Callable[[Stage], None], log: pytest.LogCaptureFixture
) -> None:
    """Each kind of call that the action makes of the culprit has no answer, in turn."""
    calls: dict[str, None] = {}

    def note(operation: str, _: str) -> bool:
        calls[operation] = None
        return False

    perform(lambda runtime: Hang(runtime, note), action, culprit)
    assert calls
    assert calls.keys() <= {*OPERATIONS}
    for operation in calls:
        log.clear()
        stage = perform(lambda runtime, o=operation: Hang.of(runtime, o), action, culprit)  # type: ignore[misc]  # bound early
        assert stage.hang.count, operation
        judge(stage, log)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_nobody_waits_for_ever_for_a_bookie(
    action: Callable[[Stage], None], log: pytest.LogCaptureFixture
) -> None:
    stage = perform(Hang, action)

    assert stage.hang.count
    judge(stage, log)


BOUNDED_BY_ASKING = [action for action in ACTIONS if action not in (append_little, close_a_writer)]
"""Small appends and closes have a bound of their own, ``add_timeout_ms``."""


@pytest.mark.parametrize("action", BOUNDED_BY_ASKING, ids=lambda action: action.__name__)
def test_without_the_bound_they_would_wait_for_ever(
    action: Callable[[Stage], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Call, "left", lambda *_: 1.0)
    monkeypatch.setattr(Call, "wait", lambda call, _: call.changed.wait())
    monkeypatch.setattr(FanOut, "_watch", lambda _: None)

    with pytest.raises((DeadlockError, LivelockError)):
        perform(Hang, action)


def test_the_progress_of_a_job_names_who_is_waited_for() -> None:
    told: list[str] = []

    def check_slowly(stage: Stage) -> None:
        config = ClientConfig(bookie_timeout_ms=20_000)
        context = stage.cluster.context(stage.actor, config)
        check_ledgers(
            context,
            LocalRunner(context),
            [stage.closed],
            100,
            progress=lambda phase, *_: told.append(phase),
        )

    stage = perform(Hang, check_slowly)

    waits = [phase for phase in told if f"waiting for {stage.culprit} for" in phase]
    assert len(waits) > 5
    assert told[-1] == "checking ledgers"


class Elsewhere:
    """Does its items in another process, for a minute: here nobody is asked for anything."""

    is_elsewhere = True
    width = 8

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def slowest(self) -> Sequence[Straggler]:
        return ()

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        progress(step.phase, 0, len(items), 0)
        self._runtime.sleep(60.0)
        progress(step.phase, len(items), len(items), 0)
        yield from (step.failed(item, Failure("not done")) for item in items)


def test_the_progress_of_work_elsewhere_names_who_gives_no_answer_here() -> None:
    """One bookie hangs; it is asked as seldom as one that hangs is, and the others name nobody."""
    told: list[str] = []
    work = [Piece(1), Piece(2)]

    def wait(stage: Stage) -> None:
        context = stage.client()
        runner = Elsewhere(context.runtime)
        job = Job("a_job", context, runner, lambda phase, *_: told.append(phase))
        assert len(list(job.run(step(lambda *_: []), work))) == 2

    stage = perform(Hang, wait)

    named = [
        phase for phase in told if phase.startswith(f"working, waiting for {stage.culprit} for")
    ]
    assert len(named) > 20
    assert set(told) - set(named) == {"working"}
    assert told[-1] == "working"
    trials = 60_000 // CONFIG.bookie_retry_ms
    assert 1 < stage.hang.count <= trials + 2


@pytest.mark.parametrize("bound_ms", [1_000, 60_000])
def test_a_ledger_that_was_closed_without_a_bookie_says_so_in_its_row(bound_ms: int) -> None:
    """Whether it was given up, or not waited for any longer."""
    reports: list[RecoveryReport] = []

    def recover(stage: Stage) -> None:
        context = stage.cluster.context(stage.actor, ClientConfig(bookie_timeout_ms=bound_ms))
        reports.append(recover_ledgers(context, LocalRunner(context), [stage.open]))

    stage = perform(Hang, recover)

    (row,) = reports[0].rows
    assert row.status == "closed"
    assert stage.culprit in str(row.reason)
    assert "no answer for" in str(row.reason)
    assert all(other not in str(row.reason) for other in stage.others)
    assert reports[0].is_complete


def slow_fences(
    seconds: float, quorum: Quorum, change: Callable[[SimCluster, LedgerWriter], None]
) -> tuple[LedgerWriter, LedgerMetadata]:
    """A ledger as it was written and as it was recovered while one bookie's answers come late."""
    made: list[tuple[LedgerWriter, LedgerMetadata]] = []

    def run(cluster: HangingCluster, actor: Actor, runtime: SimRuntime) -> None:
        writer = lifecycle.create_ledger(cluster.context(actor, CONFIG), quorum)
        for payload in SMALL:
            writer.append(payload)
        runtime.sleep(1)
        writer.abandon()
        change(cluster, writer)
        cluster.hanging[writer.metadata.last_fragment.ensemble[0]] = late(
            runtime, "put_if_absent", seconds
        )
        context = cluster.context(actor, ClientConfig(bookie_timeout_ms=60_000))
        made.append((writer, recover_ledger(context, writer.ledger_id).value))

    play(2, 4, run)
    return made[0]


def late(runtime: SimRuntime, what: str, seconds: float) -> Hang:
    """Operations of this kind take so long, and do not hang."""

    def take_time(operation: str, path: str) -> bool:
        if operation == what:
            runtime.sleep(seconds)
        return False

    return Hang(runtime, take_time)


def nothing(cluster: SimCluster, writer: LedgerWriter) -> None:
    pass


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_a_bookie_that_is_a_little_slower_stays_in_the_ensemble(seconds: float) -> None:
    writer, closed = slow_fences(seconds, Quorum(3, 3, 2), nothing)

    assert closed.last_entry_id == len(SMALL) - 1
    assert closed.last_fragment.ensemble == writer.metadata.last_fragment.ensemble


def test_who_was_not_waited_for_is_asked_before_anything_is_called_undecided() -> None:
    """The last entry is damaged on the others; only the slow bookie can tell of it."""

    def damage(cluster: SimCluster, writer: LedgerWriter) -> None:
        for bookie in writer.metadata.last_fragment.ensemble[1:]:
            disk = cluster.disks[bookie]
            last = sorted(path for path in disk.files if "/slots/" in path)[-1]
            disk.corrupt(last, lambda data: data[:-9])

    _, closed = slow_fences(10.0, Quorum(3, 3, 2), damage)

    assert closed.last_entry_id == len(SMALL) - 1


@pytest.mark.parametrize("as_rows", [True, False])
def test_what_comes_from_two_bookies_in_turn_comes_once(as_rows: bool) -> None:
    """One is late and has everything, one lacks some of it, and one hangs for ever."""
    came: list[bytes] = []

    def run(cluster: HangingCluster, actor: Actor, runtime: SimRuntime) -> None:
        with lifecycle.create_ledger(cluster.context(actor, CONFIG), Quorum(3, 3, 3)) as writer:
            for payload in SMALL:
                writer.append_async(payload)
            writer.append(b"more")
            for payload in SMALL:
                writer.append_async(payload)
        slow, lacking, hanging = writer.metadata.last_fragment.ensemble
        disk = cluster.disks[lacking]
        slots = sorted(path for path in disk.files if "/slots/" in path)
        disk.corrupt(slots[-1], lambda data: data[: len(data) // 2])
        cluster.hanging[slow] = late(runtime, "list", 0.7)
        cluster.hanging[hanging] = Hang(runtime)
        reader = lifecycle.open_ledger(cluster.context(actor, CONFIG), writer.ledger_id)
        if as_rows:
            came.extend(reader.read_arrow().column(0).to_pylist())
        else:
            came.extend(entry.payload for entry in reader.entries())

    play(3, 3, run)

    assert came == [*SMALL, b"more", *SMALL]


def test_a_writer_that_stood_still_does_not_blame_its_bookies() -> None:
    world = World(1)
    cluster = SimCluster(world, 3, FaultPlan())
    actor = world.actor("writer")
    runtime = SimRuntime(world, actor)
    store = cluster.store(actor)
    puts = 0

    def stand_still(operation: str, path: str, moment: str) -> None:
        nonlocal puts
        if operation == "put" and moment == "before":
            puts += 1
            if puts == 2:  # of the three of the first entry
                world.later(100, lambda: world.resume(actor))
                world.pause(actor)

    def opened(_: str, bookie_client: BookieClient) -> FileBookie:
        storage = MemoryStorage(cluster.disks[BookieId(bookie_client.bookie_id)], stand_still)
        return FileBookie(BoundedStorage(storage, bookie_client))

    context = ClientContext(store, Bookies(store, opened, runtime), runtime, ClientConfig())

    def write() -> None:
        with lifecycle.create_ledger(context, Quorum(3, 3, 3)) as writer:
            writer.append(b"before and after")
        fragments.extend(writer.metadata.fragments)

    fragments: list[object] = []
    world.start(actor, write)
    world.run_all()

    assert runtime.now() >= 100
    assert len(fragments) == 1
