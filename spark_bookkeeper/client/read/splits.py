"""Cut a range of entries into pieces, one for each of many readers.

Pieces follow what the writing tasks wrote: a reader then takes whole part files, from front to
back. Where that is not known (copies, many small slots, no bookie answers) the range is cut evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from spark_bookkeeper.bookie.bookie import Span
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES, EntryRange, Ledger
from spark_bookkeeper.errors import BookieError
from spark_bookkeeper.protocol.ids import BookieId, EntryId

PIECE_BYTES: Final = 128 << 20
"""About the largest size of a piece."""

SMALL_PIECE_BYTES: Final = 8 << 20
"""About the smallest size of a piece of a larger range; less is not worth a task of its own."""


def cut(
    context: ClientContext, ledger: Ledger, first: EntryId, last: EntryId, pieces: int
) -> list[tuple[EntryId, EntryId]]:
    """Cut ``first .. last`` into runs of entries, in order, without gaps.

    Args:
        pieces: the number of pieces to return at least, if the range is large enough.
    """
    if first > last:
        return []
    size = _size_bytes(ledger, first, last)
    if size is not None and size <= SMALL_PIECE_BYTES:
        return [(first, last)]
    spans = list(_without_gaps(_spans(context, ledger, first, last), first, last, size))
    total = sum(span.size_bytes for span in spans)
    target = min(PIECE_BYTES, max(SMALL_PIECE_BYTES, total / max(1, pieces)))
    return list(pack(spans, target))


def tasks_for(ranges: Sequence[EntryRange], pieces: int) -> int:
    """Return how many tasks to start, if each takes about equally many of the ranges.

    Args:
        ranges: as they were cut.
        pieces: the number of tasks to start at least, if there are as many ranges.
    """
    sizes = [_size_bytes(each.ledger, each.first, each.last) for each in ranges]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return len(ranges)
    return min(len(ranges), max(pieces, round(sum(known) / SMALL_PIECE_BYTES)))


def pack(spans: Sequence[Span], target_bytes: float) -> Iterator[tuple[EntryId, EntryId]]:
    """Join small neighbours and split large spans, so that each run has about the target's size."""
    start: int | None = None
    end = -1
    size = 0.0
    for span in spans:
        if start is not None and size + span.size_bytes > 1.25 * target_bytes:
            yield EntryId(start), EntryId(end)
            start, size = None, 0.0
        if span.size_bytes > 1.5 * target_bytes:
            yield from _evenly(span, round(span.size_bytes / target_bytes))
            continue
        start = span.first if start is None else start
        end = span.last
        size += span.size_bytes
    if start is not None:
        yield EntryId(start), EntryId(end)


def _evenly(span: Span, count: int) -> Iterator[tuple[EntryId, EntryId]]:
    entries = span.last - span.first + 1
    count = max(1, min(count, entries))
    for index in range(count):
        start = span.first + entries * index // count
        yield EntryId(start), EntryId(span.first + entries * (index + 1) // count - 1)


def _size_bytes(ledger: Ledger, first: int, last: int) -> float | None:
    """Return the size by the metadata alone; ``None`` for a ledger that is not closed."""
    length, end = ledger.metadata.length_bytes, ledger.metadata.last_entry_id
    if length is None or end is None:
        return None
    return length * (last - first + 1) / (end + 1)


def _spans(context: ClientContext, ledger: Ledger, first: int, last: int) -> list[Span]:
    """Return the spans that bookies know in the range, ascending."""
    found: list[Span] = []
    for fragment in ledger.metadata.fragment_ranges():
        start = max(first, fragment.first_entry_id)
        end = last if fragment.last_entry_id is None else min(last, fragment.last_entry_id)
        if start <= end:
            found += _spans_of_fragment(context, ledger, fragment.ensemble, start, end)
    return found


def _spans_of_fragment(
    context: ClientContext, ledger: Ledger, ensemble: Sequence[BookieId], first: int, last: int
) -> list[Span]:
    for bookie in ensemble:
        try:
            replica = context.bookies.replica(bookie, ledger)
            look = partial(replica.split, first, last)
            found = context.bookies.ask(replica, f"looking for parts of {ledger.ledger_id}", look)
        except BookieError:
            continue
        if found:
            return list(found)
    return []


def _without_gaps(
    spans: Sequence[Span], first: int, last: int, size: float | None
) -> Iterator[Span]:
    """Yield the spans, and fill each gap with a span by the average size of an entry."""
    entries = last - first + 1
    if size is not None:
        average = size / entries
    elif spans:
        average = sum(s.size_bytes for s in spans) / sum(s.last - s.first + 1 for s in spans)
    else:
        average = DEFAULT_ENTRY_TARGET_BYTES / 8
    following = first
    for span in spans:
        if span.last < following:
            continue
        if following < span.first:
            yield Span(following, span.first - 1, average * (span.first - following))
        start = max(following, span.first)
        yield span if start == span.first else Span(start, span.last, span.size_bytes)
        following = span.last + 1
    if following <= last:
        yield Span(following, last, average * (last - following + 1))
