"""The tasks of one worker as jobs: each task is done, or gets a note with the reason.

A ledger that kills the process that works on it ends a whole Spark job, and nothing shows which
ledger it was. So the tasks of a lost job are done again in halves, until that ledger is alone. The
other ledgers neither wait with it, nor get its failure in a note.

Small copies of many ledgers are made in batches; each task is then done by itself.

Source: Bookie Ledger Recovery, "ReplicationWorker"; SLOT-LOG rules R13, R17.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from spark_bookkeeper.autorecovery.backoff import writable_of
from spark_bookkeeper.autorecovery.limit import limit_at_first
from spark_bookkeeper.autorecovery.notes import Notes, as_marked
from spark_bookkeeper.autorecovery.replication import TaskWork, fragment_work, replicate_task
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.task_notes import Marked, TaskNote
from spark_bookkeeper.protocol.underreplication import absent_members
from spark_bookkeeper.replication.batch_rereplicate import rereplicate_many
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.rereplicate import FragmentWork
from spark_bookkeeper.replication.runner import (
    Bounds,
    Failure,
    NotDone,
    Progress,
    Runner,
    Step,
    limited,
    reason_of,
)

_log = logging.getLogger(__name__)

_DONE: Final = "it was done before its job was lost, or somebody else has done it"


TaskResult: TypeAlias = Row | NotDone[TaskWork]
"""A row of a task, or an attempt that ended before it could leave a note."""


class TaskJobs:
    """Does the tasks of one worker.

    Args:
        runner: carries out the jobs.
    """

    def __init__(self, context: ClientContext, runner: Runner, config: AutorecoveryConfig) -> None:
        self._context = context
        self._runner = runner
        self._config = config
        self._alone: set[LedgerId] = set()
        """Ledgers that failed in a job of their own: each is done alone, after all others."""

    def rows(
        self, works: Sequence[TaskWork], progress: Progress, is_stopping: Callable[[], bool]
    ) -> list[Row]:
        """Do the tasks; return a row for each share and each task.

        Args:
            works: the caller holds their locks.
            is_stopping: called before the tasks of a lost job are done again. If true, the rest has
                no row and no note.
        """
        job = Job(
            "rereplicate", self._context, self._runner, progress, limit_at_first(self._context)
        )
        rows: list[Row] = []
        failed: dict[LedgerId, str] = {}
        batches: list[Sequence[TaskWork]] = [[w] for w in works if w.ledger_id in self._alone]
        batches.append([work for work in works if work.ledger_id not in self._alone])
        in_vain, most = 0, 3 * len(works).bit_length()
        while batches and not (in_vain and is_stopping()):
            since_ms = self._context.cluster_ms()
            batch = batches.pop()
            done, not_done = self._told(job.run(task_step(), batch), since_ms)
            rows += done
            lost = [each.work for each in not_done if each.failure.of_job is not None]
            in_vain = in_vain + 1 if lost else 0
            if len(batch) == 1:
                change = self._alone.add if lost else self._alone.discard
                change(batch[0].ledger_id)
            # One bad ledger fails as many jobs in a row as the ledgers can be halved, and several
            # bad neighbours fail more. After three times as many failures in a row, the cause must
            # be another: then each batch is tried once more, and not halved.
            if len(lost) > 1 and in_vain < most:
                half = len(lost) // 2
                batches += [lost[half:], lost[:half]]
                not_done = [each for each in not_done if each.failure.of_job is None]
            failed |= {each.work.ledger_id: _reason(each.failure) for each in not_done}
        gone: Collection[LedgerId] = ()
        try:
            gone = self._note(failed)
        except BookKeeperError as error:
            _log.warning("%d failed tasks have no note: %s", len(failed), error.message)
        rows += (Row(i, "task", Outcome.NO_LONGER_NEEDED, _DONE) for i in gone)
        rows += (Row(i, "task", Outcome.LEFT, why) for i, why in failed.items() if i not in gone)
        return rows

    def _told(
        self, results: Iterable[TaskResult], since_ms: int
    ) -> tuple[list[Row], list[NotDone[TaskWork]]]:
        """Separate rows from tasks that ended without a note. The other tasks of a lost job have
        their result in a note.

        Args:
            since_ms: when the job began.
        """
        rows: list[Row] = []
        not_done: dict[LedgerId, NotDone[TaskWork]] = {}
        for result in results:
            if isinstance(result, Row):
                rows.append(result)
            else:
                not_done[result.work.ledger_id] = result
        if not not_done:
            return rows, []
        notes: Mapping[LedgerId, TaskNote] = {}
        try:
            notes = dict(Notes(self._context.store.registers).read_many(not_done))
        except BookKeeperError as error:
            _log.warning("%d failed tasks may have notes: %s", len(not_done), error.message)
        now_ms = self._context.cluster_ms()
        for ledger_id, note in notes.items():
            # A future time was set by another clock; it would be after the start of every job.
            if since_ms <= note.tried_at_ms <= now_ms:
                failure = not_done.pop(ledger_id).failure
                reason = note.last_error or _reason(failure)
                rows.append(Row(ledger_id, "task", Outcome.LEFT, reason))
        return rows, list(not_done.values())

    def _note(self, failed: Mapping[LedgerId, str]) -> Collection[LedgerId]:
        """Write a note for each failed task, or it would be taken again at once, without end.

        Args:
            failed: the reason for each ledger.

        Returns:
            the ledgers whose task is gone; a lost job may have done it.
        """
        gone: set[LedgerId] = set()
        if not failed:
            return gone
        store, config, now_ms = self._context.store, self._config, self._context.cluster_ms()
        writable = len(writable_of(self._context.bookies.registrations()))

        def failed_again(old: TaskNote, ledger_id: LedgerId, marked: Marked | None) -> TaskNote:
            return old.failed(
                failed[ledger_id],
                None,
                now_ms,
                marked,
                waits_for=(),
                writable=writable,
                first_ms=config.retry_first_ms,
                most_ms=config.retry_most_ms,
            )

        for ledger_id, task in store.underreplication.read_many(failed):
            if task is None:
                gone.add(ledger_id)
                continue
            step = partial(failed_again, ledger_id=ledger_id, marked=as_marked(task))
            Notes(store.registers).change(ledger_id, step)
        return gone


def _reason(failure: Failure) -> str:
    """Return why a task was not done, without advice for a person, because workers retry."""
    if failure.of_job is None:
        return failure.reason
    return f"{failure.of_job}; it is tried again by itself"


def task_step() -> Step[TaskWork, TaskResult]:
    """Return the step that does many tasks, with a limit on copying."""
    return Step("replicating", replicate_task, NotDone, limited, _replicate_some)


def _replicate_some(
    context: ClientContext, works: Sequence[TaskWork], bounds: Bounds
) -> Sequence[Sequence[TaskResult] | None]:
    """Copy small shares of many ledgers in batches, then do each task by itself.

    Each task reads again what its ledger lacks. So nothing is decided here, and no lock is relied
    on: if a lock is lost meanwhile, two workers replicate the ledger, and the compare-and-swap of
    its metadata lets one of them publish.
    """
    tree = context.store.underreplication
    if not tree.is_enabled():
        return [None] * len(works)
    lacking = _lacking(context, works)
    # No callback for results: a copy is reported only when its task is done.
    until = Bounds(bounds.shares, lambda: bounds.is_ending() or not tree.is_enabled())
    done = rereplicate_many(context, list(lacking.values()), until)
    copied = {number: shares for number, shares in zip(lacking, done, strict=True) if shares}

    def finish(number: int) -> Sequence[TaskResult]:
        results: Sequence[TaskResult]
        try:
            results = replicate_task(context, works[number])
        except Exception as error:  # noqa: BLE001  (what was copied is told all the same)
            reason = reason_of(error, f"the task of ledger {works[number].ledger_id}")
            results = [NotDone(works[number], Failure(reason))]
        return [*(share.row() for share in copied[number]), *results]

    numbers = list(copied)
    # A task copies what it still lacks with its own share of a limit, even of one set just now.
    finished = context.runtime.map(finish, numbers, bounds.shares)
    found = dict(zip(numbers, finished, strict=True))
    return [found.get(number) for number in range(len(works))]


def _lacking(context: ClientContext, works: Sequence[TaskWork]) -> dict[int, FragmentWork]:
    """Return each ledger's first fixed fragment that lacks a replica and suits this worker."""
    numbers = {work.ledger_id: number for number, work in enumerate(works)}
    alive = context.bookies.registrations()
    registered = registered_incarnations(alive)
    found: dict[int, FragmentWork] = {}
    for ledger_id, metadata in context.store.read_ledgers(list(numbers)):
        if not isinstance(metadata, Versioned):
            continue
        absent = absent_members(metadata.value, live_members(metadata.value, registered))
        work = works[numbers[ledger_id]]
        for fragment in metadata.value.fragment_ranges():
            is_fixed = fragment.last_entry_id is not None
            if is_fixed and set(absent) & set(fragment.ensemble):
                if work.local in fragment.ensemble:
                    continue  # it is for another bookie's worker
                found[numbers[ledger_id]] = fragment_work(work, metadata.value, fragment, absent)
                break
    return found
