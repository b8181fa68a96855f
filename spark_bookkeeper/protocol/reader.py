"""The choice of the bookie to read an entry from next, and the failure of a read.

A pure machine over a range of entries inside one fragment. Whole runs of entries are requested from
one bookie at a time, because files hold runs. Entries that a bookie cannot deliver are requested
from the next bookie of their write set; if none is left, the read fails for that entry.

Source: The BookKeeper protocol, "Reading entries"; BookKeeper ``client/PendingReadOp`` (sequential
reads: any error at one replica leads to the next; a slow replica is joined by the next one, its
"speculative read").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum


@dataclass(frozen=True, slots=True)
class Ask:
    """Read these entries, ascending, from the bookie at a position."""

    position: int
    entries: tuple[EntryId, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that no bookie of its write set could deliver, with the reason of each."""

    entry_id: EntryId
    causes: Mapping[BookieId, str]


class Reader:
    """A read of the given entries of one fragment.

    Args:
        preference: positions of the ensemble, the best first. A bookie that is known to be gone
            comes last rather than never: it may still be the only holder of an entry. A position
            that is left out is never used.
    """

    def __init__(
        self,
        quorum: Quorum,
        ensemble: tuple[BookieId, ...],
        entries: Sequence[EntryId],
        preference: Sequence[int],
    ) -> None:
        self.quorum = quorum
        self.ensemble = ensemble
        self._order = list(preference)
        self._waiting = list(entries)
        self._causes: dict[EntryId, dict[int, str]] = {}

    def next(
        self, under_way: Iterable[Ask] = (), late: Iterable[Ask] = ()
    ) -> list[Ask] | Unreadable:
        """Return the requests to send now; empty if all entries were delivered or are under way.

        One request to each position covers all missing entries that it can deliver.

        Args:
            under_way: requests that were sent and whose answers are awaited.
            late: requests without an answer for so long that another bookie should be used as well.
        """
        awaited = {entry_id for ask in under_way for entry_id in ask.entries}
        tried: dict[EntryId, set[int]] = {}
        for ask in late:
            for entry_id in ask.entries:
                tried.setdefault(entry_id, set()).add(ask.position)
        asks: dict[int, list[EntryId]] = {}
        for entry_id in self._waiting:
            if entry_id in awaited:
                continue
            refused = self._causes.get(entry_id, {})
            hedged = tried.get(entry_id, ())
            position = next(
                (
                    p
                    for p in self._order
                    if p not in refused and p not in hedged and self.quorum.holds(p, entry_id)
                ),
                None,
            )
            if position is None:
                if hedged:
                    continue  # a late answer may still come
                return Unreadable(
                    entry_id, {self.ensemble[p]: cause for p, cause in refused.items()}
                )
            asks.setdefault(position, []).append(entry_id)
        return [Ask(position, tuple(entries)) for position, entries in asks.items()]

    def lost(self) -> list[Unreadable]:
        """Return the missing entries for which every bookie of their write set has answered."""
        found = []
        for entry_id in self._waiting:
            refused = self._causes.get(entry_id, {})
            left = (p for p in self._order if p not in refused and self.quorum.holds(p, entry_id))
            if next(left, None) is None:
                causes = {self.ensemble[p]: cause for p, cause in refused.items()}
                found.append(Unreadable(entry_id, causes))
        return found

    @property
    def waiting(self) -> Sequence[EntryId]:
        """The entries that were not delivered yet."""
        return tuple(self._waiting)

    def delivered(self, entries: Sequence[EntryId]) -> None:
        """Note that these entries were read and verified."""
        done = set(entries)
        self._waiting = [entry_id for entry_id in self._waiting if entry_id not in done]

    def answered(
        self, ask: Ask, delivered: Sequence[EntryId], causes: Mapping[EntryId, str]
    ) -> None:
        """Note the outcome of a request: the delivered entries, and why the others were not.

        Entries that the answer does not mention count as refused too. So each position is used for
        an entry once, and a read ends, whatever bookies answer.
        """
        silent = "asked, and did not deliver it"
        for entry_id in ask.entries:
            self._causes.setdefault(entry_id, {})[ask.position] = causes.get(entry_id, silent)
        self.delivered(delivered)
