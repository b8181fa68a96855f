"""Promises keep what a ``concurrent.futures.Future`` promises, though they share a condition."""

from __future__ import annotations

import asyncio
import gc
import traceback
import weakref
from concurrent import futures
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import suppress

import pytest

from spark_bookkeeper.client.write.promise import Promise, Promises
from spark_bookkeeper.errors import BookKeeperError, LedgerFencedError


def test_promises_of_a_group_are_resolved_together_and_then_callbacks_are_due_in_entry_order() -> (
    None
):
    promises = Promises()
    group = [Promise(promises, entry_id) for entry_id in range(3)]
    called: list[tuple[int, bool]] = []
    for promise in reversed(group):
        promise.add_done_callback(lambda p: called.append((p.result(), group[2].done())))

    due = promises.keep(2, None)

    assert called == [], "calling them is for whoever keeps them"
    for promise in due:
        promise.call()
    assert called == [(0, True), (1, True), (2, True)]
    assert not promises.keep(3, None)


def test_a_callback_that_comes_late_is_called_at_once() -> None:
    promises = Promises()
    promise = Promise(promises, 0)
    promises.keep(0, None)
    called: list[int] = []

    promise.add_done_callback(lambda p: called.append(p.result()))

    assert called == [0]
    assert not promises.keep(1, None)


def test_who_waits_for_a_later_promise_is_not_woken_by_an_earlier_one() -> None:
    promises = Promises()
    later = Promise(promises, 2)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(later.result, 60)

        promises.keep(1, None)
        with pytest.raises(futures.TimeoutError):
            waiting.result(timeout=0.05)
        promises.keep(2, None)

        assert waiting.result(timeout=60) == 2


def test_a_promise_that_is_not_kept_in_time_says_so() -> None:
    promise = Promise(Promises(), 0)

    with pytest.raises(futures.TimeoutError):  # before Python 3.11 not the one without a module
        promise.result(timeout=0.01)

    assert not promise.done()


def test_an_error_is_raised_and_can_be_asked_for_and_what_was_kept_stays_kept() -> None:
    promises = Promises()
    kept, broken = Promise(promises, 4), Promise(promises, 5)
    error = LedgerFencedError("fenced", ledger_id=1)

    promises.keep(4, error)

    assert str(broken.exception()) == "fenced"
    with pytest.raises(LedgerFencedError, match="fenced") as raised:
        broken.result()
    assert raised.value.ledger_id == 1
    assert broken.done()
    assert (kept.result(), kept.exception()) == (4, None)


def frames(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


def test_every_caller_gets_an_error_of_its_own_with_the_same_past() -> None:
    promises = Promises()
    cause = ValueError("the cause")
    error = LedgerFencedError("fenced", ledger_id=1)
    error.__cause__ = cause
    promises.keep(-1, error)
    raised: list[BookKeeperError] = []

    for entry_id in [0, 0, 1, 2]:
        with pytest.raises(LedgerFencedError) as caught:
            Promise(promises, entry_id).result()
        raised.append(caught.value)

    assert len(set(map(id, [error, *raised]))) == 5
    assert {frames(each) for each in raised} == {frames(raised[0])}, "it does not grow"
    assert frames(error) == 0
    assert all(each.__cause__ is cause for each in raised)


def test_a_promise_whose_error_was_raised_goes_with_its_last_user() -> None:
    promises = Promises()
    promises.keep(-1, LedgerFencedError("fenced", ledger_id=1))
    promise = Promise(promises, 0)
    with suppress(LedgerFencedError):
        promise.result()
    left = weakref.ref(promise)
    gc.disable()
    try:
        del promise
        assert left() is None, "without the garbage collector"
    finally:
        gc.enable()


def test_an_append_cannot_be_cancelled() -> None:
    promise = Promise(Promises(), 0)

    assert not promise.cancel()
    assert promise.running()


def test_the_waiting_functions_of_concurrent_futures_take_promises_among_other_futures() -> None:
    promises = Promises()
    first, second = Promise(promises, 7), Promise(promises, 8)
    other: Future[int] = Future()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait, [second, first, other], 60, FIRST_COMPLETED)

        promises.keep(7, None)

        assert waiting.result(timeout=60).done == {first}
        waiting = threads.submit(wait, [second, first], 60)  # one of them is done already
        promises.keep(8, None)
        assert waiting.result(timeout=60).not_done == set()
    other.set_result(9)
    assert sorted(f.result() for f in as_completed([first, second, other], timeout=60)) == [7, 8, 9]


def test_a_promise_can_be_awaited() -> None:
    promises = Promises()
    good, bad = Promise(promises, 0), Promise(promises, 1)

    async def both() -> tuple[int, BaseException | None]:
        waiting = [asyncio.wrap_future(good), asyncio.wrap_future(bad)]
        for promise in promises.keep(0, LedgerFencedError("fenced", ledger_id=1)):
            promise.call()
        await asyncio.wait(waiting)
        return waiting[0].result(), waiting[1].exception()

    value, error = asyncio.run(both())
    assert value == 0
    assert isinstance(error, LedgerFencedError)


def test_an_error_of_a_callback_is_logged_and_the_next_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    promises = Promises()
    promise = Promise(promises, 0)
    called: list[int] = []

    def fail(_: Future[int]) -> None:
        raise ValueError("of the callback")

    promise.add_done_callback(fail)
    promise.add_done_callback(lambda p: called.append(p.result()))
    for due in promises.keep(0, None):
        due.call()

    assert called == [0]
    assert "of the callback" in caplog.text
