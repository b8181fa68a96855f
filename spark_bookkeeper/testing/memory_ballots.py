"""Elections in memory: the twin of ``metadata/zookeeper/leader_election.py``, beside
``memory_store.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from spark_bookkeeper.metadata.election import in_order, vote_prefix
from spark_bookkeeper.testing.memory_registers import OperationRunner


class MemoryVotes:
    """What the servers hold of all elections.

    Args:
        lock: of the cluster; held while votes change, and never while somebody is told.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.held: dict[tuple[str, str], tuple[bytes, int]] = {}
        """By election and name, with the number of the session that holds each."""
        self.watchers: dict[int, tuple[str, str, Callable[[], None]]] = {}

    def end_session(self, session: int) -> None:
        """Remove the votes of a session; ``tell`` afterwards."""
        for vote in [vote for vote, (_, holder) in self.held.items() if holder == session]:
            del self.held[vote]

    def tell(self) -> None:
        """Tell who watches votes that are gone; the lock is not held."""
        for number, (path, vote, gone) in list(self.watchers.items()):
            if (path, vote) not in self.held:
                self.watchers.pop(number, None)
                gone()


class MemoryBallots:
    """The votes of one session; implements ``Ballots``.

    Args:
        votes: what the servers hold.
        call: carries out one operation in the session, see ``MemoryStore``.
        session: the number of the session that the store is in now.
        number: gives a number never given before.
        told: calls who watches a vote, as the session's client is called.
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
