"""Ledgers that are being restored: their copies are on bookies before their metadata are there.

Everywhere else metadata come first, so that files without metadata are what is left of a ledger
that was deleted. A restore says in a register that it is at a ledger before it puts the first copy,
and takes that back when the metadata are there; a collector that meets such copies leaves them.

Source: SLOT-LOG rule R12.
"""

from __future__ import annotations

from typing import Final

from spark_bookkeeper.metadata.store import Registers
from spark_bookkeeper.protocol.ids import LedgerId

RESTORES_PARENT: Final = "restores"
"""The register above those of ledgers: ``restores/7`` has the nonce of ledger 7."""


def begin(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> None:
    """Say that copies of a ledger are about to be put; idempotent.

    Raises:
        VersionConflictError: somebody restores another life of it.
    """
    registers.create(_name(ledger_id), nonce)


def is_under_way(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Whether copies of that life were put, or are, and its metadata may not be there yet."""
    found = registers.read(_name(ledger_id))
    return found is not None and found.value == nonce


def end(registers: Registers, ledger_id: LedgerId) -> None:
    """Say that its metadata are there; idempotent."""
    registers.delete(_name(ledger_id))


def _name(ledger_id: LedgerId) -> str:
    return f"{RESTORES_PARENT}/{ledger_id}"
