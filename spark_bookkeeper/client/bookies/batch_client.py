"""Call several bookies in parallel, each for many ledgers in one call.

A job over many ledgers gathers the next request of each, sends them all, and gathers again. Once
others have answered, a bookie that times out is not waited for. All its ledgers get an error; the
job then handles each of them separately, with longer waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from spark_bookkeeper.bookie.bookie import Bookie
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.bookies.gather import Gather, TimedOut
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieError, BookieUnavailableError, BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.answer import Answer
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage import retry_policy

A = TypeVar("A")
K = TypeVar("K")
T = TypeVar("T")

Request = Callable[[Bookie, Sequence[A]], Sequence[Answer[T]]]
"""One call of a bookie for many ledgers, for example ``Bookie.fence``."""


class BatchClient:
    """One session with each bookie, for a job over many ledgers."""

    def __init__(self, bookies: Bookies, runtime: Runtime) -> None:
        self._bookies = bookies
        self._runtime = runtime
        self._sessions: dict[BookieId, Bookie] = {}
        self._silent: dict[BookieId, BookieUnavailableError] = {}
        """Bookies that timed out. A call to each is still under way and uses its session."""

    def replica(
        self, bookie_id: BookieId, ledger: Ledger, incarnation: str | None = None
    ) -> Replica:
        """Return a replica as ``Bookies.replica``, in the session that all ledgers share."""
        ref = self._bookies.ref(bookie_id, ledger, incarnation)
        return Replica(self._session(bookie_id), ref)

    def is_silent(self, bookie_id: BookieId) -> bool:
        """Whether a bookie has timed out."""
        return bookie_id in self._silent

    def ask(
        self, purpose: str, request: Request[A, T], wanted: Mapping[K, tuple[BookieId, A]]
    ) -> dict[K, Answer[T]]:
        """Send all requests to their bookies; return the answer to each."""
        told: dict[K, Answer[T]] = {}
        asked: dict[tuple[BookieId, int], list[K]] = {}
        answers = Gather[tuple[BookieId, int], Sequence[Answer[T]]](self._runtime)
        for bookie_id, keys in _by_bookie(wanted).items():
            try:
                bookie_client, session = (
                    self._bookies.bookie_client(bookie_id),
                    self._session(bookie_id),
                )
            except BookieError as error:
                told.update(dict.fromkeys(keys, error))
                continue
            calls = min(session.calls_at_once, len(keys))
            for number in range(calls):
                some = keys[number::calls]
                asked[bookie_id, number] = some
                # The call holds only what it needs, as it may never return and keep that alive.
                call = partial(request, session, [wanted[key][1] for key in some])
                answers.ask((bookie_id, number), bookie_client, purpose, call)
        first_at: float | None = None
        while True:
            if first_at is None:
                came = answers.next()
            else:
                came = answers.next(retry_policy.GRACE_SECONDS, first_at)
            if came is None:
                return told
            if isinstance(came, TimedOut):
                if answers.is_waited_for():
                    continue
                for at in answers.waiting:
                    silence = f"bookie {at[0]}: {answers.silence_of(at)}"
                    self._silent[at[0]] = BookieUnavailableError(silence, bookie_id=at[0])
                    told.update(dict.fromkeys(asked[at], self._silent[at[0]]))
                return told
            at, result = came
            first_at = self._runtime.now() if first_at is None else first_at
            try:
                told.update(zip(asked[at], result(), strict=True))
            except BookKeeperError as error:
                told.update(dict.fromkeys(asked[at], error))

    def _session(self, bookie_id: BookieId) -> Bookie:
        if bookie_id in self._silent:
            raise self._silent[bookie_id]
        if bookie_id not in self._sessions:
            self._sessions[bookie_id] = self._bookies.bookie(bookie_id)
        return self._sessions[bookie_id]


def _by_bookie(wanted: Mapping[K, tuple[BookieId, A]]) -> dict[BookieId, list[K]]:
    found: dict[BookieId, list[K]] = {}
    for key, (bookie_id, _) in wanted.items():
        found.setdefault(bookie_id, []).append(key)
    return found
