"""Who carries out a step of a job: this process, or the tasks of a Spark job.

An item is a picklable value that says what to do; the function of the step that does it is a
module-level one that takes the context of the process it finds itself in.
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
"""How many items a step does together: enough that the cost of what they share is small for
each."""


BATCHES_AT_ONCE: Final = 2
"""One waits for disks while another waits for ZooKeeper. They share what a limit gives to the items
that would be under way without them, so there are never more of them than of these."""


class Item(Protocol):
    """One piece of work on a ledger: a frozen value that can be pickled.

    It may have ``sources``: the bookies that it is read from.
    """

    @property
    def ledger_id(self) -> LedgerId:
        """Of the ledger, for the log."""

    def name(self) -> str:
        """What people are told that it is (``stragglers.name_of``), when it takes long."""

    @property
    def size_bytes(self) -> int:
        """About how much is to be read or copied, so that work can be shared out; 0: not known."""


class Result(Protocol):
    """What a piece of work came to: a frozen value that can be pickled."""

    @property
    def bytes(self) -> int:
        """That were read, copied or closed in, for progress."""


ItemT = TypeVar("ItemT", bound=Item)
ItemT_contra = TypeVar("ItemT_contra", bound=Item, contravariant=True)
ResultT = TypeVar("ResultT", bound=Result)
ResultT_co = TypeVar("ResultT_co", bound=Result, covariant=True)

Progress = Callable[[str, int, int, int], None]
"""Called with phase, items done, items in all, bytes so far."""


@dataclass(frozen=True, slots=True)
class Failure:
    """That a piece of work ended with an error that it did not expect."""

    reason: str
    is_foreign: bool = False
    """Whether the error is none of this library's, so that it says nothing of the cluster."""
    of_job: str | None = None
    """Why the whole job failed that the work was in: it says nothing of the work itself. The reason
    also has what somebody who runs that job can do."""

    @property
    def cause(self) -> str:
        """The reason, for what goes on by itself."""
        return self.of_job or self.reason


@dataclass(frozen=True, slots=True)
class NotDone(Generic[ItemT]):
    """A piece of work that ended with an error. Picklable."""

    work: ItemT
    failure: Failure
    bytes: int = 0


def never() -> bool:
    """Of what does not end before it is done."""
    return False


Told = Callable[[int, Sequence[ResultT]], None]
"""Called with the number of an item that is done, and its results; any thread calls."""


def told_nobody(number: int, results: Sequence[Any]) -> None:
    """Of what is told at the end only."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What items that are done together keep to, beside others, and whom they tell."""

    shares: int = 1
    """Of a limit they have as much as so many items that are done by themselves."""
    is_ending: Callable[[], bool] = never
    """Whether what is not begun yet is to be left."""
    told: Told[Any] = told_nobody
    """May hear of items that are done before all of them are."""


class DoMany(Protocol[ItemT_contra, ResultT_co]):
    """Does items together: the results of each, or ``None`` where it is to be done by itself."""

    def __call__(
        self, context: ClientContext, items: Sequence[ItemT_contra], bounds: Bounds, /
    ) -> Sequence[Sequence[ResultT_co] | None]:
        """In whatever process; repeating it changes nothing."""


@dataclass(frozen=True, slots=True)
class Step(Generic[ItemT, ResultT_co]):
    """One kind of work. Picklable when its functions are."""

    phase: str
    """What progress calls it: ``copying fragments``."""
    do: Callable[[ClientContext, ItemT], Sequence[ResultT_co]]
    """Does one item, in whatever process; repeating it changes nothing. An item may be done twice,
    and in any order with others."""
    failed: Callable[[ItemT, Failure], ResultT_co]
    """The result of an item whose work ended with an error."""
    limited: Callable[[ItemT, int], ItemT] | None = None
    """The item with its share of a limit, in bytes per second; ``None``: it heeds no limit."""
    do_many: DoMany[ItemT, ResultT_co] | None = None
    """Does many items, where that is cheaper than one by one."""
    is_computing: bool = False
    """Whether an item keeps a processor busy, for so long that it is worth a task of Spark, and
    waits for no bookie. A process does one at a time: Python's threads share one processor."""
    shares_with_neighbours: bool = False
    """Whether items that lie side by side read the same files, and none is urgent: on Spark a task
    does such then, instead of some from everywhere."""
    job: str | None = None
    """The name of the job, for the log; a run of the job fills it in."""


def limited(item: ItemT, bytes_per_second: int) -> ItemT:
    """An item of work with its share of a limit, which it keeps under this name."""
    work: Any = item  # the type checker cannot say "a dataclass that has this field"
    changed: ItemT = replace(work, bytes_per_second=bytes_per_second)
    return changed


def no_progress(phase: str, done: int, total: int, size_bytes: int) -> None:
    """Says nothing."""


def reason_of(error: Exception, what: str) -> str:
    """Why something is not done, for a report; of an error that is not ours the log has it all.

    Args:
        what: that was being done, for the log.
    """
    if isinstance(error, BookKeeperError):
        return error.message
    _log.error("%s ended with an error that nobody expected", what, exc_info=error)
    return f"{type(error).__name__}: {error}"


def told_apart(error: Exception, what: str) -> None:
    """Say in the log why items that were to be done together are done one by one."""
    if isinstance(error, BookKeeperError):
        _log.warning("%s together: %s; each is done by itself", what, error.message)
    else:
        reason_of(error, f"{what} together")


def carry_out(
    step: Step[ItemT, ResultT], context: ClientContext, item: ItemT, under_way: RunningItems
) -> Sequence[ResultT]:
    """Do one piece of work; an error becomes a result that says what is left, and why.

    One piece that fails must not take the others with it, nor the account of what was done. So
    this holds for errors that are not ours too; only what ends a process ends a job.
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
    """Do many pieces of work, together where the step can, the others ``width`` at a time.

    Args:
        under_way: is told what is begun and ended.
        done: told the results of each item, by any thread.
        runtime: in whose tasks they are done, where that is not the one that each is given.

    Returns:
        the results of each item, in their order.
    """
    runtime = runtime or context.runtime
    found: dict[int, Sequence[ResultT]] = {}
    if (do_many := step.do_many) is not None and len(items) > 1:
        batches = -(-len(items) // ITEMS_TOGETHER)
        size = -(-len(items) // batches)  # as large as each other: two are under way at once
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
            told_apart(error, f"{step.phase}: {len(items)} items")
            return [None] * len(items)


class Runner(Protocol):
    """Carries out items, each at least once, in any order."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the bookies are asked by other processes, which tell nothing before they end."""

    @property
    def width(self) -> int:
        """How many items are under way at once, at the most; limits are shared out by it."""

    def slowest(self) -> Sequence[Straggler]:
        """Items under way that take long compared with the others, the longest first."""

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        """The results of all items. An item whose process died is done again elsewhere.

        Args:
            items: so few that they fit in memory (``job.GROUP_ITEMS``).
        """


class LocalRunner:
    """In this process, a few items at a time.

    Args:
        width: how many; ``None`` is what the configuration says (``job_items_at_once``).
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
