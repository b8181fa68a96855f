"""Which bookies form an ensemble, and which one takes the place of another.

Pure: the caller gives the candidates in order of preference (``drawn`` by free space), and the
reasons why a bookie must not be chosen. Where there are racks, every write set is spread over as
many as it can be (``racks.py``).

Source: BookKeeper ``client/DefaultEnsemblePlacementPolicy``: only writable bookies are
candidates, and a replacement is never a member of the ensemble it joins;
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
    """A registered bookie as placement sees it."""

    bookie_id: BookieId
    is_readonly: bool = False
    rack: str = "/default-rack"
    is_silent: bool = False
    """Others are better, on whatever rack: this one has given no answer for a while."""
    free_bytes: int | None = None
    """As far as there are inodes for them; ``None``: not known, as of a bucket."""


def choose_ensemble(
    quorum: Quorum,
    candidates: Sequence[Candidate],
    excluded: Mapping[BookieId, str],
    purpose: str = "for the ensemble",
) -> tuple[BookieId, ...]:
    """The ensemble of a new ledger.

    Args:
        excluded: bookies that must not be chosen, with the reason a person is told.
        purpose: what they are for, in a few words; part of the error.

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
    """The first candidate that may be chosen, wherever it is; see ``choose_ensemble``."""
    return _usable(1, candidates, excluded, purpose)[0].bookie_id


def _usable(
    count: int, candidates: Sequence[Candidate], excluded: Mapping[BookieId, str], purpose: str
) -> Sequence[Candidate]:
    """Those that may be chosen, at least ``count``; silent ones only where they are needed."""
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
    """Candidates in a random order, weighted by free space: always the same one for one share.

    Over many shares each comes first as often as its part of all free space says. For one share
    the order follows from the names alone (weighted rendezvous hashing), so a run that is begun
    again chooses what it chose before. Space is compared in steps of a fifth, or every copy that
    is made would change the order.

    Args:
        share: what is to be placed, by name.
        candidates: one of whom no free space is known counts as the least of those that can be
            written and are not full.
        avoided: those that come behind all others, as ones on a rack that has a copy already.
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
    """Why no member of an ensemble can join it, and that it is lost when it is not ``alive``."""
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
    """The ensemble with other bookies at ``positions``.

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
    """The error with its table: every bookie and why it was not chosen."""
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
