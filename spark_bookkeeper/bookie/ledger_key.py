"""Which ledger is meant, for as long as the cluster lives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """One life of a ledger id: the nonce keeps a new ledger apart from an old one with its id."""

    ledger_id: int
    nonce: str
    """Letters and digits, never used before (SLOT-LOG rule R16)."""

    def __str__(self) -> str:
        return f"{self.ledger_id}-{self.nonce}"
