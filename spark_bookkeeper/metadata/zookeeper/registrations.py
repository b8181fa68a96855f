"""The live bookies: ephemeral nodes, each with the description that its bookie publishes.

Source: BookKeeper 4.17 ``discover/ZKRegistrationManager``, ``discover/ZKRegistrationClient``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.service_info import decode_registration, encode_registration
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.client import Changes
from spark_bookkeeper.metadata.zookeeper.link import AbsentError, ChangedError, PresentError
from spark_bookkeeper.metadata.zookeeper.nodes import Node, Nodes
from spark_bookkeeper.protocol.ids import BookieId, read_bookie_id

_log = logging.getLogger(__name__)


class Registrations:
    """The registrations of the cluster at a root; ``store.BookieRegistry`` has the contract."""

    def __init__(self, zk: Nodes, root: str, session_timeout_ms: int) -> None:
        self._zk = zk
        self._root = root
        self._session_timeout_ms = session_timeout_ms
        self._changes = Changes()
        self._last: tuple[int, Sequence[Registration]] | None = None
        """The result of the last read, and the count of changes before it."""
        self._shared = SingleFlight(self._read)

    def now(self) -> Sequence[Registration]:
        """Return the present registrations. Concurrent calls share one answer."""
        return self._shared.get()

    def last_told(self) -> Sequence[Registration]:
        """Return the last known registrations. A request is sent only after a change."""
        last = self._last
        if last is not None and last[0] == self._changes.count:
            return last[1]
        return self.now()

    def _read(self) -> Sequence[Registration]:
        told = self._changes.count
        found: dict[BookieId, Registration] = {}
        parents = (paths.available(self._root), paths.available_readonly(self._root))
        asked = [
            f"{parent}/{name}"
            for parent, names in self._zk.children_of_many(parents, self._changes)
            for name in names or []
            if name != paths.READONLY
        ]
        # A bookie that changes its mode is briefly in both places. The second, read-only, wins,
        # because not writing to a bookie is always correct.
        for path, node in self._zk.get_many(asked, self._changes):
            parent, _, name = path.rpartition("/")
            if node is None:
                continue
            readonly = parent == parents[1]
            try:
                bookie_id = read_bookie_id(name)
            except InvalidArgumentError as error:
                _log.warning("%s is left out of the bookies: %s", path, error.message)
                continue
            if not node.owner:  # from a copy of ZooKeeper's tree: no live bookie
                continue
            try:
                found[bookie_id] = decode_registration(
                    bookie_id, node.data, path, readonly=readonly
                )
            except MetadataFormatError as error:
                # A live bookie that no client can write to: it must not stop the others.
                _log.warning("%s", error.message)
                found[bookie_id] = Registration(bookie_id, "", "", is_readonly=readonly)
        read = [found[bookie_id] for bookie_id in sorted(found)]
        self._last = (told, read)
        return read

    def register(self, registration: Registration) -> None:
        """Create or replace the registration that this session holds."""
        bookie_id, readonly = registration.bookie_id, registration.is_readonly
        here = paths.registration(self._root, bookie_id, readonly=readonly)
        other = paths.registration(self._root, bookie_id, readonly=not readonly)
        there = self._zk.get_settled(other)
        if there is not None and there.owner != self._zk.session_id:
            self._outlive(other, there, bookie_id)
        # First the new place and then the old one: briefly seen twice, but never absent.
        self._hold(here, encode_registration(registration), bookie_id)
        if not self._release(other):
            # Two agents began at once, each in its place. The later one sees the other.
            self._release(here)
            raise refusals.held_elsewhere(bookie_id)

    def unregister(self, bookie_id: BookieId) -> None:
        """Remove the registration that this session holds, if it holds one."""
        for readonly in (False, True):
            self._release(paths.registration(self._root, bookie_id, readonly=readonly))

    def _hold(self, path: str, data: bytes, bookie_id: BookieId) -> None:
        for _ in range(3):
            try:
                return self._zk.create(path, data, ephemeral=True)
            except PresentError:
                there = self._zk.get_settled(path)
            try:
                if there is not None and there.owner == self._zk.session_id:
                    self._zk.set(path, data, there.version)
                    return None
            except (AbsentError, ChangedError):
                continue
            if there is not None:
                self._outlive(path, there, bookie_id)
        raise MetadataUnavailableError(
            f"{path} keeps changing, so bookie {bookie_id} is not registered. Check that no "
            "second agent of this bookie runs"
        )

    def _outlive(self, path: str, there: Node, bookie_id: BookieId) -> None:
        """Wait until the session of a dead predecessor ends, which takes a while."""
        if not there.owner:  # of no session, so it would never end
            with suppress(AbsentError, ChangedError):
                self._zk.delete(path, there.version)
            return
        patience_ms = self._session_timeout_ms * 3 // 2
        _log.info(
            "bookie %s is registered by another session; waiting up to %.0f s for that to end, as "
            "it does when its agent was killed",
            bookie_id,
            patience_ms / 1000,
        )
        if not self._zk.watches.wait_gone(path, patience_ms):
            raise refusals.held_elsewhere(bookie_id)

    def _release(self, path: str) -> bool:
        """Remove this session's node; return whether no session is registered there now."""

        def is_anothers() -> bool:
            """Return whether the node is another session's. Read it before each request: an
            unanswered one may have deleted it, and a successor registered since.
            """
            there = self._zk.get_settled(path)
            if there is None:
                raise AbsentError
            return there.owner != self._zk.session_id

        try:
            self._zk.delete(path, unless=is_anothers)
        except AbsentError:
            pass
        except ChangedError:
            return False
        return True


T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Calls ``read`` once for all callers that wait for it at the same time.

    A caller that arrives during a read gets the result of the next one: an answer that was on its
    way already may be older than the call. So no caller gets a state from before its call.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        """Taken directly: Ctrl-C inside a condition's ``with`` could leave it taken."""
        self._changed = threading.Condition(self._lock)
        self._begun = 0
        """The number of reads that began; only one at a time is under way."""
        self._ended = 0
        self._value: T | None = None
        self._error: BookKeeperError | None = None
        """The error of the last read."""

    def get(self) -> T:
        """Return the result of a read that begins after this call. Raises the read's error."""
        mine: int | None = None
        try:
            with self._lock:
                enough = self._begun + 1
                while self._ended < enough and self._begun > self._ended:
                    self._changed.wait()
                if self._ended >= enough:
                    if self._error is not None:
                        raise self._error.again()
                    return self._value  # type: ignore[return-value]  # what the read returned
                mine = self._begun = self._begun + 1
            value = self._read()
            self._end(value, None)
        except BookKeeperError as error:
            if mine is not None:
                self._end(None, error)
            raise
        except BaseException:  # interrupted: a waiting caller reads instead
            with self._lock:
                if mine is not None and self._ended < mine:
                    self._begun -= 1
                    self._changed.notify_all()
            raise
        return value

    def _end(self, value: T | None, error: BookKeeperError | None) -> None:
        with self._lock:
            self._value, self._error = value, error
            self._ended = self._begun
            self._changed.notify_all()
