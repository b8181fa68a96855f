"""Tasks whose Spark job fails: which of them wait, and what is said of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.replication import TaskWork
from spark_bookkeeper.autorecovery.table import underreplicated_table
from spark_bookkeeper.autorecovery.task_jobs import TaskJobs
from spark_bookkeeper.autorecovery.worker import ReplicationWorker
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import Failure, LocalRunner, Progress, Step, no_progress
from spark_bookkeeper.replication.stragglers import Straggler
from spark_bookkeeper.testing.ground import Ground
from tests.autorecovery.seen import failed
from tests.support.autorecovery import CONFIG, Process, written
from tests.whole import assert_replicated, assert_whole

LOST = "the Spark job failed: the executor was lost"


class Spark:
    """As a ``SparkRunner``: when a job fails, each of its items has.

    Args:
        poison: ledgers that end the process which does them; ``None``: whoever does any.
        is_late: they do so when all the others of their job have been done.
    """

    is_elsewhere = True
    width = 4

    def __init__(
        self, context: ClientContext, poison: Collection[int] | None, *, is_late: bool = False
    ) -> None:
        self._tasks = LocalRunner(context)
        self._poison = poison
        self._is_late = is_late
        self.jobs: list[int] = []
        """How many items each had."""

    def slowest(self) -> Sequence[Straggler]:
        return ()

    def run(self, step: Step[Any, Any], items: Sequence[Any], progress: Progress) -> Iterator[Any]:
        self.jobs.append(len(items))
        bad = [i for i in items if self._poison is None or i.ledger_id in self._poison]
        good = [i for i in items if i not in bad]
        results = [] if bad and not self._is_late else list(self._tasks.run(step, good, progress))
        if not bad:
            return iter(results)
        failure = Failure(f"{LOST}; run it again to do the rest", of_job=LOST)
        return iter([step.failed(item, failure) for item in items])


def lost_ledgers(ground: Ground, count: int) -> tuple[Process, list[LedgerWriter]]:
    """Tasks of so many ledgers that could be done at once."""
    writers = [written(ground, Quorum(4, 3, 2)) for _ in range(count)]
    ground.add_bookie()
    ground.stop(ground.bookie_ids[0])
    process = Process(ground)
    process.audit()
    return process, writers


def notes_of(ground: Ground) -> Mapping[LedgerId, TaskNote]:
    notes = Notes(ground.context.store.registers)
    return dict(notes.read_many(list(notes.ledger_ids())))


def worker_on(process: Process, spark: Spark) -> ReplicationWorker:
    return ReplicationWorker(process.context, spark, CONFIG, "one")


@pytest.mark.parametrize(
    ("is_late", "poisons"),
    [
        (False, [0, 1, 2, 9]),
        (True, [3, 4]),
        *(
            pytest.param(is_late, poisons, marks=pytest.mark.full)
            for is_late in (False, True)
            for poisons in ([0], [5], [3, 4] if not is_late else [0, 1, 2, 9])
        ),
    ],
)
def test_ledgers_that_end_their_job_keep_no_other_waiting_and_alone_have_notes(
    ground: Ground, poisons: Sequence[int], is_late: bool
) -> None:
    process, writers = lost_ledgers(ground, 10)
    bad = {LedgerId(writers[number].ledger_id) for number in poisons}
    worker = worker_on(process, Spark(process.context, bad, is_late=is_late))

    rows = [row for _ in range(3) for row in worker.round()]

    assert_whole(ground, *(w for w in writers if w.ledger_id not in bad))
    assert {r.ledger_id for r in rows if r.status is Outcome.LEFT} == bad
    notes = notes_of(ground)
    assert {i: note.attempts for i, note in notes.items()} == dict.fromkeys(bad, 1)
    assert {n.last_error for n in notes.values()} == {f"{LOST}; it is tried again by itself"}
    assert set(underreplicated_table(ground.context)["ledger_id"].to_pylist()) == bad
    assert ground.context.store.underreplication.locks() == {}


def test_bad_ledgers_side_by_side_keep_no_other_waiting(ground: Ground) -> None:
    """Eight jobs fail in a row before the first good ledger is done."""
    process, writers = lost_ledgers(ground, 10)
    ids = [LedgerId(writer.ledger_id) for writer in writers]
    for ledger_id in ids:
        assert process.context.store.underreplication.lock(ledger_id, Holder("one"))
    jobs = TaskJobs(process.context, Spark(process.context, ids[:4]), CONFIG)

    rows = jobs.rows([TaskWork(i, None, CONFIG) for i in ids], no_progress, lambda: False)

    assert {row.ledger_id for row in rows if row.status is Outcome.LEFT} == set(ids[:4])
    assert_whole(ground, *writers[4:])


def test_who_failed_a_job_of_its_own_is_done_alone_and_behind_the_others_from_then_on(
    ground: Ground,
) -> None:
    process, writers = lost_ledgers(ground, 6)
    bad = {writers[0].ledger_id}
    spark = Spark(process.context, bad)
    worker = worker_on(process, spark)
    list(worker.round())
    spark.jobs.clear()
    tree = ground.context.store.underreplication
    for writer in writers[1:]:
        tree.mark(LedgerId(writer.ledger_id), [ground.bookie_ids[1]], 1)

    process.runtime.sleep(CONFIG.retry_first_ms / 1000 + 1)
    order = [row.ledger_id for row in worker.round() if row.action == "task"]

    assert spark.jobs == [5, 1]
    assert order[-1] == writers[0].ledger_id
    spark._poison = ()
    process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
    list(worker.round())
    assert_replicated(ground, *writers)


def test_where_every_job_fails_there_are_few_of_them_and_all_wait(ground: Ground) -> None:
    process, writers = lost_ledgers(ground, 10)
    spark = Spark(process.context, None)
    worker = worker_on(process, spark)

    assert len(list(worker.round())) == 10

    assert len(spark.jobs) <= 4 * (10).bit_length()
    assert [note.attempts for note in notes_of(ground).values()] == [1] * 10
    assert list(worker.round()) == [], "they are not taken again at once"
    spark._poison = ()
    process.runtime.sleep(CONFIG.retry_first_ms / 1000 + 1)
    list(worker.round())
    assert_replicated(ground, *writers)


def test_what_was_done_in_jobs_that_were_lost_is_not_left(ground: Ground) -> None:
    """Each of them, also that of one task alone, is lost after all of it has been done."""

    class Late(Spark):
        def run(
            self, step: Step[Any, Any], items: Sequence[Any], progress: Progress
        ) -> Iterator[Any]:
            list(self._tasks.run(step, items, progress))
            return super().run(step, items, progress)

    process, writers = lost_ledgers(ground, 3)
    spark = Late(process.context, None)

    rows = list(worker_on(process, spark).round())

    assert spark.jobs[0] == 3
    assert 1 in spark.jobs
    assert_replicated(ground, *writers)
    tasks = [(row.ledger_id, row.status) for row in rows if row.action == "task"]
    assert sorted(tasks) == [(w.ledger_id, Outcome.NO_LONGER_NEEDED) for w in writers]


def test_who_is_to_stop_begins_no_further_jobs(ground: Ground) -> None:
    process, _ = lost_ledgers(ground, 10)
    spark = Spark(process.context, None)
    is_stopping = False

    def fail(place: str, operation: str, path: str) -> None:
        nonlocal is_stopping
        is_stopping = is_stopping or bool(spark.jobs)

    ground.before.append(fail)
    list(worker_on(process, spark).round(is_stopping=lambda: is_stopping))

    assert spark.jobs == [10]
    assert ground.context.store.underreplication.locks() == {}


def test_what_an_attempt_noted_whose_result_was_lost_is_not_taken_back(ground: Ground) -> None:
    """A bookie refuses the copies, each attempt notes that, and then their process ends."""
    process, writers = lost_ledgers(ground, 3)
    new = ground.bookie_ids[-1]

    def refuse(place: str, operation: str, path: str) -> None:
        if place == new:
            raise BookieUnavailableError("no room for it", bookie_id=new)

    ground.before.append(refuse)
    bad = {writers[0].ledger_id}
    spark = Spark(process.context, bad, is_late=True)

    rows = list(worker_on(process, spark).round())

    notes = notes_of(ground)
    assert {note.attempts for note in notes.values()} == {1}
    said = {i: str(note.last_error) for i, note in notes.items()}
    assert {i for i, error in said.items() if "executor was lost" in error} == bad
    assert {i for i, error in said.items() if "no room for it" in error} == said.keys() - bad
    assert {row.ledger_id: row.reason for row in rows if row.action == "task"} == said


def test_a_note_from_a_clock_that_was_ahead_is_not_taken_for_one_of_this_job(
    ground: Ground,
) -> None:
    """Else its ledger would be done in every round, and end the process of each."""
    process, writers = lost_ledgers(ground, 4)
    bad = LedgerId(writers[1].ledger_id)
    ahead_ms = ground.context.cluster_ms() + 86_400_000
    notes = Notes(ground.context.store.registers)
    notes.change(bad, lambda old: failed(old, "before", ahead_ms, None, CONFIG.retry_first_ms))
    spark = Spark(process.context, {bad})
    worker = worker_on(process, spark)

    rows = {row.ledger_id: row for row in worker.round() if row.action == "task"}
    jobs = len(spark.jobs)

    assert rows[bad].reason == f"{LOST}; it is tried again by itself"
    note = notes_of(ground)[bad]
    assert (note.attempts, note.last_error) == (2, rows[bad].reason)
    assert note.tried_at_ms < ahead_ms
    assert list(worker.round()) == []
    assert len(spark.jobs) == jobs
