"""The replication worker: it takes tasks, some at a time, until it can do no more.

Source: Bookie Ledger Recovery, "ReplicationWorker"; BookKeeper ``replication/ReplicationWorker``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from spark_bookkeeper.autorecovery.publishing import DisabledError, check_enabled, chunks
from spark_bookkeeper.autorecovery.replication import TaskWork
from spark_bookkeeper.autorecovery.table import left_waiting
from spark_bookkeeper.autorecovery.task_jobs import TaskJobs
from spark_bookkeeper.autorecovery.tasks import Tasks
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row, report_rows
from spark_bookkeeper.replication.runner import (
    ITEMS_TOGETHER,
    LocalRunner,
    Progress,
    Runner,
    no_progress,
)
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.runtime.spool import Spool

_log = logging.getLogger(__name__)

BATCHES: Final = 4
"""The number of locks held for each ledger in work, so that the next ledgers are ready."""

_OTHERS: Final = 4
"""Where there are many tasks, a worker takes at most one in this many at a time."""


def runner_of_worker(context: ClientContext, runner: Runner, config: AutorecoveryConfig) -> Runner:
    """Return the runner of a worker, of a lasting one and of one for a round. In this process, it
    does ``ledgers_at_once`` ledgers at once, and not ``job_items_at_once``.
    """
    if isinstance(runner, LocalRunner):
        return LocalRunner(context, config.ledgers_at_once)
    return runner


class ReplicationWorker:
    """One worker. Many may share a cluster.

    Args:
        runner: does the work: this process, or the tasks of a Spark job.
        name: shown to other processes as the holder of a lock.
        local: the bookie next to which it runs; the worker copies to no other.
    """

    def __init__(
        self,
        context: ClientContext,
        runner: Runner,
        config: AutorecoveryConfig,
        name: str,
        local: BookieId | None = None,
    ) -> None:
        self._context = context
        self._runner = runner
        self._config = config
        self._holder = Holder(name)
        self._local = local
        self._asked_at_ms = 0
        self._jobs = TaskJobs(context, runner, config)
        self._tasks = self._new_tasks()
        self.fully_replicated = 0
        """The number of ledgers that this worker has fully replicated."""

    def _new_tasks(self) -> Tasks:
        return Tasks(self._context, self._local, self._config, self._asked_at_ms)

    def try_everything(self) -> None:
        """Try once, from now on, also the tasks that wait for an event: the operator who requests
        it may know of changes that no event shows.
        """
        self._asked_at_ms = self._context.cluster_ms()
        self._tasks = self._new_tasks()

    def plan(self) -> list[Row]:
        """Return the tasks that rounds would take now, in order; lock and change nothing."""
        check_enabled(self._context)
        tasks = self._new_tasks()
        return [
            Row(
                each.ledger_id,
                "task",
                Outcome.PLANNED,
                f"{each.live_copies} live copies of the entries that have the fewest",
            )
            for each in (*tasks.next(), *tasks.rest())
        ]

    @property
    def next_due_at_ms(self) -> int | None:
        """The time at which another round has work or a check to do, if nothing changes before."""
        return self._tasks.next_due_at_ms

    @property
    def is_outdated(self) -> bool:
        """Whether a bookie came or went since the order of the last round was made."""
        return self._tasks.is_outdated

    def round(
        self,
        changed: Callable[[], None] | None = None,
        *,
        progress: Progress = no_progress,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> Iterator[Row]:
        """Do what can be done of the existing tasks, and yield rows as they come. The round ends
        early when a bookie comes or goes, because other tasks may then come first.

        Args:
            changed: called once when there may be more to do.
            is_stopping: called between batches.

        Raises:
            DisabledError: autorecovery is or was disabled; running work was finished.
        """
        check_enabled(self._context)
        for ledger_id in self._tasks.take_those_without():
            self._context.store.underreplication.sweep(ledger_id)
        found = self._tasks.next(changed)
        progress("replicating", 0, len(found), 0)
        done = size = 0

        def tell(phase: str, now: int, total: int, size_bytes: int) -> None:
            progress(phase, done + now, len(found), size + size_bytes)

        if not found:
            return
        try:
            for batch in chunks(found, self._at_once(len(found))):
                if is_stopping():
                    return
                if done:
                    check_enabled(self._context)
                    if self.is_outdated:
                        return
                rows = self._batch([each.ledger_id for each in batch], tell, is_stopping)
                done += len(batch)
                size += sum(row.bytes for row in rows)
                yield from rows
        finally:
            self._tasks.put_back(found[done:])

    def _at_once(self, tasks: int) -> int:
        """Return how many tasks to lock at a time: more where there are many, because small ones
        share batches, and never so many that other workers find none.
        """
        return max(self._runner.width * BATCHES, min(ITEMS_TOGETHER, tasks // _OTHERS))

    def _batch(
        self, ledger_ids: Sequence[LedgerId], progress: Progress, is_stopping: Callable[[], bool]
    ) -> list[Row]:
        tree = self._context.store.underreplication
        try:
            taken = [ledger_id for ledger_id in ledger_ids if tree.lock(ledger_id, self._holder)]
            sharing = max(1, min(self._runner.width, len(taken)))
            items = [
                TaskWork(ledger_id, self._local, self._config, sharing=sharing)
                for ledger_id in taken
            ]
            rows = self._jobs.rows(items, progress, is_stopping)
        finally:
            tree.unlock(self._holder)
        for row in rows:
            if row.action == "task":
                self.fully_replicated += row.status is Outcome.REPLICATED
                if row.status is Outcome.REPLICATED:
                    self._context.metrics.replicated_ledgers.inc()
                said = about(ledger_id=row.ledger_id, job="rereplicate")
                _log.info("ledger %s: %s", row.ledger_id, row.reason or row.status, extra=said)
        return rows


def rereplicate(
    context: ClientContext,
    worker: ReplicationWorker,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Run rounds until one leaves nothing that can be done now; a row for each share and each task.

    Tasks that wait for an event are tried once too. A task that was not taken, because another
    worker has its lock or its time has not come, has a row as well: otherwise a report would look
    complete while tasks wait.

    Raises:
        DisabledError: autorecovery is disabled, and nothing was done. If it is disabled later, the
            report shows what was done, and what is left.
    """
    started = context.runtime.now()
    worker.try_everything()
    if dry_run:
        planned = worker.plan()
        planned += left_waiting(context, {row.ledger_id for row in planned})
        duration_ms = round((context.runtime.now() - started) * 1000)
        return RecoveryReport("rereplicate", tuple(planned), True, duration_ms)
    rows: Spool[Row] = Spool()
    tried: set[int] = set()
    disabled: DisabledError | None = None
    while True:
        ids: set[int] = set()
        try:
            for row in worker.round(progress=progress):
                rows.append(row)
                ids.add(row.ledger_id)
        except DisabledError as error:
            if not tried | ids:
                raise
            disabled = error
        # A task that was left is not tried again at once.
        is_over = disabled is not None or (ids <= tried and not worker.is_outdated)
        tried |= ids
        if is_over:
            break
    for row in left_waiting(context, tried):
        rows.append(row if disabled is None else replace(row, reason=disabled.message))
    duration_ms = round((context.runtime.now() - started) * 1000)
    return RecoveryReport("rereplicate", report_rows(rows), duration_ms=duration_ms)
