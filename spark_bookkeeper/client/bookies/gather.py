"""Call several bookies at once, and return their answers as they come.

Reads and recoveries call one bookie, and the next one too if the first stays silent for a while:
the first good answer counts, and a late one is not lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage import retry_policy
from spark_bookkeeper.storage.bookie_client import BookieClient, NoPlaceError
from spark_bookkeeper.storage.call import Call

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class TimedOut(Generic[K]):
    """The keys of calls that have been silent for a while; their answers may still come."""

    keys: tuple[K, ...]


class Gather(Generic[K, T]):
    """Several calls under way at once, and their answers as they come. One task uses it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._calls: dict[K, Call[T]] = {}
        self._unsent: dict[K, _Unsent[T]] = {}
        """Calls for which their bookies have no free place. Other calls need not wait for that."""
        self._refused: dict[K, BookieUnavailableError] = {}
        self._late: set[K] = set()

    def ask(self, key: K, bookie_client: BookieClient, purpose: str, run: Callable[[], T]) -> None:
        """Add a call. Its answer is an error if the bookie already hangs."""
        self._send(key, _Unsent(bookie_client, purpose, run, self._runtime.now()))

    def _send(self, key: K, unsent: _Unsent[T]) -> None:
        """Send a call, keep it until there is a place for it, or note that it is refused."""
        bookie_client = unsent.bookie_client
        try:
            call = bookie_client.begin(unsent.purpose, unsent.run, self._changed, may_wait=False)
        except NoPlaceError:
            self._unsent[key] = unsent
            return
        except BookieUnavailableError as error:
            self._refused[key] = error
        else:
            self._calls[key] = call
        self._unsent.pop(key, None)

    @property
    def waiting(self) -> tuple[K, ...]:
        """The keys of calls without an answer, including late ones."""
        return (*self._calls, *self._unsent, *self._refused)

    def is_waited_for(self) -> bool:
        """Whether an answer may still come that ``next`` has not reported as late."""
        keys = (*self._calls, *self._unsent)
        return bool(self._refused) or any(key not in self._late for key in keys)

    def silence_of(self, key: K) -> str:
        """Return the late call and its duration, for messages."""
        now = self._runtime.now()
        if key in self._unsent:
            unsent = self._unsent[key]
            return f"no place for {now - unsent.since:.1f} s: {unsent.purpose}"
        call = self._calls[key]
        return f"no answer for {call.silence(now):.1f} s: {call.what}"

    def next(
        self, late_after: float | None = None, since: float = 0.0
    ) -> tuple[K, Callable[[], T]] | TimedOut[K] | None:
        """Wait for the next answer.

        Args:
            late_after: seconds of silence after which a call is late; reported once for each.
            since: no silence before this moment counts as late.

        Returns:
            a key and a function that returns or raises the answer; or the late keys; ``None`` when
            no call is under way.
        """
        try:
            return self._next(late_after, since)
        except BaseException:  # Ctrl-C: the answers are not needed
            for call in self._calls.values():
                call.bookie_client.let_go(call)
            self._calls.clear()
            self._unsent.clear()
            raise

    def _next(
        self, late_after: float | None, since: float
    ) -> tuple[K, Callable[[], T]] | TimedOut[K] | None:
        while True:
            for key, unsent in tuple(self._unsent.items()):
                self._send(key, unsent)
            if self._refused:
                key, error = self._refused.popitem()
                self._late.discard(key)
                return key, _raising(error)
            if not self._calls and not self._unsent:
                return None
            with self._changed:
                came = self._look(late_after, since)
            if came is not None:
                return came

    def _look(
        self, late_after: float | None, since: float
    ) -> tuple[K, Callable[[], T]] | TimedOut[K] | None:
        """Return what ``next`` returns, or ``None`` after a wait. The lock is held."""
        wait = retry_policy.PLACE_SECONDS if self._unsent else float("inf")
        late = []
        for key, call in self._calls.items():
            left = call.left_to_answer()
            if call.is_over or left <= 0:
                del self._calls[key]
                self._late.discard(key)
                return key, call.result
            wait = min(wait, left)
            if late_after is not None and key not in self._late:
                until_late = call.left(late_after, since)
                if until_late <= 0:
                    late.append(key)
                wait = min(wait, until_late)
        if late_after is not None:
            now = self._runtime.now()
            for key, unsent in self._unsent.items():
                if key not in self._late and now - max(unsent.since, since) >= late_after:
                    late.append(key)
        if late:
            self._late.update(late)
            return TimedOut(tuple(late))
        asked: list[Call[T] | _Unsent[T]] = [*self._calls.values(), *self._unsent.values()]
        if asked[0].bookie_client.wait(self._changed, wait):  # this process stood still itself
            for one in asked:
                one.begin_anew()
        return None


@dataclass(frozen=True, slots=True)
class _Unsent(Generic[T]):
    """A call that is not sent yet."""

    bookie_client: BookieClient
    purpose: str
    run: Callable[[], T]
    since: float

    def begin_anew(self) -> None:
        self.bookie_client.begin_anew()


def _raising(error: BookieUnavailableError) -> Callable[[], Any]:
    def result() -> Any:
        raise error

    return result
