"""One call to a bookie, and the storage call that it waits in now.

A time-out limits silence, not duration: each storage call that returns is progress, and one that
moves many bytes gets the time for them. ``bookie_client.py`` makes the calls and waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.runtime import Condition, Runtime
from spark_bookkeeper.storage import retry_policy
from spark_bookkeeper.storage.retry_policy import Patience

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
R = TypeVar("R")


class Asked(Protocol):
    """The methods of its bookie's client that a call uses: see ``bookie_client.BookieClient``."""

    bookie_id: str
    patience: Patience
    calls: set[Call[Any]]

    def came_back(self, call: Call[Any]) -> None:
        """Note that the call's task has ended."""

    def stepped(self, call: Call[Any]) -> None:
        """Note that a storage call in it returned."""

    def answers(self, call: Call[Any]) -> None:
        """Note an answer to a call that is a trial or had timed out."""

    def hung(self, call: Call[Any], seconds: float) -> BookieUnavailableError:
        """Note that the call timed out, and return the error to raise."""

    def let_go(self, call: Call[Any]) -> None:
        """Mark a call for which the caller no longer waits, through no fault of the bookie."""

    def wait(self, changed: Condition, seconds: float) -> bool:
        """Wait ``seconds`` at most. Return whether the whole process stood still meanwhile."""

    def begin_anew(self) -> None:
        """Restart the waiting time of the calls that wait for a place."""

    def has_place(self, call: Call[Any]) -> bool:
        """Whether the call has one of the bookie's limited places."""

    def step_aside(self, call: Call[Any], wait: Callable[[], None]) -> None:
        """Wait for something other than the bookie, and let other calls take the place."""


_current: ContextVar[Call[Any] | None] = ContextVar("call", default=None)
"""The call that the current task runs. The task that waits for it watches its storage calls."""


class Call(Generic[T]):
    """One call to a bookie, and the storage call that it waits in now."""

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
        """Notified when the call is over; guards the result."""
        self.is_over = False
        self.beside: Call[Any] | None = None
        """The same task's call to a second bookie, whose storage it uses as well."""
        self.is_trial = False
        """Whether it tests whether the bookie answers again."""
        self.is_forgiven = False
        """Whether the bookie answered other calls since; this one may have been lost."""
        self.hangs_since: float | None = None
        """When it was found to have timed out."""
        self.has_answer = False
        """Whether any storage call in it returned."""
        self.is_aside = False
        """Whether it waits for something other than the bookie, so others may take its place."""
        self._purpose = purpose
        self._run = run
        self._runtime = runtime
        self._now = runtime.now
        self._in: tuple[str, str, float, float] | None = None
        """The storage call under way: operation, path, when its silence begins (after the time
        for its bytes) and its time-out. ``None`` between two storage calls."""
        self._value: T | None = None
        self._error: BaseException | None = None
        self.is_given_up = False
        """Whether the caller no longer waits for it."""
        self._stood_still_at = 0.0

    # Called in the task of the call

    def run(self) -> None:
        """Run the function as the current call, and keep its outcome."""
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
        """Run a function in the current task as this call. Another task watches its silence.

        Storage calls of the task before and after ``run`` are bounded like all others.
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
        """Make one storage call, and return its result.

        Args:
            more_seconds: added to the time-out, but not to the time before a hedge.

        Raises:
            BookieUnavailableError: the caller no longer waits, so nothing was sent.
        """
        if self.is_given_up:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: {self._purpose} was given up", bookie_id=self.bookie_id
            )
        now = self._now()
        self._in = (
            operation,
            path,
            now + size_bytes / retry_policy.SLOWEST_BYTES_PER_SECOND if size_bytes else now,
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
        """Note progress within a step that makes several system calls.

        Raises:
            BookieUnavailableError: the caller no longer waits, so the step must stop.
        """
        inside = self._in
        assert inside is not None, "only within a step"
        if self.is_given_up:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: {self._purpose} was given up", bookie_id=self.bookie_id
            )
        operation, path, since, limit = inside
        self._in = operation, path, max(since, self._now()), limit

    # Called in the task that waits

    @property
    def what(self) -> str:
        """The purpose and the storage call under way, for messages."""
        inside = self._in
        return self._purpose if inside is None else f"{self._purpose} ({inside[0]} {inside[1]})"

    @property
    def is_asking(self) -> bool:
        """Whether a storage call is under way."""
        return self._in is not None

    def silence(self, now: float, since: float = 0.0) -> float:
        """Return the seconds of silence of the storage call; 0 between two storage calls."""
        inside = self._in
        if inside is None:
            return 0.0
        return max(0.0, now - max(inside[2], since, self._stood_still_at))

    def left(self, seconds: float, since: float = 0.0) -> float:
        """Return the seconds until it has been silent for ``seconds``, if no answer comes."""
        inside = self._in
        silence = self.silence(self._runtime.now(), since)
        ahead = 0.0 if inside is None else max(0.0, inside[2] - self._runtime.now())
        return seconds - silence + ahead

    def left_to_answer(self) -> float:
        """Return the seconds until it times out, if no answer comes."""
        inside = self._in
        return self.left(self.bookie_client.patience.give_up if inside is None else inside[3])

    def wait(self, seconds: float) -> None:
        """Wait on ``changed``, which is held, for ``seconds`` at most. May return early.

        If the whole process stood still meanwhile, the bookie's silence begins anew.
        """
        if self.bookie_client.wait(self.changed, seconds):
            self.begin_anew()

    def begin_anew(self) -> None:
        """Begin the silence anew, so that no silence up to now counts."""
        self._stood_still_at = self._runtime.now()

    def hangs(self, now: float) -> bool:
        """Whether it timed out.

        If no task waits for it, a long silence counts only when it is still found ``hedge`` seconds
        later: this process itself may have stood still.
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
        """Return its result, or raise its error.

        Raises:
            BookieUnavailableError: it is not over. It has now timed out; the outcome is unknown.
        """
        if not self.is_over:
            raise self._give_up()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it ended without an error

    def give_up_if_silent(self) -> BookieUnavailableError | None:
        """Return the error if it timed out. The watcher of an ``in_person`` call uses this."""
        if self.left_to_answer() > 0:
            return None
        return self._give_up()

    def _give_up(self) -> BookieUnavailableError:
        now = self._runtime.now()
        self.is_given_up = True
        self.hangs_since = now
        return self.bookie_client.hung(self, self.silence(now))


def running_call() -> Call[Any] | None:
    """Return the call of the current task, to any bookie."""
    return _current.get()


def current_call(bookie_client: Asked) -> Call[Any] | None:
    """Return the call of the current task to this bookie, if there is one."""
    current = _current.get()
    if current is not None and current.bookie_client is not bookie_client:
        current = current.beside
    return current if current is not None and current.bookie_client is bookie_client else None
