"""The identity of a ledger, unique for the life of the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from spark_bookkeeper.protocol.plain_names import plain_name


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """One life of a ledger id: the nonce separates it from other ledgers with the same id.

    Raises:
        ValueError: the nonce is not letters and digits.
    """

    ledger_id: int
    nonce: str
    """Letters and digits, never used before (SLOT-LOG rule R16)."""

    def __post_init__(self) -> None:
        plain_name("a ledger's nonce", self.nonce)  # the metadata may have any text

    def __str__(self) -> str:
        return f"{self.ledger_id}-{self.nonce}"
