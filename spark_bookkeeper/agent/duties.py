"""Duties: the work that an agent does for its bookie in the background, apart from probing.

A duty is a value: a name, an interval, and one step. Scrubbing, collection, compaction and
autorecovery are duties. The agent gets them as an argument and knows none by name. Each has a task
of its own, so a duty that hangs delays neither the others nor the probes of the storage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.metrics import BookieMetrics
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import Runtime, Task

log = logging.getLogger(__name__)


class Turn:
    """Controls of the loop that runs a step. It may be kept, and used from any thread."""

    def __init__(self, is_stopping: Callable[[], bool], wake: Callable[[], None]) -> None:
        self._is_stopping = is_stopping
        self._wake = wake

    def is_stopping(self) -> bool:
        """Whether the agent stops and waits for this step: leave the rest for the next start."""
        return self._is_stopping()

    def wake(self) -> None:
        """Take the next turn at once instead of after the interval."""
        self._wake()


@dataclass(frozen=True, slots=True)
class Duty:
    """One step that an agent repeats while it runs.

    The first step starts when the bookie is registered. A step does a bounded piece of work and
    checks ``Turn.is_stopping`` between its parts. An error of a step is logged, counted and shown
    by the agent's ``/health``, and the next turn comes all the same.
    """

    name: str
    """One word for operators and metrics: ``scrub``, ``compact``."""
    interval_ms: int
    """The pause from the end of a step to the beginning of the next."""
    step: Callable[[Turn], None]
    makes_room: bool = False
    """Whether its next turn comes at once when space becomes short, or many files were created."""

    def __post_init__(self) -> None:
        if self.interval_ms < 1:
            raise InvalidArgumentError(
                f"duty {self.name!r} has interval_ms={self.interval_ms}; it is at least 1. Leave a "
                "duty that is never done out"
            )


@dataclass(frozen=True, slots=True)
class DutyStatus:
    """The counters of a duty since its agent started."""

    name: str
    interval_ms: int
    is_running: bool = False
    """Whether a step is running."""
    runs: int = 0
    """The number of steps that ended, with or without an error."""
    failures: int = 0
    last_run_ms: int | None = None
    """When the last step ended, in milliseconds since 1970; for display."""
    last_error: str | None = None
    """Why the last step failed; ``None`` if it succeeded."""


class Duties:
    """Runs duties, each in a task of its own. ``start`` and ``stop`` are idempotent.

    Raises:
        InvalidArgumentError: two duties have one name.
    """

    def __init__(
        self, runtime: Runtime, owner: str, duties: Sequence[Duty], metrics: BookieMetrics
    ) -> None:
        names = [duty.name for duty in duties]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgumentError(f"two duties of {owner} have the name {name!r}")
        self._loops = [_Loop(runtime, owner, duty, metrics) for duty in duties]

    def start(self) -> None:
        """Start the loop of each duty; its first turn comes at once."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Start no further step, and wait for the running ones."""
        for loop in self._loops:
            loop.tell_to_stop()
        for loop in self._loops:
            loop.join()

    def make_room(self) -> None:
        """Take the next turn at once for the duties with ``makes_room``."""
        for loop in self._loops:
            if loop.duty.makes_room:
                loop.wake()

    def status(self) -> tuple[DutyStatus, ...]:
        """Return the status of each duty, in the order in which they were given."""
        return tuple(loop.status for loop in self._loops)


class _Loop:
    def __init__(self, runtime: Runtime, owner: str, duty: Duty, metrics: BookieMetrics) -> None:
        self.status = DutyStatus(duty.name, duty.interval_ms)
        self._runtime = runtime
        self._owner = owner
        self.duty = duty
        self._seconds = metrics.duty_seconds.labels(duty.name)
        self._failures = metrics.duty_failures.labels(duty.name)
        self._is_stopping = False
        self._wake_up = AutoResetEvent(runtime)
        self._task: Task | None = None
        self._turn = Turn(lambda: self._is_stopping, self.wake)

    def wake(self) -> None:
        self._wake_up.set()

    def start(self) -> None:
        if self._task is None:
            self._is_stopping = False
            self._wake_up = AutoResetEvent(self._runtime)
            self._task = self._runtime.spawn(f"{self.duty.name}-{self._owner}", self._run)

    def tell_to_stop(self) -> None:
        self._is_stopping = True
        self._wake_up.set()

    def join(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.join()

    def _run(self) -> None:
        while not self._is_stopping:
            self._step()
            self._wake_up.wait(self.duty.interval_ms / 1000)

    def _step(self) -> None:
        """Run one step, and update the status. Never raises an ``Exception``."""
        began = self._runtime.now()
        before = self.status
        self.status = replace(before, is_running=True)
        error: str | None = None
        try:
            self.duty.step(self._turn)
        except BookKeeperError as caught:
            error = caught.message
            if error != before.last_error:
                log.warning("duty %s of %s: %s", self.duty.name, self._owner, error)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            log.exception("duty %s of %s made a mistake", self.duty.name, self._owner)
        self._seconds.observe(self._runtime.now() - began)
        if error is not None:
            self._failures.inc()
        self.status = replace(
            before,
            is_running=False,
            runs=before.runs + 1,
            failures=before.failures + (error is not None),
            last_run_ms=self._runtime.wall_ms(),
            last_error=error,
        )
