"""Copy small shares for many ledgers in batches, then publish the copies in each ledger's metadata.

The caller plans the copies and the new metadata of each ledger. This module makes the copies as
fast as a limit allows. In batches, it then writes the metadata of the ledgers whose copies are all
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from spark_bookkeeper.client.bookies.batch_client import BatchClient
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.batch_copy import (
    SMALL_BYTES,
    SmallCopy,
    read_many,
    store_many,
)
from spark_bookkeeper.metadata.store import LedgerChange, Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.rereplicate import ShareCopied
from spark_bookkeeper.replication.runner import Item, log_batch_fallback
from spark_bookkeeper.runtime.throttle import Throttle

_PORTION_SECONDS: Final = 1.0
"""A portion is what a limit allows in this time. It is planned, copied and published before the
next. A job that must end stops between portions, so no copy is wasted."""

_PORTION_BYTES: Final = 32 << 20
"""The most bytes of a portion, also without a limit, because a portion is held in memory."""

_UNKNOWN_AT_ONCE: Final = 16
"""An open ledger has no known size. This many of them are read before a portion is cut; those that
do not fit are read again later."""


@dataclass(slots=True, eq=False)
class PlannedCopies:
    """The copies of one ledger, and its metadata once all copies are stored."""

    copies: Sequence[SmallCopy]
    size_bytes: int | None
    """About how many bytes all copies have; ``None`` is unknown."""
    change: LedgerChange
    done: Callable[[], Sequence[ShareCopied]]
    """Returns the results of the shares; called once the metadata name the copies."""

    @property
    def most_bytes(self) -> int:
        """The most bytes to read: a copy that turns out to be larger is left out."""
        return SMALL_BYTES * len(self.copies)


def copy_and_publish(
    context: ClientContext,
    works: Mapping[int, Item],
    plan: Callable[[BatchClient, Sequence[int]], Mapping[int, PlannedCopies]],
    throttle: Throttle,
    is_ending: Callable[[], bool],
) -> Iterator[tuple[int, Sequence[ShareCopied]]]:
    """Yield the number and the results of each work whose copies are published, as soon as they
    are. A work that is not yielded must be done by itself; no error is raised for it.

    Args:
        works: all works; two works of one ledger are done one after the other.
        plan: reads the metadata of some works and returns their copies, by number. A work that it
            leaves out must be done by itself.
        is_ending: called before every portion but the first; if true, the rest is not begun.
    """
    left = {number: work.size_bytes for number, work in works.items()}
    try:
        while left:
            together = BatchClient(context.bookies, context.runtime)
            firsts: dict[LedgerId, int] = {}
            for number in left:
                firsts.setdefault(works[number].ledger_id, number)
            numbers = _portion({number: left[number] for number in firsts.values()}, throttle)
            planned = _bounded(plan(together, numbers))
            # Each step knows the sizes better. What exceeds the portion is planned again.
            portion = _portion_bytes(throttle)
            known = {n: _about(ledger, left[n], portion) for n, ledger in planned.items()}
            looked_at = _portion(known, throttle)
            read = _read(together, {number: planned[number] for number in looked_at})
            fits = _portion(read, throttle)
            late = {number: read[number] for number in read if number not in fits}
            late |= {number: known[number] for number in known if number not in looked_at}
            left = late | {number: left[number] for number in left if number not in numbers}
            some = {number: planned[number] for number in fits}
            yield from _stored_and_named(context, together, some, throttle).items()
            if left and is_ending():
                break
    except Exception as error:  # noqa: BLE001  (each that is left finds out for itself what it is)
        log_batch_fallback(error, f"copying for {len(left)} ledgers")


def _portion(sizes: Mapping[int, int], throttle: Throttle) -> Sequence[int]:
    """Return the first numbers whose sizes fit in a portion, and at least one number."""
    most = _portion_bytes(throttle)
    until = accumulate(sizes.values())
    return list(sizes)[: max(1, sum(size <= most for size in until))]


def _portion_bytes(throttle: Throttle) -> int:
    """Return the bytes of a portion: what the limit allows at a time, and memory holds."""
    rate = throttle.rate
    return _PORTION_BYTES if rate is None else min(_PORTION_BYTES, int(rate * _PORTION_SECONDS))


def _about(ledger: PlannedCopies, before: int, portion_bytes: int) -> int:
    """Return about how many bytes are to be read.

    Args:
        before: how many there were at the last reading; 0 is unknown.
    """
    if ledger.size_bytes is not None:
        return ledger.size_bytes
    return before or min(ledger.most_bytes, max(1, portion_bytes // _UNKNOWN_AT_ONCE))


def _bounded(planned: Mapping[int, PlannedCopies]) -> Mapping[int, PlannedCopies]:
    """Return the ledgers of known size, and those whose largest size is small enough."""
    most = _PORTION_BYTES // _UNKNOWN_AT_ONCE
    return {
        number: ledger
        for number, ledger in planned.items()
        if ledger.size_bytes is not None or ledger.most_bytes <= most
    }


def _read(together: BatchClient, planned: Mapping[int, PlannedCopies]) -> Mapping[int, int]:
    """Return how many bytes to store, for each ledger of which all copies were read."""
    found = read_many(together, _copies(planned))
    return {
        number: sum(copy.size_bytes for copy in ledger.copies)
        for number, ledger in planned.items()
        if _is_whole(number, ledger, found)
    }


def _stored_and_named(
    context: ClientContext,
    together: BatchClient,
    planned: Mapping[int, PlannedCopies],
    throttle: Throttle,
) -> Mapping[int, Sequence[ShareCopied]]:
    there = store_many(context, together, _copies(planned), throttle)
    whole = [number for number, ledger in planned.items() if _is_whole(number, ledger, there)]
    answers = context.store.write_ledgers([planned[n].change for n in whole]) if whole else []
    told = zip(whole, answers, strict=True)
    return {n: planned[n].done() for n, answer in told if isinstance(answer, Versioned)}


def _copies(planned: Mapping[int, PlannedCopies]) -> Mapping[tuple[int, int], SmallCopy]:
    return {
        (number, at): copy
        for number, ledger in planned.items()
        for at, copy in enumerate(ledger.copies)
    }


def _is_whole(number: int, ledger: PlannedCopies, there: Collection[tuple[int, int]]) -> bool:
    return all((number, at) in there for at in range(len(ledger.copies)))
