"""A client's view of one bookie: its calls, their limits and time-outs.

Storage can hang: a call returns neither an answer nor an error, for ever. So each call runs in its
own task. The caller waits until the task ends, or until one storage call in it times out
(``call.py`` says when). After a time-out the outcome is unknown, and a late answer is dropped
(SLOT-LOG rules R3, R5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.runtime.runtime import Condition, Runtime
from spark_bookkeeper.storage import retry_policy
from spark_bookkeeper.storage.call import Call, current_call, running_call
from spark_bookkeeper.storage.retry_policy import Patience

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)


class NoPlaceError(BookieUnavailableError):
    """A bookie has too many calls under way, of which one may soon end."""


class BookieClient:
    """A client's view of one bookie: the calls that are under way, and whether it hangs.

    Args:
        bookie_id: the bookie.
        uri: the root of its storage, for messages.
        runtime: clock and tasks.
        patience: the time-outs.
    """

    def __init__(self, bookie_id: str, uri: str, runtime: Runtime, patience: Patience) -> None:
        self.bookie_id = bookie_id
        self.uri = uri
        self.patience = patience
        self._runtime = runtime
        self.calls: set[Call[Any]] = set()
        """The calls under way. Adding or removing one is one step, which needs no lock."""
        self._employed: dict[Call[Any], None] = {}
        """Calls that have a place, in order; calls that never return are among them."""
        self._moved_at = runtime.now()
        """When one of these calls, or a storage call in one, last began or ended."""
        self._changed = runtime.condition()

    def ask(self, purpose: str, run: Callable[[], T]) -> T:
        """Return the result of ``run``, which may use the storage of this bookie only.

        Raises:
            BookieUnavailableError: the call timed out; the outcome is unknown. Or an earlier call
                hangs, and nothing was sent.
        """
        if current_call(self) is not None:
            return run()
        call = self.begin(purpose, run, self._runtime.condition())
        try:
            with call.changed:
                while not call.is_over and (left := call.left_to_answer()) > 0:
                    call.wait(left)
        except BaseException:  # Ctrl-C: the caller no longer waits
            self.let_go(call)
            raise
        return call.result()

    def begin(
        self, purpose: str, run: Callable[[], T], changed: Condition, *, may_wait: bool = True
    ) -> Call[T]:
        """Start a call without waiting for its answer. ``changed`` is notified when it is over.

        Args:
            may_wait: wait for a place while too many calls are under way; otherwise raise.

        Raises:
            BookieUnavailableError: an earlier call hangs, there was no place, or no thread could
                be started. Nothing was sent.
        """
        call = Call(self, purpose, run, self._runtime, changed)
        self._admit(call, may_wait=may_wait)
        try:
            self._runtime.employ(f"ask-{self.bookie_id}", call.run)
        except RuntimeError as error:  # no thread started, so none would call ``came_back``
            self.came_back(call)
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: nothing was sent, for this process could not start a "
                f"thread ({error}). Let it have more threads, or run less in it, and repeat",
                bookie_id=self.bookie_id,
            ) from error
        return call

    def ask_with(self, other: BookieClient, purpose: str, run: Callable[[], T]) -> T:
        """Return the result of ``run``, which uses the storages of this bookie and of another.

        Copying uses this: one task reads a piece from a bookie and writes it to the other while
        it is in the processor's cache. Each bookie has the time-out that it has in ``ask``.

        Raises:
            BookieUnavailableError: as by ``ask``, for the bookie in the error.
        """
        if (
            running_call() is not None
            or other is self
            or len(other.calls) >= retry_policy.CALLS_AT_ONCE
        ):
            return run()  # then each storage call has its own time-out
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
                    if left <= 0:  # an answer may arrive just now: then neither has timed out
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
        """Run a function in the background at this bookie. It must not raise."""
        self._runtime.employ(f"{what}-{self.bookie_id}", run)

    def attend(self, purpose: str, *, insists: bool = False) -> Call[None]:
        """Make a call for a task that another task watches (a channel's): see ``Call.in_person``.

        Args:
            insists: use a bookie that hangs, too, as one more trial. This is for a caller that
                would otherwise lose the bookie for good, perhaps because of one bad file.

        Raises:
            BookieUnavailableError: an earlier call hangs.
        """
        call = Call(self, purpose, lambda: None, self._runtime, self._changed)
        with self._changed:
            try:
                self._refuse_if_hanging(call)
            except BookieUnavailableError:
                if (
                    not insists
                    or len(self.calls) >= retry_policy.CALLS_AT_ONCE + retry_policy.TRIALS
                ):
                    raise
                call.is_trial = True
        return call

    def wait(self, changed: Condition, seconds: float) -> bool:
        """Wait on a held condition for ``seconds`` at most. May return early.

        Returns:
            Whether the whole process stood still meanwhile. Then earlier silence does not count.
        """
        limit = self.patience.give_up
        seconds = min(max(seconds, 0.001), limit / 4)
        before = self._runtime.now()
        changed.wait(seconds)
        now = self._runtime.now()
        return now - before > seconds + limit / 2

    def begin_anew(self) -> None:
        """Restart the waiting time of the calls that wait for a place."""
        self._moved_at = self._runtime.now()

    @property
    def is_silent(self) -> bool:
        """Whether a call has waited so long for an answer that other bookies are preferred."""
        now = self._runtime.now()
        return any(
            not call.is_forgiven and call.silence(now) >= self.patience.hedge
            for call in tuple(self.calls)
        )

    def silence(self) -> tuple[str, float] | None:
        """Return the longest wait for an answer now: the call, and seconds. ``None``: no wait."""
        now = self._runtime.now()
        calls = [(call.silence(now), call.what) for call in tuple(self.calls)]
        seconds, what = max(calls, default=(0.0, ""))
        return (what, seconds) if seconds > 0 else None

    def _admit(self, call: Call[Any], *, may_wait: bool) -> None:
        with self._changed:
            asked_at = self._runtime.now()
            while True:
                self._refuse_if_hanging(call)
                if len(self._employed) < retry_policy.CALLS_AT_ONCE + (
                    retry_policy.TRIALS if call.is_trial else 0
                ):
                    break
                idle = next((other for other in self._employed if other.is_aside), None)
                if idle is not None:
                    del self._employed[idle]
                    break
                # While other calls return, the bookie is busy, not hanging. A call that is between
                # two storage calls is no sign of a hang: it waits for a throttle or another bookie.
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
        """Refuse the call while the bookie hangs, unless it is due as a trial."""
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
        """Log that a call timed out, and return the error for its caller."""
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
        """Mark a call for which the caller no longer waits, through no fault of this bookie.

        It can send nothing more. So it loses its place, unless a storage call is under way in it.
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
        """Whether the call has one of this bookie's ``CALLS_AT_ONCE`` places."""
        return call in self._employed

    def step_aside(self, call: Call[Any], wait: Callable[[], None]) -> None:
        """Wait for something other than this bookie, in the task of a call that has a place here.

        Meanwhile another call may take the place. Then this call waits for a new place, like a
        call that begins, before it goes on.

        Raises:
            BookieUnavailableError: the place was taken, and ``begin`` would raise now.
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
        """Note that a storage call returned. That counts only if its ``call`` has a place."""
        if call in self._employed:
            self.begin_anew()

    def answers(self, call: Call[Any]) -> None:
        """Note an answer to a call that is a trial or had timed out. The call may go on."""
        with self._changed:
            self._forgive(call)
            self._changed.notify_all()

    def _forgive(self, call: Call[Any]) -> None:
        for other in tuple(self.calls):  # the bookie answers again; these may never return
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
    """Make one storage call. Within ``BookieClient.ask`` it is a step of that call; elsewhere it
    is a call of its own. See ``Call.step``.
    """
    current = current_call(bookie_client)
    if current is not None:
        return current.step(
            operation, subject, size_bytes, function, *args, more_seconds=more_seconds
        )

    def alone() -> R:
        call = current_call(bookie_client)
        assert call is not None, "a client makes the call that it runs the current one"
        return call.step(operation, subject, size_bytes, function, *args, more_seconds=more_seconds)

    return bookie_client.ask("a call of its storage", alone)


def aside(wait: Callable[[], None]) -> None:
    """Wait for something other than a bookie, such as a throttle. Meanwhile other calls may take
    the place of the running task's call.

    Raises:
        BookieUnavailableError: the place was taken, and no other is free or the bookie hangs.
    """
    current = running_call()
    for call in () if current is None else (current, current.beside):
        if call is not None and call.bookie_client.has_place(call):  # a task has one place at most
            call.bookie_client.step_aside(call, wait)
            return
    wait()
