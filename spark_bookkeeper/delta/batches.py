"""Which ledgers go into a table together: small ones by the hundred, each large one alone.

A commit of Delta and its verification cost some jobs of Spark, whatever is in them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Final, TypeAlias

from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.replication.report import Row

SMALL_BYTES: Final = 1 << 20
"""A ledger of so many bytes, or fewer, is small. Never changed: runs that took a ledger for small
and for large at the same time would add it twice (decision 0031)."""

BATCH_LEDGERS: Final = 500
"""A batch has no more ledgers; their ids are written out in its commit."""

BATCH_BYTES: Final = 64 << 20
"""And about so many bytes: what is written again when others have changed the table meanwhile."""

Batch: TypeAlias = tuple[Ledger, ...]
"""Of one schema; several small ones, or one that may be large."""


def is_small(ledger: Ledger) -> bool:
    """Whether a closed ledger goes with others; the same whoever asks, and whenever."""
    return _size(ledger) <= SMALL_BYTES


def batches(found: Iterable[Ledger | Row], *, in_order: bool) -> Iterator[Batch | Row]:
    """Join small ledgers of one schema; what is said of others passes between them.

    Args:
        found: closed ledgers with entries, and rows about those that are not archived.
        in_order: nothing comes before what was found before it, as the ledgers of a log demand.
    """
    open_batches: dict[Hashable, list[Ledger]] = {}

    def end() -> Iterator[Batch]:
        yield from map(tuple, open_batches.values())
        open_batches.clear()

    for each in found:
        if isinstance(each, Row) or not is_small(each):
            if in_order:
                yield from end()
            yield each if isinstance(each, Row) else (each,)
            continue
        schema = each.schema.serialize().to_pybytes()
        if in_order and schema not in open_batches:
            yield from end()
        batch = open_batches.setdefault(schema, [])
        batch.append(each)
        if len(batch) == BATCH_LEDGERS or sum(map(_size, batch)) >= BATCH_BYTES:
            yield tuple(open_batches.pop(schema))
    yield from end()


def _size(ledger: Ledger) -> int:
    return ledger.metadata.length_bytes or 0
