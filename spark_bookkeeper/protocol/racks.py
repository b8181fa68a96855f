"""The number of racks that hold copies, and the bookies that spread them over the most.

A rack is a failure domain: its bookies publish the same name. Every write set should be on as many
racks as possible. If only one rack exists, or the others have too few bookies, copies share racks:
a rack is a preference, and never a reason to refuse a write.

Source: BookKeeper ``client/RackawareEnsemblePlacementPolicyImpl``, which spreads every write quorum
over two racks (``minNumRacksPerWriteQuorum``) and falls back to any; here over as many as possible,
so over at least two wherever BookKeeper finds two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_bookkeeper.protocol.quorum import Quorum

_STEPS_MAX: Final = 5_000
"""The bookies tried before fewer racks are accepted; usual sizes need one try a position."""

Racks = Sequence["str | None"]
"""The rack of each position of an ensemble; ``None`` if unknown."""


def fewest_racks(quorum: Quorum, racks: Racks) -> int:
    """Return the fewest racks of any write set; an unknown rack is not counted."""
    return min(
        len({racks[position] for position in write_set} - {None})
        for write_set in quorum.write_sets()
    )


def most_racks(quorum: Quorum, offered: Sequence[str]) -> int:
    """Return the greatest ``fewest_racks`` of an ensemble of these bookies; 0 if too few.

    Args:
        offered: the rack of each bookie, in any order.
    """
    size = quorum.ensemble_size
    if len(offered) < size:
        return 0
    chosen = spread(quorum, (None,) * size, range(size), offered)
    return fewest_racks(quorum, [offered[index] for index in chosen])


def spread(
    quorum: Quorum, racks: Racks, positions: Sequence[int], offered: Sequence[str]
) -> Sequence[int]:
    """Choose the offered bookies for these positions that make ``fewest_racks`` the greatest.

    Of all such choices, return the first by preference: the first position takes the first bookie
    that allows one, and so on.

    Args:
        racks: of the ensemble; those at ``positions`` are ignored.
        offered: the racks of the bookies to choose from, in order of preference, at least as many
            as there are positions.

    Returns:
        for each position an index into ``offered``.
    """
    known = [None if p in positions else rack for p, rack in enumerate(racks)]
    most = min(quorum.write_quorum_size, len({*known, *offered} - {None}))
    for wanted in range(most, 1, -1):
        found = _Search(quorum, known, positions, offered, wanted).run()
        if found is not None:
            return found
    return range(len(positions))


class _Search:
    """Tries a number of racks: each position takes the first bookie that allows a solution."""

    def __init__(
        self,
        quorum: Quorum,
        racks: Racks,
        positions: Sequence[int],
        offered: Sequence[str],
        wanted: int,
    ) -> None:
        self._write_sets = [tuple(each) for each in quorum.write_sets()]
        self._racks = list(racks)
        self._positions = positions
        self._open = set(positions)
        self._offered = offered
        self._wanted = wanted
        self._chosen: list[int] = []
        self._steps = 0

    def run(self) -> Sequence[int] | None:
        return self._chosen if self._is_possible() and self._fill() else None

    def _fill(self) -> bool:
        if len(self._chosen) == len(self._positions):
            return True
        position = self._positions[len(self._chosen)]
        self._open.discard(position)
        tried: set[str] = set()
        for index, rack in enumerate(self._offered):
            if index in self._chosen or rack in tried:
                continue  # another bookie of a rack that failed would fail too
            self._steps += 1
            if self._steps > _STEPS_MAX:
                break
            tried.add(rack)
            self._chosen.append(index)
            self._racks[position] = rack
            if self._is_possible() and self._fill():
                return True
            self._chosen.pop()
        self._racks[position] = None
        self._open.add(position)
        return False

    def _is_possible(self) -> bool:
        """Return whether every write set has enough racks, or enough open positions for them."""
        return all(
            len({self._racks[p] for p in each} - {None}) + sum(p in self._open for p in each)
            >= self._wanted
            for each in self._write_sets
        )
