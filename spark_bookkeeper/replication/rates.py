"""The limit of a piece of work on copying, which may change while the work runs."""

from __future__ import annotations

from collections.abc import Callable

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import MetadataError
from spark_bookkeeper.runtime.throttle import Throttle

RateNow = Callable[[ClientContext, "int | None"], "int | None"]
"""A function that returns the current bytes per second of a piece of work, from the context and the
rate before. The process that does the work calls it often. Picklable."""


def throttle_for(
    context: ClientContext,
    bytes_per_second: int | None,
    rate_now: RateNow | None = None,
    shares: int = 1,
) -> Throttle:
    """Return the throttle of a piece of work.

    Args:
        bytes_per_second: the limit at the beginning.
        rate_now: the limit later; ``None`` keeps it. It stays, too, while the store fails.
        shares: the factor on the limit, for a batch of work.
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
