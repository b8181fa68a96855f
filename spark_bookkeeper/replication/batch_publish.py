"""Small copies for many ledgers, made together, and named by the metadata of each ledger.

Whoever has a bookie hold more of many ledgers says of each which copies that takes, and what its
metadata are then. Here the copies are made, as fast as a limit allows, and the metadata written
together once all copies of their ledgers are there.
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
from spark_bookkeeper.replication.runner import Item, told_apart
from spark_bookkeeper.runtime.throttle import Throttle

_PORTION_SECONDS: Final = 1.0
"""So much of a limit is planned, copied and named before the next. Whoever is to end does so after
it, and what it has copied is not in vain."""

_PORTION_BYTES: Final = 32 << 20
"""And no more at a time, also without a limit: a portion is in memory."""

_UNKNOWN_AT_ONCE: Final = 16
"""Of ledgers that are not closed nobody knows how large they are. So many of them are read before
a portion is cut; what is too much is read again in its turn."""


@dataclass(slots=True, eq=False)
class PlannedCopies:
    """Copies of one ledger, and its metadata when all of them are there."""

    copies: Sequence[SmallCopy]
    size_bytes: int | None
    """Of all, about; ``None`` is not known."""
    change: LedgerChange
    done: Callable[[], Sequence[ShareCopied]]
    """What became of its shares, once its metadata name them."""

    @property
    def most_bytes(self) -> int:
        """That are read: a copy that turns out to be larger is not."""
        return SMALL_BYTES * len(self.copies)


def copy_and_publish(
    context: ClientContext,
    works: Mapping[int, Item],
    plan: Callable[[BatchClient, Sequence[int]], Mapping[int, PlannedCopies]],
    throttle: Throttle,
    is_ending: Callable[[], bool],
) -> Iterator[tuple[int, Sequence[ShareCopied]]]:
    """What became of those whose metadata name their copies now, by number, as soon as they do.
    Every other is to be done by itself; nothing is raised for any.

    Args:
        works: all that there is to do; of a ledger one at a time.
        plan: looks how some of it is now, and says of them what is to be copied. What it leaves out
            is to be done by itself.
        is_ending: asked before every portion but the first; what is left then is not begun.
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
            # Each answer tells better how large they are. What is too much is planned again.
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
        told_apart(error, f"copying for {len(left)} ledgers")


def _portion(sizes: Mapping[int, int], throttle: Throttle) -> Sequence[int]:
    """The first of them: as many as a portion has bytes, and one at least."""
    most = _portion_bytes(throttle)
    until = accumulate(sizes.values())
    return list(sizes)[: max(1, sum(size <= most for size in until))]


def _portion_bytes(throttle: Throttle) -> int:
    """What the limit gives at a time, and fits into memory."""
    rate = throttle.rate
    return _PORTION_BYTES if rate is None else min(_PORTION_BYTES, int(rate * _PORTION_SECONDS))


def _about(ledger: PlannedCopies, before: int, portion_bytes: int) -> int:
    """How many bytes are to be read, for all that is known.

    Args:
        before: how many there were when it was read before; 0 is not known.
    """
    if ledger.size_bytes is not None:
        return ledger.size_bytes
    return before or min(ledger.most_bytes, max(1, portion_bytes // _UNKNOWN_AT_ONCE))


def _bounded(planned: Mapping[int, PlannedCopies]) -> Mapping[int, PlannedCopies]:
    """Those of which several may be read at a time, though nobody knows how large they are."""
    most = _PORTION_BYTES // _UNKNOWN_AT_ONCE
    return {
        number: ledger
        for number, ledger in planned.items()
        if ledger.size_bytes is not None or ledger.most_bytes <= most
    }


def _read(together: BatchClient, planned: Mapping[int, PlannedCopies]) -> Mapping[int, int]:
    """How many bytes are to be stored for those of which all was found."""
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
