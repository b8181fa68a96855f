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

What a counter gives next is known to whoever knows which writes were sent before. So a write may
wait with its operations until it is sent (``Numbered``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from kazoo.exceptions import ConnectionLoss, RolledBackError, RuntimeInconsistency
from kazoo.handlers.threading import KazooTimeoutError

from spark_bookkeeper.metadata.zookeeper.client import Awaited
from spark_bookkeeper.metadata.zookeeper.multi_write import AccessRules, MultiWrite, Operations

WRITES_MAX: Final = 64
BYTES_MAX: Final = 400_000
"""Of all nodes' data in a transaction that holds several writes."""

_OF_OTHERS: Final = (RolledBackError, RuntimeInconsistency)
"""What a write is told that was undone, or not tried, because of another in its transaction."""

Add = Callable[[Operations], None]
"""Adds the operations of one write."""

Tell = Callable[[Any], None]
"""Hears the result of a write, or the exception that it ended with."""


class Numbered(Protocol):
    """A write whose operations depend on what was sent before it.

    Its methods are called in the order in which writes are sent and answered, with a lock held.
    """

    def add(self, operations: Operations) -> None:
        """It is sent now. Raises ``UnnumberedError``: it cannot be; its asker is told.

        Often in the thread that reads answers: it waits for nothing.
        """

    def told(self, result: Any) -> None:
        """What became of that: its result, or an exception. It may be sent once more then."""


class UnnumberedError(Exception):
    """It is not known what a counter gives next, so nothing was sent. Or nobody waits any more."""


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
    numbered: Numbered | None = None
    is_given_up: bool = False
    """It is not to be sent any more."""


@dataclass(eq=False, slots=True)
class _Group:
    """The writes of one transaction."""

    writes: list[_Write] = field(default_factory=list)
    request: Awaited | None = None
    """What kazoo was asked for them."""


class GroupedWrites:
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

    def ask_numbered(self, write: Numbered, size_bytes: int = 0) -> Reply:
        """The same for a write whose operations are not known before it is sent."""
        return self._replies([_Write(Operations(self._access), size_bytes, _to_nobody, write)])[0]

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
        unsent: list[_Write] = []
        try:
            with self._lock:
                if self._under_way or not self._waiting:
                    return
                self._under_way.add(group)
                self._gather(group, unsent)
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
        finally:
            _tell_unsent(unsent)

    def _gather(self, group: _Group, unsent: list[_Write]) -> None:
        size = 0
        while self._waiting and len(group.writes) < WRITES_MAX:
            size += self._waiting[0].size_bytes
            if group.writes and size > BYTES_MAX:
                break
            # In the group before it is numbered: if that fails, who asks is told with the others.
            group.writes.append(self._waiting.popleft())
            if not self._number(group.writes[-1]):
                unsent.append(group.writes.pop())

    def _number(self, write: _Write) -> bool:
        """Have a write ready to be sent now; whether it is."""
        if write.is_given_up:
            return False
        if write.numbered is None:
            return True
        write.operations = Operations(self._access)
        try:
            write.numbered.add(write.operations)
        except UnnumberedError:
            return False
        return True

    def _send(self, group: _Group) -> None:
        answer = self._client.handler.async_result()
        with self._lock:
            # The last look and the sending are one step: who gives up before it is not sent, and
            # who gives up after it reads what became of it, as answers come in this order.
            unsent = self._leave_out_those_given_up(group)
            if group.writes:
                request = MultiWrite([write.operations for write in group.writes])
                group.request = answer
                self._client._call(request, answer)  # noqa: SLF001  (as its own methods do)
        _tell_unsent(unsent)
        if group.writes:
            answer.rawlink(partial(self._answered, group))  # at once where it was not sent
        else:
            self._go_on()

    def _leave_out_those_given_up(self, group: _Group) -> Sequence[_Write]:
        """Who asked for a write may have given up since it was gathered, and been told that it was
        not made: it would be there all the same.
        """
        unsent = [write for write in group.writes if write.is_given_up]
        for write in unsent:
            group.writes.remove(write)
            if write.numbered is not None:
                write.numbered.told(UnnumberedError())
        if not group.writes:
            self._under_way.discard(group)
        return unsent

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
                for write, result in (*ended, *again):
                    if write.numbered is not None:
                        write.numbered.told(result)
                others = self._those_again(ended, again)
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

    def _those_again(self, ended: _Results, again: _Results) -> list[_Group]:
        """How writes go again that were undone with others; who cannot is with those that ended.

        Each alone, as another one among them may be refused as well. Only where the one that was
        refused has met another number than it expected, this says nothing of the others.
        """
        numbered = [write for write, _ in again if write.numbered is not None]
        unsent = [write for write in numbered if not self._number(write)]
        sent = [write for write, _ in again if write not in unsent]
        is_of_number = any(write.numbered is not None for write, _ in ended)
        ended += [(write, UnnumberedError()) for write in unsent]
        if sent and is_of_number and len(unsent) == len(numbered):
            return [_Group(sent)]
        return [_Group([write]) for write in sent]

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
            for write in lost:
                if write.numbered is not None:
                    write.numbered.told(error)
        _tell_all([(write, error) for write in lost])


_Results = list[tuple[_Write, Any]]
"""Writes, each with its result or the exception that it ended with."""


def _results_of(writes: Sequence[_Write], results: Sequence[Any]) -> tuple[_Results, _Results]:
    """Those that ended, and those that were undone because of another."""
    assert len(results) == sum(len(write.operations) for write in writes)
    ended: _Results = []
    again: _Results = []
    end = 0
    for write in writes:
        start, end = end, end + len(write.operations)
        result = results[start]
        if isinstance(result, Exception):  # then all of them are
            of_write = results[start:end]
            result = next((e for e in of_write if not isinstance(e, _OF_OTHERS)), result)
        is_undone = len(writes) > 1 and isinstance(result, _OF_OTHERS)
        (again if is_undone else ended).append((write, result))
    return ended, again


def _tell_unsent(writes: Sequence[_Write]) -> None:
    _tell_all([(write, UnnumberedError()) for write in writes])


def _tell_all(ended: _Results) -> None:
    for write, result in ended:
        write.tell(result)
