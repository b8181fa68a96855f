"""The ledgers that count on a bookie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import some_of


@dataclass(frozen=True, slots=True)
class Dependents:
    """The ledgers that count on a bookie, or may; ids ascend."""

    ledger_ids: Sequence[LedgerId]
    """Ledgers with a fragment on the bookie."""
    undecodable: Sequence[LedgerId]
    """Ledgers whose metadata cannot be decoded; they may count on the bookie."""
    first_error: MetadataFormatError | None
    """The error of the first undecodable ledger."""

    @property
    def doubt(self) -> str | None:
        """Which ledgers cannot be decoded, and why; ``None`` if all can."""
        if self.first_error is None:
            return None
        one = len(self.undecodable) == 1
        return (
            f"{'ledger' if one else 'ledgers'} {some_of(self.undecodable)} cannot be decoded and "
            f"may count on it ({self.first_error.message})"
        )


def dependents_of(store: MetadataStore, bookie_id: BookieId) -> Dependents:
    """Return the ledgers that count on a bookie, or may; reads all ledgers' metadata."""
    naming: list[LedgerId] = []
    undecodable: list[LedgerId] = []
    first_error: MetadataFormatError | None = None
    for ledger_id, found in store.read_ledgers(store.ledger_ids(), naming={bookie_id}):
        if isinstance(found, Versioned):
            naming.append(ledger_id)
        elif found is not None:
            undecodable.append(ledger_id)
            first_error = first_error or found
    return Dependents(naming, undecodable, first_error)
