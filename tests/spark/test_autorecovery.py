"""Autorecovery on Spark: its work is done by Spark's jobs, and a task that dies is done again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.autorecovery import task_jobs
from spark_bookkeeper.autorecovery.replication import TaskWork
from spark_bookkeeper.autorecovery.task_jobs import TaskResult, task_step
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.jobs import run_job
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from tests.spark.cancelling import active_tasks, until
from tests.support.rows import wait_for_every_copy

pytestmark = pytest.mark.spark


def lose_a_bookie(bk: sbk.BookKeeper, rows: int = 3, size_bytes: int = 10) -> list[int]:
    """Closed ledgers that all name a bookie which is destroyed."""
    assert bk.cluster is not None
    writers = [bk.create_ledger(ensemble_size=6) for _ in range(6)]
    for writer in writers:
        for _ in range(rows):
            writer.append(bytes(size_bytes))
        wait_for_every_copy(writer)
        writer.close()
    bk.cluster.add_bookie()  # nobody could take the place of a member of all
    bk.cluster.stop_bookie(writers[0].metadata.last_fragment.ensemble[0], destroy=True)
    return [writer.ledger_id for writer in writers]


def is_whole(bk: sbk.BookKeeper) -> bool:
    report = check_ledgers(bk.context, LocalRunner(bk.context), None, 100)
    return report.is_complete and bk.underreplicated_arrow().num_rows == 0


class Jobs:
    """The jobs that a Spark session has begun since this was made."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._before = {job.jobId() for job in self._known()}

    def _known(self) -> list[Any]:
        found = self._spark.sparkContext._jsc.sc().statusStore().jobsList(None)
        return [found.apply(index) for index in range(found.size())]

    def _new(self) -> list[Any]:
        return [job for job in self._known() if job.jobId() not in self._before]

    @property
    def descriptions(self) -> Counter[str]:
        """What they are, as Spark's pages show it."""
        options = [job.description() for job in self._new()]
        return Counter(option.get() for option in options if option.isDefined())

    @property
    def failed_tasks(self) -> int:
        """Of all of them, those that were begun again."""
        return sum(job.numFailedTasks() for job in self._new())


def test_one_round_is_done_by_spark_and_with_the_local_engine_by_this_process(
    spark: Any, own_bk: sbk.BookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_a_bookie(own_bk)
    jobs = Jobs(spark)

    assert run_job("autorecovery", [own_bk.metadata_uri, "--once", "--json"]) == 0
    until(lambda: jobs.descriptions["rereplicate: replicating"] > 0)
    assert is_whole(own_bk)

    lose_a_bookie(own_bk)
    jobs = Jobs(spark)
    call = ["--metadata-uri", own_bk.metadata_uri, "autorecovery", "start", "--engine", "local"]
    assert run([*call, "--once"]) == 0
    assert is_whole(own_bk)
    assert spark.range(3).count() == 3  # a job that came later is told of later
    until(lambda: len(jobs._new()) > 0)
    assert jobs.descriptions == Counter()


@pytest.mark.full
def test_the_daemon_repairs_and_checks_with_spark(spark: Any, own_bk: sbk.BookKeeper) -> None:
    jobs = Jobs(spark)
    config = AutorecoveryConfig(ledger_check_interval_s=1)
    running = own_bk.autorecovery.start(config=config)
    try:
        lost_of = lose_a_bookie(own_bk)
        until(lambda: running.fully_replicated == len(lost_of))
        until(lambda: jobs.descriptions["autorecovery: replicating"] > 0)
        until(lambda: jobs.descriptions["autorecovery: checking ledgers"] > 0)
    finally:
        running.stop()

    assert is_whole(own_bk)


def workers_of_spark() -> list[psutil.Process]:
    """The processes in which this session's tasks run their Python."""

    def is_daemon(process: psutil.Process | None) -> bool:
        return process is not None and any("daemon" in part for part in process.cmdline())

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if is_daemon(process) and is_daemon(process.parent()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.full
def test_a_task_that_is_killed_in_the_middle_of_copying_is_done_again(
    spark: Any, own_bk: sbk.BookKeeper
) -> None:
    lose_a_bookie(own_bk, rows=20, size_bytes=10_000)
    own_bk.audit()
    jobs = Jobs(spark)
    own_bk.autorecovery.bytes_per_second = 1_000  # minutes, and nobody waits for them
    running = own_bk.autorecovery.start()
    try:
        until(
            lambda: (
                active_tasks(spark) > 0 and len(own_bk.context.store.underreplication.locks()) > 0
            )
        )
        for worker in workers_of_spark():
            worker.kill()
        until(lambda: jobs.failed_tasks > 0)
        own_bk.autorecovery.bytes_per_second = None
        until(lambda: own_bk.underreplicated_arrow().num_rows == 0)
    finally:
        own_bk.autorecovery.bytes_per_second = None
        running.stop()

    assert is_whole(own_bk)
    assert dict(own_bk.context.store.underreplication.locks()) == {}


@pytest.mark.full
def test_a_limit_that_is_lifted_while_executors_wait_because_of_it_is_lifted_for_them(
    spark: Any, own_bk: sbk.BookKeeper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost_of = lose_a_bookie(own_bk, rows=20, size_bytes=10_000)
    own_bk.audit()
    usual, waits = task_step(), tmp_path / "waits"

    def telling(act: Callable[..., Any]) -> Callable[..., Any]:
        """It says when its executor waits for long; then it has been told the limit."""

        def act_and_tell(*arguments: Any) -> Any:
            sleep = ThreadRuntime.sleep

            def wait(runtime: ThreadRuntime, seconds: float) -> None:
                if seconds > 1:
                    waits.touch()
                sleep(runtime, seconds)

            with mock.patch.object(ThreadRuntime, "sleep", wait):
                return act(*arguments)

        return act_and_tell

    assert usual.do_many is not None
    step = replace(usual, do=telling(usual.do), do_many=telling(usual.do_many))
    monkeypatch.setattr(task_jobs, "task_step", lambda: step)
    jobs = Jobs(spark)
    own_bk.autorecovery.bytes_per_second = 1  # two weeks
    running = own_bk.autorecovery.start()
    try:
        until(waits.exists)
        own_bk.autorecovery.bytes_per_second = None
        until(lambda: running.fully_replicated == len(lost_of))
    finally:
        own_bk.autorecovery.bytes_per_second = None
        spark.sparkContext.cancelAllJobs()  # where it failed, one would go on for two weeks
        running.stop()

    assert jobs.failed_tasks == 0, "none was begun again, and told the limit anew"
    assert is_whole(own_bk)


@pytest.mark.full
def test_a_ledger_that_ends_whatever_process_does_it_keeps_no_other_waiting(
    own_bk: sbk.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_ids = lose_a_bookie(own_bk)
    own_bk.audit()
    poison, usual = ledger_ids[2], task_step()

    def do(context: ClientContext, work: TaskWork) -> Sequence[TaskResult]:
        if work.ledger_id == poison:
            os.kill(os.getpid(), 9)
        return usual.do(context, work)

    killing = replace(usual, do=do, do_many=None)
    monkeypatch.setattr(task_jobs, "task_step", lambda: killing)

    report = own_bk.rereplicate()

    assert {row.ledger_id for row in report.rows if not row.status.is_done} == {poison}
    (row,) = own_bk.underreplicated_arrow().to_pylist()
    assert (row["ledger_id"], row["attempts"]) == (poison, 1)
    assert "the Spark job failed" in row["last_error"]
    assert "run it again" not in row["last_error"]
    assert dict(own_bk.context.store.underreplication.locks()) == {}
