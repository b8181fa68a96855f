"""Living writers: one ephemeral node for each ledger that a session writes.

The node is created with the node of the ledger and removed with the write that closes it, in the
same requests. So a create and a close wait for nothing more, and an append does not touch it. When
a process ends, or does not answer for longer than a session lasts, ZooKeeper removes its nodes.

The nodes are a hint for people: find out about a living writer before you act. A writer that is
frozen or cut off is shown as dead, and may go on an hour later. No safety rests on the nodes
(SLOT-LOG rule R17): the fence stops a writer.

BookKeeper's tools never read the nodes, but remove them with the tree.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Set
from dataclasses import dataclass

from spark_bookkeeper.errors import MetadataError
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.link import AbsentError, PresentError
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes
from spark_bookkeeper.protocol.ids import LedgerId

_log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{1,19})-([0-9a-f]+)", re.ASCII)

Writing = tuple[LedgerId, str]
"""A ledger with the token of its life: a reused id is another ledger."""


@dataclass(eq=False, slots=True)
class _Held:
    """A node that this session should have."""

    path: str
    session: int | None = None
    """The session in which the node was seen to exist."""
    stop_watching: Callable[[], None] | None = None


class Presences:
    """The nodes at a root, and those that this session holds. Any thread may call the methods."""

    def __init__(self, zk: Nodes, root: str) -> None:
        self._zk = zk
        self._root = root
        self._lock = threading.Lock()
        self._held: dict[LedgerId, dict[str, _Held]] = {}
        """By the token; it holds more than one while a second create of an id is refused."""
        self._leaving: set[str] = set()
        """Nodes to be deleted, whose deletion is not yet confirmed."""
        zk.on_connected(self._restore)

    def enter(self, ledger_id: LedgerId, token: str) -> None:
        """Create the node with the next write of this session, which creates the ledger."""
        held = _Held(paths.writer(self._root, ledger_id, token))
        with self._lock:
            self._held.setdefault(ledger_id, {})[token] = held
            self._leaving.discard(held.path)

        def made() -> None:
            held.session = self._zk.session_id

        self._zk.create_along(held.path, made)

    def entered(self, ledger_id: LedgerId, token: str) -> None:
        """Make sure that the node exists, after that write was made. Raises nothing."""
        with self._lock:
            held = self._held.get(ledger_id, {}).get(token)
        if held is not None and held.session is None:
            self._make(ledger_id, token, held)

    def watch(self, ledger_id: LedgerId, deleted: Callable[[], None]) -> None:
        """Call ``deleted`` (from any thread) once the ledger's own node is gone, until ``leave``.

        Send one request, and do not wait for its answer.
        """
        with self._lock:
            held = next(iter(self._held.get(ledger_id, {}).values()), None)
        if held is not None:
            held.stop_watching = self._zk.watches.watch_gone(
                paths.ledger(self._root, ledger_id), deleted
            )

    def leave(self, ledger_id: LedgerId, token: str | None = None, *, at_once: bool) -> None:
        """Remove the node if this session holds it; neither waits nor raises.

        Args:
            token: of a create that failed: an earlier one of the same id may have succeeded.
            at_once: send a request for it; otherwise the next write removes it.
        """
        with self._lock:
            of_ledger = self._held.get(ledger_id, {})
            left = [of_ledger.pop(each) for each in list(of_ledger) if token in (None, each)]
            if not of_ledger:
                self._held.pop(ledger_id, None)
        for held in left:
            if held.stop_watching is not None:
                held.stop_watching()
            self._discard(held.path, at_once=at_once)

    def living(self) -> Set[Writing]:
        """Return all existing nodes, by one request for any number of ledgers."""
        try:
            names = self._zk.children(paths.writers(self._root))
        except AbsentError:
            return frozenset()
        matches = map(_NAME.fullmatch, names)
        return frozenset((LedgerId(int(m[1])), m[2]) for m in matches if m is not None)

    def lives(self, ledger_id: LedgerId, token: str) -> bool:
        """Return whether a session's node exists now, after all confirmed changes."""
        there = self._zk.get_settled(paths.writer(self._root, ledger_id, token))
        return there is not None and there.owner != 0

    def _discard(self, path: str, *, at_once: bool) -> None:
        """Remove a node; retry after each loss of the connection until an answer comes."""
        with self._lock:
            self._leaving.add(path)

        def gone() -> None:
            with self._lock:
                self._leaving.discard(path)

        self._zk.discard(path, gone, at_once=at_once)

    def _restore(self) -> None:
        """After each loss of the connection, create the nodes again that ended with the old
        session, and remove those again that may have stayed.
        """
        with self._lock:
            leaving = list(self._leaving)
            held = [(i, *each) for i, of_ledger in self._held.items() for each in of_ledger.items()]
        for path in leaving:
            self._discard(path, at_once=True)
        for ledger_id, token, each in held:
            if each.session != self._zk.session_id:
                self._make(ledger_id, token, each)

    def _make(self, ledger_id: LedgerId, token: str, held: _Held) -> None:
        try:
            for _ in range(3):
                session = self._zk.session_id
                try:
                    self._zk.create(held.path, b"", ephemeral=True)
                except AbsentError:
                    self._zk.ensure(paths.writers(self._root))
                    continue
                except PresentError:
                    there = self._zk.get_settled(held.path)
                    if there is None or there.owner != session:
                        continue
                held.session = session
                break
        except MetadataError as error:
            _log.info(
                "that the writer of ledger %s lives is not shown to others: %s",
                ledger_id,
                error.message,
            )
        with self._lock:
            is_left = self._held.get(ledger_id, {}).get(token) is not held
        if is_left:
            self._discard(held.path, at_once=True)
