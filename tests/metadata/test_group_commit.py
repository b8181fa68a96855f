"""Writes that share a transaction: each of them ends as if it had been sent alone."""

from __future__ import annotations

import threading
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
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError

from spark_bookkeeper.metadata.zookeeper.group_commit import BYTES_MAX, WRITES_MAX, GroupCommit
from spark_bookkeeper.metadata.zookeeper.multi import AccessRules, MultiWrite, Operations
from tests.support.znodes import operations_of


class Answer(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """Of a request that may still wait for a connection."""

    is_unsent = False
    is_given_up = False

    def give_up(self) -> bool:
        self.is_given_up = True
        return self.is_unsent


class Client:
    """Holds back the answer to each transaction until the test gives it."""

    running = False  # as a handler of kazoo's: callbacks are made at once

    def __init__(self) -> None:
        self.handler = self
        self.sent: list[list[str]] = []
        self._unanswered: list[Answer] = []
        self.interrupt: str | None = None
        """When the next request is interrupted: "before" it is sent, or "after"."""

    def async_result(self) -> Answer:
        return Answer(self)

    def _call(self, request: MultiWrite, answer: AsyncResult) -> None:
        when, self.interrupt = self.interrupt, None
        if when == "before":
            raise KeyboardInterrupt
        self.sent.append([operation.path for operation in operations_of(request)])
        self._unanswered.append(answer)
        if when == "after":
            raise KeyboardInterrupt

    def answer(self, *results: object) -> None:
        """Reply the oldest transaction; by itself each write's result is its name."""
        at = len(self.sent) - len(self._unanswered)
        self._unanswered.pop(0).set(list(results or self.sent[at]))

    def wait_for_a_connection(self) -> None:
        self._unanswered[0].is_unsent = True

    def has_given_up(self) -> bool:
        return self._unanswered[0].is_given_up

    def lose(self) -> None:
        self._unanswered.pop(0).set_exception(ConnectionLoss())


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def writes(client: Client) -> GroupCommit:
    return GroupCommit(client, AccessRules())


def _named(name: str) -> Callable[[Operations], None]:
    return lambda operations: operations.delete(name)


def test_a_write_alone_is_sent_at_once(client: Client, writes: GroupCommit) -> None:
    answer = writes.ask(_named("a"))

    assert client.sent == [["a"]]
    with pytest.raises(KazooTimeoutError):
        answer.get(0)
    client.answer()
    assert answer.get(0) == "a"


def test_what_is_asked_for_meanwhile_goes_together(client: Client, writes: GroupCommit) -> None:
    answers = [writes.ask(_named(name)) for name in "abc"]
    assert client.sent == [["a"]]

    client.answer()
    assert client.sent == [["a"], ["b", "c"]]
    client.answer()

    assert [answer.get(0) for answer in answers] == ["a", "b", "c"]
    writes.ask(_named("d"))
    assert client.sent[2:] == [["d"]], "nothing is under way any more"


def test_what_nobody_waits_for_waits_for_others(client: Client, writes: GroupCommit) -> None:
    writes.ask_sometime(_named("a"), lambda result: None)
    assert client.sent == []

    answer = writes.ask(_named("b"))

    assert client.sent == [["a", "b"]]
    client.answer(True, "made b")
    assert answer.get(0) == "made b"


def test_one_that_is_refused_takes_no_other_with_it(client: Client, writes: GroupCommit) -> None:
    answers = [writes.ask(_named(name)) for name in "abcd"]
    client.answer()

    client.answer(RolledBackError(), NodeExistsError(), RuntimeInconsistency())

    with pytest.raises(NodeExistsError):
        answers[2].get(0)
    assert client.sent[2:] == [["b"], ["d"]]
    with pytest.raises(KazooTimeoutError):
        answers[1].get(0)
    client.answer()
    client.answer(BadVersionError())
    assert answers[1].get(0) == "b"
    with pytest.raises(BadVersionError):
        answers[3].get(0)


@pytest.mark.parametrize("error", [NoNodeError, RuntimeInconsistency])
def test_one_that_is_refused_alone_has_its_error(
    client: Client, writes: GroupCommit, error: type[Exception]
) -> None:
    answer = writes.ask(_named("a"))

    client.answer(error())

    with pytest.raises(error):
        answer.get(0)
    assert client.sent == [["a"]]


def test_where_none_is_said_to_be_refused_each_goes_again_alone(
    client: Client, writes: GroupCommit
) -> None:
    for name in "abc":
        writes.ask(_named(name))
    client.answer()

    client.answer(RuntimeInconsistency(), RuntimeInconsistency())

    assert client.sent[2:] == [["b"], ["c"]]


def test_what_is_asked_for_waits_for_those_that_are_sent_again(
    client: Client, writes: GroupCommit
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
    assert last.get(0) == "d"


def test_a_lost_answer_leaves_all_of_them_in_doubt_and_sends_nothing_later(
    client: Client, writes: GroupCommit
) -> None:
    answers = [writes.ask(_named(name)) for name in "abc"]
    client.answer()
    answers.append(writes.ask(_named("d")))

    client.lose()

    assert answers[0].get(0) == "a"
    for answer in answers[1:]:
        with pytest.raises(ConnectionLoss):
            answer.get(0)
    assert client.sent == [["a"], ["b", "c"]], "who asked for d believes that it is over"
    answer = writes.ask(_named("e"))
    assert client.sent[2:] == [["e"]]
    client.answer()
    assert answer.get(0) == "e"


def test_a_transaction_is_bounded(client: Client, writes: GroupCommit) -> None:
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
    client: Client, writes: GroupCommit, when: str
) -> None:
    writes.ask_sometime(_named("a"), lambda result: None)
    client.interrupt = when

    with pytest.raises(KeyboardInterrupt):
        writes.ask(_named("b"))

    answer = writes.ask(_named("c"))
    if when == "after":
        assert client.has_given_up()
        client.answer()  # nobody waits for a and b any more
    assert client.sent[-1:] == [["c"]]
    client.answer()
    assert answer.get(0) == "c"


def test_an_interrupt_while_others_are_sent_again_holds_up_nobody(
    client: Client, writes: GroupCommit
) -> None:
    answers = [writes.ask(_named(name)) for name in "abcd"]
    client.answer()
    client.interrupt = "before"

    with pytest.raises(KeyboardInterrupt):
        client.answer(RolledBackError(), NodeExistsError(), RuntimeInconsistency())

    for answer in (answers[1], answers[3]):
        with pytest.raises(ConnectionLoss):
            answer.get(0)
    answer = writes.ask(_named("e"))
    assert client.sent[2:] == [["e"]]
    client.answer()
    assert answer.get(0) == "e"


def test_what_cannot_be_asked_for_holds_up_nobody(client: Client, writes: GroupCommit) -> None:
    def wrong(transaction: object) -> None:
        raise TypeError

    with pytest.raises(TypeError):
        writes.ask(wrong)

    writes.ask(_named("a"))
    assert client.sent == [["a"]]


def _several(*names: str) -> Callable[[Operations], None]:
    def add(operations: Operations) -> None:
        for name in names:
            operations.delete(name)

    return add


def test_a_write_of_several_operations_has_the_result_of_its_first(
    client: Client, writes: GroupCommit
) -> None:
    alone = writes.ask(_several("a", "b"))
    client.answer()
    assert alone.get(0) == "a"

    writes.ask(_named("first"))
    together = [writes.ask(_several("c", "d", "e")), writes.ask(_named("f"))]
    client.answer()
    assert client.sent[-1] == ["c", "d", "e", "f"]
    client.answer()

    assert [answer.get(0) for answer in together] == ["c", "f"]


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_write_of_several_operations_is_refused_as_a_whole_and_alone(
    client: Client, writes: GroupCommit, refused: int
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
    with pytest.raises(NoNodeError):
        answers[1].get(0)
    assert [answers[0].get(0), answers[2].get(0)] == ["a", "e"]


def test_a_write_of_several_operations_that_was_rolled_back_for_another_goes_again_whole(
    client: Client, writes: GroupCommit
) -> None:
    writes.ask(_named("first"))
    several, other = writes.ask(_several("a", "b")), writes.ask(_named("c"))
    client.answer()

    client.answer(RolledBackError(), RolledBackError(), NodeExistsError())
    assert client.sent[2:] == [["a", "b"]]
    client.answer()

    assert several.get(0) == "a"
    with pytest.raises(NodeExistsError):
        other.get(0)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_write_that_is_given_up_after_it_was_gathered_is_not_sent(
    client: Client, writes: GroupCommit, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    """Who asked has been told that it is not there."""
    send = writes._send

    def meanwhile(group: Any) -> None:
        monkeypatch.setattr(writes, "_send", send)
        writes._give_up(group.writes[-1])
        send(group)

    if not is_alone:
        writes.ask_sometime(_named("a"), lambda result: None)
    monkeypatch.setattr(writes, "_send", meanwhile)
    writes.ask(_named("c"))

    assert client.sent == ([] if is_alone else [["a"]])
    if not is_alone:
        client.answer()
    writes.ask(_named("b"))
    assert client.sent[-1] == ["b"], "it holds up nobody"


def test_a_write_is_given_up_before_the_last_look_or_after_it_was_sent(
    client: Client, writes: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gives up and then reads what is there finds what was sent."""
    order = list[str]()
    send = client._call

    def give_up() -> None:
        (group,) = writes._under_way
        writes._give_up(group.writes[0])
        order.append("given up")

    def meanwhile(request: MultiWrite, answer: AsyncResult) -> None:
        other.start()
        other.join(0.2)  # it has no way to go on before this is sent
        send(request, answer)
        order.append("sent")

    other = threading.Thread(target=give_up)
    monkeypatch.setattr(client, "_call", meanwhile)
    writes.ask(_named("a"))
    other.join()

    assert order == ["sent", "given up"]


def test_a_connection_that_fails_at_once_is_told_to_who_asks(
    client: Client, writes: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kazoo's does when it is closed: its answer is there before it returns."""
    monkeypatch.setattr(client, "_call", lambda _, answer: answer.set_exception(ConnectionLoss()))

    answer = writes.ask(_named("a"))

    with pytest.raises(ConnectionLoss):
        answer.get(0)


def test_a_write_that_is_given_up_while_it_waits_is_not_sent(
    client: Client, writes: GroupCommit
) -> None:
    writes.ask(_named("a"))
    given_up, beside = writes.ask(_named("b")), writes.ask(_named("c"))

    given_up.give_up()
    client.answer()

    assert client.sent == [["a"], ["c"]]
    client.answer()
    assert beside.get(0) == "c"


def test_a_write_that_is_given_up_is_not_sent_again_after_another_was_refused(
    client: Client, writes: GroupCommit
) -> None:
    writes.ask(_named("a"))
    given_up, _, beside = [writes.ask(_named(name)) for name in "bcd"]
    client.answer()

    given_up.give_up()
    client.answer(RolledBackError(), NoNodeError(), RuntimeInconsistency())

    assert client.sent == [["a"], ["b", "c", "d"], ["d"]]
    client.answer()
    assert beside.get(0) == "d"


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_request_that_waits_for_a_connection_is_taken_back_with_all_that_is_in_it(
    client: Client, writes: GroupCommit, is_sent: bool
) -> None:
    """And they are in doubt, as when a connection is lost."""
    writes.ask(_named("a"))
    given_up, beside, told = writes.ask(_named("b")), writes.ask(_named("c")), list[object]()
    client.answer()
    writes.ask_sometime(_named("d"), told.append)
    if not is_sent:
        client.wait_for_a_connection()

    given_up.give_up()

    if is_sent:
        client.answer()
        assert beside.get(0) == "c"
        return
    with pytest.raises(ConnectionLoss):
        beside.get(0)
    assert [type(each) for each in told] == [ConnectionLoss]
    writes.ask(_named("e"))
    assert client.sent[-1] == ["e"], "it holds up nobody"


def test_who_is_interrupted_while_it_asks_has_given_up(
    client: Client, writes: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes.ask(_named("a"))

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writes, "_go_on", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writes.ask(_named("b"))
    client.answer()
    writes.ask(_named("c"))

    assert client.sent == [["a"], ["c"]]
