"""A call that goes on beside its caller, who gets a future."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from spark_bookkeeper.runtime.runtime import Runtime

T = TypeVar("T")


def begin(runtime: Runtime, name: str, call: Callable[[], T]) -> Future[T]:
    """The future of what a call returns or raises. Cancelled before it begins, it never does."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  (whoever waits is told)
            future.set_exception(error)
        else:
            future.set_result(result)

    runtime.employ(name, run)
    return future
