"""A session with ZooKeeper, whose every answer is certain or says that it is not.

The only module that imports kazoo: it translates kazoo's errors and knows nothing of
BookKeeper. Each operation is retried while the connection is away, for a bounded time
(without the bound a request that the server drops for its size would be repeated for ever).

An answer that is lost leaves a write undecided (SLOT-LOG rule R14). Then the node is read
again, behind a ``sync``, and compared with what was meant:

* the same bytes one version further: it was written;
* the version from before: it was not, so far, and the same request is sent again;
* anything else: ``MetadataUnavailableError``, for it may have been written and overwritten.

The comparison is exact when the bytes contain something random, as ledgers and cookies do.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RuntimeInconsistency,
)
from kazoo.exceptions import ConnectionLoss as ConnectionLossError
from kazoo.exceptions import SessionExpiredError as KazooSessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry, RetryFailedError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from spark_bookkeeper.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.options import client_options

T = TypeVar("T")

NODE_BYTES_MAX: Final = 1_000_000
"""ZooKeeper drops the connection at requests above 1 MiB, so they are refused before."""

WINDOW: Final = 500
"""Requests under way at once when many nodes are read; more brings no speed."""

_UNCERTAIN = (
    ConnectionLossError,
    ConnectionClosedError,
    KazooSessionExpiredError,
    OperationTimeoutError,
    KazooTimeoutError,
)

_log = logging.getLogger("spark_bookkeeper.zookeeper")
_log.setLevel(logging.ERROR)  # kazoo tells of every attempt to connect; errors tell it once


class AbsentError(Exception):
    """There is no such node (or, at a create, no parent)."""


class PresentError(Exception):
    """There is such a node already, and it is not what was to be made."""


class ChangedError(Exception):
    """The node has another version; nothing was written."""


class OccupiedError(Exception):
    """The node has children, so it was not deleted."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read."""

    data: bytes
    version: int
    owner: int
    """The session that it goes with; 0 for a lasting one."""


class Connection:
    """One session with ZooKeeper. All methods may be called from any thread.

    Every method raises ``MetadataUnavailableError`` when no answer came in time, and
    ``MetadataError`` when ZooKeeper refused for another reason, for example its access rules.

    Args:
        hosts: ``host:port`` of each server, separated by commas.
        session_timeout_ms: the servers end the session after hearing nothing for so long.
        patience_ms: how long an operation goes on when there is no answer; also how long the
            constructor waits for a first connection.
        options: see ``options.py``.

    Raises:
        InvalidArgumentError: an option is wrong.
        MetadataUnavailableError: no server answered.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int = 10_000,
        patience_ms: int = 10_000,
        options: Mapping[str, str] | None = None,
    ) -> None:
        arguments = client_options(options or {})
        access = CREATOR_ALL_ACL if arguments.pop("acl", "open") == "creator" else OPEN_ACL_UNSAFE
        self.hosts = hosts
        self._patience = patience_ms / 1000
        self._lost: list[Callable[[], None]] = []
        self._is_closed = False
        self._client: Any = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            logger=_log,
            connection_retry={"max_tries": -1, "max_delay": 1.0},
            command_retry={"max_tries": -1, "max_delay": 1.0, "deadline": self._patience},
            default_acl=access,
            **arguments,
        )
        self._client.add_listener(self._state_changed)
        try:
            self._client.start(timeout=self._patience)
        except KazooTimeoutError as error:
            self.close()
            raise MetadataUnavailableError(
                f"no ZooKeeper answers at {hosts} (tried for {self._patience:g} s); nothing was "
                "changed. Check the host and port in the metadata URI, that ZooKeeper runs there "
                "(`echo srvr | nc HOST PORT`), and that no firewall is in between"
            ) from error

    @property
    def session_id(self) -> int:
        """The number of the current session; another one after the old one was lost."""
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._client.stop()
            self._client.close()

    def on_session_lost(self, lost: Callable[[], None]) -> None:
        """Call ``lost`` in a thread of its own after each end of a session."""
        self._lost.append(lost)

    # Reading

    def get(self, path: str) -> Node:
        """Read a node. Raises ``AbsentError``."""
        return self._try(f"read {path}", lambda: self._wait(self._client.get_async(path), _node))

    def get_settled(self, path: str) -> Node | None:
        """Read a node as it is after everything that any server had confirmed; or ``None``."""
        return self._try(f"read {path}", lambda: self._settled(path))

    def exists(self, path: str) -> bool:
        """Whether there is such a node."""
        return self._try(
            f"read {path}",
            lambda: self._wait(self._client.exists_async(path), lambda stat: stat is not None),
        )

    def children(self, path: str) -> list[str]:
        """The names of a node's children, in no order. Raises ``AbsentError``."""
        return self._try(
            f"list {path}", lambda: self._wait(self._client.get_children_async(path), list)
        )

    def get_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Node | None]]:
        """Read many nodes, in order; ``None`` for one that is not there."""
        return self._pipelined(paths, self._client.get_async, _node, self.get)

    def children_of_many(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str] | None]]:
        """The children of many nodes, in order; ``None`` for a node that is not there."""
        return self._pipelined(paths, self._client.get_children_async, list, self.children)

    def families(
        self, parents: Sequence[str], expected: Iterable[str]
    ) -> tuple[dict[str, list[str]], dict[str, Node | None]]:
        """The children of some nodes, and nodes expected to be among them, in one round trip.

        Returns:
            names in no order for each parent, none for one that is not there; and what was read
            of the expected ones, after the names: ``None`` for one that is not there.
        """
        names: dict[str, list[str]] = {}
        nodes: dict[str, Node | None] = {}

        def send(path: str) -> Any:
            ask = self._client.get_children_async if path in parents else self._client.get_async
            return ask(path)

        def again(path: str) -> list[str] | Node:
            return self.children(path) if path in parents else self.get(path)

        for path, answer in self._pipelined((*parents, *expected), send, _names_or_node, again):
            if path in parents:
                assert not isinstance(answer, Node)
                names[path] = answer or []
            else:
                assert not isinstance(answer, list)
                nodes[path] = answer
        return names, nodes

    # Writing

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node.

        Raises:
            PresentError: it is there already, and not made by this call.
            AbsentError: its parent is not there.
        """
        _check_size(path, data)
        uncertain = False

        def attempt() -> None:
            nonlocal uncertain
            try:
                self._wait(self._client.create_async(path, data, ephemeral=ephemeral), str)
            except _UNCERTAIN:
                uncertain = True
                raise
            except PresentError:
                if not uncertain:
                    raise
                there = self._settled(path)
                owner = self.session_id if ephemeral else 0
                if there is None or there.data != data or there.owner != owner:
                    raise

        self._try(f"create {path}", attempt, may_have_changed=lambda: uncertain)

    def create_sequential(self, parent: str, prefix: str) -> str:
        """Create an ephemeral node with a counter at the end of its name, and return the name.

        After a lost answer another one is made; the first goes with the session.
        """
        path: str = self._try(
            f"create a node in {parent}",
            lambda: self._wait(
                self._client.create_async(f"{parent}/{prefix}", b"", ephemeral=True, sequence=True),
                str,
            ),
        )
        return path.rsplit("/", 1)[1]

    def ensure(self, path: str) -> None:
        """Create a lasting empty node and its parents unless they are there."""
        self._try(f"create {path}", lambda: self._wait(self._client.ensure_path_async(path), bool))

    def set(self, path: str, data: bytes, version: int) -> int:
        """Replace a node's data if it has a version; returns the new version.

        Raises:
            ChangedError: it has another version; nothing was written.
            AbsentError: there is no such node (any more).
        """
        _check_size(path, data)
        uncertain = False

        def attempt() -> int:
            nonlocal uncertain
            try:
                return self._wait(self._client.set_async(path, data, version), _version)
            except _UNCERTAIN:
                uncertain = True
                raise
            except ChangedError:
                there = self._settled(path) if uncertain else None
                if there is None:
                    raise
                if there.version == version + 1:
                    if there.data == data:
                        return there.version
                    raise  # one write has happened since, and it was not this one
                raise MetadataUnavailableError(
                    f"ZooKeeper at {self.hosts}: the answer to a write of {path} was lost, and "
                    "it was changed again since. It may or may not have been written before: "
                    "read it, then decide"
                ) from None

        return self._try(f"write {path}", attempt, may_have_changed=lambda: uncertain)

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a node, whatever its version unless one is given.

        Raises:
            AbsentError: there is none; never raised for what this call deleted.
            ChangedError: it has another version.
            OccupiedError: it has children.
        """
        uncertain = False

        def attempt() -> None:
            nonlocal uncertain
            try:
                self._wait(self._client.delete_async(path, version), bool)
            except _UNCERTAIN:
                uncertain = True
                raise
            except AbsentError:
                if not uncertain:
                    raise

        self._try(f"delete {path}", attempt, may_have_changed=lambda: uncertain)

    def discard(self, path: str) -> None:
        """Delete a node without waiting for it to be gone; it is no harm if it stays."""
        if self._client.connected:
            self._client.delete_async(path)

    def create_all(self, nodes: Mapping[str, bytes]) -> None:
        """Create all of these nodes, or none. Raises ``PresentError`` when one is there.

        What the first of them with any data holds must be random: it tells one's own
        creation, whose answer was lost, from somebody else's.
        """
        mark = next(path for path, data in nodes.items() if data)
        uncertain = False

        def attempt() -> None:
            nonlocal uncertain
            transaction = self._client.transaction()
            for path, data in nodes.items():
                transaction.create(path, data)
            try:
                results = self._wait(transaction.commit_async(), list)
            except _UNCERTAIN:
                uncertain = True
                raise
            # A transaction that fails is reported in its results, not raised.
            errors = [r for r in results if isinstance(r, Exception)]
            refused = [e for e in errors if not isinstance(e, RuntimeInconsistency)]
            if any(isinstance(e, NodeExistsError) for e in refused):
                there = self._settled(mark) if uncertain else None
                if there is None or there.data != nodes[mark]:
                    raise PresentError
            elif errors:
                raise (refused or errors)[0]

        self._try("create a cluster", attempt, may_have_changed=lambda: uncertain)

    # Waiting for changes

    def wait_gone(self, path: str, timeout_ms: int) -> bool:
        """Whether a node is gone, now or within some time."""
        event = self._client.handler.event_object()

        def is_there() -> bool:
            request = self._client.exists_async(path, watch=lambda _: event.set())
            return self._wait(request, lambda stat: stat is not None)

        if not self._try(f"watch {path}", is_there):
            return True
        event.wait(timeout_ms / 1000)
        return not self._try(f"watch {path}", is_there)

    def watch_children(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after children come or go; returns how to stop. Any thread calls."""
        seen: list[set[str]] = []
        stopped = False

        def look(names: list[str]) -> bool:
            if not stopped and (not seen or seen[-1] != set(names)):
                is_first = not seen
                seen[:] = [set(names)]
                if not is_first:
                    changed()
            return not stopped

        def stop() -> None:
            nonlocal stopped
            stopped = True

        self._try(f"watch {path}", lambda: self._client.ChildrenWatch(path, look))
        return stop

    # Inside

    def _try(
        self,
        what: str,
        attempt: Callable[[], T],
        *,
        may_have_changed: Callable[[], bool] = lambda: False,
    ) -> T:
        """Repeat an attempt while its answers get lost, for a bounded time."""
        if self._is_closed:
            raise MetadataUnavailableError(
                f"cannot {what}: the connection to ZooKeeper was closed; connect again"
            )
        retry = KazooRetry(
            max_tries=-1,
            delay=0.05,
            max_delay=1.0,
            deadline=self._patience * 0.8,
            sleep_func=self._client.handler.sleep_func,
            interrupt=lambda: self._is_closed,
        )
        retry.retry_exceptions = _UNCERTAIN
        try:
            return retry(attempt)  # type: ignore[no-any-return]  # what `attempt` returns
        except (RetryFailedError, *_UNCERTAIN) as error:
            certain = (
                "The change may or may not have been made: read, then decide"
                if may_have_changed()
                else "Nothing was changed"
            )
            raise MetadataUnavailableError(
                f"ZooKeeper at {self.hosts} did not answer in {self._patience:g} s: {what}. "
                f"{certain}. Check that a majority of its servers runs"
            ) from error
        except KazooException as error:
            raise MetadataError(
                f"ZooKeeper at {self.hosts} refused to {what}: {type(error).__name__} {error}. "
                "Nothing was changed. Check the access rules of the node and the credentials"
            ) from error

    def _settled(self, path: str) -> Node | None:
        """One attempt at ``get_settled``, for use inside other attempts."""
        self._wait(self._client.sync_async(path), str)
        try:
            return self._wait(self._client.get_async(path), _node)
        except AbsentError:
            return None

    def _wait(self, request: Any, convert: Callable[[Any], T]) -> T:
        """The answer to one request. A late one is uncertain: it may still be carried out."""
        try:
            return convert(request.get(timeout=self._patience * 0.4))
        except NoNodeError as error:
            raise AbsentError from error
        except NodeExistsError as error:
            raise PresentError from error
        except BadVersionError as error:
            raise ChangedError from error
        except NotEmptyError as error:
            raise OccupiedError from error

    def _pipelined(
        self,
        paths: Iterable[str],
        send: Callable[[str], Any],
        convert: Callable[[Any], T],
        again: Callable[[str], T],
    ) -> Iterator[tuple[str, T | None]]:
        """Answers in the order of the paths, ``WINDOW`` requests ahead of the consumer."""
        under_way: deque[tuple[str, Any]] = deque()

        def oldest() -> tuple[str, T | None]:
            path, request = under_way.popleft()
            try:
                return path, self._wait(request, convert)
            except AbsentError:
                return path, None
            except _UNCERTAIN:
                try:
                    return path, again(path)
                except AbsentError:
                    return path, None

        for path in paths:
            if len(under_way) == WINDOW:
                # Answers come in order, so one wait serves half of the window. A wait for each
                # would hand over between threads at every answer, at a third of the speed.
                under_way[WINDOW // 2][1].wait(timeout=self._patience * 0.4)
                for _ in range(WINDOW // 2):
                    yield oldest()
            under_way.append((path, send(path)))
        while under_way:
            yield oldest()

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST and not self._is_closed:
            for lost in list(self._lost):
                self._client.handler.spawn(lost)


def _node(answer: Any) -> Node:
    data, stat = answer
    return Node(bytes(data or b""), stat.version, stat.ephemeralOwner)


def _names_or_node(answer: Any) -> list[str] | Node:
    return answer if isinstance(answer, list) else _node(answer)


def _version(stat: Any) -> int:
    return int(stat.version)


def _check_size(path: str, data: bytes) -> None:
    if len(data) > NODE_BYTES_MAX:
        raise InvalidArgumentError(
            f"{path} would hold {len(data):,} bytes, and ZooKeeper takes {NODE_BYTES_MAX:,}; "
            "nothing was sent. Keep custom metadata small, and roll to a new ledger before "
            "there are thousands of fragments"
        )
