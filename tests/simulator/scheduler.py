"""The world of a simulation: actors, their tasks, one clock, and who goes on.

An actor stands for a process: it can crash, freeze and go on. Its tasks stand for threads,
and are greenlets: exactly one runs at a time, and it hands over only where it calls into the
world (``point``, ``block``, ``delay``). Time passes only when no task can go on. So a run is
a function of the choices made, and nothing else. A greenlet runs one task after the other: a new
one costs memory of its own, which is as much as some tasks do altogether.

A crash throws ``Crash`` into every task of the actor. Whatever a ``finally`` or a broad
``except`` then does, each further call into the world raises it again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import NoReturn

from greenlet import getcurrent, greenlet
from typing_extensions import Self

from tests.simulator.choices import Choices, SeededChoices
from tests.simulator.history import History


class Crash(BaseException):
    """The actor's process is gone. Never caught by library code, which catches ``Exception``."""


class SimulationError(AssertionError):
    """The simulated code broke a rule of the simulation, or an invariant."""


class DeadlockError(SimulationError):
    """Nobody can go on, no time can pass, and somebody has not finished."""


class LivelockError(SimulationError):
    """More steps than any sound run takes."""


class TaskFailedError(SimulationError):
    """A task ended with an error that its actor did not handle."""


class Task:
    """One thread of an actor; satisfies ``client/runtime.Task``."""

    __slots__ = ("_joiners", "_world", "actor", "body", "epoch", "is_main", "name", "run",
                 "timed_out", "waits_for")  # fmt: skip

    def __init__(
        self, world: World, actor: Actor, name: str, run: Callable[[], None], *, is_main: bool
    ) -> None:
        self._world = world
        self._joiners: list[tuple[Task, int]] = []
        self.actor = actor
        self.name = name
        self.run: Callable[[], None] | None = run
        self.is_main = is_main
        self.body: greenlet | None = None
        self.epoch = 0
        """Counts its waits; a timer or a notification for an earlier wait is void."""
        self.timed_out = False
        self.waits_for: str | None = None
        """What it is blocked on; ``None`` while it can go on."""

    def __repr__(self) -> str:
        return f"{self.actor.name}/{self.name}"

    @property
    def is_alive(self) -> bool:
        return self.run is not None

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive:
            joiner = self._world.current
            self._joiners.append((joiner, joiner.epoch))
            self._world.block(f"the end of {self!r}", timeout)

    def start(self) -> None:
        """Run to the end; what its greenlet calls."""
        assert self.run is not None
        try:
            self.run()
        except Crash:
            pass
        except BaseException as error:
            if not self.actor.is_crashed:
                self._world.fail_after(self, error)
        self.ended()

    def ended(self) -> None:
        self.run = None
        self.actor.tasks.remove(self)
        if self.is_main:
            self._world.mains -= 1
        for joiner, epoch in self._joiners:
            self._world.wake(joiner, epoch)
        self._joiners.clear()


class Actor:
    """One process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: list[Task] = []
        self.is_crashed = False
        self.is_paused = False
        self.parked: list[Task] = []
        """Tasks that could go on if the actor were not paused."""
        self.operations = 0
        """Operations on storage and metadata begun so far."""
        self.ahead_ms = 0
        """How much its calendar is ahead of the world's."""

    def __repr__(self) -> str:
        return self.name


class World:
    """A seeded world. Use it in a ``with``: leaving it ends every task that is left.

    Args:
        seed: of the dice (tokens, shuffles), and of the choices when none are given.
        choices: who goes on and what fails; by default drawn from the seed.
        step_limit: steps after which a run counts as a livelock.
    """

    def __init__(
        self, seed: int, choices: Choices | None = None, *, step_limit: int = 100_000
    ) -> None:
        self.seed = seed
        self.choices = choices if choices is not None else SeededChoices(seed)
        self.dice = random.Random(f"{seed}/dice")
        self.history = History()
        self.now = 0.0
        self.steps = 0
        self.mains = 0
        """Main tasks that have not ended."""
        self.actors: dict[str, Actor] = {}
        self._step_limit = step_limit
        self._running: Task | None = None
        self._ready: list[Task] = []
        self._next: Task | None = None
        self._timers: list[tuple[float, int, int, Task | Callable[[], None]]] = []
        self._timers_made = 0
        self._hub: greenlet = getcurrent()
        self._idle: list[greenlet] = []
        """Whose task has ended: they run others."""
        self._doomed: list[Actor] = []
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for actor in self.actors.values():
            actor.is_crashed = True
            self._end_tasks(actor)
        while self._idle:
            self._idle.pop().throw()

    # Actors and tasks

    @property
    def current(self) -> Task:
        """The task that runs now."""
        assert self._running is not None, "only a task of the world may do this"
        return self._running

    def actor(self, name: str) -> Actor:
        """The actor of that name, made when there is none."""
        return self.actors.setdefault(name, Actor(name))

    def start(self, actor: Actor, run: Callable[[], None], name: str = "main") -> Task:
        """Give an actor its main task. ``run_all`` returns when every main task has ended."""
        return self._new_task(actor, name, run, is_main=True)

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        """Start a task beside the running one, in the same actor."""
        self._refuse_the_dead(self.current)
        return self._new_task(self.current.actor, name, run, is_main=False)

    def tell(self, actor: Actor, call: Callable[[], None]) -> None:
        """Call something in a task of an actor's own, as a message from outside makes it do."""
        if not actor.is_crashed:
            self._new_task(actor, "told", call, is_main=False)

    def _new_task(self, actor: Actor, name: str, run: Callable[[], None], *, is_main: bool) -> Task:
        task = Task(self, actor, name, run, is_main=is_main)
        if is_main:
            has_main = bool(actor.tasks) and actor.tasks[0].is_main
            assert not has_main, f"{actor!r} has its main task already"
            actor.tasks.insert(0, task)
            self.mains += 1
        else:
            actor.tasks.append(task)
        self._make_ready(task)
        return task

    def crash(self, actor: Actor) -> None:
        """End an actor now. Called from one of its own tasks, it does not return."""
        if not actor.is_crashed:
            actor.is_crashed = True
            self._doomed.append(actor)
            self.history.note(actor.name, "crash")
        if self._running is not None and self._running.actor is actor:
            raise Crash

    def pause(self, actor: Actor) -> None:
        """Freeze an actor: none of its tasks goes on until ``resume``; time does."""
        if actor.is_crashed or actor.is_paused:
            return
        actor.is_paused = True
        self.history.note(actor.name, "pause")
        for task in self._ready:
            if task.actor is actor:
                actor.parked.append(task)
        self._ready = [task for task in self._ready if task.actor is not actor]
        if self._running is not None and self._running.actor is actor:
            actor.parked.append(self._running)
            self._hand_over(self._running)

    def resume(self, actor: Actor) -> None:
        """Let a frozen actor go on."""
        if actor.is_paused:
            actor.is_paused = False
            self.history.note(actor.name, "resume")
            parked, actor.parked = actor.parked, []
            for task in parked:
                self._make_ready(task)

    # What tasks call

    def point(self) -> None:
        """A place where another task may go on first."""
        task = self._running
        assert task is not None, "only a task of the world may do this"
        if task.actor.is_crashed:
            raise Crash
        self.steps += 1
        if self.steps > self._step_limit:
            self.fail(LivelockError(f"more than {self._step_limit} steps: {self.who_waits()}"))
        if ready := self._ready:
            choice = self.choices.go_on(len(ready) + 1)
            if choice:
                self._next = ready.pop(choice - 1)
                ready.append(task)
                self._hand_over(task)

    def delay(self, seconds: float) -> None:
        """The running task goes on after that much time, or later."""
        self.block("time to pass", seconds)

    def block(self, label: str, timeout: float | None = None) -> bool:
        """The running task goes on after ``wake``, or after ``timeout`` seconds.

        Returns:
            Whether it was woken, rather than timed out.
        """
        task = self.current
        self._refuse_the_dead(task)
        task.waits_for = label
        task.timed_out = False
        if timeout is not None:
            self._add_timer(timeout, task.epoch, task)
        self._hand_over(task)
        return not task.timed_out

    def wake(self, task: Task, epoch: int) -> None:
        """Let a blocked task go on, if it is still in the wait that ``epoch`` names."""
        if task.epoch == epoch and task.waits_for is not None and task.is_alive:
            task.waits_for = None
            task.epoch += 1
            self._make_ready(task)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Call something (a fault, a late effect) from outside all tasks, after some time."""
        self._add_timer(seconds, 0, do)

    def fail(self, error: BaseException) -> NoReturn:
        """Stop the run: ``run_all`` raises this. The calling task does not go on."""
        self._failure = self._failure or error
        if self._running is None:
            raise error
        self._hand_over(self._running)
        raise Crash

    def fail_after(self, task: Task, error: BaseException) -> None:
        """Stop the run because a task ended with an error; keeps the first such error."""
        if self._failure is None:
            if isinstance(error, SimulationError):
                self._failure = error
                return
            failure = TaskFailedError(f"{task!r} ended with {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._failure = failure

    # The hub

    def run_all(self) -> None:
        """Run until every main task ended, then end the tasks they left behind.

        Effects that are still under way (``later``) stay so, for a next ``run_all``.

        Raises:
            DeadlockError, LivelockError, TaskFailedError: and what ``fail`` was given.
        """
        self._hub = getcurrent()
        while self.mains:
            task = self._next or self._choose()
            self._next = None
            if task is None:
                if not self._pass_time():
                    raise DeadlockError(f"nobody can go on: {self.who_waits()}")
                continue
            self._switch(task)
        for actor in self.actors.values():
            self._end_tasks(actor)

    def who_waits(self) -> str:
        """Who waits for what, for people."""
        return "; ".join(
            f"{task!r} waits for {task.waits_for}" if task.waits_for
            else f"{task!r} is frozen" if task in task.actor.parked
            else f"{task!r} can go on"
            for actor in self.actors.values()
            for task in actor.tasks
        )  # fmt: skip

    def _choose(self) -> Task | None:
        if not self._ready:
            return None
        return self._ready.pop(self.choices.next_task(len(self._ready)))

    def _make_ready(self, task: Task) -> None:
        if task.actor.is_paused:
            task.actor.parked.append(task)
        elif not task.actor.is_crashed:
            self._ready.append(task)

    def _switch(self, task: Task) -> None:
        """Let a task go on, from the hub; returns when the hub is needed again."""
        self._running = task
        try:
            self._body(task).switch()
        finally:
            self._running = None
        while self._doomed:
            self._end_tasks(self._doomed.pop())
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _body(self, task: Task) -> greenlet:
        """In which a task runs; switched to for the first time, it looks who is to run."""
        if task.body is None:
            task.body = self._idle.pop() if self._idle else greenlet(self._work, self._hub)
        return task.body

    def _work(self) -> NoReturn:
        """Run the task whose turn it is to its end, and then another; what a greenlet calls."""
        while True:
            task = self.current
            task.start()
            body, task.body = task.body, None
            assert body is not None, "a task that runs has a body"
            following = None
            if self.mains and not task.actor.is_crashed:
                following = self._following()
            if following is not None and following.body is None:
                self._running, following.body = following, body
                continue
            self._idle.append(body)
            if following is None:
                self._hub.switch()
            else:
                self._running = following
                self._body(following).switch()

    def _following(self) -> Task | None:
        """Whose turn it is; ``None`` where nobody can go on, or there is something to clear up."""
        if self._doomed or self._failure is not None:
            return None
        following = self._next or self._choose()
        self._next = None
        return following

    def _hand_over(self, task: Task) -> None:
        """Let another task go on instead of the running one; returns when it is its turn again.

        Straight to the next task where there is one and nothing to clear up, else to the hub.
        """
        following = self._following()
        if following is None:
            self._hub.switch()
        elif following is not task:
            self._running = following
            self._body(following).switch()
        assert self._running is task, "a task goes on only when it is its turn"
        self._refuse_the_dead(task)

    def _end_tasks(self, actor: Actor) -> None:
        """Throw ``Crash`` into what is left of an actor, as the end of its process would."""
        was_crashed, actor.is_crashed = actor.is_crashed, True
        for task in list(actor.tasks):
            if task.body is None:
                task.ended()
                continue
            self._running = task
            try:
                task.body.throw(Crash)
            finally:
                self._running = None
            assert not task.is_alive, f"{task!r} goes on after its crash"
        actor.parked.clear()
        self._ready = [task for task in self._ready if task.actor is not actor]
        if self._next is not None and self._next.actor is actor:  # it was to go on
            self._next = None
        actor.is_crashed = was_crashed

    def _refuse_the_dead(self, task: Task) -> None:
        if task.actor.is_crashed:
            raise Crash

    def _add_timer(self, seconds: float, epoch: int, what: Task | Callable[[], None]) -> None:
        self._timers_made += 1
        heapq.heappush(self._timers, (self.now + max(seconds, 0.0), self._timers_made, epoch, what))

    def _pass_time(self) -> bool:
        """Go to the next moment at which something happens; False when nothing will."""
        while self._timers:
            when, _, epoch, what = heapq.heappop(self._timers)
            if isinstance(what, Task):
                if what.waits_for is None or what.epoch != epoch or not what.is_alive:
                    continue
                self.now = max(self.now, when)
                what.timed_out = True
                self.wake(what, epoch)
                return True
            self.now = max(self.now, when)
            what()
            while self._doomed:
                self._end_tasks(self._doomed.pop())
            return True
        return False
