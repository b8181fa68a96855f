"""Which bookies form an ensemble, and which one takes the place of another.

Pure: the caller gives the candidates in order of preference (it shuffles them, or puts those
with the most free space first), and the reasons why a bookie must not be chosen.

Source: BookKeeper ``client/DefaultEnsemblePlacementPolicy``: only writable bookies are
candidates, and a replacement is never a member of the ensemble it joins.
"""

from __future__ import annotations

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
