"""The frame of a job: a plan goes in, results come out, and a report shows them.

Each job adds one module: the item, the plan that yields items, the function that does one item, and
the result with its row. ``README.md`` in this folder shows the smallest job.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar, cast

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.progress_reporter import telling
from spark_bookkeeper.replication.report import Report, Row, report_rows
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
"""The number of items that are planned, done and forgotten at a time. On Spark they are one Spark
job, and are sent in its closure."""

ReportT = TypeVar("ReportT", bound=Report)


class Reported(Result, Protocol):
    """A result that a report shows."""

    def row(self) -> Row:
        """Return the row that shows this result."""


@dataclass(frozen=True, slots=True)
class Known(Generic[ResultT_co]):
    """A result that the plan already knows, because there is nothing to do."""

    result: ResultT_co


class Job:
    """One run of a job; its duration counts from the construction.

    Args:
        name: the name in reports, and on Spark's pages.
        bytes_per_second: the limit for each step that can be limited; ``None`` is no limit.
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
        *,
        group_items: int | None = None,
    ) -> Iterator[ResultT]:
        """Do the items of a plan, and yield the results as they come.

        This reads ``GROUP_ITEMS`` items of the plan at a time, and keeps neither items nor results.
        With a generator as plan, memory does not grow with the job.

        Args:
            total: about how many items there are; ``None`` if unknown before they are planned.
            group_items: replaces ``GROUP_ITEMS`` where an item or its result is large.
        """
        if total is None:
            total = len(plan) if isinstance(plan, Sized) else 0
        planned = iter(plan)
        step = replace(step, job=self._name)
        before = size = 0
        while True:
            items: list[ItemT] = []
            known: list[ResultT] = []
            for each in islice(planned, group_items or GROUP_ITEMS):
                if isinstance(each, Known):
                    known.append(each.result)
                else:
                    items.append(each)
            yield from known
            if items:
                total = max(total, before + len(items))
                limited = self._limited(step, items, total)
                with telling(
                    self._progress,
                    self._context,
                    self._runner.slowest,
                    step.phase,
                    total,
                    before,
                    size,
                    is_elsewhere=self._runner.is_elsewhere and not step.is_computing,
                ) as progress:
                    for result in self._runner.run(step, limited, progress):
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
        """Return a report of all results, by ledger, fragment and bookie.

        Rows that are too many for memory stay in the order in which they came.
        """
        rows = report_rows(result.row() for result in results)
        duration_ms = round((self._context.runtime.now() - self._started) * 1000)
        return kind(self._name, rows, dry_run, duration_ms, columns=columns)

    def _limited(self, step: Step[ItemT, ResultT], items: list[ItemT], total: int) -> list[ItemT]:
        """Return the items, each with its share of the limit: those that run at once divide it."""
        if self._bytes_per_second is None or step.limited is None:
            return items
        # The runner may know its width only once Spark has started, so progress is shown first.
        self._progress(step.phase, 0, total, 0)
        share = max(1, self._bytes_per_second // min(self._runner.width, len(items)))
        return [step.limited(item, share) for item in items]


def wanted_ids(context: ClientContext, ledger_ids: Sequence[LedgerId] | None) -> Sequence[LedgerId]:
    """Return the ids of the selected ledgers; ``None`` selects all, at eight bytes each."""
    if ledger_ids is not None:
        return ledger_ids
    return cast(Sequence[LedgerId], array("q", context.store.ledger_ids()))
