"""The nodes of a ZooKeeper; each answer is certain or reports that it is not.

This module knows nothing of BookKeeper. Each operation is retried while the connection is away, for
a bounded time (``link.py``).

After a lost answer the outcome of a write is unknown (SLOT-LOG rule R14). Then the node is read
again, behind a ``sync``, and compared with the intended write:

* the same bytes one version further: it was written;
* the version from before: it was not written so far, and the same request is sent again;
* anything else: ``MetadataUnavailableError``, for it may have been written and overwritten.

The comparison is exact if the bytes contain random ones, as in ledgers and cookies. A request that
was not sent before its caller stopped waiting is never sent (``client.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from kazoo.exceptions import (
    KazooException,
    NodeExistsError,
    NoNodeError,
    RuntimeInconsistency,
    UnimplementedError,
)

from spark_bookkeeper.errors import InvalidArgumentError, MetadataUnavailableError
from spark_bookkeeper.metadata.zookeeper.client import Changes
from spark_bookkeeper.metadata.zookeeper.group_commit import GroupCommit
from spark_bookkeeper.metadata.zookeeper.link import (
    UNCERTAIN,
    AbsentError,
    ChangedError,
    Link,
    OccupiedError,
    PresentError,
)
from spark_bookkeeper.metadata.zookeeper.multi import AccessRules, read_together
from spark_bookkeeper.metadata.zookeeper.operations import Create, Operation, Replace
from spark_bookkeeper.metadata.zookeeper.watches import Watches
from spark_bookkeeper.metrics import Metrics

T = TypeVar("T")

Watch = Callable[[object], None]
"""Called once after the value read has changed, and after a loss of the connection, by the thread
that reads the answers: it must not wait. ``Changes`` is one."""

NODE_BYTES_MAX: Final = 1_000_000
"""ZooKeeper drops the connection at requests above 1 MiB, so larger ones are refused first."""

PARENTS_GONE_MAX: Final = 100
"""How often parents are made again after other clients delete them because they are empty."""

WINDOW: Final = 500
"""The default number of requests under way at once when many nodes are read."""


READ_TOGETHER: Final = 64
"""The number of nodes that one request reads."""

READS_AHEAD: Final = 4
"""The number of such requests under way at once."""


class Node(NamedTuple):
    """A node as it was read."""

    data: bytes
    version: int
    owner: int
    """The session that an ephemeral node ends with; 0 for a lasting node."""
    children_made: int
    """How many children it ever had; the next sequential one gets this number."""
    written_ms: int
    """The time of the last write, by ZooKeeper's clock, in milliseconds since the epoch."""
    children: int
    """The present number of children."""
    created: int
    """The number of the transaction that made it; a node that is made again has another."""


class Nodes:
    """One session with ZooKeeper. All methods may be called from any thread.

    Every method raises ``MetadataUnavailableError`` when no answer came in time, and
    ``MetadataError`` when ZooKeeper refused for another reason, for example its access rules.

    ``Link`` describes the arguments and the errors of the constructor.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int = 10_000,
        patience_ms: int = 10_000,
        options: Mapping[str, str] | None = None,
        metrics: Metrics | None = None,
        reads_in_flight: int = WINDOW,
    ) -> None:
        self._link = Link(
            hosts,
            session_timeout_ms=session_timeout_ms,
            patience_ms=patience_ms,
            options=options or {},
            metrics=metrics,
        )
        self._client = self._link.client
        self._reads_in_flight = reads_in_flight
        self._writes = GroupCommit(self._client, AccessRules(self._client.default_acl))
        self._has_multi_read = True
        """True until a server replies that it does not know this request."""
        self.watches = Watches(self._link)
        self._try = self._link.insist
        self._wait = self._link.wait
        self.once_connected = self._link.once_connected
        self.surely = self._link.surely

    @property
    def session_id(self) -> int:
        """The number of the current session; it changes after a session was lost."""
        return self._link.session_id

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes; idempotent."""
        self._link.close()

    def on_session_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call ``lost`` in its own thread after each end of a session; return how to stop."""
        return self._link.on_session_lost(lost)

    def on_connected(self, connected: Callable[[], None]) -> None:
        """Call ``connected`` in its own thread after the connection came back."""
        self._link.on_connected(connected)

    # Reading

    def get(self, path: str, changes: Watch | None = None) -> Node:
        """Read a node; ``changes`` is called after it changed. Raises ``AbsentError``."""
        return self._try(
            f"read {path}", lambda: self._wait(self._client.get_async(path, changes), _node)
        )

    def get_settled(self, path: str) -> Node | None:
        """Read a node after everything that any server had confirmed; ``None`` if it is absent."""
        return self._try(f"read {path}", lambda: self._settled(path))

    def exists(self, path: str, changes: Watch | None = None) -> bool:
        """Return whether a node exists; ``changes`` is called when it appears, changes or ends."""
        return self._try(
            f"read {path}",
            lambda: self._wait(
                self._client.exists_async(path, changes), lambda stat: stat is not None
            ),
        )

    def watch(self, path: str) -> Callable[[], bool]:
        """Begin to watch a node; the result shows whether it is unchanged: ``store.Unchanged``."""
        changes = Changes()
        self.exists(path, changes)
        return lambda: changes.count == 0

    def children(self, path: str, changes: Watch | None = None) -> list[str]:
        """Return the names of a node's children, unordered; ``changes`` is called when they change.

        Raises ``AbsentError``.
        """
        return self._try(
            f"list {path}", lambda: self._wait(self._client.get_children_async(path, changes), list)
        )

    def children_settled(self, path: str) -> list[str]:
        """Do the same after everything that any server had confirmed."""

        def attempt() -> list[str]:
            self._wait(self._client.sync_async(path), str)
            return self._wait(self._client.get_children_async(path), list)

        return self._try(f"list {path}", attempt)

    def get_many(
        self, paths: Iterable[str], changes: Watch | None = None
    ) -> Iterator[tuple[str, Node | None]]:
        """Do ``get`` for many nodes, in order; ``None`` for a node that does not exist."""
        if changes is None:
            return self._read_together(paths)
        return self._read_each(paths, changes)

    def _read_each(
        self, paths: Iterable[str], changes: Watch | None = None
    ) -> Iterator[tuple[str, Node | None]]:
        return self._pipelined(
            paths,
            lambda path: self._client.get_async(path, changes),
            _node,
            lambda path: self.get(path, changes),
        )

    def _read_together(self, paths: Iterable[str]) -> Iterator[tuple[str, Node | None]]:
        """Read by requests for many nodes each, a few of them ahead of the consumer."""
        asked = iter(paths)
        together = min(READ_TOGETHER, self._reads_in_flight)
        ahead = min(READS_AHEAD, self._reads_in_flight // together)
        under_way: deque[tuple[tuple[str, ...], Any]] = deque()
        while self._has_multi_read:
            while len(under_way) < ahead and (group := tuple(islice(asked, together))):
                under_way.append((group, read_together(self._client, group)))
            if not under_way:
                return
            yield from self._those_read(*under_way.popleft())
        for group, _ in under_way:
            yield from self._read_each(group)
        yield from self._read_each(asked)

    def _those_read(
        self, group: tuple[str, ...], request: Any
    ) -> Iterator[tuple[str, Node | None]]:
        try:
            answers = self._wait(request, list)
        except UnimplementedError:
            self._has_multi_read = False  # an old server; another of the ensemble may be older
            answers = []
        except (KazooException, *UNCERTAIN):
            answers = []
        if not answers:  # then read each alone, which reports the error
            yield from self._read_each(group)
            return
        for path, answer in zip(group, answers, strict=True):
            if isinstance(answer, NoNodeError):
                yield path, None
            elif isinstance(answer, Exception):
                yield from self._read_each([path])
            else:
                yield path, _node(answer)

    def children_of_many(
        self, paths: Iterable[str], changes: Watch | None = None, *, ahead: int | None = None
    ) -> Iterator[tuple[str, list[str] | None]]:
        """Do ``children`` for many nodes, in order; ``None`` for a node that does not exist.

        Args:
            ahead: the most lists that are held at once, for long lists.
        """
        return self._pipelined(
            paths,
            lambda path: self._client.get_children_async(path, changes),
            list,
            lambda path: self.children(path, changes),
            ahead,
        )

    # Writing

    def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        before: Sequence[Operation] = (),
        also: Sequence[Operation] = (),
        once: bool = False,
    ) -> None:
        """Create a node.

        Args:
            before: operations before it in the same transaction: all are done or none.
            also: operations after it in the same transaction.
            once: if the answer is lost and the node does not exist, do not try again: it may have
                been made, and deleted by another client.

        Raises:
            PresentError: it exists and was not made by this call, or a node that ``before`` or
                ``also`` creates exists. With ``once`` also when it cannot be tried again.
            AbsentError: its parent does not exist, or a node that ``before`` or ``also`` needs.
        """
        check_size(path, len(data))
        uncertain = False

        def add(writes: Any) -> None:
            for operation in before:
                operation.add_to(writes)
            writes.create(path, data, ephemeral=ephemeral)
            for operation in also:
                operation.add_to(writes)

        def check_made() -> None:
            there = self._settled(path)
            owner = self.session_id if ephemeral else 0
            if there is None or there.data != data or there.owner != owner:
                raise PresentError

        def attempt() -> None:
            nonlocal uncertain
            if uncertain and once:
                return check_made()
            try:
                self._wait(self._writes.ask(add, len(data)), str)
            except UNCERTAIN:
                uncertain = True
                raise
            except PresentError:
                if not uncertain:
                    raise
                check_made()

        self._try(f"create {path}", attempt, may_have_changed=lambda: uncertain)

    def create_sequential(self, parent: str, prefix: str, data: bytes = b"") -> str:
        """Create an ephemeral node with a counter at the end of its name; return the name.

        After a lost answer another one is made; the first ends with the session.
        """

        def add(writes: Any) -> None:
            writes.create(f"{parent}/{prefix}", data, ephemeral=True, sequence=True)

        path = self._try(
            f"create a node in {parent}", lambda: self._wait(self._writes.ask(add), str)
        )
        return path.rsplit("/", 1)[1]

    def next_number(self, parent: str, prefix: str) -> int:
        """Return the number in the name of a new sequential node, which is deleted later.

        After a lost answer another one is made. Raises ``AbsentError``.
        """
        name = self.create_sequential(parent, prefix)
        self.discard(f"{parent}/{name}")
        return int(name.removeprefix(prefix))

    def ensure(self, path: str) -> None:
        """Create a lasting empty node and its parents, unless they exist.

        Another client may delete them again at any time, even before this returns.
        """

        # Not by kazoo's own ``ensure_path``, which goes on after no caller waits any more.
        def make(each: str) -> None:
            if self._wait(self._client.exists_async(each), lambda stat: stat is not None):
                return
            if parent := each.rpartition("/")[0]:
                make(parent)
            with suppress(PresentError):
                self._wait(self._writes.ask(lambda writes: writes.create(each, b"")), str)

        def attempt() -> None:
            for _ in range(PARENTS_GONE_MAX):
                try:
                    return make(path)
                except AbsentError:  # a parent was deleted after it was seen
                    continue
            raise _parents_go(path)

        self._try(f"create {path}", attempt)

    def create_below_parents(
        self,
        path: str,
        data: bytes,
        *,
        before: Sequence[Operation] = (),
        also: Sequence[Operation] = (),
        once: bool = False,
    ) -> None:
        """Do ``create``; before it, create the missing parents of all nodes that are created.

        The parents are created one by one, unless ``before`` creates them. Other clients may delete
        empty parents at any moment, so it is tried again and again.

        Raises:
            PresentError: as ``create``.
            MetadataUnavailableError: also when the parents were deleted each time.
        """
        made = [path, *(each.path for each in (*before, *also) if isinstance(each, Create))]
        parents = dict.fromkeys(each.rpartition("/")[0] for each in made)
        for _ in range(PARENTS_GONE_MAX):
            try:
                return self.create(path, data, before=before, also=also, once=once)
            except AbsentError:
                for parent in parents:
                    if parent not in made:
                        self.ensure(parent)
        raise _parents_go(path)

    def set(self, path: str, data: bytes, version: int, *, also: Sequence[Operation] = ()) -> int:
        """Replace a node's data if it has the version; return the new version.

        Args:
            also: operations after it in the same transaction: all are done or none.

        Raises:
            ChangedError: it has another version, or ``also`` was refused; nothing was written.
            AbsentError: the node does not exist (any more).
        """
        check_size(path, len(data))
        uncertain = False
        wanted = Replace(path, data, version, also)

        def attempt() -> int:
            nonlocal uncertain
            try:
                return self._wait(self._writes.ask(wanted.add_to, len(data)), _version)
            except UNCERTAIN:
                uncertain = True
                raise
            except (AbsentError, PresentError):
                if not also or self._settled(path) is None:
                    raise AbsentError from None
                raise ChangedError from None
            except ChangedError:
                there = self._settled(path) if uncertain else None
                if there is None:
                    raise
                if there.version == version + 1:
                    if there.data == data:
                        return there.version
                    raise  # exactly one write was made since, and its data are not ours
                raise MetadataUnavailableError(
                    f"ZooKeeper at {self._link.hosts}: the answer to a write of {path} was "
                    "lost, and it was changed again since. It may or may not have been written "
                    "before: read it, then decide"
                ) from None

        return self._try(f"write {path}", attempt, may_have_changed=lambda: uncertain)

    def set_many(self, wanted: Sequence[Replace]) -> Sequence[int | None]:
        """Replace the data of many nodes, each on its own, tried once.

        Returns:
            the new versions; ``None`` for a write that was refused or whose answer was lost.
            ``set`` finds out which.
        """
        for each in wanted:
            check_size(each.path, len(each.data))

        def attempt() -> Sequence[int | None]:
            asked = self._writes.ask_many((each.add_to, len(each.data)) for each in wanted)
            try:
                return [self._version_or_none(request) for request in asked]
            except BaseException:
                for request in asked:
                    request.give_up()
                raise

        return self._try(f"write {len(wanted)} nodes", attempt)

    def _version_or_none(self, request: Any) -> int | None:
        try:
            return self._wait(request, _version)
        except (AbsentError, PresentError, ChangedError, OccupiedError, KazooException, *UNCERTAIN):
            return None

    def delete(
        self,
        path: str,
        version: int = -1,
        *,
        also: Sequence[Operation] = (),
        unless: Callable[[], bool] = lambda: False,
    ) -> None:
        """Delete a node, whatever its version unless one is given.

        Args:
            also: operations before it in the same transaction: all are done or none.
            unless: called before each request, also before a repetition after a lost answer: the
                first may have deleted the node, and a new one may exist by now.

        Raises:
            AbsentError: the node does not exist; not raised if this call deleted it.
            ChangedError: it has another version, ``also`` was refused, or ``unless`` returned true.
            OccupiedError: it has children.
        """
        uncertain = False

        def add(writes: Any) -> None:
            for operation in also:
                operation.add_to(writes)
            writes.delete(path, version)

        def attempt() -> None:
            nonlocal uncertain
            if unless():
                raise ChangedError
            try:
                self._wait(self._writes.ask(add), bool)
            except UNCERTAIN:
                uncertain = True
                raise
            except (AbsentError, PresentError):
                if also and self._settled(path) is not None:
                    raise ChangedError from None
                if not uncertain:
                    raise AbsentError from None

        self._try(f"delete {path}", attempt, may_have_changed=lambda: uncertain)

    def discard(
        self, path: str, gone: Callable[[], None] | None = None, *, at_once: bool = False
    ) -> None:
        """Delete a node with the next write of this session; no harm is done if it stays.

        Neither waits nor raises.

        Args:
            gone: called by the thread that reads answers, once one confirms the deletion.
            at_once: send a request for it now, because the next write may never come.
        """

        def told(result: Any) -> None:
            if gone is not None and (
                not isinstance(result, Exception) or isinstance(result, NoNodeError)
            ):
                gone()

        ask = self._writes.ask_beside if at_once else self._writes.ask_sometime
        ask(lambda writes: writes.delete(path), told)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete nodes, whatever their versions; absent nodes count as deleted.

        Raises:
            OccupiedError: one of them has children; others may be deleted or not.
        """
        for _ in self._pipelined(paths, self._client.delete_async, bool, self._delete_again):
            pass

    def _delete_again(self, path: str) -> bool:
        self.delete(path)
        return True

    def create_along(self, path: str, made: Callable[[], None]) -> None:
        """Create an empty ephemeral node with the next write of this session.

        That write does not depend on it: if this create is refused, the write is sent again alone.

        Args:
            made: called after the creation, by the thread that reads answers.
        """

        def told(result: Any) -> None:
            if not isinstance(result, Exception):
                made()

        self._writes.ask_sometime(lambda writes: writes.create(path, b"", ephemeral=True), told)

    def create_all(self, nodes: Mapping[str, bytes]) -> None:
        """Create all of these nodes, or none. Raises ``PresentError`` if one of them exists.

        The first node with data must hold random bytes: they distinguish this creation, if its
        answer was lost, from another client's.
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
            except UNCERTAIN:
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

    # Inside

    def _settled(self, path: str) -> Node | None:
        """Make one attempt at ``get_settled``, for use inside other attempts."""
        self._wait(self._client.sync_async(path), str)
        try:
            return self._wait(self._client.get_async(path), _node)
        except AbsentError:
            return None

    def _pipelined(
        self,
        paths: Iterable[str],
        send: Callable[[str], Any],
        convert: Callable[[Any], T],
        again: Callable[[str], T],
        ahead: int | None = None,
    ) -> Iterator[tuple[str, T | None]]:
        """Yield answers in the order of the paths, with many requests ahead of the consumer."""
        window = min(ahead or self._reads_in_flight, self._reads_in_flight)
        under_way: deque[tuple[str, Any]] = deque()

        def oldest() -> tuple[str, T | None]:
            path, request = under_way.popleft()
            try:
                return path, self._wait(request, convert)
            except AbsentError:
                return path, None
            except (KazooException, *UNCERTAIN):  # the repetition reports the error
                try:
                    return path, again(path)
                except AbsentError:
                    return path, None

        try:
            for path in paths:
                if len(under_way) == window:
                    # Answers come in order, so one wait serves half of the window. A wait for each
                    # would switch threads at every answer, at a third of the speed.
                    under_way[window // 2][1].wait(timeout=self._link.patience * 0.4)
                    for _ in range(max(1, window // 2)):
                        yield oldest()
                under_way.append((path, send(path)))
            while under_way:
                yield oldest()
        finally:
            for _, request in under_way:
                request.give_up()


def _node(answer: Any) -> Node:
    data, stat = answer
    # ZooKeeper counts creations and deletions of children in one number of 32 bits.
    changes = stat.cversion + stat.numChildren
    made = (changes & 0xFFFFFFFF) >> 1
    return Node(
        bytes(data or b""),
        stat.version,
        stat.ephemeralOwner,
        made,
        stat.mtime,
        stat.numChildren,
        stat.czxid,
    )


def _parents_go(path: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"{path} could not be created: others deleted its parents again and again. Nothing was "
        "written. Try again"
    )


def _version(stat: Any) -> int:
    return int(stat.version)


def check_size(path: str, size_bytes: int) -> None:
    """Raise ``InvalidArgumentError`` if a node would hold more than ZooKeeper takes."""
    if size_bytes > NODE_BYTES_MAX:
        raise InvalidArgumentError(
            f"{path} would hold {size_bytes:,} bytes, and ZooKeeper takes {NODE_BYTES_MAX:,}; "
            "nothing was sent. Keep custom metadata small, and roll to a new ledger before "
            "there are thousands of fragments"
        )
