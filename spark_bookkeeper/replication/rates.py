"""How fast a piece of work may copy, where that may change before the work has ended."""

from __future__ import annotations

from collections.abc import Callable

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import MetadataError
from spark_bookkeeper.runtime.throttle import Throttle

RateNow = Callable[[ClientContext, "int | None"], "int | None"]
"""The bytes per second that a piece of work has now, told those that it had before; for its process
to ask, and to ask often; picklable."""


def throttle_for(
    context: ClientContext,
    bytes_per_second: int | None,
    rate_now: RateNow | None = None,
    shares: int = 1,
) -> Throttle:
    """Holds a piece of work to its limit.

    Args:
        bytes_per_second: at its beginning.
        rate_now: afterwards; ``None``: it stays. Where nobody answers, it stays for the while.
        shares: so many times the limit, for pieces of work that go together.
    """

    def of_all(rate: int | None) -> int | None:
        return None if rate is None else rate * shares

    if rate_now is None:
        return Throttle(context.runtime, of_all(bytes_per_second))

    def again(before: int | None) -> int | None:
        try:
            return of_all(rate_now(context, None if before is None else before // shares))
        except MetadataError:
            return before

    return Throttle(context.runtime, of_all(bytes_per_second), again)
