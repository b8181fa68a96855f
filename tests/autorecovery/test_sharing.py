"""Many workers share a cluster, and none does what another has done."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from typing_extensions import override

from spark_bookkeeper.autorecovery.daemon import Autorecovery
from spark_bookkeeper.autorecovery.limit import share_now, write_limit
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.metadata.store import Registers
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.rates import throttle_for
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.runtime.throttle import LOOK_SECONDS
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written, written_on
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.autorecovery.seen import audited


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
    heard: list[int] = []
    for _ in range(3):
        daemon.start()
        heard.append(len(store._lost))
        daemon.stop()

    assert heard == [1, 1, 1]
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
