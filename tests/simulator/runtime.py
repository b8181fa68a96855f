"""``client/runtime.Runtime`` in a simulated world: its clock, dice and tasks follow a seed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from typing_extensions import Self

from spark_bookkeeper.runtime.runtime import Condition, parallel_map
from spark_bookkeeper.runtime.unclosed import PendingWork
from tests.simulator.scheduler import Actor, SimulationError, Task, World

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""What ``wall_ms`` shows when a simulation begins."""


class SimRuntime:
    """Clock, dice and tasks of one actor."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor
        self._conditions = 0

    def now(self) -> float:
        return self._world.now

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._world.now * 1000) + self._actor.ahead_ms

    def sleep(self, seconds: float) -> None:
        self._world.delay(seconds)

    def condition(self) -> Condition:
        self._conditions += 1
        return SimCondition(self._world, f"condition {self._conditions} of {self._actor.name}")

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        assert self._world.current.actor is self._actor, "a runtime belongs to one actor"
        return self._world.spawn(name, run)

    def employ(self, name: str, run: Callable[[], None]) -> None:
        self.spawn(name, run)

    def token(self) -> str:
        return f"{self._world.dice.getrandbits(128):032x}"

    def shuffle(self, items: list[T]) -> None:
        self._world.dice.shuffle(items)

    def wait(self, future: Future[T], timeout: float | None = None) -> T:
        if not future.done():
            task = self._world.current
            epoch = task.epoch
            future.add_done_callback(lambda _: self._world.wake(task, epoch))
            if not self._world.block("a future", timeout) and not future.done():
                raise TimeoutError
        return future.result(timeout=0)

    def look_after(self, owner: object, work: PendingWork) -> Callable[[], None]:
        """Nobody does: a process that dies tells nothing, and garbage is not a seed's business."""
        return lambda: None

    def map(
        self,
        function: Callable[[Any], T],
        items: list[Any],
        width: int = 16,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> list[T]:
        return parallel_map(self, function, items, width, on_interrupt)


class SimCondition:
    """A lock with waiting. Taking it is a point where another task may go on first.

    As with ``threading.Lock``, a task that takes it twice waits for itself; here it is told.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._holder: Task | None = None
        self._takers: list[tuple[Task, int]] = []
        self._waiters: list[tuple[Task, int]] = []

    def __enter__(self) -> Self:
        self._world.point()
        if self._holder is None:
            self._holder = self._world.current
        else:
            self._take()
        return self

    def __exit__(self, *exc: object) -> None:
        self._release()

    def wait(self, timeout: float | None = None) -> bool:
        task = self._world.current
        assert self._holder is task, f"{task!r} waits on {self._name} without holding it"
        waiter = (task, task.epoch)
        self._waiters.append(waiter)
        self._release()
        notified = self._world.block(self._name, timeout)
        if not notified and waiter in self._waiters:
            self._waiters.remove(waiter)
        self._take()
        return notified

    def notify_all(self) -> None:
        assert self._holder is self._world.current, f"{self._name} is notified by who has it not"
        waiters, self._waiters = self._waiters, []
        for waiter, epoch in waiters:
            self._world.wake(waiter, epoch)

    def _take(self) -> None:
        task = self._world.current
        if self._holder is task:
            self._world.fail(SimulationError(f"{task!r} takes {self._name}, which it holds"))
        while self._holder is not None:
            self._takers.append((task, task.epoch))
            self._world.block(f"{self._name}, held by {self._holder!r}")
        self._holder = task

    def _release(self) -> None:
        """Also reached by the ``finally`` of a crashed task, whose lock nobody needs any more."""
        self._holder = None
        if self._takers:
            self._world.wake(*self._takers.pop(0))
