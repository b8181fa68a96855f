"""Ledgers that are being restored: bookies hold their copies before their metadata exist.

Otherwise metadata exist first, so files without metadata are the rest of a deleted ledger. Before a
restore writes the first copy, it publishes the ledger in a register, and removes the register when
the metadata exist. A collector that finds such copies keeps them.

A restore of a log makes the cluster's counter pass the ids of its ledgers, because the log's next
ledger must have a higher id. Ids that the counter gives out meanwhile are kept in a register, so
ledgers of a backup with these ids can be restored later. Each is used once: its use marks it.

Source: SLOT-LOG rules R12, R16.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata.election import Ballots, Election, Vote
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import MetadataStore, Registers, Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.stored_json import decoded, number
from spark_bookkeeper.runtime.runtime import Runtime

RESTORES_PARENT: Final = "restores"
"""The parent of the registers of ledgers: ``restores/7`` holds the nonce of ledger 7."""

_KEPT: Final = "kept-ids"

_LAST_ID: Final = (1 << 63) - 1

_RESTORES: Final = "restores: "
_GIVES_UP: Final = "gives up: "
"""The two beginnings of a candidate's identity."""


def begin(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> None:
    """Publish that copies of a ledger are about to be written; idempotent.

    Raises:
        VersionConflictError: another life of the ledger is being restored.
    """
    registers.create(_name(ledger_id), nonce)


def is_under_way(registers: Registers, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Return whether that life's copies were or are written, and its metadata may be missing."""
    return nonce_of(registers, ledger_id) == nonce


def begun(registers: Registers) -> Sequence[LedgerId]:
    """Return the ledgers whose restore has begun and not ended, ascending."""
    return sorted(LedgerId(int(n)) for n in registers.names(RESTORES_PARENT) if n.isdecimal())


def nonce_of(registers: Registers, ledger_id: LedgerId) -> bytes | None:
    """Return the nonce of the ledger's life that is being restored; ``None`` if none is."""
    found = registers.read(_name(ledger_id))
    return None if found is None else found.value


def end(registers: Registers, ledger_id: LedgerId) -> None:
    """Publish that the ledger's metadata exist; idempotent."""
    registers.delete(_name(ledger_id))


def give_up(store: MetadataStore, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Give up the restore of a ledger; return false if its metadata exist already.

    The id is used up first, so no client can create the metadata any more. Only then are the copies
    garbage [restore_given_up].
    """
    store.use_up_ledger_id(ledger_id)
    is_there = is_restored(store, ledger_id, nonce)
    end(store.registers, ledger_id)
    return not is_there


def is_restored(store: MetadataStore, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Return whether that life of a ledger has metadata, after all confirmed changes."""
    try:
        found = store.read_ledger_settled(ledger_id)
    except NoSuchLedgerError:
        return False
    return found.value.nonce == nonce


# Ids of other ledgers


class KeptIds:
    """The ids that the counter gave to restores only, so that each can be used once."""

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._ranges = sorted(ranges)
        """Each range as its first and its last id."""

    def __contains__(self, ledger_id: int) -> bool:
        at = bisect_right(self._ranges, (ledger_id, _LAST_ID)) - 1
        return at >= 0 and ledger_id <= self._ranges[at][1]

    def with_ids(self, ledger_ids: Sequence[int]) -> KeptIds:
        """Return these ids and others."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self._ranges, *((i, i) for i in ledger_ids)]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(last, joined[-1][1])
            else:
                joined.append((first, last))
        return KeptIds(joined)

    def encode(self) -> bytes:
        """Return the bytes that ``decode`` reads."""
        return json.dumps(self._ranges).encode()

    @classmethod
    def decode(cls, found: Versioned[bytes] | None) -> KeptIds:
        """Decode the ids of a register. Raises ``MetadataFormatError``."""
        if found is None:
            return cls()
        try:
            return decoded(
                found.value,
                lambda ranges: cls([(number(first), number(last)) for first, last in ranges]),
            )
        except ValueError as error:
            raise MetadataFormatError(
                f"register {_KEPT} is not a list of ranges of ids: remove it; ids that it kept for "
                "later restores cannot be restored to this cluster then"
            ) from error


def keep(registers: Registers, ledger_ids: Sequence[LedgerId]) -> None:
    """Keep ids for later restores. The caller owns them and must not use them otherwise."""
    change_register(
        registers, _KEPT, KeptIds.decode, KeptIds.encode, lambda old: old.with_ids(ledger_ids)
    )


def kept(registers: Registers) -> KeptIds:
    """Return the kept ids, including those that were used since."""
    return KeptIds.decode(registers.read(_KEPT))


# Restores at work


@contextmanager
def restoring(ballots: Ballots, who: str, runtime: Runtime) -> Iterator[None]:
    """Show that a restore runs, as long as this session lives.

    This keeps other clients from giving up what it needs. A session may be lost without its owner's
    knowledge; then ``give_up`` keeps data safe (SLOT-LOG rule R17).

    Raises:
        InvalidArgumentError: another client is giving up restores now; nothing was changed.
    """
    with _at_work(ballots, runtime, _RESTORES, who):
        if others := _who(ballots, runtime, _GIVES_UP):
            raise InvalidArgumentError(
                f"restores are being given up ({'; '.join(others)}); nothing was changed. Repeat "
                "it when that has ended"
            )
        yield


@contextmanager
def giving_up(ballots: Ballots, who: str, runtime: Runtime) -> Iterator[None]:
    """Show that restores are being given up.

    Raises:
        InvalidArgumentError: a restore runs; nothing was changed.
    """
    with _at_work(ballots, runtime, _GIVES_UP, who):
        check_none_runs(ballots, runtime)
        yield


def check_none_runs(ballots: Ballots, runtime: Runtime) -> None:
    """Raise ``InvalidArgumentError`` if a restore runs, because then none can be given up."""
    if others := running(ballots, runtime):
        raise InvalidArgumentError(
            f"a restore runs ({'; '.join(others)}), and needs what it has copied; nothing was "
            "changed. Wait for its end, or stop it: some seconds after its process has died it "
            "counts as ended"
        )


def running(ballots: Ballots, runtime: Runtime) -> list[str]:
    """Return the names of the restores that run now."""
    return _who(ballots, runtime, _RESTORES)


def _at_work(ballots: Ballots, runtime: Runtime, what: str, who: str) -> Vote:
    return Election(ballots, RESTORES_PARENT, runtime).join(f"{what}{who}".encode())


def _who(ballots: Ballots, runtime: Runtime, what: str) -> list[str]:
    found = Election(ballots, RESTORES_PARENT, runtime).candidates()
    said = (identity.decode(errors="replace") for identity in found)
    return [each.removeprefix(what) for each in said if each.startswith(what)]


def _name(ledger_id: LedgerId) -> str:
    return f"{RESTORES_PARENT}/{ledger_id}"
