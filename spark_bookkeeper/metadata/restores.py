"""Ledgers that are being restored: their copies are on bookies before their metadata are there.

Everywhere else metadata come first, so that files without metadata are what is left of a ledger
that was deleted. A restore says in a register that it is at a ledger before it puts the first copy,
and takes that back when the metadata are there; a collector that meets such copies leaves them.

Who restores a log has the cluster's counter pass the ids of its ledgers, since its next one must
have a higher one. Ids that he is given meanwhile are kept in a register, so that what has them in a
backup can be restored later: nobody else was given them. Each is used once, for it is marked then.

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
"""The register above those of ledgers: ``restores/7`` has the nonce of ledger 7."""

_KEPT: Final = "kept-ids"

_LAST_ID: Final = (1 << 63) - 1

_RESTORES: Final = "restores: "
_GIVES_UP: Final = "gives up: "
"""How the identity of a vote begins."""


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
    return sorted(LedgerId(int(n)) for n in registers.names(RESTORES_PARENT) if n.isdecimal())


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
    return not is_there


def is_restored(store: MetadataStore, ledger_id: LedgerId, nonce: bytes) -> bool:
    """Whether that life of a ledger has its metadata, as everybody knows it now."""
    try:
        found = store.read_ledger_settled(ledger_id)
    except NoSuchLedgerError:
        return False
    return found.value.nonce == nonce


# Ids of other ledgers


class KeptIds:
    """Ids that restores were given by the counter: theirs alone, so that each can be used once."""

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._ranges = sorted(ranges)
        """Each with its first and its last."""

    def __contains__(self, ledger_id: int) -> bool:
        at = bisect_right(self._ranges, (ledger_id, _LAST_ID)) - 1
        return at >= 0 and ledger_id <= self._ranges[at][1]

    def with_ids(self, ledger_ids: Sequence[int]) -> KeptIds:
        """These and others."""
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self._ranges, *((i, i) for i in ledger_ids)]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(last, joined[-1][1])
            else:
                joined.append((first, last))
        return KeptIds(joined)

    def encode(self) -> bytes:
        """As ``decode`` reads it."""
        return json.dumps(self._ranges).encode()

    @classmethod
    def decode(cls, found: Versioned[bytes] | None) -> KeptIds:
        """Raises ``MetadataFormatError`` for what nobody of us wrote."""
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
    """Keep ids for later restores. The caller was given them, and uses them for nothing else."""
    change_register(
        registers, _KEPT, KeptIds.decode, KeptIds.encode, lambda old: old.with_ids(ledger_ids)
    )


def kept(registers: Registers) -> KeptIds:
    """The ids that are kept, those among them that were used since included."""
    return KeptIds.decode(registers.read(_KEPT))


# Who is at work


@contextmanager
def restoring(ballots: Ballots, who: str, runtime: Runtime) -> Iterator[None]:
    """Show that a restore runs, as long as this session lives.

    So that nobody gives up meanwhile what it needs. A session may be lost without its owner's
    knowledge; what keeps data safe then is ``give_up`` (SLOT-LOG rule R17).

    Raises:
        InvalidArgumentError: somebody gives restores up just now; nothing was changed.
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
    """Show that restores are given up.

    Raises:
        InvalidArgumentError: a restore runs; nothing was changed.
    """
    with _at_work(ballots, runtime, _GIVES_UP, who):
        check_none_runs(ballots, runtime)
        yield


def check_none_runs(ballots: Ballots, runtime: Runtime) -> None:
    """Raises ``InvalidArgumentError``: a restore runs, so that none can be given up."""
    if others := running(ballots, runtime):
        raise InvalidArgumentError(
            f"a restore runs ({'; '.join(others)}), and needs what it has copied; nothing was "
            "changed. Wait for its end, or stop it: some seconds after its process has died it "
            "counts as ended"
        )


def running(ballots: Ballots, runtime: Runtime) -> list[str]:
    """Who restores something now."""
    return _who(ballots, runtime, _RESTORES)


def _at_work(ballots: Ballots, runtime: Runtime, what: str, who: str) -> Vote:
    return Election(ballots, RESTORES_PARENT, runtime).join(f"{what}{who}".encode())


def _who(ballots: Ballots, runtime: Runtime, what: str) -> list[str]:
    found = Election(ballots, RESTORES_PARENT, runtime).candidates()
    said = (identity.decode(errors="replace") for identity in found)
    return [each.removeprefix(what) for each in said if each.startswith(what)]


def _name(ledger_id: LedgerId) -> str:
    return f"{RESTORES_PARENT}/{ledger_id}"
