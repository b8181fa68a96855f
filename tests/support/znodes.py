"""A ZooKeeper in this process: nodes that hold any bytes, for as many clients as there may be.

``ZNodes`` stands in for the servers. ``client_class`` makes the class that is put in the place of
kazoo's client: it carries out kazoo's own requests at once, so everything above it, all of
``metadata/zookeeper/``, is what runs in front of a real ZooKeeper. Nothing is lost or
late here; for that there are the memory twin and the embedded ZooKeeper.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent, ZnodeStat
from kazoo.security import ACL, Id

from spark_bookkeeper.metadata.zookeeper import client
from spark_bookkeeper.metadata.zookeeper.multi import MultiRead, MultiWrite

_EPHEMERAL: Final = 1
_SEQUENTIAL: Final = 2
_REFUSALS: Final = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError, NoAuthError)

_Watcher = Callable[[WatchedEvent], None]


@dataclass(slots=True)
class _ZNode:
    data: bytes
    version: int = 0
    owner: int = 0
    """The session of an ephemeral node; 0 for a lasting one."""
    made_below: int = 0
    """How many children were ever created: the next number of a sequential one."""
    created: int = field(default_factory=itertools.count(1).__next__)
    """The number of the transaction that made it."""


class ZNodes:
    """The tree, and who watches it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[str, _ZNode] = {"/": _ZNode(b"")}
        self.sessions = itertools.count(1)
        self.kept_below: set[str] = set()
        """Nodes whose children nobody may delete, as by access rules."""
        self._watchers: dict[tuple[str, str], list[_Watcher]] = {}

    # For tests: what no client of this library would do

    def put(self, path: str, data: bytes, owner: int = 0) -> None:
        """Make a node hold these bytes, and its parents if need be.

        Args:
            owner: the session that it goes with where it is new; 0 for a lasting one.
        """
        parent, _, _ = path.rpartition("/")
        if parent and parent not in self.nodes:
            self.put(parent, b"")
        with self.lock:
            node = self.nodes.setdefault(path, _ZNode(b"", owner=owner))
            node.data, node.version = data, node.version + 1
        self._tell([("data", path), ("children", parent or "/")])

    def get(self, path: str) -> bytes:
        """What a node holds. Raises ``KeyError`` when there is none."""
        return self.nodes[path].data

    def remove(self, path: str) -> None:
        """Remove a node and everything below it."""
        with self.lock:
            for name in [n for n in self.nodes if n == path or n.startswith(f"{path}/")]:
                del self.nodes[name]
        self._tell([("data", path), ("children", path.rpartition("/")[0] or "/")])

    # For clients

    def carry_out(self, request: Any, session: int) -> Any:
        """The answer to a request of kazoo's. Raises what kazoo raises."""
        changed: list[tuple[str, str]] = []
        with self.lock:
            answer = self._answer(request, session, changed)
        self._tell(changed)
        return answer

    def end(self, session: int) -> None:
        """The ephemeral nodes of a session go."""
        with self.lock:
            for path in [p for p, node in self.nodes.items() if node.owner == session]:
                self.remove(path)

    def _answer(self, request: Any, session: int, changed: list[tuple[str, str]]) -> Any:
        if isinstance(request, MultiWrite | Transaction):
            return self._transaction(operations_of(request), session, changed)
        if isinstance(request, MultiRead):
            return [self._read(path) for path in request.nodes]
        if isinstance(request, Sync):
            return request.path
        if isinstance(request, Create):
            return self._create(request, session, changed)
        if isinstance(request, (GetData, Exists, GetChildren)) and request.watcher:
            kind = "children" if isinstance(request, GetChildren) else "data"
            self._watchers.setdefault((kind, request.path), []).append(request.watcher)
        node = self.nodes.get(request.path)
        if isinstance(request, Exists):
            return None if node is None else self._stat(request.path)
        if node is None:
            raise NoNodeError
        if isinstance(request, GetData):
            return node.data, self._stat(request.path)
        if isinstance(request, GetChildren):
            return self._children(request.path)
        if request.version not in (-1, node.version):
            raise BadVersionError
        if isinstance(request, SetData):
            node.data, node.version = request.data, node.version + 1
            changed.append(("data", request.path))
            return self._stat(request.path)
        if isinstance(request, Delete):
            if _parent(request.path) in self.kept_below:
                raise NoAuthError
            if self._children(request.path):
                raise NotEmptyError
            del self.nodes[request.path]
            changed += [("data", request.path), ("children", _parent(request.path))]
            return True
        if isinstance(request, CheckVersion):
            return True
        raise NotImplementedError(f"{type(request).__name__} is not known to this stand-in")

    def _read(self, path: str) -> Any:
        node = self.nodes.get(path)
        return NoNodeError() if node is None else (node.data, self._stat(path))

    def _create(self, request: Any, session: int, changed: list[tuple[str, str]]) -> str:
        parent = self.nodes.get(_parent(request.path))
        if parent is None:
            raise NoNodeError
        path = str(request.path)
        if request.flags & _SEQUENTIAL:
            path += f"{parent.made_below:010d}"
        if path in self.nodes:
            raise NodeExistsError
        owner = session if request.flags & _EPHEMERAL else 0
        self.nodes[path] = _ZNode(request.data or b"", owner=owner)
        parent.made_below += 1
        changed += [("data", path), ("children", _parent(path))]
        return path

    def _transaction(
        self, operations: Sequence[Any], session: int, changed: list[tuple[str, str]]
    ) -> list[Any]:
        """As a whole or not at all; like kazoo, errors are handed out as results."""
        before = {path: replace(node) for path, node in self.nodes.items()}
        answers: list[Any] = []
        for number, operation in enumerate(operations):
            try:
                answers.append(self._answer(operation, session, changed))
            except _REFUSALS as error:
                self.nodes = before
                changed.clear()
                undone = [RolledBackError() for _ in range(number)]
                untried = [RuntimeInconsistency() for _ in operations[number + 1 :]]
                return [*undone, error, *untried]
        return answers

    def _children(self, path: str) -> list[str]:
        above = "/" if path == "/" else f"{path}/"
        return [
            name[len(above) :]
            for name in self.nodes
            if name.startswith(above) and name != "/" and "/" not in name[len(above) :]
        ]

    def _stat(self, path: str) -> ZnodeStat:
        node = self.nodes[path]
        values = dict.fromkeys(ZnodeStat._fields, 0)
        values |= {
            "czxid": node.created,
            "version": node.version,
            "cversion": 2 * node.made_below - len(self._children(path)),
            "ephemeralOwner": node.owner,
            "dataLength": len(node.data),
            "numChildren": len(self._children(path)),
        }
        return ZnodeStat(**values)

    def _tell(self, changed: Sequence[tuple[str, str]]) -> None:
        for kind, path in changed:
            event = EventType.CHILD if kind == "children" else EventType.CHANGED
            for watcher in self._watchers.pop((kind, path), ()):
                watcher(WatchedEvent(event, KeeperState.CONNECTED, path))


def operations_of(request: MultiWrite | Transaction) -> list[Any]:
    """What a transaction asks for as kazoo's objects, read from its bytes as a server reads it."""
    data, offset = bytes(request.serialize()), 0

    def number() -> int:
        nonlocal offset
        offset += 4
        return int.from_bytes(data[offset - 4 : offset], "big", signed=True)

    def buffer() -> bytes:
        nonlocal offset
        size = max(number(), 0)  # kazoo writes -1 for an empty text
        offset += size
        return data[offset - size : offset]

    found: list[Any] = []
    while True:
        kind = number()
        offset += 5  # whether it is the end, and an error: of the header of an answer
        if kind == -1:
            return found
        path = buffer().decode()
        if kind == Create.type:
            value = buffer()
            acl = [ACL(number(), Id(buffer().decode(), buffer().decode())) for _ in range(number())]
            found.append(Create(path, value, acl, number()))
        elif kind == Delete.type:
            found.append(Delete(path, number()))
        elif kind == CheckVersion.type:
            found.append(CheckVersion(path, number()))
        else:
            found.append(SetData(path, buffer(), number()))


def client_class(znodes: ZNodes) -> type[client.Client]:
    """A client for the place of ``link.Client``, whose requests go to these nodes."""

    class Client(client.Client):
        def start_async(self) -> Any:
            self.state = KazooState.CONNECTED
            self._state = KeeperState.CONNECTED
            self._session = next(znodes.sessions)
            self._live.set()
            self.decided.set()
            self._stopped.clear()
            return self._live

        @property
        def client_id(self) -> tuple[int, bytes]:
            return self._session, b""

        def stop(self) -> None:
            if not self._stopped.is_set():
                self._stopped.set()
                znodes.end(self._session)

        def close(self) -> None:
            self.stop()

        def _call(self, request: Any, async_object: Any) -> None:
            if self._stopped.is_set():
                async_object.set_exception(ConnectionClosedError("it was stopped"))
                return
            try:
                answer = znodes.carry_out(request, self._session)
            except Exception as error:
                async_object.set_exception(error)
            else:
                async_object.set(answer)

    return Client


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
