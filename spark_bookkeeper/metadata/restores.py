"""Ledgers that are being restored: their copies are on bookies before their metadata are there.

Everywhere else metadata come first, so that files without metadata are what is left of a ledger
that was deleted. A restore says in a register that it is at a ledger before it puts the first copy,
and takes that back when the metadata are there; a collector that meets such copies leaves them.

Who restores a part of a backup has the cluster's counter pass the ids of that part. Ids of other
ledgers of the backup that he gets then are kept for them, each in a register, so that they can be
restored later: nobody else was given them.

Source: SLOT-LOG rules R12, R16.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.metadata.election import Ballots, Election, Vote
from spark_bookkeeper.metadata.store import MetadataStore, Registers
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.runtime.runtime import Runtime

RESTORES_PARENT: Final = "restores"
"""The register above those of ledgers: ``restores/7`` has the nonce of ledger 7."""

KEPT_PARENT: Final = "kept-ids"
"""``kept-ids/7`` has the nonce of the ledger for which id 7 is kept."""


def begin(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> None:
    """Say that copies of a ledger are about to be put; idempotent.

    Raises:
        VersionConflictError: somebody restores another life of it.
    """
    registers.create(_name(ledger_id), nonce)


def is_under_way(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Whether copies of that life were put, or are, and its metadata may not be there yet."""
    return nonce_of(registers, ledger_id) == nonce


def begun(registers: Registers) -> Sequence[LedgerId]:
    """The ledgers whose restore was begun and has not ended, ascending."""
    return _ids_below(registers, RESTORES_PARENT)


def nonce_of(registers: Registers, ledger_id: LedgerId) -> bytes | None:
    """Which life of a ledger is being restored; ``None`` when none is (any more)."""
    found = registers.read(_name(ledger_id))
    return None if found is None else found.value


def end(registers: Registers, ledger_id: LedgerId) -> None:
    """Say that its metadata are there; idempotent."""
    registers.delete(_name(ledger_id))


def give_up(store: MetadataStore, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Give up the restore of a ledger; False if its metadata have come before.

    Its id is used up first, so its metadata cannot come any more, from nobody: only then are its
    copies garbage [restore_given_up].
    """
    store.use_up_ledger_id(ledger_id)
    is_there = is_restored(store, ledger_id, nonce)
    end(store.registers, ledger_id)
    drop_kept(store.registers, ledger_id)
    return not is_there


def is_restored(store: MetadataStore, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Whether that life of a ledger has its metadata, as everybody knows it now."""
    try:
        found = store.read_ledger_settled(ledger_id)
    except NoSuchLedgerError:
        return False
    return found.value.nonce == nonce


# Ids of other ledgers


def keep(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> None:
    """Keep an id for one life of a ledger. The caller was given it, and uses it for nothing."""
    registers.create(f"{KEPT_PARENT}/{ledger_id}", nonce)


def kept(registers: Registers) -> Set[LedgerId]:
    """The ids that are kept."""
    return frozenset(_ids_below(registers, KEPT_PARENT))


def is_kept(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Whether an id is kept for that life of a ledger."""
    found = registers.read(f"{KEPT_PARENT}/{ledger_id}")
    return found is not None and found.value == nonce


def drop_kept(registers: Registers, ledger_id: LedgerId) -> None:
    """Its ledger is there, or will never be; idempotent."""
    registers.delete(f"{KEPT_PARENT}/{ledger_id}")


# Who is at work


def shown(ballots: Ballots, identity: str, runtime: Runtime) -> Vote:
    """Show that a restore runs, as long as this session lives; a context manager.

    For people, and for who wants to give a restore up: no safety rests on it (rule R17).
    """
    return _all(ballots, runtime).join(identity.encode())


def running(ballots: Ballots, runtime: Runtime) -> list[str]:
    """Who restores something now."""
    return [each.decode(errors="replace") for each in _all(ballots, runtime).candidates()]


def _all(ballots: Ballots, runtime: Runtime) -> Election:
    return Election(ballots, RESTORES_PARENT, runtime)


def _ids_below(registers: Registers, parent: str) -> list[LedgerId]:
    return sorted(LedgerId(int(n)) for n in registers.names(parent) if n.isdecimal())


def _name(ledger_id: LedgerId) -> str:
    return f"{RESTORES_PARENT}/{ledger_id}"
