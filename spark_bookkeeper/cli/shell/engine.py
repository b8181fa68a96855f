"""Where the work of a command runs: as a Spark job, or here if it ends before Spark would start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Final

import click

from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.session import BookKeeper

SMALL_LEDGERS: Final = 1_000
SMALL_ENTRIES: Final = 100_000
SMALL_BYTES: Final = 1 << 30
"""Spark takes about 7 seconds to start. In that time, this process handles so many ledgers, entries
and bytes: an entry of a few bytes takes 10 (a check) to 70 microseconds."""

READ_LEDGERS: Final = 20_000
"""For more ledgers, metadata are not read merely to decide whether the work is small (0.4 s)."""

spark_or_not = click.option(
    "--spark/--no-spark",
    "on_spark",
    default=None,
    help="Do the work as a Spark job, or in this process.  [default: as a job if it is about more "
    "than 1,000 ledgers, 100,000 entries or 1 GiB]",
)


def is_small(sizes: Iterable[tuple[int, int]]) -> bool:
    """Return whether work on ledgers of these entries and bytes runs here by default."""
    entries = size_bytes = 0
    for count, (more, more_bytes) in enumerate(sizes, 1):
        entries += more
        size_bytes += more_bytes
        if count > SMALL_LEDGERS or entries > SMALL_ENTRIES or size_bytes > SMALL_BYTES:
            return False
    return True


def sizes_of(
    bk: BookKeeper,
    ledger_ids: Iterable[int] | None = None,
    *,
    naming: Set[BookieId] | None = None,
    only_open: bool = False,
) -> Iterator[tuple[int, int]]:
    """Yield the entries and bytes that metadata give for each ledger (``None``: all); 0 if open.

    With ``naming``, only those that name one of these bookies; with ``only_open``, only those that
    are not closed.
    """
    store = bk.context.store
    if ledger_ids is None:
        ledgers = sum(each.ledgers for each in store.ledger_ranges(READ_LEDGERS))
        if ledgers > READ_LEDGERS:
            yield 0, SMALL_BYTES + 1
            return
        ledger_ids = store.ledger_ids()
    for _, found in store.read_ledgers(map(LedgerId, ledger_ids), naming=naming):
        if isinstance(found, Versioned) and not (only_open and found.value.is_closed):
            end = found.value.last_entry_id
            yield 0 if end is None else end + 1, found.value.length_bytes or 0
