"""Which ledgers count on a bookie."""

from __future__ import annotations

from collections.abc import Sequence

from spark_bookkeeper.metadata.store import MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId


def ledgers_that_name(
    store: MetadataStore, bookie_id: BookieId, *, for_certain: bool = False
) -> Sequence[LedgerId]:
    """Every ledger with a fragment on the bookie, ascending; reads all ledgers' metadata.

    Args:
        for_certain: one that cannot be decoded is an error, and not left out.

    Raises:
        MetadataFormatError: of a ledger it cannot be told.
    """
    naming: list[LedgerId] = []
    for ledger_id, found in store.read_ledgers(store.ledger_ids()):
        if isinstance(found, Versioned):
            if bookie_id in found.value.bookies():
                naming.append(ledger_id)
        elif found is not None and for_certain:
            raise found
    return naming
