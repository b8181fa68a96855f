"""Writes that share a transaction: each of them ends as if it had been sent alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import AsyncResult

from spark_bookkeeper.metadata.zookeeper.grouping import BYTES_MAX, WRITES_MAX, GroupedWrites


class Client:
    """Holds back the answer to each transaction until the test gives it."""

    running = False  # as a handler of kazoo's: callbacks are made at once

    def __init__(self) -> None:
        self.handler = self
        self.sent: list[list[str]] = []
        self._unanswered: list[AsyncResult] = []
        self.interrupt: str | None = None
        """When the next request is interrupted: "before" it is sent, or "after"."""

    def async_result(self) -> AsyncResult:
        return AsyncResult(self)

    def transaction(self) -> Transaction:
        return Transaction(self)

    def commit(self, names: list[str]) -> AsyncResult:
        when, self.interrupt = self.interrupt, None
        if when == "before":
            raise KeyboardInterrupt
        self.sent.append(names)
        self._unanswered.append(Interrupting(self) if when == "after" else self.async_result())
        return self._unanswered[-1]

    def answer(self, *results: object) -> None:
        """Answer the oldest transaction; by itself each write's result is its name."""
        at = len(self.sent) - len(self._unanswered)
        self._unanswered.pop(0).set(list(results or self.sent[at]))

    def lose(self) -> None:
        self._unanswered.pop(0).set_exception(ConnectionLoss())


class Interrupting(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """Ctrl-C comes when the request is on its way and its answer is waited for."""

    def rawlink(self, callback: Callable[[AsyncResult], None]) -> None:
        super().rawlink(callback)
        raise KeyboardInterrupt


class Transaction:
    def __init__(self, client: Client) -> None:
        self.operations: list[str] = []
        self._client = client

    def commit_async(self) -> AsyncResult:
        return self._client.commit(self.operations)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def writes(client: Client) -> GroupedWrites:
    return GroupedWrites(client)


def _named(name: str) -> Callable[[Any], None]:
    return lambda transaction: transaction.operations.append(name)


def test_a_write_alone_is_sent_at_once(client: Client, writes: GroupedWrites) -> None:
    answer = writes.ask(_named("a"))

    assert client.sent == [["a"]]
    assert not answer.ready()
    client.answer()
    assert answer.get_nowait() == "a"


def test_what_is_asked_for_meanwhile_goes_together(client: Client, writes: GroupedWrites) -> None:
    answers = [writes.ask(_named(name)) for name in "abc"]
    assert client.sent == [["a"]]

    client.answer()
    assert client.sent == [["a"], ["b", "c"]]
    client.answer()

    assert [answer.get_nowait() for answer in answers] == ["a", "b", "c"]
    writes.ask(_named("d"))
    assert client.sent[2:] == [["d"]], "nothing is under way any more"


def test_what_nobody_waits_for_waits_for_others(client: Client, writes: GroupedWrites) -> None:
    writes.ask_sometime(_named("a"))
    assert client.sent == []

    answer = writes.ask(_named("b"))

    assert client.sent == [["a", "b"]]
    client.answer(True, "made b")
    assert answer.get_nowait() == "made b"


def test_one_that_is_refused_takes_no_other_with_it(client: Client, writes: GroupedWrites) -> None:
    answers = [writes.ask(_named(name)) for name in "abcd"]
    client.answer()

    client.answer(RolledBackError(), NodeExistsError(), RuntimeInconsistency())

    with pytest.raises(NodeExistsError):
        answers[2].get_nowait()
    assert client.sent[2:] == [["b"], ["d"]]
    assert not answers[1].ready()
    client.answer()
    client.answer(BadVersionError())
    assert answers[1].get_nowait() == "b"
    with pytest.raises(BadVersionError):
        answers[3].get_nowait()


@pytest.mark.parametrize("error", [NoNodeError, RuntimeInconsistency])
def test_one_that_is_refused_alone_has_its_error(
    client: Client, writes: GroupedWrites, error: type[Exception]
) -> None:
    answer = writes.ask(_named("a"))

    client.answer(error())

    with pytest.raises(error):
        answer.get_nowait()
    assert client.sent == [["a"]]


def test_what_is_asked_for_waits_for_those_that_are_sent_again(
    client: Client, writes: GroupedWrites
) -> None:
    for name in "abc":
        writes.ask(_named(name))
    client.answer()
    client.answer(NoNodeError(), RuntimeInconsistency())
    assert client.sent[2:] == [["c"]]

    last = writes.ask(_named("d"))
    assert client.sent[3:] == []
    client.answer()
    client.answer()

    assert client.sent[3:] == [["d"]]
    assert last.get_nowait() == "d"


def test_a_lost_answer_leaves_all_of_them_in_doubt_and_sends_nothing_later(
    client: Client, writes: GroupedWrites
) -> None:
    answers = [writes.ask(_named(name)) for name in "abc"]
    client.answer()
    answers.append(writes.ask(_named("d")))

    client.lose()

    assert answers[0].get_nowait() == "a"
    for answer in answers[1:]:
        with pytest.raises(ConnectionLoss):
            answer.get_nowait()
    assert client.sent == [["a"], ["b", "c"]], "who asked for d believes that it is over"
    answer = writes.ask(_named("e"))
    assert client.sent[2:] == [["e"]]
    client.answer()
    assert answer.get_nowait() == "e"


def test_a_transaction_is_bounded(client: Client, writes: GroupedWrites) -> None:
    for number in range(WRITES_MAX + 2):
        writes.ask(_named(str(number)))
    client.answer()
    assert len(client.sent[1]) == WRITES_MAX
    client.answer()
    assert client.sent[2] == [str(WRITES_MAX + 1)]

    for name in "ab":
        writes.ask(_named(name), BYTES_MAX)
    client.answer()
    assert client.sent[3] == ["a"], "one that is larger than the rest may be goes alone"
    client.answer()
    assert client.sent[4] == ["b"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_while_sending_leaves_doubt_and_holds_up_nobody(
    client: Client, writes: GroupedWrites, when: str
) -> None:
    writes.ask_sometime(_named("a"))
    client.interrupt = when

    with pytest.raises(KeyboardInterrupt):
        writes.ask(_named("b"))

    answer = writes.ask(_named("c"))
    if when == "after":
        client.answer()  # nobody waits for a and b any more
    assert client.sent[-1:] == [["c"]]
    client.answer()
    assert answer.get_nowait() == "c"


def test_an_interrupt_while_others_are_sent_again_holds_up_nobody(
    client: Client, writes: GroupedWrites
) -> None:
    answers = [writes.ask(_named(name)) for name in "abcd"]
    client.answer()
    client.interrupt = "before"

    with pytest.raises(KeyboardInterrupt):
        client.answer(RolledBackError(), NodeExistsError(), RuntimeInconsistency())

    for answer in (answers[1], answers[3]):
        with pytest.raises(ConnectionLoss):
            answer.get_nowait()
    answer = writes.ask(_named("e"))
    assert client.sent[2:] == [["e"]]
    client.answer()
    assert answer.get_nowait() == "e"


def test_what_cannot_be_asked_for_holds_up_nobody(client: Client, writes: GroupedWrites) -> None:
    def wrong(transaction: object) -> None:
        raise TypeError

    with pytest.raises(TypeError):
        writes.ask(wrong)

    writes.ask(_named("a"))
    assert client.sent == [["a"]]


def _several(*names: str) -> Callable[[Any], None]:
    return lambda transaction: transaction.operations.extend(names)


def test_a_write_of_several_operations_has_the_result_of_its_first(
    client: Client, writes: GroupedWrites
) -> None:
    alone = writes.ask(_several("a", "b"))
    client.answer()
    assert alone.get_nowait() == "a"

    writes.ask(_named("first"))
    together = [writes.ask(_several("c", "d", "e")), writes.ask(_named("f"))]
    client.answer()
    assert client.sent[-1] == ["c", "d", "e", "f"]
    client.answer()

    assert [answer.get_nowait() for answer in together] == ["c", "f"]


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_write_of_several_operations_is_refused_as_a_whole_and_alone(
    client: Client, writes: GroupedWrites, refused: int
) -> None:
    writes.ask(_named("first"))
    answers = [
        writes.ask(_named("a")),
        writes.ask(_several("b", "c", "d")),
        writes.ask(_named("e")),
    ]
    client.answer()
    at = 1 + refused
    results: list[object] = [RolledBackError()] * at
    results += [NoNodeError(), *[RuntimeInconsistency()] * (4 - at)]

    client.answer(*results)

    assert client.sent[2:] == [["a"], ["e"]], "the others go again, each alone"
    client.answer()
    client.answer()
    assert isinstance(answers[1].exception, NoNodeError)
    assert [answers[0].get_nowait(), answers[2].get_nowait()] == ["a", "e"]


def test_a_write_of_several_operations_that_was_rolled_back_for_another_goes_again_whole(
    client: Client, writes: GroupedWrites
) -> None:
    writes.ask(_named("first"))
    several, other = writes.ask(_several("a", "b")), writes.ask(_named("c"))
    client.answer()

    client.answer(RolledBackError(), RolledBackError(), NodeExistsError())
    assert client.sent[2:] == [["a", "b"]]
    client.answer()

    assert several.get_nowait() == "a"
    assert isinstance(other.exception, NodeExistsError)
