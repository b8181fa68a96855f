"""Asking a bookie for something, with a bound on how long it may stay silent.

Storage can hang: neither an answer nor an error, for ever. So whatever is asked runs in a task of
its own, and who asks waits until it ends, or until one call of the storage has had no answer for
too long (``call.py`` says how long that is). After a silence the outcome is unknown, and what
still comes late is nobody's answer (SLOT-LOG rules R3, R5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.runtime.runtime import Condition, Runtime
from spark_bookkeeper.storage.call import Call, Patience, current_call, running_call

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
R = TypeVar("R")

CALLS_AT_ONCE: Final = 64
"""At one bookie, in tasks of their own; further ones wait. A bookie that hangs holds no more."""

TRIALS: Final = 8
"""Further calls that may hang while it is tried whether a bookie answers again."""

PLACE_SECONDS: Final = 0.05
"""Between two looks for a place at a bookie that too many calls are on their way to."""

_log = logging.getLogger(__name__)


class NoPlaceError(BookieUnavailableError):
    """Too many calls are on their way to a bookie, and perhaps one is about to come back."""


class BookieClient:
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
        self._employed: dict[Call[Any], None] = {}
        """Calls in tasks of their own, in order; those that never come back among them."""
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
        try:
            with call.changed:
                while not call.is_over and (left := call.left_to_answer()) > 0:
                    call.wait(left)
        except BaseException:  # Ctrl-C: nobody waits for it any more
            self.let_go(call)
            raise
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
            self.came_back(call)
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: nothing was sent, for this process could not start a "
                f"thread ({error}). Let it have more threads, or run less in it, and repeat",
                bookie_id=self.bookie_id,
            ) from error
        return call

    def ask_with(self, other: BookieClient, purpose: str, run: Callable[[], T]) -> T:
        """What ``run`` returns, which asks the storages of this bookie and of another, in turn.

        For copies: the task that reads a piece from one writes it to the other, while it is near
        the processor. Each of the two may be silent as long as it may for ``ask``.

        Raises:
            BookieUnavailableError: as by ``ask``, for the one that it names.
        """
        if running_call() is not None or other is self or len(other.calls) >= CALLS_AT_ONCE:
            return run()  # what is asked is bounded one by one
        beside = other.attend(purpose)

        def both() -> T:
            beside.beside = running_call()
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
                self.let_go(call)
                other.let_go(beside)
        if silent is not None:
            raise silent
        return call.result()

    def employ(self, what: str, run: Callable[[], None]) -> None:
        """Do something there for which nobody waits, and which raises nothing."""
        self._runtime.employ(f"{what}-{self.bookie_id}", run)

    def attend(self, purpose: str, *, insists: bool = False) -> Call[None]:
        """A call for a task that somebody else watches: a channel, say. See ``Call.in_person``.

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
                idle = next((other for other in self._employed if other.is_aside), None)
                if idle is not None:
                    del self._employed[idle]
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
            self._employed[call] = None
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

    def hung(self, call: Call[Any], seconds: float) -> BookieUnavailableError:
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

    def let_go(self, call: Call[Any]) -> None:
        """Nobody waits for a call any more, through no fault of this bookie.

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
            del self._employed[call]
            self.begin_anew()

    def has_place(self, call: Call[Any]) -> bool:
        """Whether it is one in a task of its own that others may wait for."""
        return call in self._employed

    def step_aside(self, call: Call[Any], wait: Callable[[], None]) -> None:
        """Wait for something else than this bookie, in the task of a call that has a place here.

        Whoever wants a place takes this one meanwhile. Then the call waits for another, as if it
        began, before it asks for more.

        Raises:
            BookieUnavailableError: as ``begin``, where the place was taken.
        """
        with self._changed:
            call.is_aside = True
            self._changed.notify_all()
        try:
            wait()
        finally:
            with self._changed:
                call.is_aside = False
                has_place = call in self._employed or call.is_given_up
        if not has_place:
            self._admit(call, may_wait=True)

    def came_back(self, call: Call[Any]) -> None:
        with self._changed:
            self._leaves(call)
            if call.has_answer and (call.is_trial or call.hangs_since is not None):
                self._forgive(call)
            self._changed.notify_all()

    def stepped(self, call: Call[Any]) -> None:
        """Something that it asked came back. Those without a place do not hold up who wants one."""
        if call in self._employed:
            self.begin_anew()

    def answers(self, call: Call[Any]) -> None:
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


def step(
    bookie_client: BookieClient,
    operation: str,
    subject: str,
    size_bytes: int,
    function: Callable[[Unpack[Ts]], R],
    *args: Unpack[Ts],
    more_seconds: float = 0.0,
) -> R:
    """One thing that a bookie is really asked: within ``BookieClient.ask`` a step of that call,
    elsewhere a
    call by itself; see ``Call.step``.
    """
    current = current_call(bookie_client)
    if current is not None:
        return current.step(
            operation, subject, size_bytes, function, *args, more_seconds=more_seconds
        )

    def alone() -> R:
        call = current_call(bookie_client)
        assert call is not None, "a door makes the call that it runs the current one"
        return call.step(operation, subject, size_bytes, function, *args, more_seconds=more_seconds)

    return bookie_client.ask("a call of its storage", alone)


def aside(wait: Callable[[], None]) -> None:
    """Wait for something that is no bookie, a limit say. The calls of the running task give their
    places to who wants them meanwhile.

    Raises:
        BookieUnavailableError: a place was taken, and there is none now, or the bookie hangs.
    """
    current = running_call()
    for call in () if current is None else (current, current.beside):
        if call is not None and call.bookie_client.has_place(call):  # a task has one
            call.bookie_client.step_aside(call, wait)
            return
    wait()
