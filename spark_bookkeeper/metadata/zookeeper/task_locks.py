"""The locks of tasks as ephemeral nodes; what is promised stands in ``underreplication.py``."""

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
    """Which it goes with; ``None`` when that is not known, and the node itself has to be asked."""
    is_taken: bool
    """Whether the holder was told so; else the answer was lost."""


class TaskLocks:
    """Those of one client, whose callers share a session: who of them has one is known here alone.

    Args:
        root: of the cluster.
    """

    def __init__(self, zk: Nodes, root: Callable[[], str]) -> None:
        self._zk = zk
        self._root = root
        self._lock = threading.Lock()
        self._held: dict[LedgerId, _Held] = {}
        """Locks that callers have, or may have."""
        self._leaving: dict[LedgerId, _Held] = {}
        """Those to be released, which nobody of this client takes before they are: he would lose
        it by that."""
        self._going: set[LedgerId] = set()
        """Those of them that somebody is about to delete."""

    def take(self, ledger_id: LedgerId, holder: Holder) -> bool:
        """``Underreplication.lock``."""
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
                # What a call took whose answer was lost is this caller's now, whoever made it.
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
        """Take a lock that goes with no session, as a copy of ZooKeeper's tree has it: nobody would
        ever release it.
        """
        if there.owner:
            return False
        first, data = [Delete(path, there.version)], encode_lock(holder.name)
        try:
            self._zk.create(path, data, ephemeral=True, before=first)
        except (AbsentError, ChangedError, PresentError):  # also where an answer was lost
            now = self._zk.get_settled(path)
            return now is not None and now.owner == self._session()
        return True

    def _settle(self, ledger_id: LedgerId, mine: _Held, now: _Held | None) -> bool:
        """What a call knows at its end of the lock that it asked for; whether that was still its.

        While it waited its session may have ended, and another caller have taken the lock in the
        next one: that one has it. Where nobody has it any more, what may be there is to go.
        """
        with self._lock:
            held = self._held.get(ledger_id)
            is_mine = held is not None and held.holder is mine.holder
            of_nobody = mine._replace(session=None, is_taken=False)
            if held is None:
                if now is not None:
                    self._leaving[ledger_id] = of_nobody
            elif not is_mine:
                if now is not None:  # that one's may have gone, or never come, and this be there
                    self._held[ledger_id] = held._replace(session=None)
            elif now is not None:
                self._held[ledger_id] = now
            else:
                del self._held[ledger_id]
                if held.session is None:  # what another call made came too late for both
                    self._leaving[ledger_id] = of_nobody
            return is_mine

    def release(self, holder: Holder) -> None:
        """``Underreplication.unlock``."""

        def note() -> None:
            with self._lock:
                mine = {i: held for i, held in self._held.items() if held.holder is holder}
                self._leaving.update(mine)
                for ledger_id in mine:
                    del self._held[ledger_id]

        self._zk.surely(note, self.discard)

    def discard(self) -> None:
        """Delete what is to go; what there is no answer for goes after the next connection, or
        before the next lock is taken.
        """
        self._zk.once_connected(self._discard)

    def _discard(self) -> bool:
        """Whether there was an answer for all that this call has deleted."""
        with self._lock:
            going = {i: held for i, held in self._leaving.items() if i not in self._going}
            self._going |= going.keys()
        try:
            for ledger_id, held in going.items():
                try:
                    self._delete(ledger_id, held.session)
                except MetadataUnavailableError as error:  # the others would wait as long
                    with self._lock:  # it may be gone, and be another's when it is tried again
                        if self._leaving[ledger_id] is held:
                            self._leaving[ledger_id] = held._replace(session=None)
                    _log.warning("locks of %d ledgers stay for now: %s", len(going), error.message)
                    return False
                except MetadataError as error:
                    _log.warning("the lock of ledger %s stays: %s", ledger_id, error.message)
                else:
                    with self._lock:
                        if self._leaving[ledger_id] is held:  # else it may have come since
                            del self._leaving[ledger_id]
        finally:
            with self._lock:
                self._going -= going.keys()
                # What came to be one of these meanwhile was left to this call.
                has_come = any(self._leaving.get(i, held) is not held for i, held in going.items())
        return self._discard() if has_come else True

    def _delete(self, ledger_id: LedgerId, taken_in: int | None) -> None:
        session = session_now = self._session()
        if taken_in not in (session, None):
            return  # it went with its session, and may be another's by now
        path = paths.lock(self._root(), ledger_id)
        is_known = taken_in is not None

        def is_anothers() -> bool:
            """Looked at where it is not known, and from the second request on: the first may have
            deleted it, and another process have taken it since.
            """
            nonlocal is_known, session_now
            there = None if is_known else self._zk.get_settled(path)
            is_mine = is_known or (there is not None and there.owner == session)
            is_known = False
            session_now = self._session()  # after the look: what was seen may have gone with it
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
        """``Underreplication.locks``."""
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
            if node is not None and node.owner  # else nobody's, and taken by who wants it
        }

    def _session(self) -> int:
        return own_session(self._zk, self._root())


def _as_noted() -> None:
    """What is to go is known already."""
