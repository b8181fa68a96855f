"""The choice of bookies for an ensemble, and of replacements.

Pure: the caller passes the candidates in order of preference (``drawn`` by free space), and the
reasons why a bookie must not be chosen. Every write set is spread over as many racks as possible
(``racks.py``).

Source: BookKeeper ``client/DefaultEnsemblePlacementPolicy``: only writable bookies are candidates,
and a replacement is never a member of the ensemble it joins;
``client/RackawareEnsemblePlacementPolicy``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_bookkeeper.errors import NotEnoughBookiesError, remedy
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import is_table
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.racks import spread


@dataclass(frozen=True, slots=True)
class Candidate:
    """A registered bookie, with the values that placement needs."""

    bookie_id: BookieId
    is_readonly: bool = False
    rack: str = "/default-rack"
    is_silent: bool = False
    """Whether it has given no answer for a while; others are better, on whatever rack."""
    free_bytes: int | None = None
    """The free bytes that small files can use; ``None``: unknown, as of a bucket."""


def choose_ensemble(
    quorum: Quorum,
    candidates: Sequence[Candidate],
    excluded: Mapping[BookieId, str],
    purpose: str = "for the ensemble",
) -> tuple[BookieId, ...]:
    """Return the ensemble of a new ledger.

    Args:
        excluded: bookies that must not be chosen, with the reason that the error shows.
        purpose: the use of the bookies in a few words, for the error.

    Raises:
        NotEnoughBookiesError: with every candidate and why it was not chosen.
    """
    size = quorum.ensemble_size
    usable = _usable(size, candidates, excluded, purpose)
    chosen = spread(quorum, (None,) * size, range(size), [each.rack for each in usable])
    return tuple(usable[index].bookie_id for index in chosen)


def choose(
    candidates: Sequence[Candidate], excluded: Mapping[BookieId, str], purpose: str
) -> BookieId:
    """Return the first candidate that may be chosen, on any rack; see ``choose_ensemble``."""
    return _usable(1, candidates, excluded, purpose)[0].bookie_id


def _usable(
    count: int, candidates: Sequence[Candidate], excluded: Mapping[BookieId, str], purpose: str
) -> Sequence[Candidate]:
    """Return at least ``count`` candidates that may be chosen; silent ones only if needed."""
    usable: list[Candidate] = []
    causes: dict[str, str] = {str(bookie): reason for bookie, reason in excluded.items()}
    for candidate in candidates:
        if candidate.bookie_id in excluded:
            continue
        if candidate.is_readonly:
            causes[candidate.bookie_id] = "read-only"
        else:
            usable.append(candidate)
    if len(usable) < count:
        raise not_enough(count, [each.bookie_id for each in usable], causes, purpose)
    answering = [each for each in usable if not each.is_silent]
    return answering if len(answering) >= count else usable


def drawn(
    share: str, candidates: Sequence[Candidate], avoided: Collection[BookieId] = ()
) -> list[Candidate]:
    """Return the candidates in a random order, weighted by free space, fixed for each share.

    Over many shares, each candidate comes first in proportion to its free space. For one share the
    order follows from the names alone (weighted rendezvous hashing), so a repeated run makes the
    same choices. Space is compared in steps of a fifth; otherwise every new copy would change the
    order.

    Args:
        share: the name of the share to be placed.
        candidates: one with unknown free space counts as the least of those that can be written and
            are not full.
        avoided: candidates that come last, such as those on a rack that has a copy already.
    """
    told = (each.free_bytes for each in candidates if not each.is_readonly)
    least = min(filter(None, told), default=1)

    def key(candidate: Candidate) -> tuple[bool, float]:
        digest = hashlib.sha256(f"{share}/{candidate.bookie_id}".encode()).digest()
        luck = (int.from_bytes(digest[:8], "big") + 1) / (1 << 64)
        space = least if candidate.free_bytes is None else max(1, candidate.free_bytes)
        weight = 2.0 ** (math.floor(4 * math.log2(space)) / 4)
        return candidate.bookie_id in avoided, -math.log(luck) / weight

    return sorted(candidates, key=key)


def members(ensemble: Collection[BookieId], alive: Collection[BookieId]) -> dict[BookieId, str]:
    """Return why no member may join its ensemble again; one that is not ``alive`` is lost."""
    return {
        bookie: "already in the ensemble"
        if bookie in alive or is_table(bookie)
        else "in the ensemble, and not registered: down or lost"
        for bookie in ensemble
    }


def replace_bookies(
    quorum: Quorum,
    ensemble: tuple[BookieId, ...],
    positions: Collection[int],
    candidates: Sequence[Candidate],
    excluded: Mapping[BookieId, str],
    purpose: str = "to replace bookies of an ensemble",
) -> tuple[BookieId, ...]:
    """Return the ensemble with other bookies at ``positions``.

    Raises:
        NotEnoughBookiesError: not every position can be filled.
    """
    racks = {candidate.bookie_id: candidate.rack for candidate in candidates}
    reasons = members(ensemble, racks) | dict(excluded)
    usable = _usable(len(positions), candidates, reasons, purpose)
    places = sorted(positions)
    chosen = spread(
        quorum, [racks.get(bookie) for bookie in ensemble], places, [each.rack for each in usable]
    )
    replaced = list(ensemble)
    for position, index in zip(places, chosen, strict=True):
        replaced[position] = usable[index].bookie_id
    return tuple(replaced)


def not_enough(
    needed: int, chosen: Sequence[BookieId], causes: Mapping[str, str], purpose: str
) -> NotEnoughBookiesError:
    """Return the error with its table: every bookie and why it was not chosen."""
    lines = [f"  {bookie}  usable" for bookie in chosen]
    lines += [f"  {bookie}  {reason}" for bookie, reason in sorted(causes.items())]
    table = "\n".join(lines) or "  (no bookie is registered)"
    bookies = "1 bookie is" if needed == 1 else f"{needed} bookies are"
    start = "start another bookie (`spark-bookkeeper bookie start`), or bring one of these back"
    return NotEnoughBookiesError(
        f"{bookies} needed {purpose}, {len(chosen)} can be used:\n{table}\n"
        f"{remedy(causes.values(), start)}",
        needed=needed,
        available=len(chosen),
        causes=dict(causes),
    )
