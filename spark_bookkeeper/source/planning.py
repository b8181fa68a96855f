"""Sharing a read among tasks: each takes runs of entries, about as many bytes as the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.client.read.sizes import average_bytes
from spark_bookkeeper.client.read.splits import SMALL_PIECE_BYTES, cut
from spark_bookkeeper.protocol.ids import EntryId

PIECES: Final = 4
"""The least number of pieces of a large range. The planner does not know how many tasks Spark runs
at once. A task costs some 0.1 s of CPU besides its rows, as much as 64 MiB of rows do. So more
tasks only pay where many cores wait, which ``minPartitions`` expresses.
"""

BATCH_PIECE_BYTES: Final = 32 << 20
"""Approximate size of a task's share of a micro-batch."""


class SizedRange(NamedTuple):
    """Entries of one ledger, and their approximate size."""

    range: EntryRange
    size_bytes: float

    @property
    def entries(self) -> int:
        return self.range.last - self.range.first + 1


def plan(
    context: ClientContext,
    ranges: Iterable[EntryRange],
    min_partitions: int | None = None,
    max_entries: int | None = None,
) -> list[list[EntryRange]]:
    """Return the runs of each task, in order; small ledgers share a task.

    Args:
        min_partitions: the least number of tasks, where there are as many entries.
        max_entries: the largest number of entries of one task.
    """
    pieces = max(PIECES, min_partitions or 0)
    runs = []
    for each in ranges:
        average = average_bytes(context, each.ledger, each.first, each.last)
        for first, last in cut(context, each.ledger, each.first, each.last, pieces):
            part = EntryRange(each.ledger, first, last)
            runs.append(SizedRange(part, average * (last - first + 1)))
    return list(shared_out(runs, min_partitions, max_entries))


def plan_batch(
    context: ClientContext, ranges: Iterable[EntryRange], max_entries: int | None = None
) -> list[list[EntryRange]]:
    """Plan as ``plan`` does, for a micro-batch: quickly, by entry sizes and not by files."""
    runs: list[SizedRange] = []
    for each in ranges:
        average = average_bytes(context, each.ledger, each.first, each.last)
        run = SizedRange(each, average * (each.last - each.first + 1))
        runs += _split(run, max(1, int(BATCH_PIECE_BYTES / max(1.0, average))))
    return list(shared_out(runs, None, max_entries))


def shared_out(
    runs: Sequence[SizedRange], min_partitions: int | None = None, max_entries: int | None = None
) -> Iterator[list[EntryRange]]:
    """Yield the list of runs of each task, in order; split large runs, and join small ones."""
    entries = sum(run.entries for run in runs)
    most = max_entries or entries
    if min_partitions is not None:
        most = min(most, max(1, entries // min_partitions))
    gathered: list[EntryRange] = []
    size = count = 0.0
    for run in chain.from_iterable(_split(each, most) for each in runs):
        is_full = size + run.size_bytes > SMALL_PIECE_BYTES or count + run.entries > most
        if gathered and is_full:
            yield gathered
            gathered, size, count = [], 0, 0
        gathered.append(run.range)
        size += run.size_bytes
        count += run.entries
    if gathered:
        yield gathered


def _split(run: SizedRange, most: int) -> Iterator[SizedRange]:
    """Split a run evenly, so that no piece has more entries than ``most``."""
    count = -(-run.entries // max(1, most))
    first = run.range.first
    for index in range(count):
        start = first + run.entries * index // count
        end = first + run.entries * (index + 1) // count - 1
        part = EntryRange(run.range.ledger, EntryId(start), EntryId(end))
        yield SizedRange(part, run.size_bytes * (end - start + 1) / run.entries)
