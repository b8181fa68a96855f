"""Everybody is told what became of an append, in order, whatever a callback does."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from spark_bookkeeper.client.write.delivery import Delivery
from spark_bookkeeper.client.write.promise import Promise
from spark_bookkeeper.errors import LedgerFencedError
from spark_bookkeeper.runtime.runtime import ThreadRuntime


@pytest.fixture
def delivery() -> Delivery:
    runtime = ThreadRuntime()
    return Delivery(runtime.condition(), runtime)


def test_callbacks_are_called_in_entry_order_and_behind_them_nothing_is_left(
    delivery: Delivery,
) -> None:
    told: list[int] = []
    for entry_id in (2, 0, 1, 3):
        Promise(delivery.promises, entry_id).add_done_callback(lambda p: told.append(p.result()))

    delivery.acknowledge(1)
    delivery.deliver()
    assert told == [0, 1]
    delivery.acknowledge(2)
    delivery.acknowledge(3)
    delivery.deliver()
    assert told == [0, 1, 2, 3]


def test_what_was_acknowledged_before_a_failure_is_told_as_that(delivery: Delivery) -> None:
    kept, broken = (Promise(delivery.promises, entry_id) for entry_id in (4, 5))

    delivery.acknowledge(4)
    delivery.fail(LedgerFencedError("fenced", ledger_id=1))
    delivery.fail(LedgerFencedError("later", ledger_id=1))
    assert not kept.done(), "nobody has come by yet"
    delivery.deliver()

    assert kept.result(0) == 4
    assert str(broken.exception(0)) == "fenced"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_ends_its_thread_keeps_nobody_from_being_told(
    delivery: Delivery, kind: type[BaseException]
) -> None:
    told: list[int] = []
    is_told = threading.Event()

    def end(_: Future[int]) -> None:
        raise kind

    first, second, third = (Promise(delivery.promises, entry_id) for entry_id in range(3))
    for callback in (end, lambda p: told.append(p.result())):
        first.add_done_callback(callback)
    second.add_done_callback(lambda p: told.append(p.result()))
    second.add_done_callback(lambda _: is_told.set())
    delivery.acknowledge(1)

    with pytest.raises(kind):
        delivery.deliver()
    assert is_told.wait(60), "another thread goes on"
    assert told == [0, 1]
    assert not delivery.is_here()
    delivery.acknowledge(2)
    delivery.deliver()
    assert third.result(60) == 2


def test_ctrl_c_while_promises_are_kept_loses_none_of_them(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    is_told = threading.Event()
    first, second, third = (Promise(delivery.promises, entry_id) for entry_id in range(3))
    for promise in (first, second):
        promise.add_done_callback(lambda p: told.append(p.result()))
    third.add_done_callback(lambda _: is_told.set())
    tell_waiters = Promise.tell_waiters

    def interrupted(promise: Promise) -> None:
        monkeypatch.setattr(Promise, "tell_waiters", tell_waiters)
        raise KeyboardInterrupt

    monkeypatch.setattr(Promise, "tell_waiters", interrupted)
    delivery.acknowledge(2)
    with pytest.raises(KeyboardInterrupt):
        delivery.deliver()

    assert is_told.wait(60), "another thread tells what this one did not come to"
    assert told == [0, 1]


def test_what_is_noted_while_callbacks_run_is_told_by_who_calls_them(delivery: Delivery) -> None:
    entered, leave = threading.Event(), threading.Event()
    first, second = (Promise(delivery.promises, entry_id) for entry_id in range(2))

    def hold(_: Future[int]) -> None:
        assert delivery.is_here()
        entered.set()
        assert leave.wait(60)

    first.add_done_callback(hold)
    delivery.acknowledge(0)
    telling = threading.Thread(target=delivery.deliver)
    telling.start()
    assert entered.wait(60)

    delivery.acknowledge(1)
    delivery.deliver()  # it does not wait
    assert not delivery.is_here()
    assert not second.done(), "one thread tells at a time"
    leave.set()
    telling.join()

    assert second.result(0) == 1
