"""Votes as ephemeral sequential nodes in ZooKeeper; what a vote is stands in ``election.py``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from spark_bookkeeper.errors import MetadataError
from spark_bookkeeper.metadata.election import in_order, vote_prefix
from spark_bookkeeper.metadata.zookeeper.link import AbsentError
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes

_log = logging.getLogger(__name__)


class ZooKeeperBallots:
    """Implements ``Ballots``.

    Args:
        zk: the session that its votes go with.
        node: the node whose children the votes of an election are, by the election's path.
    """

    def __init__(self, zk: Nodes, node: Callable[[str], str]) -> None:
        self._zk = zk
        self._node = node
        self._lock = threading.Lock()
        self._leaving: set[tuple[str, str]] = set()
        """Votes that are to go, of which there is no answer yet: election and token. Not the node:
        where it is may have to be asked for, and there is no answer now.
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
        for name in self._beginning(node, prefix)[1:]:  # an answer was lost, and it was repeated
            self._delete(f"{node}/{name}")

    def votes(self, path: str) -> Sequence[str]:
        node = self._node(path)
        try:
            names = in_order(self._zk.children(node))
        except AbsentError:
            return []
        found = self._zk.get_many(f"{node}/{name}" for name in names)
        # One that goes with no session, as a copy of ZooKeeper's tree has it, would never go.
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
        """Delete what is to go; what there is no answer for goes after the next connection."""
        self._zk.once_connected(self._discard)

    def _discard(self) -> bool:
        """Whether there was an answer for all of them."""
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
        """The votes whose names begin so, in order. Raises ``AbsentError``."""
        names = in_order(self._zk.children_settled(node))
        return [name for name in names if name.startswith(prefix)]

    def _delete(self, path: str) -> None:
        try:
            self._zk.delete(path)
        except AbsentError:
            return
