"""Many tasks at a time: small copies of many ledgers are made together, and each task is its own.

Source: Bookie Ledger Recovery, "ReplicationWorker"; SLOT-LOG rules R13, R17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from spark_bookkeeper.autorecovery.replication import TaskWork, fragment_work, replicate_task
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.underreplication import absent_members
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.rereplicate import FragmentWork
from spark_bookkeeper.replication.rereplicate_many import rereplicate_many
from spark_bookkeeper.replication.runner import (
    Bounds,
    Failure,
    NotDone,
    Step,
    limited,
    reason_of,
)

TaskResult: TypeAlias = Row | NotDone[TaskWork]
"""What is told of a task: rows, or that its attempt ended before it could leave a note."""


def task_step() -> Step[TaskWork, TaskResult]:
    """The doing of many tasks, with a limit on what is copied."""
    return Step("replicating", replicate_task, NotDone, limited, _replicate_some)


def _replicate_some(
    context: ClientContext, works: Sequence[TaskWork], bounds: Bounds
) -> Sequence[Sequence[TaskResult] | None]:
    """Copy small shares of many ledgers together, then do each task by itself. That reads again
    what its ledger lacks, and reports on it, so nothing is decided here and no lock is relied on:
    where a lock is lost in the middle, two workers replicate the ledger, and the compare-and-swap
    of its metadata takes one of them.
    """
    tree = context.store.underreplication
    if not tree.is_enabled():
        return [None] * len(works)
    lacking = _lacking(context, works)
    until = replace(bounds, is_ending=lambda: bounds.is_ending() or not tree.is_enabled())
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
    # What a task still finds to copy, it copies with its own share of a limit, be it set just now.
    finished = context.runtime.map(finish, numbers, bounds.shares)
    found = dict(zip(numbers, finished, strict=True))
    return [found.get(number) for number in range(len(works))]


def _lacking(context: ClientContext, works: Sequence[TaskWork]) -> dict[int, FragmentWork]:
    """The first fragment of each ledger that has an end, lacks a replica, and can be helped."""
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
