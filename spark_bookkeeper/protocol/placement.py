"""Which bookies form an ensemble, and which one takes the place of another.

Pure: the caller gives the candidates in order of preference (it shuffles them, or puts those
with the most free space first), and the reasons why a bookie must not be chosen.

Source: BookKeeper ``client/DefaultEnsemblePlacementPolicy``: only writable bookies are
candidates, and a replacement is never a member of the ensemble it joins.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_bookkeeper.errors import NotEnoughBookiesError
from spark_bookkeeper.protocol.ids import BookieId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered bookie as placement sees it."""

    bookie_id: BookieId
    is_readonly: bool = False


def choose(
    count: int, candidates: Sequence[Candidate], excluded: Mapping[BookieId, str], purpose: str
) -> tuple[BookieId, ...]:
    """The first ``count`` candidates that may be chosen.

    Args:
        excluded: bookies that must not be chosen, with the reason a person is told.
        purpose: what they are for, in a few words; part of the error.

    Raises:
        NotEnoughBookiesError: with every candidate and why it was not chosen.
    """
    chosen: list[BookieId] = []
    causes: dict[str, str] = {str(bookie): reason for bookie, reason in excluded.items()}
    for candidate in candidates:
        if candidate.bookie_id in excluded:
            continue
        if candidate.is_readonly:
            causes[candidate.bookie_id] = "read-only"
        else:
            chosen.append(candidate.bookie_id)
    if len(chosen) < count:
        raise not_enough(count, chosen, causes, purpose)
    return tuple(chosen[:count])


def drawn(
    share: str,
    candidates: Sequence[Candidate],
    free_bytes: Mapping[BookieId, int],
    avoided: Collection[BookieId] = (),
) -> list[Candidate]:
    """Candidates in an order that is random, by free space, and the same whenever it is asked for.

    Over many shares each comes first as often as its part of all free space says. For one share
    the order follows from the names alone (weighted rendezvous hashing), so a run that is begun
    again chooses what it chose before. Space is compared in steps of a fifth, or every copy that
    is made would change the order.

    Args:
        share: what is to be placed, by name.
        free_bytes: of those of whom it is known; the others count as the smallest that is known.
        avoided: those that come behind all others, as ones on a rack that has a copy already.
    """
    least = max(1, min(free_bytes.values(), default=1))

    def key(candidate: Candidate) -> tuple[bool, float]:
        digest = hashlib.sha256(f"{share}/{candidate.bookie_id}".encode()).digest()
        luck = (int.from_bytes(digest[:8], "big") + 1) / (1 << 64)
        space = max(1, free_bytes.get(candidate.bookie_id, least))
        weight = 2.0 ** (math.floor(4 * math.log2(space)) / 4)
        return candidate.bookie_id in avoided, -math.log(luck) / weight

    return sorted(candidates, key=key)


def members(ensemble: Collection[BookieId], alive: Collection[BookieId]) -> dict[BookieId, str]:
    """Why no member of an ensemble can join it, and that it is lost when it is not ``alive``."""
    return {
        bookie: "already in the ensemble"
        if bookie in alive
        else "in the ensemble, and not registered: down or lost"
        for bookie in ensemble
    }


def replace_bookies(
    ensemble: tuple[BookieId, ...],
    positions: Collection[int],
    candidates: Sequence[Candidate],
    excluded: Mapping[BookieId, str],
) -> tuple[BookieId, ...]:
    """The ensemble with other bookies at ``positions``.

    Raises:
        NotEnoughBookiesError: not every position can be filled.
    """
    alive = {candidate.bookie_id for candidate in candidates}
    reasons = members(ensemble, alive) | dict(excluded)
    chosen = choose(len(positions), candidates, reasons, "to replace bookies of an ensemble")
    replaced = list(ensemble)
    for position, bookie in zip(sorted(positions), chosen, strict=True):
        replaced[position] = bookie
    return tuple(replaced)


def not_enough(
    needed: int, chosen: Sequence[BookieId], causes: Mapping[str, str], purpose: str
) -> NotEnoughBookiesError:
    """The error with its table: every bookie and why it was not chosen."""
    lines = [f"  {bookie}  usable" for bookie in chosen]
    lines += [f"  {bookie}  {reason}" for bookie, reason in sorted(causes.items())]
    table = "\n".join(lines) or "  (no bookie is registered)"
    bookies = "1 bookie is" if needed == 1 else f"{needed} bookies are"
    return NotEnoughBookiesError(
        f"{bookies} needed {purpose}, {len(chosen)} can be used:\n{table}\n"
        "start another bookie (`spark-bookkeeper bookie start`), or bring one of these back",
        needed=needed,
        available=len(chosen),
        causes=dict(causes),
    )
