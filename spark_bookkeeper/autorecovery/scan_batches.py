"""The work of a check, cut into batches; this process does the items that Spark does not do.

On Spark, a batch runs to its end: nothing can stop it on the way.
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

BATCH_SECONDS: Final = 30
"""A batch is as large as a limit allows in this time. Between batches ``heed`` is called, because
Spark's tasks cannot be stopped on the way."""

BATCH_BYTES: Final = 4 << 30
"""The most bytes in a batch, also where there is no limit."""


class ScanBatches:
    """The work of one check, batch by batch.

    Args:
        name: the name of the job.
        bytes_per_second: the limit on reading; ``None`` is no limit.
        heed: called before this process does the items that Spark did not do.
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
        """Why no item of some batch was done; the ledgers are not the cause."""

    def run(
        self, works: Iterable[ItemT], step: Step[ItemT, ResultT], here: Step[ItemT, ResultT]
    ) -> Iterator[ResultT | NotDone[ItemT]]:
        """Yield the results of all works. A work that is ``NotDone`` failed in this process too.

        Args:
            here: the step for work in this process.

        Raises:
            MetadataError: the metadata store does not answer, so nothing can be done.
        """
        for batch in self._cut(works):
            yield from self._batch(batch, step, here)

    def _cut(self, works: Iterable[ItemT]) -> Iterator[list[ItemT]]:
        limit = self._bytes_per_second
        most_bytes = BATCH_BYTES if limit is None else min(limit * BATCH_SECONDS, BATCH_BYTES)
        batch: list[ItemT] = []
        size = 0
        for work in works:
            if batch and size + work.size_bytes > most_bytes:
                yield batch
                batch, size = [], 0
            batch.append(work)
            size += work.size_bytes
        if batch:
            yield batch

    def _batch(
        self, batch: list[ItemT], step: Step[ItemT, ResultT], here: Step[ItemT, ResultT]
    ) -> Iterator[ResultT | NotDone[ItemT]]:
        left: Sequence[ItemT] = batch
        runner = self._runner
        if runner.is_elsewhere:
            done, left = self._elsewhere(batch, step)
            yield from done
            if not left:
                return
            self._heed()
            runner = LocalRunner(self._context)
        failed: list[NotDone[ItemT]] = []
        for result in self._run(runner, here, left):
            if isinstance(result, NotDone):
                # This raises if the metadata store does not answer: the next items would only wait.
                self._context.store.underreplication.is_enabled()
                failed.append(result)
            yield result
        # A single failing ledger may be the cause itself; a check would then start anew for ever.
        if len(failed) == len(batch) and len({each.work.ledger_id for each in failed}) > 1:
            self.failure = self.failure or failed[0].failure.reason

    def _elsewhere(
        self, batch: list[ItemT], step: Step[ItemT, ResultT]
    ) -> tuple[Sequence[ResultT], Sequence[ItemT]]:
        """Return what Spark did of a batch, and what is left."""
        done: list[ResultT] = []
        left: list[ItemT] = []
        reason = ""
        try:
            for result in self._run(self._runner, step, batch):
                if isinstance(result, NotDone):
                    left.append(result.work)
                    reason = result.failure.cause
                else:
                    done.append(result)
        except Exception as error:  # noqa: BLE001  (also when the JVM of Spark has ended)
            done, left, reason = [], batch, reason_of(error, self._name)
        if left:
            _log.warning(
                "%d of %d were not done by Spark, and are done here: %s",
                len(left),
                len(batch),
                reason,
            )
        return done, left

    def _run(
        self, runner: Runner, step: Step[ItemT, ResultT], batch: Sequence[ItemT]
    ) -> Iterator[ResultT | NotDone[ItemT]]:
        failed: Callable[[Any, Failure], Any] = NotDone
        telling: Step[ItemT, ResultT | NotDone[ItemT]] = replace(step, failed=failed)
        job = Job(self._name, self._context, runner, bytes_per_second=self._bytes_per_second)
        yield from job.run(telling, batch)
