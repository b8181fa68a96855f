"""Who carries out pieces of work: this process, or the tasks of a Spark job.

A piece of work is a picklable value with a pure description of what to do; the function that
does it is a module-level one that takes the context of the process it finds itself in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar, cast

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.runtime.bell import Bell

_log = logging.getLogger(__name__)

TELL_SECONDS: Final = 2.0
"""Between two looks for bookies that are waited for."""

Item = TypeVar("Item")
Work = Callable[[ClientContext, Item], Sequence[Row]]
Progress = Callable[[str, int, int, int], None]
"""Called with phase, items done, items in all, bytes so far."""


def no_progress(phase: str, done: int, total: int, size_bytes: int) -> None:
    """Says nothing."""


def left(item: object, reason: str) -> Row:
    """The row of an item whose work ended with an error that it did not expect.

    Items are ledger ids, or values with ``ledger_id``, ``action`` and perhaps ``first_entry_id``.
    """
    ledger_id = item if isinstance(item, int) else getattr(item, "ledger_id", -1)
    action = getattr(item, "action", "recover")
    return Row(ledger_id, action, "left", reason, getattr(item, "first_entry_id", None))


def reason_of(error: Exception, what: str) -> str:
    """Why something is not done, for a row; of an error that is not ours the log has it all.

    Args:
        what: that was being done, for the log.
    """
    if isinstance(error, BookKeeperError):
        return error.message
    _log.error("%s ended with an error that nobody expected", what, exc_info=error)
    return f"{type(error).__name__}: {error}"


def carry_out(work: Work[Item], context: ClientContext, item: Item) -> Sequence[Row]:
    """Do one piece of work; an error becomes a row that says what is left, and why.

    One piece that fails must not take the others with it, nor the account of what was done. So
    this holds for errors that are not ours too; only what ends a process ends a job.
    """
    try:
        return work(context, item)
    except Exception as error:  # noqa: BLE001  (a fault of ours becomes a row that names it)
        row = left(item, reason_of(error, f"{getattr(work, '__name__', 'work')} on {item!r}"))
        is_unknown = row.action == "check" and not isinstance(error, BookKeeperError)
        return [replace(row, status="unreadable") if is_unknown else row]


def limited(items: Sequence[Item], bytes_per_second: int | None, runner: Runner) -> list[Item]:
    """The items with a limit for all of them shared out: no more than the runner's ``width`` of
    them are under way at once. They are dataclasses with a field ``bytes_per_second``.
    """
    if bytes_per_second is None or not items:
        return list(items)
    share = max(1, bytes_per_second // min(runner.width, len(items)))
    return [replace(cast(Any, item), bytes_per_second=share) for item in items]


class Runner(Protocol):
    """Runs ``work`` over items, each at least once, in any order."""

    @property
    def width(self) -> int:
        """How many items are under way at once, at the most; limits are shared out by it."""

    def run(
        self, phase: str, items: Sequence[Item], work: Work[Item], progress: Progress
    ) -> Iterator[Row]:
        """The rows of all items. An item whose process died is run again elsewhere."""


class LocalRunner:
    """In this process, a few items at a time."""

    def __init__(self, context: ClientContext, width: int = 8) -> None:
        self._context = context
        self._width = width

    @property
    def width(self) -> int:
        return self._width

    def run(
        self, phase: str, items: Sequence[Item], work: Work[Item], progress: Progress
    ) -> Iterator[Row]:
        done = size = 0
        counting = self._context.runtime.condition()
        progress(phase, 0, len(items), 0)  # the first items may take long, and the total is known

        def carry_out_one(item: Item) -> Sequence[Row]:
            nonlocal done, size
            rows = carry_out(work, self._context, item)
            with counting:
                done += 1
                size += sum(row.bytes for row in rows)
                progress(phase, done, len(items), size)
            return rows

        def tell(waiting: str) -> None:
            with counting:
                progress(f"{phase}, {waiting}", done, len(items), size)

        ended = Bell(self._context.runtime)
        if progress is not no_progress:
            self._context.runtime.spawn("waiting", lambda: self._tell(tell, ended))
        try:
            for start in range(0, len(items), self._width):
                batch = list(items[start : start + self._width])
                for rows in self._context.runtime.map(carry_out_one, batch, self._width):
                    yield from rows
        finally:
            ended.ring()

    def _tell(self, tell: Callable[[str], None], ended: Bell) -> None:
        """Name who is waited for, now and then."""
        while not ended.wait(TELL_SECONDS):
            silent = sorted(self._context.bookies.silent())
            if silent:
                waiting = " and ".join(f"{bookie} for {s:.0f} s" for bookie, _, s in silent)
                tell(f"waiting for {waiting}")
