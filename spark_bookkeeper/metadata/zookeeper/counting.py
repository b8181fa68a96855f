"""What a counter gives next, as far as one session can know without asking.

The numbers of sequential nodes are a counter for all sessions. A session that was the only one to
ask of late knows what comes next, and may make nodes whose names have that number before it was
told so: they are refused as a whole if it is another one (decision 0048).

Requests are answered in the order in which they are sent, so a number is expected when a request is
sent, for that very request, whichever thread asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.exceptions import NodeExistsError, NoNodeError

from spark_bookkeeper.metadata.zookeeper.grouping import UnnumberedError
from spark_bookkeeper.metadata.zookeeper.multi_write import Operations
from spark_bookkeeper.metadata.zookeeper.operations import Create, Operation

_DOUBT_MAX: Final = 1024
"""So many numbers in a row as expected are always enough for a guess."""


class Count:
    """One counter. Its methods are called in the order of requests and answers, with a lock held.

    After a wrong guess it takes longer until the next: twice as many numbers in a row that were as
    expected, and one less after each guess that was right. So where several sessions ask at the
    same time, they soon guess no more.
    """

    def __init__(self) -> None:
        self._next: int | None = None
        """What the next request is given, if nobody else asks meanwhile."""
        self._agreed = 0
        """Numbers in a row that were as expected."""
        self._doubt = 1
        """So many are wanted before a guess."""

    @property
    def is_known(self) -> bool:
        """Whether ``take`` would give a number just now."""
        return self._next is not None and self._agreed >= self._doubt

    def ask(self) -> int | None:
        """A request for the next number is sent; what it is expected to be."""
        expected = self._next
        if expected is not None:
            self._next = expected + 1
        return expected

    def told(self, expected: int | None, number: int) -> None:
        """The number that such a request was given."""
        if expected is None:
            self._next = number + 1
        elif number == expected:
            self._agreed += 1
        else:
            self._next, self._agreed = number + 1, 0

    def take(self) -> int:
        """A request is sent that takes the next number. Raises ``UnnumberedError``: not known."""
        if not self.is_known:
            raise UnnumberedError
        assert self._next is not None
        self._next += 1
        return self._next - 1

    def taken(self) -> None:
        """It was carried out."""
        self._doubt = max(1, self._doubt - 1)

    def refused(self) -> None:
        """It was refused: somebody else asks as well, most likely."""
        self._doubt = min(2 * self._doubt, _DOUBT_MAX)
        self.forget()

    def forget(self) -> None:
        """What became of a request is not known, or it was undone because of another."""
        self._next, self._agreed = None, 0


class Asking:
    """The request for a counter's next number: a sequential node, whose name has it.

    Args:
        count: told of it.
        name: the node's path, before the number.
    """

    def __init__(self, count: Count, name: str) -> None:
        self._count = count
        self._name = name
        self._expected: int | None = None

    def add(self, operations: Operations) -> None:
        """It is sent."""
        self._expected = self._count.ask()
        operations.create(self._name, ephemeral=True, sequence=True)

    def told(self, result: Any) -> None:
        """What became of it."""
        if isinstance(result, str):
            self._count.told(self._expected, int(result[len(self._name) :]))
        else:
            self._count.forget()


class Taking:
    """A write that takes the counter's next number, and is refused if that is another one.

    Args:
        count: says what comes next.
        named: for a number, the node that is made, by whose data the write is known again, and
            operations after it. One of them fails for any number that is not the counter's next.
    """

    def __init__(
        self, count: Count, named: Callable[[int], tuple[Create, Sequence[Operation]]]
    ) -> None:
        self._count = count
        self._named = named
        self.number: int | None = None
        """That it was sent with last."""
        self.made: Create | None = None
        """The node that it was to make then."""
        self.is_uncertain = False
        """The answer to it was lost."""

    def add(self, operations: Operations) -> None:
        """It is sent."""
        self.number = self._count.take()
        self.made, also = self._named(self.number)
        for operation in (self.made, *also):
            operation.add_to(operations)

    def told(self, result: Any) -> None:
        """What became of it."""
        if not isinstance(result, Exception):
            self._count.taken()
        elif isinstance(result, NoNodeError | NodeExistsError):
            self._count.refused()
        else:
            self._count.forget()
