"""The work of a check in lots: given out together, and what Spark does not do is done here.

A lot is what nobody can be asked about before it is done, where Spark does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from spark_bookkeeper.autorecovery.publishing import Heed
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.runner import (
    Failure,
    ItemT,
    LocalRunner,
    NotDone,
    ResultT,
    Runner,
    Step,
    reason_of,
)

_log = logging.getLogger(__name__)

LOT_SECONDS: Final = 30
"""What a limit lets read in so long is given out at once, and then it is asked whether to go on:
Spark's tasks cannot be asked in the middle."""

LOT_BYTES: Final = 4 << 30
"""More than that is not given out at once, also where there is no limit."""


class ScanBatches:
    """One check's work, lot by lot.

    Args:
        name: of the job.
        bytes_per_second: limit on what is read; ``None`` is none.
        heed: asked before this process does what Spark did not do.
    """

    def __init__(
        self,
        context: ClientContext,
        runner: Runner,
        name: str,
        bytes_per_second: int | None,
        heed: Heed,
    ) -> None:
        self._context = context
        self._runner = runner
        self._name = name
        self._bytes_per_second = bytes_per_second
        self._heed = heed
        self.failure: str | None = None
        """Why nothing of some lot was done; that is not for its ledgers to answer for."""

    def run(
        self, works: Iterable[ItemT], step: Step[ItemT, ResultT], here: Step[ItemT, ResultT]
    ) -> Iterator[ResultT | NotDone[ItemT]]:
        """The results of all works. What is ``NotDone`` was not done by this process either.

        Args:
            here: the step where this process does it.

        Raises:
            MetadataError: nothing can be done, since the metadata store does not answer.
        """
        for lot in self._cut(works):
            yield from self._lot(lot, step, here)

    def _cut(self, works: Iterable[ItemT]) -> Iterator[list[ItemT]]:
        limit = self._bytes_per_second
        most_bytes = LOT_BYTES if limit is None else min(limit * LOT_SECONDS, LOT_BYTES)
        lot: list[ItemT] = []
        size = 0
        for work in works:
            if lot and size + work.size_bytes > most_bytes:
                yield lot
                lot, size = [], 0
            lot.append(work)
            size += work.size_bytes
        if lot:
            yield lot

    def _lot(
        self, lot: list[ItemT], step: Step[ItemT, ResultT], here: Step[ItemT, ResultT]
    ) -> Iterator[ResultT | NotDone[ItemT]]:
        left: Sequence[ItemT] = lot
        runner = self._runner
        if runner.is_elsewhere:
            done, left = self._elsewhere(lot, step)
            yield from done
            if not left:
                return
            self._heed()
            runner = LocalRunner(self._context)
        failed: list[NotDone[ItemT]] = []
        for result in self._run(runner, here, left):
            if isinstance(result, NotDone):
                # Without an answer the next ones would only wait for it.
                self._context.store.underreplication.is_enabled()
                failed.append(result)
            yield result
        # Of one ledger alone it may be the ledger, at which a check would begin anew for ever.
        if len(failed) == len(lot) and len({each.work.ledger_id for each in failed}) > 1:
            self.failure = self.failure or failed[0].failure.reason

    def _elsewhere(
        self, lot: list[ItemT], step: Step[ItemT, ResultT]
    ) -> tuple[Sequence[ResultT], Sequence[ItemT]]:
        """What was done of a lot, and what is left of it."""
        done: list[ResultT] = []
        left: list[ItemT] = []
        reason = ""
        try:
            for result in self._run(self._runner, step, lot):
                if isinstance(result, NotDone):
                    left.append(result.work)
                    reason = result.failure.cause
                else:
                    done.append(result)
        except Exception as error:  # noqa: BLE001  (also when the JVM of Spark has ended)
            done, left, reason = [], lot, reason_of(error, self._name)
        if left:
            _log.warning(
                "%d of %d were not done by Spark, and are done here: %s",
                len(left),
                len(lot),
                reason,
            )
        return done, left

    def _run(
        self, runner: Runner, step: Step[ItemT, ResultT], lot: Sequence[ItemT]
    ) -> Iterator[ResultT | NotDone[ItemT]]:
        failed: Callable[[Any, Failure], Any] = NotDone
        telling: Step[ItemT, ResultT | NotDone[ItemT]] = replace(step, failed=failed)
        job = Job(self._name, self._context, runner, bytes_per_second=self._bytes_per_second)
        yield from job.run(telling, lot)
