"""Candidates of elections as ephemeral sequential nodes in ZooKeeper.

``election.py`` explains them; ``underreplication.py`` explains the auditor's election.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from spark_bookkeeper.errors import MetadataError
from spark_bookkeeper.metadata.election import in_order, vote_prefix
from spark_bookkeeper.metadata.underreplication import Changed, decode_vote, encode_vote
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.link import AbsentError, ChangedError
from spark_bookkeeper.metadata.zookeeper.nodes import Node, Nodes
from spark_bookkeeper.metadata.zookeeper.own_session import own_session

_log = logging.getLogger(__name__)


class ZooKeeperBallots:
    """Implements ``Ballots``.

    Args:
        zk: the session that the candidate nodes end with.
        node: returns the parent of an election's candidate nodes, by the election's path.
    """

    def __init__(self, zk: Nodes, node: Callable[[str], str]) -> None:
        self._zk = zk
        self._node = node
        self._lock = threading.Lock()
        self._leaving: set[tuple[str, str]] = set()
        """Candidate nodes whose deletion is not confirmed: election and token. Not the node's path,
        because finding it may need a request, and no answer comes now.
        """
        zk.on_connected(self.discard)

    def add(self, path: str, token: str, identity: bytes) -> None:
        node, prefix = self._node(path), vote_prefix(token)
        with self._lock:
            self._leaving.discard((path, token))
        while True:
            try:
                if not self._beginning(node, prefix):
                    self._zk.create_sequential(node, prefix, identity)
                break
            except AbsentError:
                self._zk.ensure(node)
        for name in self._beginning(node, prefix)[1:]:  # left by a repetition after a lost answer
            self._delete(f"{node}/{name}")

    def votes(self, path: str) -> Sequence[str]:
        node = self._node(path)
        try:
            names = in_order(self._zk.children(node))
        except AbsentError:
            return []
        found = self._zk.get_many(f"{node}/{name}" for name in names)
        # A node without a session, as in a copy of ZooKeeper's tree, would never end.
        return [
            name
            for name, (_, vote) in zip(names, found, strict=True)
            if vote is not None and vote.owner
        ]

    def identity(self, path: str, vote: str) -> bytes | None:
        try:
            return self._zk.get(f"{self._node(path)}/{vote}").data
        except AbsentError:
            return None

    def watch(self, path: str, vote: str, gone: Callable[[], None]) -> Callable[[], None]:
        return self._zk.watches.watch_gone(f"{self._node(path)}/{vote}", gone)

    def remove(self, path: str, token: str) -> None:

        def note() -> None:
            with self._lock:
                self._leaving.add((path, token))

        self._zk.surely(note, self.discard)

    def discard(self) -> None:
        """Delete the nodes to be deleted; without an answer, retry after the next connection."""
        self._zk.once_connected(self._discard)

    def _discard(self) -> bool:
        """Delete them once; return whether every deletion was answered."""
        with self._lock:
            leaving = list(self._leaving)
        are_gone = True
        for path, token in leaving:
            try:
                node = self._node(path)
                for name in self._beginning(node, vote_prefix(token)):
                    self._delete(f"{node}/{name}")
            except AbsentError:
                pass
            except MetadataError as error:
                _log.info("a vote in %s goes later: %s", path, error.message)
                are_gone = False
                continue
            with self._lock:
                self._leaving.discard((path, token))
        return are_gone

    def _beginning(self, node: str, prefix: str) -> list[str]:
        """Return the candidate nodes with this prefix, in order. Raises ``AbsentError``."""
        names = in_order(self._zk.children_settled(node))
        return [name for name in names if name.startswith(prefix)]

    def _delete(self, path: str) -> None:
        try:
            self._zk.delete(path)
        except AbsentError:
            return


_VOTE: Final = re.compile(r"V_(\d+)", re.ASCII)


class _Vote(NamedTuple):
    number: int
    path: str
    node: Node


class AuditorVotes:
    """The candidates for auditor of a cluster, for one client.

    Args:
        root: of the cluster.
    """

    def __init__(self, zk: Nodes, root: Callable[[], str]) -> None:
        self._zk = zk
        self._root = root
        self._stop_watching: Sequence[Callable[[], None]] = ()
        self._leaving: object = None
        """Identifies the last call that left; ``None`` once its node is deleted."""

    def stand(self, name: str, changed: Changed) -> bool:
        """Implement ``Underreplication.stand``."""
        self._leaving = None  # a node that is deleted all the same is added at the next call
        parent = paths.auditor_election(self._root())
        self._zk.ensure(parent)
        session = own_session(self._zk, self._root())
        votes = self._votes()
        if not any(vote.node.owner == session for vote in votes):
            self._zk.create_sequential(parent, "V_", encode_vote(name))
            votes = self._votes()
        mine = [i for i, vote in enumerate(votes) if vote.node.owner == session]
        for surplus in mine[1:]:  # left by a repetition after a lost answer
            self._delete(votes[surplus])
        place = mine[0] if mine else None
        if place is None:  # it was deleted again: the session has just ended
            changed()
            return False
        self._watch_no_more()
        # Watch the node before, and the own one: after an unanswered ``stand_down``, the own node's
        # deletion may still have been on its way at this ``stand``.
        watched = votes[max(0, place - 1) : place + 1]
        self._stop_watching = [self._zk.watches.watch_gone(v.path, changed) for v in watched]
        if place:
            return False
        with suppress(AbsentError, ChangedError):  # the data is for people who look
            self._zk.set(parent, encode_vote(name), -1)
        return True

    def _watch_no_more(self) -> None:
        for stop in self._stop_watching:
            stop()

    def stand_down(self) -> None:
        """Implement ``Underreplication.stand_down``."""
        leaving = object()

        def note() -> None:
            self._leaving = leaving
            self._watch_no_more()

        self._zk.surely(note, self.discard)

    def discard(self) -> None:
        """Delete the node of a client that left the election. Without an answer, retry after the
        next connection.
        """
        self._zk.once_connected(self._discard)

    def _discard(self) -> bool:
        """Delete it once; return whether an answer came."""
        leaving = self._leaving
        if leaving is None:
            return True
        try:
            session = own_session(self._zk, self._root())
            for vote in self._votes(self._zk.children_settled):
                if vote.node.owner == session and self._leaving is leaving:
                    self._delete(vote)
        except MetadataError as error:
            _log.warning("a vote stays for now: %s", error.message)
            return False
        if self._leaving is leaving:  # else ``stand`` was called meanwhile
            self._leaving = None
        return True

    def _delete(self, vote: _Vote) -> None:
        with suppress(AbsentError):
            self._zk.delete(vote.path)

    def names(self) -> Sequence[str]:
        """Implement ``Underreplication.candidates``."""
        return [decode_vote(vote.node.data) for vote in self._votes()]

    def _votes(self, children: Callable[[str], Sequence[str]] | None = None) -> Sequence[_Vote]:
        """Return all valid candidates, the auditor's first. A node without a session, as in a copy
        of ZooKeeper's tree, belongs to no process and would never end: a candidate behind it would
        wait for ever.
        """
        parent = paths.auditor_election(self._root())
        try:
            names = (children or self._zk.children)(parent)
        except AbsentError:
            return []
        numbers = {f"{parent}/{n}": int(m[1]) for n in names if (m := _VOTE.fullmatch(n))}
        return sorted(
            _Vote(numbers[path], path, node)
            for path, node in self._zk.get_many(numbers)
            if node is not None and node.owner
        )
