"""Writes that are asked for at the same time travel as one transaction.

A client spends more on each request than ZooKeeper does. So there is one request of writes under
way at a time, and what is asked for meanwhile shares the next one. Whoever asks sees nothing of
it: each write succeeds or fails by itself.

A write may consist of several operations, which are carried out together or not at all.

A transaction is carried out as a whole or not at all. When one of its writes is refused, that one
has its answer, and the others are sent again, each alone. When the answer to a transaction is
lost, each of its writes is in doubt, and is resolved by whoever asked for it (SLOT-LOG rule R14).

Whoever waits no longer gives a write up: what was not sent by then is not sent any more. A request
that waits for a connection is taken back for it, and the other writes in it are in doubt, as they
are when a connection is lost.
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
"""Of all nodes' data in a transaction that holds several writes."""

_OF_OTHERS: Final = (RolledBackError, RuntimeInconsistency)
"""What a write is told that was undone, or not tried, because of another in its transaction."""

Add = Callable[[Operations], None]
"""Adds the operations of one write."""

Tell = Callable[[Any], None]
"""Hears the result of a write, or the exception that it ended with."""


class Reply:
    """What became of a write, for the one who waits for it.

    A lock and no more: kazoo's promise has a condition of its own, which costs as much as the
    write that it is about.

    Args:
        give_up: sees to it that what was not sent yet is not sent any more.
    """

    __slots__ = ("_is_there", "_result", "give_up")

    def __init__(self, give_up: Callable[[], None]) -> None:
        self.give_up = give_up
        self._result: Any = None
        self._is_there = threading.Lock()
        self._is_there.acquire()

    def tell(self, result: Any) -> None:
        """The result of the write, or the exception that it ended with; once."""
        self._result = result
        self._is_there.release()

    def get(self, timeout: float = -1) -> Any:
        """The result, waiting for it so many seconds. Raises the exception that it ended with.

        And kazoo's ``KazooTimeoutError``.
        """
        if not self._is_there.acquire(timeout=timeout):
            raise KazooTimeoutError
        self._is_there.release()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def _to_nobody(result: Any) -> None:
    """Who waits is not there yet."""


@dataclass(eq=False, slots=True)
class _Write:
    operations: Operations
    size_bytes: int
    tell: Tell
    is_given_up: bool = False
    """It is not to be sent any more."""


@dataclass(eq=False, slots=True)
class _Group:
    """The writes of one transaction."""

    writes: list[_Write] = field(default_factory=list)
    request: Awaited | None = None
    """What kazoo was asked for them."""


class GroupCommit:
    """Writes of one session, in the order in which they were asked for. Any thread may ask.

    Args:
        client: kazoo's.
        access: who may do what with nodes that are created.
    """

    def __init__(self, client: Any, access: AccessRules) -> None:
        self._client = client
        self._access = access
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        self._under_way: set[_Group] = set()

    def ask(self, add: Add, size_bytes: int = 0) -> Reply:
        """Ask for a write, now or with the next ones.

        Of several operations the answer is the result of the first, or the error of the one
        refused.
        """
        return self._replies([self._write(add, size_bytes)])[0]

    def ask_many(self, wanted: Iterable[tuple[Add, int]]) -> list[Reply]:
        """Ask for many writes, each with its bytes."""
        return self._replies([self._write(add, size_bytes) for add, size_bytes in wanted])

    def ask_sometime(self, add: Add, tell: Tell) -> None:
        """Ask for a write that nobody waits for: it goes with the next one that is asked for.

        Args:
            tell: called by the thread that reads answers.
        """
        write = self._write(add, 0, tell)
        with self._lock:
            self._waiting.append(write)

    def ask_beside(self, add: Add, tell: Tell) -> None:
        """Ask for a write that nobody waits for, now or with the next ones; as ``ask_sometime``."""
        self.ask_sometime(add, tell)
        self._go_on()

    def _write(self, add: Add, size_bytes: int, tell: Tell = _to_nobody) -> _Write:
        operations = Operations(self._access)
        add(operations)
        return _Write(operations, size_bytes, tell)

    def _replies(self, writes: Sequence[_Write]) -> list[Reply]:
        """Ask for writes that somebody waits for."""
        try:
            replies = [Reply(partial(self._give_up, write)) for write in writes]
            for write, reply in zip(writes, replies, strict=True):
                write.tell = reply.tell
            with self._lock:
                self._waiting.extend(writes)
            self._go_on()
        except BaseException:  # Ctrl-C: nobody will wait for them
            for write in writes:
                self._give_up(write)
            raise
        return replies

    def _give_up(self, write: _Write) -> None:
        """Whoever asked for it waits no longer: what was not sent yet is not sent any more.

        What was sent is answered before whatever is asked for from now on, or its answer is lost.
        """
        with self._lock:
            write.is_given_up = True
            group = next((each for each in self._under_way if write in each.writes), None)
        if group is not None and group.request is not None and group.request.give_up():
            self._lose(group, ConnectionLoss())

    def _go_on(self) -> None:
        """Send what has gathered, unless something is under way."""
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
            # Ctrl-C in a notebook: it may have been sent or not, and others must go on.
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
            # The last look and the sending are one step: who gives up before it is not sent, and
            # who gives up after it reads what became of it, as answers come in this order.
            # Who gave up since they were gathered was told that it was not made.
            group.writes = [write for write in group.writes if not write.is_given_up]
            if group.writes:
                request = MultiWrite([write.operations for write in group.writes])
                group.request = answer
                self._client._call(request, answer)  # noqa: SLF001  (as its own methods do)
            else:
                self._under_way.discard(group)
        if group.writes:
            answer.rawlink(partial(self._answered, group))  # at once where it was not sent
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
                    return  # it was given up before, and those who asked were told
                # Each alone, as another one among them may be refused as well.
                others = [_Group([write]) for write in again]
                self._under_way.remove(group)
                self._under_way.update(others)
            try:
                for other in others:
                    self._send(other)
                self._go_on()
            finally:  # whatever becomes of the next ones
                _tell_all(ended)
        except BaseException:
            # Ctrl-C here as in ``_go_on``. Who is not told of an answer gives up after a while and
            # asks again; but a group that stayed under way would hold up everybody for ever.
            for other in (group, *others):
                self._lose(other, ConnectionLoss())
            raise

    def _lose(self, group: _Group, error: Exception) -> None:
        """Tell who asked for these writes that their outcome is not known.

        The writes that wait are given up too, and not sent on a later connection: who asked for
        them may have given up by then. kazoo does the same with what it has not sent yet.
        """
        with self._lock:
            if group not in self._under_way:
                return
            self._under_way.remove(group)
            lost = [*group.writes, *self._waiting]
            self._waiting.clear()
        _tell_all([(write, error) for write in lost])


_Results = list[tuple[_Write, Any]]
"""Writes, each with its result or the exception that it ended with."""


def _results_of(writes: Sequence[_Write], results: Sequence[Any]) -> tuple[_Results, list[_Write]]:
    """Those that ended, and those that were undone because of another."""
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
