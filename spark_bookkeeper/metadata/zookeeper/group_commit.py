"""Sends concurrent writes in one transaction.

A client spends more on each request than ZooKeeper does. So only one request of writes is under way
at a time, and the writes that arrive meanwhile share the next one. Callers do not notice: each
write succeeds or fails on its own.

A write may consist of several operations, which are done all or not at all.

A transaction is done as a whole or not at all. If one of its writes is refused, that write has its
answer, and the others are sent again, each alone. If the answer to a transaction is lost, the
outcome of each of its writes is unknown, and the caller of each resolves it (SLOT-LOG rule R14).

A caller that stops waiting gives its write up: a write that was not sent by then is never sent. If
it is in a request that waits for a connection, that request is withdrawn; then the outcome of its
other writes is unknown, as after a loss of the connection.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kazoo.exceptions import ConnectionLoss, RolledBackError, RuntimeInconsistency
from kazoo.handlers.threading import KazooTimeoutError

from spark_bookkeeper.metadata.zookeeper.client import Awaited
from spark_bookkeeper.metadata.zookeeper.multi import AccessRules, MultiWrite, Operations

WRITES_MAX: Final = 64
BYTES_MAX: Final = 400_000
"""The most data of all nodes in a transaction with several writes."""

_OF_OTHERS: Final = (RolledBackError, RuntimeInconsistency)
"""The errors of a write that was undone or not tried because of another in its transaction."""

Add = Callable[[Operations], None]
"""A function that adds the operations of one write."""

Tell = Callable[[Any], None]
"""A function that receives the result of a write, or its exception."""


class Reply:
    """The outcome of a write, for the caller that waits for it.

    It contains only a lock: kazoo's future has its own condition, which costs as much as the write
    itself.

    Args:
        give_up: makes sure that a write that was not sent yet is never sent.
    """

    __slots__ = ("_is_there", "_result", "give_up")

    def __init__(self, give_up: Callable[[], None]) -> None:
        self.give_up = give_up
        self._result: Any = None
        self._is_there = threading.Lock()
        self._is_there.acquire()

    def tell(self, result: Any) -> None:
        """Set the result of the write, or its exception; called once."""
        self._result = result
        self._is_there.release()

    def get(self, timeout: float = -1) -> Any:
        """Return the result, or raise the write's exception, after at most so many seconds.

        Raises kazoo's ``KazooTimeoutError`` if neither came by then.
        """
        if not self._is_there.acquire(timeout=timeout):
            raise KazooTimeoutError
        self._is_there.release()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def _to_nobody(result: Any) -> None:
    """Stand in for ``tell`` until the reply is made."""


@dataclass(eq=False, slots=True)
class _Write:
    operations: Operations
    size_bytes: int
    tell: Tell
    is_given_up: bool = False
    """Whether it must not be sent any more."""


@dataclass(eq=False, slots=True)
class _Group:
    """The writes of one transaction."""

    writes: list[_Write] = field(default_factory=list)
    request: Awaited | None = None
    """kazoo's future of the request for them."""


class GroupCommit:
    """The writes of one session, in the order of the calls. Any thread may call.

    Args:
        client: kazoo's.
        access: the access rules of nodes that are created.
    """

    def __init__(self, client: Any, access: AccessRules) -> None:
        self._client = client
        self._access = access
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        self._under_way: set[_Group] = set()

    def ask(self, add: Add, size_bytes: int = 0) -> Reply:
        """Request a write, now or with the next ones.

        The answer is the result of its first operation, or the error of the one that was refused.
        """
        return self._replies([self._write(add, size_bytes)])[0]

    def ask_many(self, wanted: Iterable[tuple[Add, int]]) -> list[Reply]:
        """Request many writes, each with its number of bytes."""
        return self._replies([self._write(add, size_bytes) for add, size_bytes in wanted])

    def ask_sometime(self, add: Add, tell: Tell) -> None:
        """Request a write without waiting: it is sent with the next one that is requested.

        Args:
            tell: called by the thread that reads answers.
        """
        write = self._write(add, 0, tell)
        with self._lock:
            self._waiting.append(write)

    def ask_beside(self, add: Add, tell: Tell) -> None:
        """Request a write without waiting, now or with the next ones; as ``ask_sometime``."""
        self.ask_sometime(add, tell)
        self._go_on()

    def _write(self, add: Add, size_bytes: int, tell: Tell = _to_nobody) -> _Write:
        operations = Operations(self._access)
        add(operations)
        return _Write(operations, size_bytes, tell)

    def _replies(self, writes: Sequence[_Write]) -> list[Reply]:
        """Request writes for which the caller waits."""
        try:
            replies = [Reply(partial(self._give_up, write)) for write in writes]
            for write, reply in zip(writes, replies, strict=True):
                write.tell = reply.tell
            with self._lock:
                self._waiting.extend(writes)
            self._go_on()
        except BaseException:  # Ctrl-C: no caller will wait for them
            for write in writes:
                self._give_up(write)
            raise
        return replies

    def _give_up(self, write: _Write) -> None:
        """Give up a write, because its caller waits no longer: if it was not sent yet, it never is.

        If it was sent, its answer comes before those to all later requests, or is lost.
        """
        with self._lock:
            write.is_given_up = True
            group = next((each for each in self._under_way if write in each.writes), None)
        if group is not None and group.request is not None and group.request.give_up():
            self._lose(group, ConnectionLoss())

    def _go_on(self) -> None:
        """Send the waiting writes, unless a request is under way."""
        group = _Group()
        try:
            with self._lock:
                if self._under_way or not self._waiting:
                    return
                self._under_way.add(group)
                self._gather(group)
                if not group.writes:
                    self._under_way.remove(group)
                    return
            self._send(group)
        except BaseException:
            # Ctrl-C in a notebook: it may have been sent or not, and other writes must go on.
            if group.request is not None:
                group.request.give_up()
            self._lose(group, ConnectionLoss())
            raise

    def _gather(self, group: _Group) -> None:
        size = 0
        while self._waiting and len(group.writes) < WRITES_MAX:
            size += self._waiting[0].size_bytes
            if group.writes and size > BYTES_MAX:
                break
            group.writes.append(self._waiting.popleft())
            if group.writes[-1].is_given_up:
                group.writes.pop()

    def _send(self, group: _Group) -> None:
        answer = self._client.handler.async_result()
        with self._lock:
            # The last check and the sending are one step. A write that was given up before it is
            # not sent. A caller that gives up after it reads the outcome, because answers come in
            # order. A caller that gave up since the group was gathered counts its write as not
            # made.
            group.writes = [write for write in group.writes if not write.is_given_up]
            if group.writes:
                request = MultiWrite([write.operations for write in group.writes])
                group.request = answer
                self._client._call(request, answer)  # noqa: SLF001  (as its own methods do)
            else:
                self._under_way.discard(group)
        if group.writes:
            answer.rawlink(partial(self._answered, group))  # at once if it was not sent
        else:
            self._go_on()

    def _answered(self, group: _Group, request: Any) -> None:
        others: list[_Group] = []
        try:
            ended, again = _results_of(group.writes, request.get_nowait())
        except Exception as error:  # noqa: BLE001  (handed to those who asked)
            self._lose(group, error)
            return
        try:
            with self._lock:
                if group not in self._under_way:
                    return  # it was given up before, and its callers have their answers
                # Each alone, as another one among them may be refused as well.
                others = [_Group([write]) for write in again]
                self._under_way.remove(group)
                self._under_way.update(others)
            try:
                for other in others:
                    self._send(other)
                self._go_on()
            finally:  # even if sending the next ones fails
                _tell_all(ended)
        except BaseException:
            # Ctrl-C here as in ``_go_on``. A caller without its answer times out and retries; but a
            # group that stayed under way would block all writes for ever.
            for other in (group, *others):
                self._lose(other, ConnectionLoss())
            raise

    def _lose(self, group: _Group, error: Exception) -> None:
        """Report to the callers of these writes that the outcome is unknown.

        The waiting writes are given up too, and not sent on a later connection: their callers may
        have timed out by then. kazoo does the same with its unsent requests.
        """
        with self._lock:
            if group not in self._under_way:
                return
            self._under_way.remove(group)
            lost = [*group.writes, *self._waiting]
            self._waiting.clear()
        _tell_all([(write, error) for write in lost])


_Results = list[tuple[_Write, Any]]
"""Writes, each with its result or its exception."""


def _results_of(writes: Sequence[_Write], results: Sequence[Any]) -> tuple[_Results, list[_Write]]:
    """Return the writes that ended, and those that were undone because of another."""
    assert len(results) == sum(len(write.operations) for write in writes)
    ended: _Results = []
    again: list[_Write] = []
    end = 0
    for write in writes:
        start, end = end, end + len(write.operations)
        result = results[start]
        if isinstance(result, Exception):  # then all of them are
            of_write = results[start:end]
            result = next((e for e in of_write if not isinstance(e, _OF_OTHERS)), result)
        if len(writes) > 1 and isinstance(result, _OF_OTHERS):
            again.append(write)
        else:
            ended.append((write, result))
    return ended, again


def _tell_all(ended: _Results) -> None:
    for write, result in ended:
        write.tell(result)
