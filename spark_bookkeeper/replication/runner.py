"""Runners carry out a step of a job: in this process, or in the tasks of a Spark job.

An item is a picklable value that says what to do. The step's function does it. That function is at
module level and takes the context of the process in which it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.stragglers import RunningItems, Straggler, with_others
from spark_bookkeeper.runtime.log_facts import during
from spark_bookkeeper.runtime.runtime import Runtime

_log = logging.getLogger(__name__)


ITEMS_TOGETHER: Final = 128
"""The most items in one call of ``Step.do_many``: enough that each pays little of the shared
cost."""


BATCHES_AT_ONCE: Final = 2
"""The most batches that run at once: one waits for disks while another waits for ZooKeeper. They
share the limits of ``width`` items, so there are never more batches than ``width``."""


class Item(Protocol):
    """One piece of work on a ledger: a frozen value that can be pickled.

    It may have ``sources``: the bookies from which it reads.
    """

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger, for the log."""

    def name(self) -> str:
        """Return the name that progress shows for a slow item (``stragglers.name_of``)."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes are to be read or copied, for sharing out work; 0 is unknown."""


class Result(Protocol):
    """The result of one item: a frozen value that can be pickled."""

    @property
    def bytes(self) -> int:
        """The bytes that were read, copied or closed in, for progress."""


ItemT = TypeVar("ItemT", bound=Item)
ItemT_contra = TypeVar("ItemT_contra", bound=Item, contravariant=True)
ResultT = TypeVar("ResultT", bound=Result)
ResultT_co = TypeVar("ResultT_co", bound=Result, covariant=True)

Progress = Callable[[str, int, int, int], None]
"""A callback for progress. Arguments: phase, items done, all items, bytes so far."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The unexpected error that ended an item's work."""

    reason: str
    is_foreign: bool = False
    """Whether the error is not this library's, so that it shows nothing about the cluster."""
    of_job: str | None = None
    """Why the whole job of the item failed; this shows nothing about the item itself. ``reason``
    then also says what the person who runs the job can do."""

    @property
    def cause(self) -> str:
        """The reason without advice to a person, for callers that retry."""
        return self.of_job or self.reason


@dataclass(frozen=True, slots=True)
class NotDone(Generic[ItemT]):
    """An item whose work ended with an error. Picklable."""

    work: ItemT
    failure: Failure
    bytes: int = 0


def never() -> bool:
    """Return False: the default of ``Bounds.is_ending``, for work that never stops early."""
    return False


Told = Callable[[int, Sequence[ResultT]], None]
"""A callback for one finished item, from any thread. Arguments: its number and its results."""


def ignore_progress_of_items(number: int, results: Sequence[Any]) -> None:
    """Do nothing: the default of ``Bounds.told``, for callers that use returned results only."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits and callbacks of one batch of items."""

    shares: int = 1
    """The batch may use as much of a limit as this many items that are done one by one."""
    is_ending: Callable[[], bool] = never
    """Returns whether to leave items that are not begun."""
    told: Told[Any] = ignore_progress_of_items
    """The callback for finished items. It may be called before the whole batch is done."""


class DoMany(Protocol[ItemT_contra, ResultT_co]):
    """A function that does a batch: it returns each item's results, or ``None`` to do it singly."""

    def __call__(
        self, context: ClientContext, items: Sequence[ItemT_contra], bounds: Bounds, /
    ) -> Sequence[Sequence[ResultT_co] | None]:
        """Do the items in any process. A repetition changes nothing."""


@dataclass(frozen=True, slots=True)
class Step(Generic[ItemT, ResultT_co]):
    """One kind of work. Picklable when its functions are."""

    phase: str
    """The name of the step in progress messages, such as ``copying fragments``."""
    do: Callable[[ClientContext, ItemT], Sequence[ResultT_co]]
    """Does one item, in any process. An item may be done twice, and items may be done in any order;
    a repetition changes nothing."""
    failed: Callable[[ItemT, Failure], ResultT_co]
    """Returns the result of an item whose work ended with an error."""
    limited: Callable[[ItemT, int], ItemT] | None = None
    """Returns the item with its share of a limit, in bytes per second; ``None``: without limits."""
    do_many: DoMany[ItemT, ResultT_co] | None = None
    """Does a batch of items, where that is cheaper than one by one."""
    is_computing: bool = False
    """Whether an item computes for so long that it is worth a Spark task, and waits for no bookie.
    A process does one such item at a time, because Python's threads share one processor."""
    shares_with_neighbours: bool = False
    """Whether neighbouring items read the same files and none is urgent. Then a Spark task gets
    neighbours, instead of items from the whole plan."""
    job: str | None = None
    """The name of the job, for the log; ``Job.run`` fills it in."""


def limited(item: ItemT, bytes_per_second: int) -> ItemT:
    """Return the item with its share of a limit, in its field ``bytes_per_second``."""
    work: Any = item  # the type checker cannot say "a dataclass that has this field"
    changed: ItemT = replace(work, bytes_per_second=bytes_per_second)
    return changed


def no_progress(phase: str, done: int, total: int, size_bytes: int) -> None:
    """Report nothing."""


def reason_of(error: Exception, what: str) -> str:
    """Return the reason of a failure, for a report; log a foreign error with its traceback.

    Args:
        what: the work that failed, for the log.
    """
    if isinstance(error, BookKeeperError):
        return error.message
    _log.error("%s ended with an error that nobody expected", what, exc_info=error)
    return f"{type(error).__name__}: {error}"


def log_batch_fallback(error: Exception, what: str) -> None:
    """Log why a batch failed and its items are done one by one."""
    if isinstance(error, BookKeeperError):
        _log.warning("%s together: %s; each is done by itself", what, error.message)
    else:
        reason_of(error, f"{what} together")


def carry_out(
    step: Step[ItemT, ResultT], context: ClientContext, item: ItemT, under_way: RunningItems
) -> Sequence[ResultT]:
    """Do one item; an error becomes a result that says what is left undone, and why.

    A failing item must stop neither the other items nor the report. So this catches foreign errors
    too; only exceptions that end a process end a job.
    """
    with during(job=step.job, ledger_id=item.ledger_id), under_way.doing(item.name):
        try:
            return step.do(context, item)
        except Exception as error:  # noqa: BLE001  (a fault of ours becomes a result that names it)
            reason = reason_of(error, f"{step.phase}: {item!r}")
            return [step.failed(item, Failure(reason, not isinstance(error, BookKeeperError)))]


def carry_out_many(
    step: Step[ItemT, ResultT],
    context: ClientContext,
    items: Sequence[ItemT],
    width: int,
    under_way: RunningItems,
    done: Callable[[Sequence[ResultT]], None] = lambda _: None,
    runtime: Runtime | None = None,
) -> list[Sequence[ResultT]]:
    """Do many items: in batches where the step can, the others ``width`` at a time.

    Args:
        under_way: records which items begin and end.
        done: called with the results of each item, by any thread.
        runtime: starts the threads; by default the runtime of ``context``.

    Returns:
        the results of each item, in the order of ``items``.
    """
    runtime = runtime or context.runtime
    found: dict[int, Sequence[ResultT]] = {}
    if (do_many := step.do_many) is not None and len(items) > 1:
        batches = -(-len(items) // ITEMS_TOGETHER)
        size = -(-len(items) // batches)  # batches of equal size, because two run at once
        at_once = min(BATCHES_AT_ONCE, batches, width)
        is_ending = False
        bounds = Bounds(min(width, len(items)) // at_once, lambda: is_ending)

        def end() -> None:
            nonlocal is_ending
            is_ending = True

        def carry_out_some(start: int) -> None:
            def hear(number: int, results: Sequence[ResultT]) -> None:
                found[start + number] = results
                done(results)

            some = items[start : start + size]
            heard = replace(bounds, told=hear)
            told = _together(do_many, step, context, some, under_way, heard)
            for number, results in enumerate(told):
                if results is not None and start + number not in found:
                    hear(number, results)

        starts = list(range(0, len(items), size))
        runtime.map(carry_out_some, starts, at_once, on_interrupt=end)

    def carry_out_one(number: int) -> Sequence[ResultT]:
        results = carry_out(step, context, items[number], under_way)
        done(results)
        return results

    left = [number for number in range(len(items)) if number not in found]
    found.update(zip(left, runtime.map(carry_out_one, left, width), strict=True))
    return [found[number] for number in range(len(items))]


def _together(
    do_many: DoMany[ItemT, ResultT],
    step: Step[ItemT, ResultT],
    context: ClientContext,
    items: Sequence[ItemT],
    under_way: RunningItems,
    bounds: Bounds,
) -> Sequence[Sequence[ResultT] | None]:
    def name() -> str:
        return with_others(items[0].name(), len(items) - 1)

    with during(job=step.job), under_way.doing(name, len(items)):
        try:
            return do_many(context, items, bounds)
        except Exception as error:  # noqa: BLE001  (each of them finds out for itself what it is)
            log_batch_fallback(error, f"{step.phase}: {len(items)} items")
            return [None] * len(items)


class Runner(Protocol):
    """Carries out items: each at least once, in any order."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether other processes call the bookies; they report nothing before they end."""

    @property
    def width(self) -> int:
        """The most items that run at once; a limit is shared out among so many."""

    def slowest(self) -> Sequence[Straggler]:
        """Return the running items that take long compared with the others, the longest first."""

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        """Yield the results of all items. An item whose process died is done again elsewhere.

        Args:
            items: few enough to fit in memory (``job.GROUP_ITEMS``).
        """


class LocalRunner:
    """Carries out a few items at a time in this process.

    Args:
        width: how many; ``None`` takes ``job_items_at_once`` of the configuration.
    """

    is_elsewhere: Final = False

    def __init__(self, context: ClientContext, width: int | None = None) -> None:
        self._context = context
        self._width = context.config.job_items_at_once if width is None else width
        self._under_way = RunningItems(context.runtime)

    @property
    def width(self) -> int:
        return self._width

    def slowest(self) -> Sequence[Straggler]:
        return self._under_way.slowest()

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        done = size = 0
        counting = self._context.runtime.condition()
        progress(step.phase, 0, len(items), 0)  # the first items may take long

        def count(results: Sequence[ResultT]) -> None:
            nonlocal done, size
            with counting:
                done += 1
                size += sum(result.bytes for result in results)
                progress(step.phase, done, len(items), size)

        at_once = width = 1 if step.is_computing else self._width
        if step.do_many is not None:
            at_once = ITEMS_TOGETHER * BATCHES_AT_ONCE
        for start in range(0, len(items), at_once):
            batch = items[start : start + at_once]
            for results in carry_out_many(
                step, self._context, batch, width, self._under_way, count
            ):
                yield from results
