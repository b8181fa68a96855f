"""Promises keep what a ``concurrent.futures.Future`` promises, though they share a condition."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait

import pytest

from spark_bookkeeper.client.promise import Promise, Resolved, resolve, shared_condition
from spark_bookkeeper.errors import LedgerFencedError


def test_promises_of_a_group_are_resolved_in_order_and_then_their_callers_are_called() -> None:
    shared = shared_condition()
    promises = [Promise(shared) for _ in range(3)]
    called: list[tuple[int, bool]] = []
    for promise in promises:
        promise.add_done_callback(lambda p: called.append((p.result(), promises[2].done())))

    resolve(shared, [Resolved(p, None, n) for n, p in enumerate(promises)])

    assert called == [(0, True), (1, True), (2, True)]


def test_who_waits_for_a_later_promise_is_not_woken_by_an_earlier_one() -> None:
    shared = shared_condition()
    earlier, later = Promise(shared), Promise(shared)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(later.result, 30)

        resolve(shared, [Resolved(earlier, None, 1)])
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.05)
        resolve(shared, [Resolved(later, None, 2)])

        assert waiting.result(timeout=30) == 2


def test_a_promise_that_is_not_kept_in_time_says_so() -> None:
    promise = Promise(shared_condition())

    with pytest.raises(Exception) as refused:  # noqa: PT011  (two names for it before 3.11)
        promise.result(timeout=0.01)

    assert type(refused.value).__name__ == "TimeoutError"
    assert not promise.done()


def test_an_error_is_raised_and_can_be_asked_for() -> None:
    shared = shared_condition()
    promise = Promise(shared)
    error = LedgerFencedError("fenced", ledger_id=1)

    resolve(shared, [Resolved(promise, error, -1)])

    assert promise.exception() is error
    with pytest.raises(LedgerFencedError):
        promise.result()


def test_an_append_cannot_be_cancelled() -> None:
    promise = Promise(shared_condition())

    assert not promise.cancel()
    assert promise.running()


def test_the_waiting_functions_of_concurrent_futures_take_promises_among_other_futures() -> None:
    shared = shared_condition()
    first, second = Promise(shared), Promise(shared)
    other: Future[int] = Future()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait, [second, first, other], 30, FIRST_COMPLETED)

        resolve(shared, [Resolved(first, None, 7)])

        assert waiting.result(timeout=30).done == {first}
    other.set_result(9)
    resolve(shared, [Resolved(second, None, 8)])
    assert sorted(f.result() for f in as_completed([first, second, other], timeout=30)) == [7, 8, 9]
