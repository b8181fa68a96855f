"""One thing that a bookie is asked for, and which call of its storage it waits in.

What counts is silence, not duration: each call that comes back is progress, and a call that moves
many bytes has the time that they need. ``bookie_client.py`` says who is asked, and who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.runtime import Condition, Runtime

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
R = TypeVar("R")

SLOWEST_BYTES_PER_SECOND: Final = 4 << 20
"""A call that moves bytes is silent only when it takes longer than this rate, and the bound."""


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


class Asked(Protocol):
    """The bookie at which a call is made, as its calls know it: ``bookie_client.BookieClient``."""

    bookie_id: str
    patience: Patience
    calls: set[Call[Any]]

    def came_back(self, call: Call[Any]) -> None:
        """Its task has ended."""

    def stepped(self, call: Call[Any]) -> None:
        """Something that it asked came back."""

    def answers(self, call: Call[Any]) -> None:
        """One that is a trial, or was silent for too long, has an answer."""

    def hung(self, call: Call[Any], seconds: float) -> BookieUnavailableError:
        """It was given up after a silence; what to raise."""

    def let_go(self, call: Call[Any]) -> None:
        """Nobody waits for it any more, through no fault of the bookie."""

    def wait(self, changed: Condition, seconds: float) -> bool:
        """Wait for so long at most; whether the whole process stood still meanwhile."""

    def begin_anew(self) -> None:
        """Who waits for a place begins to wait now."""

    def has_place(self, call: Call[Any]) -> bool:
        """Whether it is one in a task of its own that others may wait for."""

    def step_aside(self, call: Call[Any], wait: Callable[[], None]) -> None:
        """Wait for something else, and let others have its place meanwhile."""


_current: ContextVar[Call[Any] | None] = ContextVar("call", default=None)
"""The call that the running task makes: its storage calls are watched by who waits for it."""


class Call(Generic[T]):
    """One thing that a bookie is asked for, and which call of its storage it waits in."""

    def __init__(
        self,
        bookie_client: Asked,
        purpose: str,
        run: Callable[[], T],
        runtime: Runtime,
        changed: Condition,
    ) -> None:
        self.bookie_id = bookie_client.bookie_id
        self.bookie_client = bookie_client
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
        self.is_aside = False
        """Whether it waits for something else, and who wants its place may have it."""
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
            self.bookie_client.came_back(self)
            with self.changed:
                self.is_over = True
                self.changed.notify_all()

    def in_person(self, run: Callable[[], R]) -> R:
        """The running task asks itself, and somebody else looks for how long.

        Only within ``run``: what the task asks before and after is bounded as anybody's is.
        """
        token = _current.set(self)
        self.bookie_client.calls.add(self)
        try:
            return run()
        finally:
            _current.reset(token)
            self.bookie_client.calls.discard(self)
            if self.is_trial or self.hangs_since is not None:
                self.bookie_client.came_back(self)

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
            self.bookie_client.patience.give_up + more_seconds,
        )
        try:
            return function(*args)
        finally:
            self._in = None
            self.has_answer = True
            self.bookie_client.stepped(self)
            if self.is_trial or self.hangs_since is not None:
                self.bookie_client.answers(self)

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
        return self.left(self.bookie_client.patience.give_up if inside is None else inside[3])

    def wait(self, seconds: float) -> None:
        """Wait for ``changed``, which is held, so long at most, and return now and then.

        When the whole process stood still meanwhile, the bookie's silence begins anew.
        """
        if self.bookie_client.wait(self.changed, seconds):
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
        return now - self.hangs_since >= self.bookie_client.patience.hedge

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
        return self.bookie_client.hung(self, self.silence(now))


def running_call() -> Call[Any] | None:
    """The call that the running task makes, of whatever bookie."""
    return _current.get()


def current_call(bookie_client: Asked) -> Call[Any] | None:
    """The call of the running task, if it asks this bookie."""
    current = _current.get()
    if current is not None and current.bookie_client is not bookie_client:
        current = current.beside
    return current if current is not None and current.bookie_client is bookie_client else None
