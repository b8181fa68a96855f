"""Elections in memory: the counterpart of ``metadata/zookeeper/leader_election.py``, for
``memory_store.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from spark_bookkeeper.metadata.election import in_order, vote_prefix
from spark_bookkeeper.testing.memory_registers import OperationRunner


class MemoryVotes:
    """The votes of all elections, as the servers store them.

    Args:
        lock: the cluster's lock; held while votes change, and never during a callback.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.held: dict[tuple[str, str], tuple[bytes, int]] = {}
        """The identity and the session's number of each vote, by election and name."""
        self.watchers: dict[int, tuple[str, str, Callable[[], None]]] = {}

    def end_session(self, session: int) -> None:
        """Remove the votes of a session; call ``tell`` afterwards."""
        for vote in [vote for vote, (_, holder) in self.held.items() if holder == session]:
            del self.held[vote]

    def tell(self) -> None:
        """Call the watchers of votes that are gone; the lock must not be held."""
        for number, (path, vote, gone) in list(self.watchers.items()):
            if (path, vote) not in self.held:
                self.watchers.pop(number, None)
                gone()


class MemoryBallots:
    """The votes of one session; implements ``Ballots``.

    Args:
        votes: the votes of all sessions.
        call: runs one operation in the session, see ``MemoryStore``.
        session: returns the number of the store's current session.
        number: returns a number that is never returned again.
        told: makes a callback of a watch in the way of the session's client.
    """

    def __init__(
        self,
        votes: MemoryVotes,
        call: OperationRunner,
        session: Callable[[], int],
        number: Callable[[], int],
        told: Callable[[Callable[[], None]], None],
    ) -> None:
        self._votes = votes
        self._call = call
        self._session = session
        self._number = number
        self._told = told

    def add(self, path: str, token: str, identity: bytes) -> None:
        def effect() -> None:
            prefix = vote_prefix(token)
            if not any(held == path and v.startswith(prefix) for held, v in self._votes.held):
                name = f"{prefix}{self._number():010d}"
                self._votes.held[path, name] = identity, self._session()

        self._call("add_vote", path, effect)

    def votes(self, path: str) -> Sequence[str]:
        return self._call(
            "votes", path, lambda: in_order(v for held, v in self._votes.held if held == path)
        )

    def identity(self, path: str, vote: str) -> bytes | None:
        return self._call(
            "vote_identity", path, lambda: self._votes.held.get((path, vote), (None, 0))[0]
        )

    def watch(self, path: str, vote: str, gone: Callable[[], None]) -> Callable[[], None]:
        number = self._number()
        self._votes.watchers[number] = path, vote, lambda: self._told(gone)
        self._votes.tell()  # it may be gone already

        def stop() -> None:
            self._votes.watchers.pop(number, None)

        return stop

    def remove(self, path: str, token: str) -> None:
        prefix = vote_prefix(token)
        with self._votes.lock:
            for held, vote in list(self._votes.held):
                if held == path and vote.startswith(prefix):
                    del self._votes.held[held, vote]
        self._votes.tell()
