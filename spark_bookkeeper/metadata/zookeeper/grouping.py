"""Writes that are asked for at the same time travel as one transaction.

A client spends more on each request than ZooKeeper does. So there is one request of writes under
way at a time, and what is asked for meanwhile shares the next one. Whoever asks sees nothing of
it: each write succeeds or fails by itself.

A write may consist of several operations, which are carried out together or not at all.

A transaction is carried out as a whole or not at all. When one of its writes is refused, that one
has its answer, and the others are sent again, each alone. When the answer to a transaction is
lost, each of its writes is in doubt, and is resolved by whoever asked for it (SLOT-LOG rule R14).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from kazoo.exceptions import ConnectionLoss, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import Create, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

WRITES_MAX: Final = 64
BYTES_MAX: Final = 400_000
"""Of all nodes' data in a transaction that holds several writes."""

_OF_OTHERS: Final = (RolledBackError, RuntimeInconsistency)
"""What a write is told that was undone, or not tried, because of another in its transaction."""

_EPHEMERAL: Final = 1
_SEQUENTIAL: Final = 2

Add = Callable[[Any], None]
"""Adds the operations of one write to what is given, as to kazoo's transaction."""


class _Operations:
    """kazoo's transaction as long as operations are added to it.

    Without looking at their types and paths again, which took a fifth of a create and close.
    """

    __slots__ = ("_acl", "operations")

    def __init__(self, acl: Sequence[Any]) -> None:
        self._acl = acl
        self.operations: list[Any] = []

    def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> None:
        flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENTIAL if sequence else 0)
        self.operations.append(Create(path, value, self._acl, flags))

    def delete(self, path: str, version: int = -1) -> None:
        self.operations.append(Delete(path, version))

    def set_data(self, path: str, value: bytes, version: int) -> None:
        self.operations.append(SetData(path, value, version))


@dataclass(frozen=True, slots=True)
class _Write:
    operations: list[Any]
    size_bytes: int
    answer: Any
    """kazoo's promise, on which the asker waits."""


@dataclass(eq=False, slots=True)
class _Group:
    """The writes of one transaction."""

    writes: list[_Write] = field(default_factory=list)


class GroupedWrites:
    """Writes of one session, in the order in which they were asked for. Any thread may ask."""

    def __init__(self, client: Any, acl: Sequence[Any] = OPEN_ACL_UNSAFE) -> None:
        self._client = client
        self._acl = acl
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        self._under_way: set[_Group] = set()

    def ask(self, add: Add, size_bytes: int = 0) -> Any:
        """Ask for a write, now or with the next ones; kazoo's promise of its result.

        Of several operations it is the result of the first, or the error of the one refused.
        """
        write = self._take(add, size_bytes)
        self._go_on()
        return write.answer

    def ask_many(self, wanted: Iterable[tuple[Add, int]]) -> list[Any]:
        """Ask for many writes, each with its bytes; kazoo's promises of their results."""
        writes = [self._take(add, size_bytes) for add, size_bytes in wanted]
        self._go_on()
        return [write.answer for write in writes]

    def ask_sometime(self, add: Add) -> Any:
        """Ask for a write that nobody waits for: it goes with the next one that is asked for."""
        return self._take(add, 0).answer

    def _take(self, add: Add, size_bytes: int) -> _Write:
        collected = _Operations(self._acl)
        add(collected)
        write = _Write(collected.operations, size_bytes, self._client.handler.async_result())
        with self._lock:
            self._waiting.append(write)
        return write

    def _go_on(self) -> None:
        """Send what has gathered, unless something is under way."""
        group = _Group()
        try:
            with self._lock:
                if self._under_way or not self._waiting:
                    return
                self._under_way.add(group)
                size = 0
                while self._waiting and len(group.writes) < WRITES_MAX:
                    size += self._waiting[0].size_bytes
                    if group.writes and size > BYTES_MAX:
                        break
                    group.writes.append(self._waiting.popleft())
            self._send(group)
        except BaseException:
            # Ctrl-C in a notebook: it may have been sent or not, and others must go on.
            self._lose(group, ConnectionLoss())
            raise

    def _send(self, group: _Group) -> None:
        transaction = self._client.transaction()
        for write in group.writes:
            transaction.operations.extend(write.operations)
        transaction.commit_async().rawlink(partial(self._answered, group))

    def _answered(self, group: _Group, request: Any) -> None:
        others: list[_Group] = []
        ended: list[tuple[_Write, Any]] = []
        try:
            results = request.get_nowait()
            assert len(results) == sum(len(write.operations) for write in group.writes)
            following = iter(results)
            for write in group.writes:
                result = _result_of(list(islice(following, len(write.operations))))
                if len(group.writes) > 1 and isinstance(result, _OF_OTHERS):
                    others.append(_Group([write]))
                else:
                    ended.append((write, result))
        except Exception as error:  # noqa: BLE001  (handed to those who asked)
            self._lose(group, error)
            return
        with self._lock:
            if group not in self._under_way:
                return  # it was given up before, and those who asked were told
            self._under_way.remove(group)
            self._under_way.update(others)
        try:
            for other in others:
                self._send(other)
            self._go_on()
            for write, result in ended:
                if isinstance(result, Exception):
                    write.answer.set_exception(result)
                else:
                    write.answer.set(result)
        except BaseException:
            # Ctrl-C here as in ``_go_on``. Who is not told of an answer gives up after a while and
            # asks again; but a group that stayed under way would hold up everybody for ever.
            for other in others:
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
        for write in lost:
            write.answer.set_exception(error)


def _result_of(results: list[Any]) -> Any:
    """The result of a write from those of its operations."""
    errors = [result for result in results if isinstance(result, Exception)]
    refused = [error for error in errors if not isinstance(error, _OF_OTHERS)]
    return next(iter(refused or errors or results))
