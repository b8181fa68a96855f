"""The frame of a job: a plan goes in, results come out, and a report shows them.

What a job adds is one module: the item, the plan that yields items, the function that does one,
and its result with the row that shows it. ``README.md`` beside this file has the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.replication.report import Report, Row
from spark_bookkeeper.replication.runner import (
    ItemT,
    Progress,
    Result,
    ResultT,
    ResultT_co,
    Runner,
    Step,
    no_progress,
)

GROUP_ITEMS: Final = 4096
"""So many items are planned, done and forgotten at a time. On Spark they are one Spark job, and
travel in its closure."""

ReportT = TypeVar("ReportT", bound=Report)


class Reported(Result, Protocol):
    """A result that a report shows."""

    def row(self) -> Row:
        """How it is shown."""


@dataclass(frozen=True, slots=True)
class Known(Generic[ResultT_co]):
    """What a plan says of something for which there is nothing to do."""

    result: ResultT_co


class Job:
    """One run of a job, from now on.

    Args:
        name: in reports, and on Spark's pages.
        bytes_per_second: limit for all of its steps that heed one; ``None`` is none.
    """

    def __init__(
        self,
        name: str,
        context: ClientContext,
        runner: Runner,
        progress: Progress = no_progress,
        bytes_per_second: int | None = None,
    ) -> None:
        self._name = name
        self._context = context
        self._runner = runner
        self._progress = progress
        self._bytes_per_second = bytes_per_second
        self._started = context.runtime.now()

    def run(
        self,
        step: Step[ItemT, ResultT],
        plan: Iterable[ItemT | Known[ResultT]],
        total: int | None = None,
    ) -> Iterator[ResultT]:
        """Do what a plan says, and hand on the results as they come.

        The plan is read as far as the next ``GROUP_ITEMS`` items, and neither these nor their
        results are kept: with a plan that is a generator, memory does not grow with the job.

        Args:
            total: how many items there are, about; ``None`` is not known before they are planned.
        """
        if total is None:
            total = len(plan) if isinstance(plan, Sized) else 0
        planned = iter(plan)
        before = size = 0
        while True:
            items: list[ItemT] = []
            known: list[ResultT] = []
            for each in islice(planned, GROUP_ITEMS):
                if isinstance(each, Known):
                    known.append(each.result)
                else:
                    items.append(each)
            yield from known
            if items:
                total = max(total, before + len(items))
                for result in self._runner.run(
                    step, self._limited(step, items, total), self._counted(before, total, size)
                ):
                    size += result.bytes
                    yield result
                before += len(items)
            elif not known:
                return

    def report(
        self,
        kind: type[ReportT],
        results: Iterable[Reported],
        *,
        dry_run: bool = False,
        columns: type[Row] = Row,
    ) -> ReportT:
        """The rows of all results, by ledger, fragment and bookie."""
        rows = [result.row() for result in results]
        rows.sort(key=lambda row: (row.ledger_id, row.first_entry_id or 0, row.source or ""))
        duration_ms = round((self._context.runtime.now() - self._started) * 1000)
        return kind(self._name, tuple(rows), dry_run, duration_ms, columns=columns)

    def _limited(self, step: Step[ItemT, ResultT], items: list[ItemT], total: int) -> list[ItemT]:
        """The items with the limit shared out among as many as are under way at once."""
        if self._bytes_per_second is None or step.limited is None:
            return items
        # The width may be known only when Spark has started, and that takes its time.
        self._progress(step.phase, 0, total, 0)
        share = max(1, self._bytes_per_second // min(self._runner.width, len(items)))
        return [step.limited(item, share) for item in items]

    def _counted(self, before: int, total: int, size_before: int) -> Progress:
        """Progress of one group, told as that of the whole step."""
        if self._progress is no_progress:
            return no_progress

        def tell(phase: str, done: int, _: int, size_bytes: int) -> None:
            self._progress(phase, before + done, total, size_before + size_bytes)

        return tell


def nothing_done(
    plan: Iterable[ItemT | Known[ResultT]], planned: Callable[[ItemT], ResultT]
) -> Iterator[ResultT]:
    """What a dry run shows of a plan: nothing is changed.

    Args:
        planned: what is said of an item.
    """
    for each in plan:
        yield each.result if isinstance(each, Known) else planned(each)
