"""Several storage partitions served by one process, each a bookie of its own.

Each has its id, cookie, registration, health and duties, and an agent with threads of its own. A
failure of one, such as a broken disk or a root that is not mounted, does not affect the others. A
partition that cannot be served is retried from time to time, and ``/health`` says why.

BookKeeper runs one bookie in a process, with several directories that fail together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from spark_bookkeeper.agent.agent import AgentStatus, BookieAgent
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError, MetadataUnavailableError
from spark_bookkeeper.metrics import BookieMetrics
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import Runtime, Task

T = TypeVar("T")

log = logging.getLogger(__name__)

MakeAgent = Callable[[BookieMetrics], tuple[BookieAgent, Callable[[], None]]]
"""Opens a partition's storage; returns an agent to be started, and a function to close it."""


class ServedPartition:
    """One partition of the process, served or not.

    Args:
        bookie_id: the id of its bookie.
        root: its root, for messages.
        make_agent: opens it for an agent; it may fail, and is called again then.
        metrics: the counters to use; ``None`` makes new ones.
    """

    def __init__(
        self,
        bookie_id: BookieId,
        root: str,
        make_agent: MakeAgent,
        metrics: BookieMetrics | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self.root = root
        self.metrics = metrics or BookieMetrics()
        self.metrics.show_bookie(lambda: self.status.as_dict())
        self._make_agent = make_agent
        self._opened: tuple[BookieAgent, Callable[[], None]] | None = None
        self._is_started = False
        self._problem: str | None = "it was not started yet"
        self._silence: str | None = None
        """The same problem, if it is that the metadata store does not answer."""

    @property
    def status(self) -> AgentStatus:
        """The status of its agent; without a started agent, why it is not served."""
        opened = self._opened
        if opened is not None and self._is_started:
            return opened[0].status
        return AgentStatus(
            self.bookie_id, self.root, "", None, self._problem, zookeeper_problem=self._silence
        )

    @property
    def is_started(self) -> bool:
        """Whether its agent runs; a running agent retries by itself."""
        return self._is_started

    def start(self) -> None:
        """Open the storage and start the agent; may be called again when it failed.

        Raises:
            BookKeeperError: see ``BookieAgent.start``; also that the storage cannot be opened.
        """
        try:
            if self._opened is None:
                self._opened = self._make_agent(self.metrics)
            self._opened[0].start()
        except BookKeeperError as error:
            self._problem = error.message
            self._silence = error.message if isinstance(error, MetadataUnavailableError) else None
            raise
        self._is_started = True

    def stop(self) -> None:
        """Stop the agent, which unregisters the bookie, and close the storage; idempotent."""
        self._is_started = False
        opened, self._opened = self._opened, None
        if opened is not None:
            agent, close = opened
            try:
                agent.stop()
            finally:
                close()


class Partitions:
    """All partitions of a process. Call ``start``, later ``stop``.

    Args:
        partitions: at least one.
        retry_seconds: the pause between two attempts to start those that failed.
        tell: called with a sentence when a partition fails to start, and when it succeeds later.

    Raises:
        InvalidArgumentError: two are the same bookie, or the same root. Nothing was started.
    """

    def __init__(
        self,
        runtime: Runtime,
        partitions: Sequence[ServedPartition],
        retry_seconds: float = 30.0,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        _check_distinct("bookie", [str(each.bookie_id) for each in partitions])
        _check_distinct("root", [each.root.rstrip("/") for each in partitions])
        self.partitions = tuple(partitions)
        self._runtime = runtime
        self._retry_seconds = retry_seconds
        self._tell = tell
        self._ended = AutoResetEvent(runtime)
        self._retrying: Task | None = None

    def start(self) -> None:
        """Start them in parallel; those that fail are retried until ``stop``.

        Ctrl-C ends the wait, even if a start hangs; that start goes on, or ends with the process.

        Raises:
            BookKeeperError: none could be started, and none failed because the metadata store did
                not answer; the error of the first partition.
        """

        def attempt(partition: ServedPartition) -> BookKeeperError | None:
            try:
                partition.start()
            except BookKeeperError as error:
                return error
            return None

        failures = self._side_by_side("starting", attempt)
        if all(failures) and not any(isinstance(f, MetadataUnavailableError) for f in failures):
            self.stop()
            assert failures[0] is not None
            raise failures[0]
        for partition, failure in zip(self.partitions, failures, strict=True):
            if failure is not None:
                self._tell(
                    f"bookie {partition.bookie_id} at {partition.root} is not served, and is tried "
                    f"again every {self._retry_seconds:.0f} s: {failure.message}"
                )
        self._retrying = self._runtime.spawn("partitions", self._retry)

    def stop(self) -> None:
        """Stop and unregister all of them in parallel; idempotent.

        Ctrl-C ends the wait: a registration that is left ends with its session, and every duty may
        be interrupted at any moment.
        """
        self._ended.set()
        retrying, self._retrying = self._retrying, None
        if retrying is not None:
            retrying.join()
        self._side_by_side("stopping", _stop)

    def _side_by_side(self, name: str, do: Callable[[ServedPartition], T]) -> list[T]:
        """Return the result for each partition.

        The work runs in other threads, and the caller only waits: an interrupt in the middle of one
        partition would have to wait for the others, and one of them may hang.
        """
        future: Future[list[T]] = Future()
        some = list(self.partitions)

        def run() -> None:
            try:
                future.set_result(self._runtime.map(do, some, len(some)))
            except BaseException as error:  # noqa: BLE001  (raised by who waits)
                future.set_exception(error)

        self._runtime.spawn(name, run).join()
        return future.result()

    def _retry(self) -> None:
        while not self._ended.wait(self._retry_seconds):
            for partition in self.partitions:
                if not partition.is_started:
                    self._try_again(partition)

    def _try_again(self, partition: ServedPartition) -> None:
        try:
            partition.start()
        except BookKeeperError as error:
            log.info("bookie %s is still not served: %s", partition.bookie_id, error.message)
        except Exception:
            log.exception("bookie %s: starting it was a mistake of ours", partition.bookie_id)
        else:
            self._tell(f"bookie {partition.bookie_id} serves {partition.root} now")


def _stop(partition: ServedPartition) -> None:
    try:
        partition.stop()
    except BookKeeperError as error:
        log.warning("bookie %s ended with: %s", partition.bookie_id, error.message)


def _check_distinct(what: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(
                f"{what} {name} is named twice: each partition is a bookie of its own, with its "
                "own id and root. Nothing was started"
            )
