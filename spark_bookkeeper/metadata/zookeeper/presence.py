"""Writers that live: one ephemeral node for each ledger that a session writes.

It is made with the node of the ledger and removed with the write that closes it, in the same
requests; so a create and a close wait for nothing more, and an append knows nothing of it. When
a process ends, or is silent for longer than a session lasts, ZooKeeper removes its nodes.

This is for people: it says where to look, and that somebody should be asked. A writer that is
frozen or cut off is shown as gone, and may go on an hour later. No safety rests on it (SLOT-LOG
rule R17): what stops a writer is the fence.

The nodes are where BookKeeper's tools never look, and go with the tree when they take it away.
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
"""A ledger with the token of its life: an id that is used again is another ledger."""


@dataclass(eq=False, slots=True)
class _Held:
    """A node that this session is to have."""

    path: str
    session: int | None = None
    """The session in which it was seen to be there."""
    stop_watching: Callable[[], None] | None = None


class Presences:
    """The nodes at a root, and those among them that this session holds. Any thread may call."""

    def __init__(self, zk: Nodes, root: str) -> None:
        self._zk = zk
        self._root = root
        self._lock = threading.Lock()
        self._held: dict[LedgerId, dict[str, _Held]] = {}
        """By the token; there is more than one while a second create of an id is refused."""
        self._leaving: set[str] = set()
        """Nodes that are to go, of which there is no answer yet."""
        zk.on_connected(self._restore)

    def enter(self, ledger_id: LedgerId, token: str) -> None:
        """Make the node with the next write of this session, which creates the ledger."""
        held = _Held(paths.writer(self._root, ledger_id, token))
        with self._lock:
            self._held.setdefault(ledger_id, {})[token] = held
            self._leaving.discard(held.path)

        def made() -> None:
            held.session = self._zk.session_id

        self._zk.create_along(held.path, made)

    def entered(self, ledger_id: LedgerId, token: str) -> None:
        """That write was made: see to it that the node is there. Raises nothing."""
        with self._lock:
            held = self._held.get(ledger_id, {}).get(token)
        if held is not None and held.session is None:
            self._make(ledger_id, token, held)

    def watch(self, ledger_id: LedgerId, deleted: Callable[[], None]) -> None:
        """Call ``deleted`` (from any thread) once the ledger's own node is gone, until we leave.

        One request, for whose answer nobody waits.
        """
        with self._lock:
            held = next(iter(self._held.get(ledger_id, {}).values()), None)
        if held is not None:
            held.stop_watching = self._zk.watches.watch_gone(
                paths.ledger(self._root, ledger_id), deleted
            )

    def leave(self, ledger_id: LedgerId, token: str | None = None, *, at_once: bool) -> None:
        """Remove the node if this session holds it; waits for nothing and raises nothing.

        Args:
            token: of a create that failed: an earlier one of the same id may have succeeded.
            at_once: send a request for it; otherwise it goes with the next write.
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
        """All nodes that are there now: one request, however many ledgers there are."""
        try:
            names = self._zk.children(paths.writers(self._root))
        except AbsentError:
            return frozenset()
        matches = map(_NAME.fullmatch, names)
        return frozenset((LedgerId(int(m[1])), m[2]) for m in matches if m is not None)

    def lives(self, ledger_id: LedgerId, token: str) -> bool:
        """Whether there is a node of a session now, as all servers know it."""
        there = self._zk.get_settled(paths.writer(self._root, ledger_id, token))
        return there is not None and there.owner != 0

    def _discard(self, path: str, *, at_once: bool) -> None:
        """Remove a node; again after each loss of the connection, until there is an answer."""
        with self._lock:
            self._leaving.add(path)

        def gone() -> None:
            with self._lock:
                self._leaving.discard(path)

        self._zk.discard(path, gone, at_once=at_once)

    def _restore(self) -> None:
        """After every loss of the connection: what went with the old session is made again, and
        what was to go and may have stayed is removed again.
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
