"""Who carries out a step of a job: this process, or the tasks of a Spark job.

An item is a picklable value that says what to do; the function of the step that does it is a
module-level one that takes the context of the process it finds itself in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError

_log = logging.getLogger(__name__)


class Item(Protocol):
    """One piece of work: a frozen value that can be pickled."""

    @property
    def size_bytes(self) -> int:
        """About how much is to be read or copied, so that work can be shared out; 0: not known."""


class Result(Protocol):
    """What a piece of work came to: a frozen value that can be pickled."""

    @property
    def bytes(self) -> int:
        """That were read, copied or closed in, for progress."""


ItemT = TypeVar("ItemT", bound=Item)
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


def carry_out(step: Step[ItemT, ResultT], context: ClientContext, item: ItemT) -> Sequence[ResultT]:
    """Do one piece of work; an error becomes a result that says what is left, and why.

    One piece that fails must not take the others with it, nor the account of what was done. So
    this holds for errors that are not ours too; only what ends a process ends a job.
    """
    try:
        return step.do(context, item)
    except Exception as error:  # noqa: BLE001  (a fault of ours becomes a result that names it)
        reason = reason_of(error, f"{step.phase}: {item!r}")
        return [step.failed(item, Failure(reason, not isinstance(error, BookKeeperError)))]


class Runner(Protocol):
    """Carries out items, each at least once, in any order."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the bookies are asked by other processes, which tell nothing before they end."""

    @property
    def width(self) -> int:
        """How many items are under way at once, at the most; limits are shared out by it."""

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

    @property
    def width(self) -> int:
        return self._width

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        done = size = 0
        counting = self._context.runtime.condition()
        progress(step.phase, 0, len(items), 0)  # the first items may take long

        def carry_out_one(item: ItemT) -> Sequence[ResultT]:
            nonlocal done, size
            results = carry_out(step, self._context, item)
            with counting:
                done += 1
                size += sum(result.bytes for result in results)
                progress(step.phase, done, len(items), size)
            return results

        for start in range(0, len(items), self._width):
            batch = list(items[start : start + self._width])
            for results in self._context.runtime.map(carry_out_one, batch, self._width):
                yield from results
