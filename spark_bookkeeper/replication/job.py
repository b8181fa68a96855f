"""The frame of a job: a plan goes in, results come out, and a report shows them.

What a job adds is one module: the item, the plan that yields items, the function that does one,
and its result with the row that shows it. ``README.md`` beside this file has the smallest one.
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
        *,
        group_items: int | None = None,
    ) -> Iterator[ResultT]:
        """Do what a plan says, and hand on the results as they come.

        The plan is read as far as the next ``GROUP_ITEMS`` items, and neither these nor their
        results are kept: with a plan that is a generator, memory does not grow with the job.

        Args:
            total: how many items there are, about; ``None`` is not known before they are planned.
            group_items: instead of ``GROUP_ITEMS``, where an item or its result is large.
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
        """The rows of all results, by ledger, fragment and bookie.

        Where they are too many to be kept in memory, in the order in which they came.
        """
        rows = report_rows(result.row() for result in results)
        duration_ms = round((self._context.runtime.now() - self._started) * 1000)
        return kind(self._name, rows, dry_run, duration_ms, columns=columns)

    def _limited(self, step: Step[ItemT, ResultT], items: list[ItemT], total: int) -> list[ItemT]:
        """The items with the limit shared out among as many as are under way at once."""
        if self._bytes_per_second is None or step.limited is None:
            return items
        # The width may be known only when Spark has started, and that takes its time.
        self._progress(step.phase, 0, total, 0)
        share = max(1, self._bytes_per_second // min(self._runner.width, len(items)))
        return [step.limited(item, share) for item in items]


def wanted_ids(context: ClientContext, ledger_ids: Sequence[LedgerId] | None) -> Sequence[LedgerId]:
    """The ids of the ledgers that are meant, all of them for ``None``: eight bytes each."""
    if ledger_ids is not None:
        return ledger_ids
    return cast(Sequence[LedgerId], array("q", context.store.ledger_ids()))
