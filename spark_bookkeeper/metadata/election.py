"""Who is to lead, as everybody who asks is told: votes in the metadata store, in their order.

A vote is an ephemeral node with a number that only grows; the lowest one leads, and each of the
others watches the one before it, so that one is woken when a leader goes, and not all. A session
that ends takes its votes along.

This is a *suggestion*. A leader that is frozen, or cut off from the store for longer than a
session lasts, learns of its successor late, and believes for that long to lead. What lets only
one of them write is the fence (SLOT-LOG rules R4, R17), and never this.

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
"""Thirty years: Python cannot wait for every number, and some give ``sys.maxsize`` for ever."""

_NAME: Final = re.compile(r"V_(?:([0-9a-f]+)_)?(\d+)", re.ASCII)


def vote_prefix(token: str) -> str:
    """How the name of a vote begins; its number follows."""
    return f"V_{token}_"


def in_order(names: Iterable[str]) -> list[str]:
    """The votes among names, the leader's first; what is none is left out."""
    found = [(int(matched[2]), name) for name in names if (matched := _NAME.fullmatch(name))]
    return [name for _, name in sorted(found)]


class Ballots(Protocol):
    """Votes of elections in a metadata store, each election a path of its own.

    Every method but ``remove`` raises ``MetadataUnavailableError`` when there is no answer.
    """

    def add(self, path: str, token: str, identity: bytes) -> None:
        """One vote behind all others, which goes when this session does.

        Args:
            path: of the election.
            token: hexadecimal, never used before. A vote that has it already is this one.
            identity: who votes, for people and programs that ask who leads.
        """

    def votes(self, path: str) -> Sequence[str]:
        """The names of all votes now, the leader's first."""

    def identity(self, path: str, vote: str) -> bytes | None:
        """Who voted; ``None`` when the vote is gone."""

    def watch(self, path: str, vote: str, gone: Callable[[], None]) -> Callable[[], None]:
        """Call ``gone`` once, from any thread, when a vote is not there; returns how to stop."""

    def remove(self, path: str, token: str) -> None:
        """Take a vote back; again after each loss of the connection, until there is an answer.

        Raises nothing but Ctrl-C, and the vote goes all the same.
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
        """Be a candidate, behind all others, until ``Vote.leave`` or the session's end.

        Args:
            identity: what others see of who leads.
        """
        return Vote(self._ballots, self.path, identity, self._runtime)

    def candidates(self) -> list[bytes]:
        """The identities of all candidates now, the leader's first."""
        found = (self._ballots.identity(self.path, vote) for vote in self._ballots.votes(self.path))
        return [identity for identity in found if identity is not None]

    def leader(self) -> bytes | None:
        """The identity of who is to lead now; ``None`` when nobody is a candidate."""
        for vote in self._ballots.votes(self.path):
            identity = self._ballots.identity(self.path, vote)
            if identity is not None:
                return identity
        return None


class Vote:
    """A candidate. A context manager that leaves at its end. Any thread may use it."""

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
        except BaseException:  # it may have been made
            ballots.remove(path, self._token)
            raise

    def __reduce__(self) -> NoReturn:
        process.refuse_pickling("vote", "open_log(...).elect()")

    def __repr__(self) -> str:
        return f"Vote({self.path!r}, {'left' if self._is_left else 'candidate'})"

    @property
    def is_leader(self) -> bool:
        """Whether this candidate is to lead, asked of the store now.

        False too when its session was lost and with it the vote; ``wait`` makes another one.

        Raises:
            MetadataUnavailableError: nobody knows.
        """
        return not self._is_left and self._ahead(self._ballots.votes(self.path)) == []

    def wait(self, timeout_ms: int | None = None) -> bool:
        """Wait until this candidate is to lead; False when it is not after so long, or left.

        A vote that went with its session is made again, behind all others.
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
        """Call ``lost`` once, from any thread, when the vote is gone; returns how to stop.

        Its session was lost, or it left: somebody else is to lead.
        """
        mine = self._mine(self._ballots.votes(self.path))
        if mine is None:
            lost()
            return lambda: None
        return self._ballots.watch(self.path, mine, lost)

    def leave(self) -> None:
        """Be no candidate any more; whoever waits for this vote goes on. Idempotent."""
        try:
            self._is_left = True
            self._wake_up.set()
        finally:  # also after Ctrl-C: nobody else would take it back
            self._ballots.remove(self.path, self._token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _add_again(self) -> None:
        try:
            self._ballots.add(self.path, self._token, self.identity)
        finally:  # also where there is no answer: it may have been made
            if self._is_left:  # meanwhile, by another thread
                self._ballots.remove(self.path, self._token)

    def _wait_for(self, votes: Sequence[str], seconds: float | None) -> None:
        """Wait until one of these is gone, the one before this vote or this one itself."""
        stops: list[Callable[[], None]] = []
        try:
            for vote in votes:
                stops.append(self._ballots.watch(self.path, vote, self._wake_up.set))
            self._wake_up.wait(seconds)
        finally:
            for stop in stops:
                stop()

    def _ahead(self, votes: Sequence[str]) -> Sequence[str] | None:
        """The votes before this one; ``None`` when this one is not there."""
        mine = self._mine(votes)
        return None if mine is None else votes[: votes.index(mine)]

    def _mine(self, votes: Sequence[str]) -> str | None:
        return next((vote for vote in votes if vote.startswith(vote_prefix(self._token))), None)
