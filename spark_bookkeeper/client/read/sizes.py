"""Estimate the size of entries without reading them."""

from __future__ import annotations

from functools import partial
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES, Ledger
from spark_bookkeeper.errors import BookieError
from spark_bookkeeper.protocol.ids import EntryId

SAMPLE_ENTRIES: Final = 64
"""How many entries are measured to estimate the size of an open ledger's entries."""


def average_bytes(context: ClientContext, ledger: Ledger, first: EntryId, last: EntryId) -> float:
    """Return the average size of the entries ``first .. last``, as an estimate.

    For an open ledger, one bookie lists the first of them; no entry is read.
    """
    metadata = ledger.metadata
    if metadata.length_bytes is not None and metadata.last_entry_id is not None:
        return metadata.length_bytes / max(1, metadata.last_entry_id + 1)
    ensemble = metadata.fragment_of(first).ensemble
    wanted = [EntryId(e) for e in range(first, min(last, first + SAMPLE_ENTRIES - 1) + 1)]
    for bookie in ensemble if wanted else ():
        try:
            replica = context.bookies.replica(bookie, ledger)
            purpose = f"looking for entries of ledger {ledger.ledger_id}"
            look = partial(replica.holdings, wanted[0], wanted[-1])
            held = context.bookies.ask(replica, purpose, look)
        except BookieError:
            continue
        if len(held):
            return float(held.sizes.mean())
    return DEFAULT_ENTRY_TARGET_BYTES / 8
