"""A worker that takes many tasks: their small shares are copied together, and each is still its
own, whatever happens to one of them in the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from spark_bookkeeper.autorecovery import replication
from spark_bookkeeper.autorecovery.replication import TaskWork, replicate_task
from spark_bookkeeper.autorecovery.task_jobs import task_step
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.runner import Bounds
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written, written_on
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.alone import Alone
from tests.autorecovery.seen import audited
from tests.snapshots import Snapshot
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
