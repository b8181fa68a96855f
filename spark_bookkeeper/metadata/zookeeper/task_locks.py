"""The locks of tasks as ephemeral nodes; ``underreplication.py`` has their contract."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from spark_bookkeeper.errors import MetadataError, MetadataUnavailableError
from spark_bookkeeper.metadata.underreplication import Holder, decode_lock, encode_lock
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.link import AbsentError, ChangedError, PresentError
from spark_bookkeeper.metadata.zookeeper.nodes import Node, Nodes, Watch
from spark_bookkeeper.metadata.zookeeper.operations import Delete
from spark_bookkeeper.metadata.zookeeper.own_session import own_session
from spark_bookkeeper.protocol.ids import LedgerId

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"urL(\d{10,19})", re.ASCII)


class _Held(NamedTuple):
    holder: Holder
    session: int | None
    """The session that it ends with; ``None`` if unknown, so the node itself must be read."""
    is_taken: bool
    """Whether the holder knows that it has the lock; false if the answer was lost."""


class TaskLocks:
    """The locks of one client. Its callers share a session; only this object knows the holders.

    Args:
        root: of the cluster.
    """

    def __init__(self, zk: Nodes, root: Callable[[], str]) -> None:
        self._zk = zk
        self._root = root
        self._lock = threading.Lock()
        self._held: dict[LedgerId, _Held] = {}
        """Locks that callers hold, or may hold."""
        self._leaving: dict[LedgerId, _Held] = {}
        """Locks to be released. No caller of this client takes one before it is released, because
        the release would delete the new lock too."""
        self._going: set[LedgerId] = set()
        """The locks among them whose deletion has begun."""

    def take(self, ledger_id: LedgerId, holder: Holder) -> bool:
        """Implement ``Underreplication.lock``."""
        if self._leaving:
            self._zk.surely(_as_noted, self.discard)
        path = paths.lock(self._root(), ledger_id)
        session = self._session()
        with self._lock:
            held = self._held.get(ledger_id)
            if held is not None and held.is_taken and held.session in (session, None):
                return False
            if ledger_id in self._leaving:
                return False
            mine = self._held[ledger_id] = _Held(holder, session, is_taken=True)
        try:
            try:
                self._zk.create(path, encode_lock(holder.name), ephemeral=True)
                is_taken = True
            except PresentError:
                there = self._zk.get_settled(path)
                # An earlier call without an answer may have made it; this caller has it now.
                is_taken = there is not None and (
                    there.owner in (session, self._session())
                    or self._take_nobodys(path, there, holder)
                )
        except BaseException:
            self._settle(ledger_id, mine, _Held(holder, None, is_taken=False))
            raise
        now = mine if is_taken else None
        if now is not None and self._zk.session_id != session:
            now = mine._replace(session=None)  # it may have ended before the node was made
        is_mine = self._settle(ledger_id, mine, now)
        if self._leaving and not (is_taken and is_mine):
            self._zk.surely(_as_noted, self.discard)
        return is_taken and is_mine

    def _take_nobodys(self, path: str, there: Node, holder: Holder) -> bool:
        """Take a lock that ends with no session, as in a copy of ZooKeeper's tree, because no
        process would ever release it.
        """
        if there.owner:
            return False
        first, data = [Delete(path, there.version)], encode_lock(holder.name)
        try:
            self._zk.create(path, data, ephemeral=True, before=first)
        except (AbsentError, ChangedError, PresentError):  # also when an answer was lost
            now = self._zk.get_settled(path)
            return now is not None and now.owner == self._session()
        return True

    def _settle(self, ledger_id: LedgerId, mine: _Held, now: _Held | None) -> bool:
        """Record the outcome of a call that requested a lock; return whether it still has it.

        During the wait the session may have ended, and another caller may have taken the lock in
        the next one; then that caller holds it. If no caller does, a remaining node is deleted.
        """
        with self._lock:
            held = self._held.get(ledger_id)
            is_mine = held is not None and held.holder is mine.holder
            of_nobody = mine._replace(session=None, is_taken=False)
            if held is None:
                if now is not None:
                    self._leaving[ledger_id] = of_nobody
            elif not is_mine:
                if now is not None:  # the node may be this call's, not the other's
                    self._held[ledger_id] = held._replace(session=None)
            elif now is not None:
                self._held[ledger_id] = now
            else:
                del self._held[ledger_id]
                if held.session is None:  # a node of another call came too late for both
                    self._leaving[ledger_id] = of_nobody
            return is_mine

    def release(self, holder: Holder) -> None:
        """Implement ``Underreplication.unlock``."""

        def note() -> None:
            with self._lock:
                mine = {i: held for i, held in self._held.items() if held.holder is holder}
                self._leaving.update(mine)
                for ledger_id in mine:
                    del self._held[ledger_id]

        self._zk.surely(note, self.discard)

    def discard(self) -> None:
        """Delete the nodes to be deleted. Without an answer, retry after the next connection or
        before the next lock is taken.
        """
        self._zk.once_connected(self._discard)

    def _discard(self) -> bool:
        """Delete them once; return whether every deletion was answered."""
        with self._lock:
            going = {i: held for i, held in self._leaving.items() if i not in self._going}
            self._going |= going.keys()
        try:
            for ledger_id, held in going.items():
                try:
                    self._delete(ledger_id, held.session)
                except MetadataUnavailableError as error:  # the others would time out too
                    with self._lock:  # at a retry it may be another's
                        if self._leaving[ledger_id] is held:
                            self._leaving[ledger_id] = held._replace(session=None)
                    _log.warning("locks of %d ledgers stay for now: %s", len(going), error.message)
                    return False
                except MetadataError as error:
                    _log.warning("the lock of ledger %s stays: %s", ledger_id, error.message)
                else:
                    with self._lock:
                        if self._leaving[ledger_id] is held:  # else it may exist again
                            del self._leaving[ledger_id]
        finally:
            with self._lock:
                self._going -= going.keys()
                # A lock that was released again meanwhile was left to this call.
                has_come = any(self._leaving.get(i, held) is not held for i, held in going.items())
        return self._discard() if has_come else True

    def _delete(self, ledger_id: LedgerId, taken_in: int | None) -> None:
        session = session_now = self._session()
        if taken_in not in (session, None):
            return  # it ended with its session, and may be another's by now
        path = paths.lock(self._root(), ledger_id)
        is_known = taken_in is not None

        def is_anothers() -> bool:
            """Return whether the lock is another's. Read its node if that is unknown, and from the
            second request on: the first may have deleted it, and another process taken the lock.
            """
            nonlocal is_known, session_now
            there = None if is_known else self._zk.get_settled(path)
            is_mine = is_known or (there is not None and there.owner == session)
            is_known = False
            session_now = self._session()  # after the read: the node may have ended since
            return session_now != session or not is_mine

        try:
            self._zk.delete(path, unless=is_anothers)
        except AbsentError:
            pass
        except ChangedError:
            if session_now != session:
                raise MetadataUnavailableError(
                    f"the session that {path} was to be deleted in has ended; in the next one it "
                    "is seen whether it went with it"
                ) from None

    def held(self, watch: Watch | None) -> Mapping[LedgerId, str]:
        """Implement ``Underreplication.locks``."""
        try:
            names = self._zk.children(paths.locks(self._root()), watch)
        except AbsentError:
            return {}
        found = [LedgerId(int(m[1])) for name in sorted(names) if (m := _NAME.fullmatch(name))]
        asked = [paths.lock(self._root(), ledger_id) for ledger_id in found]
        nodes = self._zk.get_many(asked)
        return {
            i: decode_lock(node.data)
            for i, (_, node) in zip(found, nodes, strict=True)
            if node is not None and node.owner  # else it ends with no session and is free
        }

    def _session(self) -> int:
        return own_session(self._zk, self._root())


def _as_noted() -> None:
    """Do nothing; the nodes to be deleted are noted already."""
