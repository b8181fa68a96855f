"""Choose the bookie that replaces a lost one in a fragment.

The plan of a dry run and the work itself use the same choice, so that a plan does not promise what
the work cannot do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import NotEnoughBookiesError
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import FragmentRange
from spark_bookkeeper.protocol.placement import Candidate, choose, drawn, members


class Targets:
    """Chooses among the bookies that are alive.

    Args:
        lost: the bookies to recover; they are never chosen.
        wanted: the only bookie that may be chosen; ``None`` is any.
    """

    def __init__(
        self,
        bookies: Bookies,
        alive: Mapping[BookieId, Registration],
        lost: Sequence[BookieId],
        wanted: BookieId | None,
    ) -> None:
        self._bookies = bookies
        self.alive = alive
        """The bookies that are alive, as given by the caller."""
        self._lost = lost
        self._wanted = wanted

    def choose(
        self,
        ledger: Ledger,
        fragment: FragmentRange,
        position: int,
        taken: Sequence[BookieId] = (),
        failures: Mapping[BookieId, str] | None = None,
    ) -> BookieId:
        """Return the given target, or a random one that a repeated run finds again.

        Bookies on racks without a copy of the entries come first. Among equals, the choice is
        random in proportion to free space (``placement.drawn``). After a crash the choice is the
        same, so that a run uses earlier copies.

        Args:
            position: the position in the ensemble of the bookie to be replaced.
            taken: bookies that were chosen already for other positions of the fragment.
            failures: bookies that were tried without success, with the reason.

        Raises:
            NotEnoughBookiesError: with every bookie and why it was not chosen.
        """
        excluded = members(fragment.ensemble, self.alive)
        excluded |= dict.fromkeys(taken, "already in the ensemble")
        excluded |= dict.fromkeys(self._lost, "to be recovered") | dict(failures or {})
        if self._wanted is not None:
            excluded |= {
                b: f"not the target {self._wanted}"
                for b in self.alive
                if b != self._wanted and b not in excluded
            }
        reasons = self._bookies.ineligible(self.alive, 0, ledger, excluded)
        share = f"ledgers/{ledger.key}/{fragment.first_entry_id}/{position}"
        peers = {
            p for each in ledger.metadata.quorum.write_sets() if position in each for p in each
        }
        rest = [b for n, b in enumerate(fragment.ensemble) if n in peers - {position}]
        rest += taken
        racks = {self.alive[b].rack for b in rest if b in self.alive}
        beside = [b for b, each in self.alive.items() if each.rack in racks]
        # Bookies that cannot be chosen are left out first: drawing is most of the cost here.
        possible = [each for each in self._candidates if each.bookie_id not in reasons]
        candidates = drawn(share, possible, beside)
        purpose = f"to take the place of {fragment.ensemble[position]}"
        try:
            return choose(candidates, reasons, purpose)
        except NotEnoughBookiesError:
            return choose(candidates, {**self._unusable, **reasons}, purpose)

    @cached_property
    def _candidates(self) -> Sequence[Candidate]:
        return self._bookies.candidates(self.alive)

    @cached_property
    def _unusable(self) -> Mapping[BookieId, str]:
        """Bookies that no fragment could use, including those that are down; computed once."""
        return self._bookies.ineligible(self.alive, len(self.alive) + 1)
