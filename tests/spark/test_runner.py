"""Work as Spark jobs: every item once at least, errors as rows, progress on the way."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

import spark_bookkeeper as sbk
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.replication.check_ledgers import CheckWork
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import Bounds, Failure, no_progress
from spark_bookkeeper.spark.job import collect, first_line
from spark_bookkeeper.spark.runner import (
    BYTES_PER_TASK,
    ITEMS_PER_TASK,
    SparkRunner,
    cut,
    dealt,
    executor_hosts,
    located,
    preferred,
    run_tasks,
    task_count,
    wish_of,
)
from spark_bookkeeper.spark.workers import OBJECTS_COLLECTED, task_context
from tests.support.pieces import Done, Piece, step

pytestmark = pytest.mark.spark


class BadToPickle(Exception):
    """An error that no process can hand to another."""


def runner(bk: sbk.BookKeeper) -> SparkRunner:
    return SparkRunner(lambda: bk.spark, bk.connection, "a_job")


def test_every_item_is_done_and_the_rows_come_back_in_the_order_of_the_items(
    bk: sbk.BookKeeper,
) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        return [Done(item.number, reason=context.store.instance_id(), bytes=2)]

    heard: list[tuple[str, int, int, int]] = []
    items = [Piece(n) for n in range(300)]

    rows = list(runner(bk).run(step(work, "copying"), items, lambda *said: heard.append(said)))

    assert [row.number for row in rows] == [*range(300)]
    assert {row.reason for row in rows} == {bk.context.store.instance_id()}
    assert heard[0] == ("copying", 0, 300, 0)
    assert heard[-1] == ("copying", 300, 300, 600)


def test_in_tasks_too_what_cannot_be_done_together_is_done_by_itself(bk: sbk.BookKeeper) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        return [Done(item.number, reason="alone")]

    def some(
        context: ClientContext, items: Sequence[Piece], _: Bounds
    ) -> Sequence[Sequence[Done] | None]:
        return [None if item.number % 10 == 7 else [Done(item.number)] for item in items]

    items = [Piece(n) for n in range(40)]
    working = replace(step(work), do_many=some)

    rows = list(runner(bk).run(working, items, no_progress))

    assert [row.number for row in rows] == [*range(40)]
    assert [row.number for row in rows if row.reason == "alone"] == [7, 17, 27, 37]


def test_every_task_begins_with_the_most_urgent_items() -> None:
    for tasks in range(1, 9):
        for items in range(tasks, 40):
            hands = dealt(items, tasks)

            assert sorted(n for hand in hands for n in hand) == [*range(items)]
            for turn in range(items // tasks):
                assert {hand[turn] for hand in hands} == {*range(turn * tasks, (turn + 1) * tasks)}


@pytest.mark.parametrize("seed", range(5))
def test_neighbours_are_done_by_one_task_and_no_task_has_much_more_than_others(seed: int) -> None:
    dice = random.Random(seed)
    each = BYTES_PER_TASK // ITEMS_PER_TASK
    for _ in range(100):
        sizes = [dice.choice([0, 100, each, 128 << 20]) for _ in range(dice.randrange(1, 300))]
        items = [Piece(number, size_bytes=size) for number, size in enumerate(sizes)]
        tasks = dice.randrange(1, len(items) + 1)

        hands = cut(items, tasks)

        assert len(hands) <= tasks
        assert all(hands)
        assert [n for hand in hands for n in hand] == [*range(len(items))]
        share = sum(size + each for size in sizes) / tasks
        for hand in hands:
            assert sum(sizes[n] + each for n in hand) <= share + max(sizes) + each


def test_neighbours_that_share_what_they_read_come_to_one_task(bk: sbk.BookKeeper) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        return [Done(item.number, reason=str(TaskContext.get().partitionId()))]  # type: ignore[union-attr]

    working = replace(step(work), shares_with_neighbours=True)

    rows = list(runner(bk).run(working, [Piece(number) for number in range(40)], no_progress))

    tasks = [row.reason for row in rows]
    assert [row.number for row in rows] == [*range(40)]
    assert len(set(tasks)) > 1
    assert len(list(groupby(tasks))) == len(set(tasks))


def test_an_item_that_computes_is_a_task(bk: sbk.BookKeeper) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        return [Done(item.number, reason=str(TaskContext.get().partitionId()))]  # type: ignore[union-attr]

    computing = replace(step(work), is_computing=True)

    rows = list(runner(bk).run(computing, [Piece(number) for number in range(7)], no_progress))

    assert [(row.number, row.reason) for row in rows] == [(n, str(n)) for n in range(7)]


def test_small_items_are_cut_evenly() -> None:
    assert cut([Piece(number) for number in range(10)], 3) == [range(3), range(3, 7), range(7, 10)]


def test_nothing_to_do_starts_no_job_and_no_spark(bk: sbk.BookKeeper) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        raise AssertionError

    def no_session() -> Any:
        raise AssertionError

    idle = SparkRunner(no_session, bk.connection, "a_job")
    assert list(idle.run(step(work), [], no_progress)) == []


def test_an_error_is_the_result_of_its_item_and_the_others_go_on(bk: sbk.BookKeeper) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        if item.number == 1:
            raise TypeError("not this type")
        if item.number == 2:
            raise MemoryError
        if item.number == 3:
            raise pa.ArrowNotImplementedError("no kernel")
        if item.number == 4:
            return work(context, item)  # for ever
        if item.number == 5:
            raise BadToPickle(lambda: None)
        if item.number == 6:
            raise sbk.NoSuchLedgerError("it went away", ledger_id=1)
        return [Done(item.number)]

    rows = list(runner(bk).run(step(work), [Piece(n) for n in range(8)], no_progress))

    assert [row.status for row in rows] == ["replicated", *["damaged"] * 5, "left", "replicated"]
    assert [row.number for row in rows] == [*range(8)]
    assert [rows[1].reason, rows[6].reason] == ["TypeError: not this type", "it went away"]
    reasons = [str(row.reason).partition(":")[0] for row in rows[1:6]]
    assert reasons == [
        *("TypeError", "MemoryError", "ArrowNotImplementedError", "RecursionError", "BadToPickle"),
    ]


def test_a_worker_process_that_is_killed_is_replaced_and_its_items_are_done_again(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        seen = Path(item.folder) / "killed"
        if item.number == 3 and not seen.exists():
            seen.touch()
            os.kill(os.getpid(), 9)
        return [Done(item.number)]

    items = [Piece(n, str(tmp_path)) for n in range(8)]
    rows = list(runner(bk).run(step(work), items, no_progress))

    assert (tmp_path / "killed").exists()
    assert [row.status for row in rows] == ["replicated"] * 8


def test_a_job_that_fails_for_good_leaves_its_items_with_the_reason(bk: sbk.BookKeeper) -> None:
    def work(context: ClientContext, item: Piece) -> Sequence[Done]:
        os.kill(os.getpid(), 9)
        raise AssertionError

    failures: list[Failure] = []

    def failed(piece: Piece, failure: Failure) -> Done:
        failures.append(failure)
        return Done(piece.number, Outcome.LEFT, failure.reason)

    killing = replace(step(work), failed=failed)
    rows = list(runner(bk).run(killing, [Piece(7), Piece(8)], no_progress))

    assert [(row.number, row.status) for row in rows] == [(7, "left"), (8, "left")]
    assert "the Spark job failed" in str(rows[0].reason)
    assert "\n" not in str(rows[0].reason)
    assert {failure.reason for failure in failures} == {
        f"{failure.of_job}; run it again to do the rest" for failure in failures
    }


def test_in_a_session_that_was_stopped_items_are_left_with_that_reason(bk: sbk.BookKeeper) -> None:
    class Context:
        _jsc = None  # what pyspark leaves of it

    class Session:
        sparkContext = Context()  # noqa: N815  (Spark's name)

    stopped: Any = Session()
    runs = SparkRunner(lambda: stopped, bk.connection, "a_job")

    rows = list(runs.run(step(lambda *_: ()), [Piece(7), Piece(8)], no_progress))

    assert runs.width == 1
    assert [(row.number, row.status) for row in rows] == [(7, "left"), (8, "left")]
    assert {str(row.reason).partition(",")[0] for row in rows} == {"the Spark session was stopped"}


def test_jobs_carry_a_description_and_leave_the_caller_s_settings_alone(spark: Any) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.job.description", "what the user set")
    try:
        found = collect(spark.range(4, numPartitions=2), "recover_bookie: copying", lambda *_: None)

        assert [row.id for row in found] == [0, 1, 2, 3]
        assert context.getLocalProperty("spark.job.description") == "what the user set"
        assert context.getLocalProperty("spark.jobGroup.id") is None
    finally:
        context.setLocalProperty("spark.job.description", None)


def test_a_context_is_made_once_per_process_and_asks_zookeeper_only_when_it_must() -> None:
    nowhere = Connection("127.0.0.1:1")

    context = task_context(nowhere, {})

    assert task_context(Connection("127.0.0.1:1")) is context
    assert task_context(Connection("127.0.0.1:2")) is not context


def test_an_error_of_spark_is_told_in_one_line() -> None:
    error = RuntimeError("An error occurred while calling o41.load.\n: [NOPE] It is not\n\tat x.y")

    assert first_line(error) == "[NOPE] It is not"
    assert first_line(RuntimeError("")) == "RuntimeError"


def test_there_are_few_tasks_unless_there_is_much_to_do() -> None:
    small = [Piece(n) for n in range(100)]
    assert task_count(small[:1], cores=4) == 1
    assert task_count(small, cores=4) == 4
    assert task_count(small * 41, cores=4) == 4100 // 256, "many items: progress can be seen"
    assert task_count(small * 10, cores=3) == 3, "as many for each core"
    assert task_count(small * 20, cores=3) == 6, "as many for each core"
    large = Piece(0, size_bytes=1 << 30)
    assert task_count([large] * 3, cores=2) == 3, "large ones: each its own"
    assert task_count([Piece(0, size_bytes=1 << 20)] * 100, cores=2) == 2


def test_a_task_wishes_to_be_where_large_items_of_it_are() -> None:
    hosts = {BookieId("a:1"): "a", BookieId("a:2"): "a", BookieId("b:1"): "b"}  # s:1 has a bucket
    sizes = [("a:1", 1 << 30), ("a:2", 2 << 30), ("b:1", 2 << 30), ("b:1", 9), ("s:1", 9 << 30)]
    ledger = CheckWork(LedgerId(1), 100, size_bytes=9 << 30)
    shares = [replace(ledger, share=(EntryId(0), BookieId(b)), size_bytes=n) for b, n in sizes]

    assert wish_of([ledger, *shares], hosts) == {"a": 3 << 30, "b": 2 << 30}


@pytest.mark.parametrize(
    ("wishes", "chosen"),
    [
        ([{"a": 1, "b": 2}, {}], ["b", ""]),
        ([{"a": 2, "b": 1}] * 3, ["a", "a", "b"]),  # no more than its part
        ([{"b": 9}] * 6, ["b", "b", "", "", "", ""]),
        ([{"unknown": 9, "b": 1}, {"unknown": 9}], ["b", ""]),  # where no executor is
    ],
)
def test_a_task_prefers_a_host_that_has_executors_and_no_task_waits_for_another_one(
    wishes: list[dict[str, int]], chosen: list[str]
) -> None:
    assert preferred([Counter(wish) for wish in wishes], Counter(a=2, b=1)) == chosen
    assert preferred([Counter(wish) for wish in wishes], Counter()) == [""] * len(wishes)


def test_spark_is_told_of_preferred_hosts_and_runs_each_task_wherever_it_can(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = located(spark.sparkContext.parallelize([], 3), ["a", "", "b"])._jrdd.rdd()
    assert [made.preferredLocations(p).mkString() for p in made.partitions()] == ["a", "", "b"]
    assert not executor_hosts(spark.sparkContext), "in local mode a task would wait for ever"

    monkeypatch.setattr("spark_bookkeeper.spark.runner.executor_hosts", lambda _: Counter(a=1, b=1))
    wishes = [Counter(a=1), Counter[str](), Counter(b=1)]
    found = run_tasks(spark, wishes, lambda n: [(n, b"done")], "x", lambda *_: None)
    assert found == [(n, b"done") for n in range(3)]


def test_a_task_looks_for_garbage_seldom_and_the_next_as_it_was_asked_to(
    bk: sbk.BookKeeper,
) -> None:
    def work(_: ClientContext, item: Piece) -> Sequence[Done]:
        return [Done(item.number, reason=str(gc.get_threshold()[0]))]

    def thresholds(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"of": pa.array([gc.get_threshold()[0]], pa.int32())})

    (done,) = runner(bk).run(step(work, "copying"), [Piece(0)], no_progress)
    after = bk.spark.range(0, 4, 1, 4).mapInArrow(thresholds, "of int").collect()

    assert done.reason == str(OBJECTS_COLLECTED)
    assert {row.of for row in after} == {gc.get_threshold()[0]}


def test_processes_of_tasks_are_used_again_and_look_through_what_is_new(bk: sbk.BookKeeper) -> None:
    def work(_: ClientContext, item: Piece) -> Sequence[Done]:
        return [Done(item.number, reason=f"{os.getpid()} {gc.get_freeze_count()}")]

    def job() -> dict[int, int]:
        rows = runner(bk).run(step(work), [Piece(n) for n in range(8)], no_progress)
        found = [str(row.reason).split() for row in rows]
        return {int(process): int(frozen) for process, frozen in found}

    first, again = job(), job()

    assert first.keys() & again.keys()
    assert all(first.values())
    for process in first.keys() & again.keys():
        assert again[process] <= first[process], "put aside once"
