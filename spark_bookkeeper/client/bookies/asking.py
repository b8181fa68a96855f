"""Asking a bookie for something, with a bound on how long it may stay silent.

Storage can hang: neither an answer nor an error, for ever. So whatever is asked runs in a task of
its own, and who asks waits until it ends, or until one call of the storage has had no answer for
too long. What counts is silence, not duration: each call that comes back is progress, and a call
that moves many bytes has the time that they need. After a silence the outcome is unknown, and
what still comes late is nobody's answer (SLOT-LOG rules R3, R5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.runtime.runtime import Condition, Runtime

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
R = TypeVar("R")

SLOWEST_BYTES_PER_SECOND: Final = 4 << 20
"""A call that moves bytes is silent only when it takes longer than this rate, and the bound."""

CALLS_AT_ONCE: Final = 64
"""At one bookie, in tasks of their own; further ones wait. A bookie that hangs holds no more."""

TRIALS: Final = 8
"""Further calls that may hang while it is tried whether a bookie answers again."""

PLACE_SECONDS: Final = 0.05
"""Between two looks for a place at a bookie that too many calls are on their way to."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a bookie may be silent, in seconds."""

    give_up: float
    """Then it hangs."""
    hedge: float
    """Then another one is asked as well, where another has the same."""
    retry: float
    """A bookie that hangs is asked for nothing for so long; then for one thing."""
    pages: float = 60.0
    """More than the first for one call that is many requests, none of which is seen to come back:
    a listing of a bucket has a page for each thousand names."""

    @classmethod
    def of(cls, config: ClientConfig) -> Patience:
        return cls(
            config.bookie_timeout_ms / 1000,
            config.read_hedge_ms / 1000,
            config.bookie_retry_ms / 1000,
        )


_current: ContextVar[Call[Any] | None] = ContextVar("call", default=None)
"""The call that the running task makes: its storage calls are watched by who waits for it."""


class NoPlaceError(BookieUnavailableError):
    """Too many calls are on their way to a bookie, and perhaps one is about to come back."""


class Door:
    """One bookie as a client meets it: what is asked there now, and whether it hangs.

    Args:
        bookie_id: the bookie.
        uri: where its storage is, for messages.
        runtime: clock and tasks.
        patience: how long it may be silent.
    """

    def __init__(self, bookie_id: str, uri: str, runtime: Runtime, patience: Patience) -> None:
        self.bookie_id = bookie_id
        self.uri = uri
        self.patience = patience
        self._runtime = runtime
        self.calls: set[Call[Any]] = set()
        """Under way. Each joins and leaves in one step that needs no lock."""
        self._employed: set[Call[Any]] = set()
        """Calls in tasks of their own; those that never come back among them."""
        self._moved_at = runtime.now()
        """When one of these began or came back last, or something that one asked."""
        self._changed = runtime.condition()

    def ask(self, purpose: str, run: Callable[[], T]) -> T:
        """What ``run`` returns, which asks this bookie's storage and nobody else's.

        Raises:
            BookieUnavailableError: no answer, for too long; the outcome is unknown. Or the bookie
                hangs since earlier, and nothing was sent.
        """
        if current_call(self) is not None:
            return run()
        call = self.begin(purpose, run, self._runtime.condition())
        with call.changed:
            while not call.is_over and (left := call.left_to_answer()) > 0:
                call.wait(left)
        return call.result()

    def begin(
        self, purpose: str, run: Callable[[], T], changed: Condition, *, may_wait: bool = True
    ) -> Call[T]:
        """Ask without waiting for the answer. ``changed`` is notified when the call is over.

        Args:
            may_wait: for a place, while too many calls are on their way; else that raises.

        Raises:
            BookieUnavailableError: the bookie hangs since earlier, or no thread could be started;
                nothing was sent.
        """
        call = Call(self, purpose, run, self._runtime, changed)
        self._admit(call, may_wait=may_wait)
        try:
            self._runtime.employ(f"ask-{self.bookie_id}", call.run)
        except RuntimeError as error:  # no more threads: nothing runs that would come back
            self._came_back(call)
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: nothing was sent, for this process could not start a "
                f"thread ({error}). Let it have more threads, or run less in it, and repeat",
                bookie_id=self.bookie_id,
            ) from error
        return call

    def ask_with(self, other: Door, purpose: str, run: Callable[[], T]) -> T:
        """What ``run`` returns, which asks the storages of this bookie and of another, in turn.

        For copies: the task that reads a piece from one writes it to the other, while it is near
        the processor. Each of the two may be silent as long as it may for ``ask``.

        Raises:
            BookieUnavailableError: as by ``ask``, for the one that it names.
        """
        if _current.get() is not None or other is self or len(other.calls) >= CALLS_AT_ONCE:
            return run()  # what is asked is bounded one by one
        beside = other.attend(purpose)

        def both() -> T:
            beside.beside = _current.get()
            try:
                return beside.in_person(run)
            finally:
                beside.beside = None

        call = self.begin(purpose, both, self._runtime.condition())
        silent: BookieUnavailableError | None = None
        try:
            with call.changed:
                while not call.is_over and silent is None:
                    left = min(call.left_to_answer(), beside.left_to_answer())
                    if left <= 0:  # unless it answers just now: then neither of them is silent
                        silent = beside.give_up_if_silent() or call.give_up_if_silent()
                    elif self.wait(call.changed, left):
                        call.begin_anew()
                        beside.begin_anew()
        finally:
            if not call.is_over:
                self._let_go(call)
                other._let_go(beside)
        if silent is not None:
            raise silent
        return call.result()

    def employ(self, what: str, run: Callable[[], None]) -> None:
        """Do something there for which nobody waits, and which raises nothing."""
        self._runtime.employ(f"{what}-{self.bookie_id}", run)

    def attend(self, purpose: str, *, insists: bool = False) -> Call[None]:
        """A call for a task that somebody else watches: a lane, say. See ``Call.in_person``.

        Args:
            insists: ask a bookie that hangs as well, as a further trial: for who would otherwise
                lose the bookie for good, perhaps because of one bad file.

        Raises:
            BookieUnavailableError: the bookie hangs since earlier.
        """
        call = Call(self, purpose, lambda: None, self._runtime, self._changed)
        with self._changed:
            try:
                self._refuse_if_hanging(call)
            except BookieUnavailableError:
                if not insists or len(self.calls) >= CALLS_AT_ONCE + TRIALS:
                    raise
                call.is_trial = True
        return call

    def wait(self, changed: Condition, seconds: float) -> bool:
        """Wait for a condition that is held, so long at most, and return now and then.

        Returns:
            whether the whole process stood still meanwhile: then no silence up to now counts.
        """
        limit = self.patience.give_up
        seconds = min(max(seconds, 0.001), limit / 4)
        before = self._runtime.now()
        changed.wait(seconds)
        now = self._runtime.now()
        return now - before > seconds + limit / 2

    def begin_anew(self) -> None:
        """Who waits for a place begins to wait now."""
        self._moved_at = self._runtime.now()

    @property
    def is_silent(self) -> bool:
        """Whether something asked there has had no answer for so long that others are better."""
        now = self._runtime.now()
        return any(
            not call.is_forgiven and call.silence(now) >= self.patience.hedge
            for call in tuple(self.calls)
        )

    def silence(self) -> tuple[str, float] | None:
        """What has been without an answer for the longest time, and for how many seconds."""
        now = self._runtime.now()
        calls = [(call.silence(now), call.what) for call in tuple(self.calls)]
        seconds, what = max(calls, default=(0.0, ""))
        return (what, seconds) if seconds > 0 else None

    def _admit(self, call: Call[Any], *, may_wait: bool) -> None:
        with self._changed:
            asked_at = self._runtime.now()
            while True:
                self._refuse_if_hanging(call)
                if len(self._employed) < CALLS_AT_ONCE + (TRIALS if call.is_trial else 0):
                    break
                # While others come back, the bookie is busy and not silent. Nor is it while one of
                # them asks for nothing: it waits for a limit, or for another bookie.
                if not all(other.is_asking for other in self._employed):
                    self.begin_anew()
                moved_at = max(asked_at, self._moved_at) if may_wait else self._moved_at
                left = moved_at + self.patience.give_up - self._runtime.now()
                if left <= 0 or not may_wait:
                    error = NoPlaceError if left > 0 else BookieUnavailableError
                    raise error(
                        f"bookie {self.bookie_id}: {len(self._employed)} calls are on their way to "
                        f"{self.uri}, and none has come back for "
                        f"{self._runtime.now() - moved_at:.1f} s; nothing more is sent until one "
                        "does",
                        bookie_id=self.bookie_id,
                    )
                if self.wait(self._changed, left):
                    self.begin_anew()
            self._employed.add(call)
            self.begin_anew()
            self.calls.add(call)

    def _refuse_if_hanging(self, call: Call[Any]) -> None:
        """Refuse the call while the bookie hangs, unless it is time to try it again with this."""
        call.is_trial = False
        if not self.calls:
            return
        now = self._runtime.now()
        hanging = [c for c in tuple(self.calls) if not c.is_forgiven and c.hangs(now)]
        if not hanging:
            return
        last = max(hanging, key=lambda c: c.hangs_since or 0.0)
        assert last.hangs_since is not None
        waits = last.hangs_since + self.patience.retry - now
        if waits <= 0 and not any(c.is_trial and not c.hangs(now) for c in tuple(self.calls)):
            call.is_trial = True
            return
        again = f"in {waits:.1f} s" if waits > 0 else "just now"
        raise BookieUnavailableError(
            f"bookie {self.bookie_id} hangs: {last.what} has had no answer for "
            f"{last.silence(now):.1f} s. It is asked again {again}; look at {self.uri}: its disk, "
            "its mount or its network",
            bookie_id=self.bookie_id,
        )

    def _hangs(self, call: Call[Any], seconds: float) -> BookieUnavailableError:
        """Somebody gave a call up."""
        _log.warning(
            "bookie %s: no answer for %.1f s: %s",
            *(self.bookie_id, seconds, call.what),
            extra=about(bookie_id=self.bookie_id),
        )
        return BookieUnavailableError(
            f"bookie {self.bookie_id}: no answer for {seconds:.1f} s: {call.what}. Whether it took "
            f"effect is not known, and it may still do. Look at {self.uri}: its disk, its mount or "
            "its network. Other bookies are asked meanwhile, and this one again after "
            f"{self.patience.retry:g} s",
            bookie_id=self.bookie_id,
        )

    def _let_go(self, call: Call[Any]) -> None:
        """Nobody waits for a call any more that asks another bookie as well, perhaps in vain.

        Unless it asks this one just now, it has no place here any more: it asks for nothing more.
        """
        with self._changed:
            call.is_given_up = True
            if not call.is_asking:
                self._leaves(call)
                self._changed.notify_all()

    def _leaves(self, call: Call[Any]) -> None:
        self.calls.discard(call)
        if call in self._employed:
            self._employed.remove(call)
            self.begin_anew()

    def _came_back(self, call: Call[Any]) -> None:
        with self._changed:
            self._leaves(call)
            if call.has_answer and (call.is_trial or call.hangs_since is not None):
                self._forgive(call)
            self._changed.notify_all()

    def _stepped(self, call: Call[Any]) -> None:
        """Something that it asked came back. Those without a place do not hold up who wants one."""
        if call in self._employed:
            self.begin_anew()

    def _answers(self, call: Call[Any]) -> None:
        """One that is a trial, or was silent for too long, has an answer, and may go on."""
        with self._changed:
            self._forgive(call)
            self._changed.notify_all()

    def _forgive(self, call: Call[Any]) -> None:
        for other in tuple(self.calls):  # it answers again; these may never come back
            if other is not call:
                other.is_forgiven = other.is_forgiven or other.hangs_since is not None
        call.is_trial = call.is_forgiven = False
        call.hangs_since = None


class Call(Generic[T]):
    """One thing that a bookie is asked for, and which call of its storage it waits in."""

    def __init__(
        self,
        door: Door,
        purpose: str,
        run: Callable[[], T],
        runtime: Runtime,
        changed: Condition,
    ) -> None:
        self.bookie_id = door.bookie_id
        self.door = door
        self.changed = changed
        """Notified when it is over; guards the result."""
        self.is_over = False
        self.beside: Call[Any] | None = None
        """That of another bookie, which the same task asks in turn."""
        self.is_trial = False
        """Whether it is to show that the bookie answers again."""
        self.is_forgiven = False
        """Whether the bookie answered others since; this one may have been lost on the way."""
        self.hangs_since: float | None = None
        """When it was found to be silent for too long."""
        self.has_answer = False
        """Whether any call of the storage came back."""
        self._purpose = purpose
        self._run = run
        self._runtime = runtime
        self._now = runtime.now
        self._in: tuple[str, str, float, float] | None = None
        """Operation, path, since when, allowing for its bytes, and how long it may be silent;
        ``None`` between two of them."""
        self._value: T | None = None
        self._error: BaseException | None = None
        self.is_given_up = False
        """Whether nobody waits for it any more."""
        self._stood_still_at = 0.0

    # In the task that asks

    def run(self) -> None:
        """Do it, with this as the current call."""
        token = _current.set(self)
        try:
            self._value = self._run()
        except BaseException as error:  # noqa: BLE001  (raised by who waits)
            self._error = error
        finally:
            _current.reset(token)
            self._in = None
            self.door._came_back(self)  # noqa: SLF001  (the same module)
            with self.changed:
                self.is_over = True
                self.changed.notify_all()

    def in_person(self, run: Callable[[], R]) -> R:
        """The running task asks itself, and somebody else looks for how long.

        Only within ``run``: what the task asks before and after is bounded as anybody's is.
        """
        token = _current.set(self)
        self.door.calls.add(self)
        try:
            return run()
        finally:
            _current.reset(token)
            self.door.calls.discard(self)
            if self.is_trial or self.hangs_since is not None:
                self.door._came_back(self)  # noqa: SLF001  (the same module)

    def step(
        self,
        operation: str,
        path: str,
        size_bytes: int,
        function: Callable[[Unpack[Ts]], R],
        *args: Unpack[Ts],
        more_seconds: float = 0.0,
    ) -> R:
        """One call of the storage.

        Args:
            more_seconds: added before it is given up; others are asked as early as ever.

        Raises:
            BookieUnavailableError: nobody waits for it any more, so nothing was sent.
        """
        if self.is_given_up:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: {self._purpose} was given up", bookie_id=self.bookie_id
            )
        now = self._now()
        self._in = (
            operation,
            path,
            now + size_bytes / SLOWEST_BYTES_PER_SECOND if size_bytes else now,
            self.door.patience.give_up + more_seconds,
        )
        try:
            return function(*args)
        finally:
            self._in = None
            self.has_answer = True
            self.door._stepped(self)  # noqa: SLF001  (the same module)
            if self.is_trial or self.hangs_since is not None:
                self.door._answers(self)  # noqa: SLF001  (the same module)

    def goes_on(self) -> None:
        """Within a step that is many calls of a system: one of them came back.

        Raises:
            BookieUnavailableError: nobody waits for it any more; do no more.
        """
        inside = self._in
        assert inside is not None, "only within a step"
        if self.is_given_up:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: {self._purpose} was given up", bookie_id=self.bookie_id
            )
        operation, path, since, limit = inside
        self._in = operation, path, max(since, self._now()), limit

    # For who waits

    @property
    def what(self) -> str:
        """What it is about, for messages."""
        inside = self._in
        return self._purpose if inside is None else f"{self._purpose} ({inside[0]} {inside[1]})"

    @property
    def is_asking(self) -> bool:
        """Whether a call of the storage is under way."""
        return self._in is not None

    def silence(self, now: float, since: float = 0.0) -> float:
        """Seconds for which a call of the storage has had no answer; 0 between two calls."""
        inside = self._in
        if inside is None:
            return 0.0
        return max(0.0, now - max(inside[2], since, self._stood_still_at))

    def left(self, seconds: float, since: float = 0.0) -> float:
        """Seconds until it has been silent for so long, if it is silent from now on."""
        inside = self._in
        silence = self.silence(self._runtime.now(), since)
        ahead = 0.0 if inside is None else max(0.0, inside[2] - self._runtime.now())
        return seconds - silence + ahead

    def left_to_answer(self) -> float:
        """Seconds until it is to be given up, if it is silent from now on."""
        inside = self._in
        return self.left(self.door.patience.give_up if inside is None else inside[3])

    def wait(self, seconds: float) -> None:
        """Wait for ``changed``, which is held, so long at most, and return now and then.

        When the whole process stood still meanwhile, the bookie's silence begins anew.
        """
        if self.door.wait(self.changed, seconds):
            self.begin_anew()

    def begin_anew(self) -> None:
        """No silence up to now counts."""
        self._stood_still_at = self._runtime.now()

    def hangs(self, now: float) -> bool:
        """Whether it was given up, or ought to be.

        Who finds a long silence that nobody waits for looks twice: it may be this process that
        stood still.
        """
        if self.hangs_since is not None and self.is_given_up:
            return True
        inside = self._in
        if inside is None or self.silence(now) < inside[3]:
            return False
        if self.hangs_since is None:
            self.hangs_since = now
        return now - self.hangs_since >= self.door.patience.hedge

    def result(self) -> T:
        """What it came to.

        Raises:
            BookieUnavailableError: it is not over: it is given up, and its outcome unknown.
        """
        if not self.is_over:
            raise self._give_up()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it ended without an error

    def give_up_if_silent(self) -> BookieUnavailableError | None:
        """Whoever watches a task that asks in person looks: has it been silent for too long?"""
        if self.left_to_answer() > 0:
            return None
        return self._give_up()

    def _give_up(self) -> BookieUnavailableError:
        now = self._runtime.now()
        self.is_given_up = True
        self.hangs_since = now
        return self.door._hangs(self, self.silence(now))  # noqa: SLF001  (the same module)


def step(
    door: Door,
    operation: str,
    subject: str,
    size_bytes: int,
    function: Callable[[Unpack[Ts]], R],
    *args: Unpack[Ts],
    more_seconds: float = 0.0,
) -> R:
    """One thing that a bookie is really asked: within ``Door.ask`` a step of that call, elsewhere a
    call by itself; see ``Call.step``.
    """
    current = current_call(door)
    if current is not None:
        return current.step(
            operation, subject, size_bytes, function, *args, more_seconds=more_seconds
        )

    def alone() -> R:
        call = current_call(door)
        assert call is not None, "a door makes the call that it runs the current one"
        return call.step(operation, subject, size_bytes, function, *args, more_seconds=more_seconds)

    return door.ask("a call of its storage", alone)


def current_call(door: Door) -> Call[Any] | None:
    """The call of the running task, if it asks this bookie."""
    current = _current.get()
    if current is not None and current.door is not door:
        current = current.beside
    return current if current is not None and current.door is door else None
