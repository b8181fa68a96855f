"""A worker that takes many tasks: their small shares are copied together, and each is still its
own, whatever happens to one of them in the middle.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from spark_bookkeeper.autorecovery import replication
from spark_bookkeeper.autorecovery.daemon import Autorecovery
from spark_bookkeeper.autorecovery.limit import share_now, write_limit
from spark_bookkeeper.autorecovery.replication import TaskWork, replicate_task
from spark_bookkeeper.autorecovery.task_jobs import task_step
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.metadata.store import Registers
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.rates import throttle_for
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import Bounds, LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.runtime.throttle import LOOK_SECONDS
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.alone import Alone
from tests.autorecovery.seen import audited
from tests.snapshots import Snapshot
from tests.support.autorecovery import CONFIG, Process, written, written_on
from tests.whole import assert_replicated, assert_whole


def fragments_alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """Notes which fragments were made again by themselves."""
    return Alone(monkeypatch, replication, "rereplicate_fragment", lambda _, work: work.ledger_id)


def lost_bookie(ground: Ground, ledgers: int) -> tuple[BookieId, list[LedgerWriter]]:
    """One that is gone, and the ledgers that named it."""
    lost = ground.bookie_ids[0]
    writers = [w for w in written_on(ground, lost, ledgers) if lost in w.metadata.bookies()]
    ground.stop(lost, destroy=True)
    return lost, writers


def test_small_ledgers_are_copied_together_and_each_task_is_told(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = fragments_alone(monkeypatch)
    lost, writers = lost_bookie(ground, 4)

    rows = audited(ground).work()

    assert alone.ledger_ids == []
    ids = sorted(writer.ledger_id for writer in writers)
    copies = [row for row in rows if row.action == "copy"]
    assert sorted(row.ledger_id for row in copies) == ids
    assert {(row.status, row.source, row.entries) for row in copies} == {("replicated", lost, 4)}
    told = [row for row in rows if row.action == "task"]
    assert sorted(row.ledger_id for row in told) == ids
    assert all("fully replicated" in (row.reason or "") for row in told)
    assert_replicated(ground, *writers)


def test_what_is_the_matter_with_one_is_its_own(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one ledger an entry is damaged everywhere else; the others are done together."""
    alone = fragments_alone(monkeypatch)
    _, writers = lost_bookie(ground, 4)
    bad = writers[1]
    for bookie in bad.metadata.bookies() - {ground.bookie_ids[0]}:
        for path in (ground.root(bookie) / "ledgers").glob(f"{bad.ledger_id}-*/slots/*"):
            path.write_bytes(path.read_bytes()[:100])

    rows = audited(ground).work()

    assert set(alone.ledger_ids) == {bad.ledger_id}
    done = {r.ledger_id for r in rows if r.action == "task" and r.status == "replicated"}
    assert done == {writer.ledger_id for writer in writers} - {bad.ledger_id}
    assert list(ground.context.store.underreplication.ledger_ids()) == [bad.ledger_id]


def test_a_worker_beside_a_bookie_copies_there_what_that_bookie_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = fragments_alone(monkeypatch)
    ground = Ground(tmp_path, bookies=5)
    _, writers = lost_bookie(ground, 6)
    others = (ground.bookie_ids[n] for n in range(1, 5))
    local = next(b for b in others if any(b not in w.metadata.bookies() for w in writers))
    fit = {w.ledger_id for w in writers if local not in w.metadata.bookies()}

    rows = audited(ground, local=local).work()

    copies = {(row.ledger_id, row.target) for row in rows if row.action == "copy"}
    assert copies == {(ledger_id, local) for ledger_id in fit}
    assert len(fit) == 1 or len(alone.ledger_ids) < len(fit), "of some batches only one is fit"


@pytest.mark.parametrize(
    ("first", "step"), [(5, 18), *(pytest.param(n, 4, marks=pytest.mark.full) for n in range(4))]
)
def test_whenever_one_of_the_locks_is_lost_the_others_go_on(
    tmp_path: Path, first: int, step: int
) -> None:
    """Another worker does one of the tasks in the middle, as it would if the lock were gone: at
    some operations, and in the full run at each.
    """
    begun = Ground(tmp_path / "begun")
    _, writers = lost_bookie(begun, 3)
    before = Snapshot(begun)
    number = first
    while True:
        ground = before.copy(tmp_path / str(number))
        other = ground.client()
        work = TaskWork(writers[1].ledger_id, None, CONFIG)
        count = 0

        def overtake(place: str, operation: str, path: str) -> None:
            nonlocal count
            count += 1
            if count == number:  # noqa: B023
                replicate_task(other, work)  # noqa: B023

        process = audited(ground, "one", overtake)
        count = 0
        done = process.work()
        process.work()

        ended = {r.ledger_id for r in done if r.action == "task" and r.status.is_done}
        assert ended >= {writers[0].ledger_id, writers[2].ledger_id}, f"operation {number}"
        assert_replicated(ground, *writers)
        if count < number:
            break
        number += step
    assert number > 20


def test_no_more_tasks_are_finished_at_once_than_the_limit_is_shared_out_for(
    ground: Ground,
) -> None:
    """Also where there was no limit when they were begun: it may be set meanwhile."""
    _, writers = lost_bookie(ground, 5)
    Process(ground).audit()
    widths: list[int] = []

    class Noting(InlineRuntime):
        @override
        def map(
            self,
            function: Callable[[Any], Any],
            items: list[Any],
            width: int = 16,
            on_interrupt: Callable[[], None] = lambda: None,
        ) -> list[Any]:
            if function.__name__ == "finish":
                widths.append(width)
            return super().map(function, items, width, on_interrupt)

    works = [TaskWork(writer.ledger_id, None, CONFIG) for writer in writers]
    do_many = task_step().do_many
    assert do_many is not None

    assert None not in do_many(ground.client(Noting()), works, Bounds(shares=3))
    assert widths == [3]


def test_many_are_locked_at_a_time_and_not_all(ground: Ground) -> None:
    process = Process(ground)
    assert [process.worker._at_once(n) for n in (1, 16, 40, 400, 4000)] == [4, 4, 10, 100, 128]


def test_an_open_ledger_among_them_keeps_its_grace_period(ground: Ground) -> None:
    closed = [written(ground) for _ in range(2)]
    open_one = written(ground, close=False)
    lost = open_one.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)

    audited(ground).work()

    state = ground.context.store.read_ledger(open_one.ledger_id).value.state
    assert state.name == "OPEN"
    tasks = list(ground.context.store.underreplication.ledger_ids())
    assert tasks == [open_one.ledger_id]
    assert_whole(ground, *closed)


def test_workers_at_the_same_time_copy_every_share_once(ground: Ground) -> None:
    writers = [written(ground) for _ in range(12)]
    lost = ground.bookie_ids[0]
    ground.stop(lost, destroy=True)
    Process(ground).audit()
    affected = {w.ledger_id for w in writers if lost in w.metadata.bookies()}
    rows: list[Any] = []

    def work(number: int) -> None:
        client = ground.client(ThreadRuntime())
        worker = ReplicationWorker(client, LocalRunner(client, 2), CONFIG, f"worker {number}")
        rows.extend(rereplicate(client, worker).rows)

    ground.runtime.map(work, list(range(4)), 4)

    copies = Counter(
        r.ledger_id for r in rows if r.action == "copy" and r.status is Outcome.REPLICATED
    )
    assert copies == dict.fromkeys(affected, 1)
    ends = Counter(r.ledger_id for r in rows if "fully replicated" in (r.reason or ""))
    assert ends == dict.fromkeys(affected, 1)
    assert check_ledgers(ground.context, LocalRunner(ground.context), None, 100).is_complete
    assert list(ground.context.store.underreplication.ledger_ids()) == []


def test_the_limit_on_copying_is_changed_while_a_worker_works(ground: Ground) -> None:
    lost = ground.bookie_ids[0]
    written_on(ground, lost, 6)  # more than one batch
    ground.stop(lost, destroy=True)
    process = audited(ground)
    registers = ground.context.store.registers
    rounds = process.worker.round()
    process.runtime.slept = 0.0
    next(rounds)
    assert process.runtime.slept < 0.001, "the limit is far off"
    write_limit(registers, 10)

    list(rounds)

    assert process.runtime.slept > 0.001
    write_limit(registers, None)
    assert list(ground.context.store.underreplication.ledger_ids()) == []


class Lifting(InlineRuntime):
    """The limit is lifted while somebody waits because of it."""

    def __init__(self, registers: Registers) -> None:
        super().__init__()
        self._registers = registers

    @override
    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        write_limit(self._registers, None)


def lifted_in_the_middle(ground: Ground) -> Sequence[Row]:
    """What a worker does whose limit is lifted while it waits: all of it, and at once then."""
    registers = ground.context.store.registers
    runtime = Lifting(registers)
    process = audited(ground, runtime=runtime)
    write_limit(registers, 1)  # a minute for sixty bytes, at the least
    runtime.slept = 0.0
    rows = process.work()
    assert 0 < runtime.slept <= 2 * LOOK_SECONDS
    assert list(ground.context.store.underreplication.ledger_ids()) == []
    return rows


def test_the_limit_on_copying_is_changed_in_the_middle_of_a_ledger(ground: Ground) -> None:
    writer = written(ground, count=60)
    ground.stop(writer.metadata.last_fragment.ensemble[0], destroy=True)

    assert sum(row.bytes for row in lifted_in_the_middle(ground)) > 60


def test_many_short_copies_obey_a_limit_that_is_changed_between_them(ground: Ground) -> None:
    """Each has ended before it is time to look again, and none was planned with the new limit."""
    runtime, registers = InlineRuntime(), ground.context.store.registers
    reads: list[str] = []

    def count(place: str, operation: str, path: str) -> None:
        if place == METADATA and "bytes-per-second" in path:
            reads.append(operation)

    context = ground.client(runtime, count)

    def copy(planned_with: int | None) -> float:
        before = runtime.slept
        as_a_task_has_it = replace(context)
        throttle_for(as_a_task_has_it, planned_with, partial(share_now, 1))(10)
        return runtime.slept - before

    write_limit(registers, 10)
    assert copy(10) > 0.9
    write_limit(registers, None)
    assert sum(copy(10) for _ in range(100)) <= LOOK_SECONDS + 1, "ten seconds in all, and more"
    write_limit(registers, 10)
    runtime.sleep(LOOK_SECONDS)
    started = runtime.slept
    assert sum(copy(None) for _ in range(100)) > 99, "none of them had a limit when it was planned"
    assert len(reads) <= 3 + (runtime.slept - started) / LOOK_SECONDS


def test_a_limit_that_is_lifted_in_the_middle_of_a_batch_holds_none_of_the_rest(
    ground: Ground,
) -> None:
    lost = ground.bookie_ids[0]
    written_on(ground, lost, 4)
    ground.stop(lost, destroy=True)

    rows = lifted_in_the_middle(ground)

    assert sum(row.action == "task" for row in rows) == 4, "one batch"


def test_a_bookie_that_goes_in_the_middle_of_a_long_check_is_noticed_at_once(
    ground: Ground,
) -> None:
    """A check of all ledgers may take hours, and nobody waits for it."""
    writer = written(ground)
    reading, published = threading.Event(), threading.Event()

    def hold(place: str, operation: str, path: str) -> None:
        if place != METADATA and not published.is_set():
            reading.set()
            published.wait(60)

    context = ground.client(ThreadRuntime(), hold)
    runner = LocalRunner(context, width=1)
    daemon = Autorecovery(context, runner, CONFIG, "spark-bookkeeper@one")
    daemon.start()
    try:
        assert reading.wait(60), "the first check begins with the auditor"
        ground.stop(writer.metadata.last_fragment.ensemble[0])
        tree = ground.context.store.underreplication
        ground.until(lambda: list(tree.ledger_ids()) == [writer.ledger_id], 30)
    finally:
        published.set()
        daemon.stop()


def test_who_is_started_and_stopped_again_and_again_hears_of_a_lost_session_once(
    ground: Ground,
) -> None:
    context = ground.client(ThreadRuntime())
    store = context.store
    assert isinstance(store, MemoryStore)
    daemon = Autorecovery(context, LocalRunner(context, width=1), CONFIG, "spark-bookkeeper@one")
    heard: list[object] = []
    for _ in range(3):
        daemon.start()
        heard += store._lost.values()
        daemon.stop()

    assert heard == [daemon.session_lost] * 3
    assert len(store._lost) == 0, "and who is stopped, not at all"


def test_a_worker_hears_of_a_task_that_is_published(ground: Ground) -> None:
    """Long before it would look again by itself."""
    writer = written(ground)
    lost = writer.metadata.last_fragment.ensemble[0]
    context = ground.client(ThreadRuntime())
    daemon = Autorecovery(
        context, LocalRunner(context, width=1), CONFIG, "spark-bookkeeper@one", lost
    )
    daemon.start()
    tree = ground.context.store.underreplication
    try:
        ground.until(lambda: ground.count()["task_ids"] > 0, 30)
        tree.mark(LedgerId(writer.ledger_id), [lost], 1_000)
        ground.until(lambda: not list(tree.ledger_ids()), 30)
    finally:
        daemon.stop()
