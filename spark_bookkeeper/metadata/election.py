"""Leader election with ephemeral sequential nodes in the metadata store.

Each candidate has an ephemeral node with a number that only grows. The candidate with the lowest
number leads. Each other candidate watches the node before its own, so the end of a leader wakes one
candidate and not all. The nodes of a session end with it.

The result is a *suggestion*. A leader that is frozen, or cut off from the store for longer than a
session lasts, learns late of its successor and believes until then that it leads. The fence alone
ensures that only one of them writes (SLOT-LOG rules R4, R17); the election never does.

Source: The BookKeeper protocol, "Ledgers to logs"; ZooKeeper's recipe for leader election, as in
BookKeeper ``replication/AuditorElector``, whose nodes have the names ``V_0000000007``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn, Protocol

from typing_extensions import Self

from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.runtime import process
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import Runtime

_LONGEST_MS: Final = 10**12
"""Thirty years. Python cannot wait for every number, and some callers pass ``sys.maxsize``."""

_NAME: Final = re.compile(r"V_(?:([0-9a-f]+)_)?(\d+)", re.ASCII)


def vote_prefix(token: str) -> str:
    """Return the beginning of a candidate node's name; its number follows."""
    return f"V_{token}_"


def in_order(names: Iterable[str]) -> list[str]:
    """Return the candidate nodes among ``names``, the leader's first."""
    found = [(int(matched[2]), name) for name in names if (matched := _NAME.fullmatch(name))]
    return [name for _, name in sorted(found)]


class Ballots(Protocol):
    """The candidate nodes of elections in a metadata store; each election has its own path.

    Every method except ``remove`` raises ``MetadataUnavailableError`` when no answer comes.
    """

    def add(self, path: str, token: str, identity: bytes) -> None:
        """Add a candidate node behind all others; it ends with this session.

        Args:
            path: of the election.
            token: hexadecimal, never used before. A node that has it already is this one.
            identity: names the candidate to people and programs that read who leads.
        """

    def votes(self, path: str) -> Sequence[str]:
        """Return the names of all candidate nodes now, the leader's first."""

    def identity(self, path: str, vote: str) -> bytes | None:
        """Return the candidate's identity; ``None`` if its node no longer exists."""

    def watch(self, path: str, vote: str, gone: Callable[[], None]) -> Callable[[], None]:
        """Call ``gone`` once, from any thread, when the node does not exist; return how to stop."""

    def remove(self, path: str, token: str) -> None:
        """Remove a candidate node; retry after each loss of the connection until an answer comes.

        Raises nothing except on Ctrl-C, and removes the node even then.
        """


class Election:
    """One election. Any number of candidates may join it from any number of processes."""

    def __init__(self, ballots: Ballots, path: str, runtime: Runtime) -> None:
        self.path = path
        self._ballots = ballots
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"Election({self.path!r})"

    def join(self, identity: bytes = b"") -> Vote:
        """Become a candidate, behind all others, until ``Vote.leave`` or the session's end.

        Args:
            identity: what others read while this candidate leads.
        """
        return Vote(self._ballots, self.path, identity, self._runtime)

    def candidates(self) -> list[bytes]:
        """Return the identities of all candidates now, the leader's first."""
        found = (self._ballots.identity(self.path, vote) for vote in self._ballots.votes(self.path))
        return [identity for identity in found if identity is not None]

    def leader(self) -> bytes | None:
        """Return the identity of the present leader; ``None`` if the election has no candidates."""
        for vote in self._ballots.votes(self.path):
            identity = self._ballots.identity(self.path, vote)
            if identity is not None:
                return identity
        return None


class Vote:
    """A candidate. As a context manager it leaves at its end. Any thread may use it."""

    def __init__(self, ballots: Ballots, path: str, identity: bytes, runtime: Runtime) -> None:
        self.path = path
        self.identity = identity
        self._ballots = ballots
        self._runtime = runtime
        self._token = runtime.token()
        self._wake_up = AutoResetEvent(runtime)
        self._is_left = False
        try:
            ballots.add(path, self._token, identity)
        except BaseException:  # the node may have been made
            ballots.remove(path, self._token)
            raise

    def __reduce__(self) -> NoReturn:
        process.refuse_pickling("vote", "open_log(...).elect()")

    def __repr__(self) -> str:
        return f"Vote({self.path!r}, {'left' if self._is_left else 'candidate'})"

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads, read from the store now.

        Also false after a loss of the session, which ended its node; ``wait`` adds another.

        Raises:
            MetadataUnavailableError: no answer came, so it is unknown.
        """
        return not self._is_left and self._ahead(self._ballots.votes(self.path)) == []

    def wait(self, timeout_ms: int | None = None) -> bool:
        """Wait until this candidate leads; return false after the time-out or after ``leave``.

        A node that ended with its session is added again, behind all others.
        """
        until = None
        if timeout_ms is not None:
            most_ms = min(whole_number("timeout_ms", timeout_ms, 0), _LONGEST_MS)
            until = self._runtime.now() + most_ms / 1000
        while not self._is_left:
            votes = self._ballots.votes(self.path)
            ahead = self._ahead(votes)
            if ahead == []:
                return True
            if ahead is None:
                self._add_again()
                continue
            left = None if until is None else until - self._runtime.now()
            if left is not None and left <= 0:
                return False
            self._wait_for(votes[len(ahead) - 1 : len(ahead) + 1], left)
        return False

    def on_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call ``lost`` once, from any thread, when this node no longer exists; return how to stop.

        The session was lost or the candidate left, so another candidate is to lead.
        """
        mine = self._mine(self._ballots.votes(self.path))
        if mine is None:
            lost()
            return lambda: None
        return self._ballots.watch(self.path, mine, lost)

    def leave(self) -> None:
        """Stop being a candidate, and let the next one lead. Idempotent."""
        try:
            self._is_left = True
            self._wake_up.set()
        finally:  # also after Ctrl-C: no other code would remove it
            self._ballots.remove(self.path, self._token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _add_again(self) -> None:
        try:
            self._ballots.add(self.path, self._token, self.identity)
        finally:  # also without an answer: it may have been made
            if self._is_left:  # meanwhile, by another thread
                self._ballots.remove(self.path, self._token)

    def _wait_for(self, votes: Sequence[str], seconds: float | None) -> None:
        """Wait until one of these is deleted: the node before this one, or this one itself."""
        stops: list[Callable[[], None]] = []
        try:
            for vote in votes:
                stops.append(self._ballots.watch(self.path, vote, self._wake_up.set))
            self._wake_up.wait(seconds)
        finally:
            for stop in stops:
                stop()

    def _ahead(self, votes: Sequence[str]) -> Sequence[str] | None:
        """Return the nodes before this one; ``None`` if this one does not exist."""
        mine = self._mine(votes)
        return None if mine is None else votes[: votes.index(mine)]

    def _mine(self, votes: Sequence[str]) -> str | None:
        return next((vote for vote in votes if vote.startswith(vote_prefix(self._token))), None)
