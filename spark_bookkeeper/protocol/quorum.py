"""Quorum arithmetic: which bookies hold an entry, and how many answers are enough.

Source: The BookKeeper protocol, "Write quorums" and "Ack quorums"; the coverage rule is
BookKeeper's ``RoundRobinDistributionSchedule.RRQuorumCoverageSet`` (checked for every write set;
the TLA+ specification's single number is stricter than needed when striping).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId


@dataclass(frozen=True, slots=True)
class Quorum:
    """Replication sizes of a ledger, counted in bookies.

    Invariant: ``ensemble_size >= write_quorum_size >= ack_quorum_size >= 1``.

    Raises:
        InvalidArgumentError: the three sizes break the invariant.
    """

    ensemble_size: int
    """E: bookies that share the entries of one fragment."""

    write_quorum_size: int
    """Qw: bookies each entry is written to."""

    ack_quorum_size: int
    """Qa: bookies that must store an entry before it is acknowledged."""

    def __post_init__(self) -> None:
        sizes = (self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)
        if any(isinstance(size, bool) or not isinstance(size, Integral) for size in sizes):
            raise InvalidArgumentError(f"quorum sizes are whole numbers, not {sizes!r}")
        if not self.ensemble_size >= self.write_quorum_size >= self.ack_quorum_size >= 1:
            raise InvalidArgumentError(
                f"ensemble_size={self.ensemble_size}, write_quorum_size={self.write_quorum_size}, "
                f"ack_quorum_size={self.ack_quorum_size} break the rule "
                "ensemble_size >= write_quorum_size >= ack_quorum_size >= 1; 3, 3, 2 is usual"
            )
        for name in self.__slots__:  # metadata cannot hold numpy's whole numbers
            object.__setattr__(self, name, int(getattr(self, name)))

    def write_set(self, entry_id: EntryId) -> tuple[int, ...]:
        """Return the positions in the ensemble that hold an entry, in the order of striping."""
        first = entry_id % self.ensemble_size
        return _write_set(first, self.ensemble_size, self.write_quorum_size)

    def write_sets(self) -> list[tuple[int, ...]]:
        """Return the distinct write sets, one for each stripe class (``entry_id mod E``)."""
        classes = self.ensemble_size if self.is_striped else 1
        return [self.write_set(EntryId(stripe)) for stripe in range(classes)]

    def holds(self, position: int, entry_id: EntryId) -> bool:
        """Return whether the bookie at ``position`` is in the write set of an entry."""
        return (position - entry_id) % self.ensemble_size < self.write_quorum_size

    def entries_held(self, position: int, first: EntryId, last: EntryId) -> int:
        """Return how many of the entries ``first .. last`` are striped to a position."""
        cycles, rest = divmod(max(0, last - first + 1), self.ensemble_size)
        of_rest = sum(self.holds(position, EntryId(last - i)) for i in range(rest))
        return cycles * self.write_quorum_size + of_rest

    @property
    def is_striped(self) -> bool:
        """Whether a bookie of the ensemble holds only some of the entries (E > Qw)."""
        return self.ensemble_size > self.write_quorum_size

    @property
    def misses_needed(self) -> int:
        """The fenced misses that prove that an entry was never acknowledged: (Qw - Qa) + 1."""
        return self.write_quorum_size - self.ack_quorum_size + 1

    def has_coverage(self, answered: Set[int]) -> bool:
        """Return whether no ack quorum can form among the bookies that have not answered.

        Fencing waits for this. It is checked for every write set, not for the ensemble as a whole:
        with E=5, Qw=2, Qa=2 three well-placed answers are enough.
        """
        if not self.is_striped:  # one write set: all bookies
            return len(answered) >= self.misses_needed
        return all(
            len(answered & set(write_set)) >= self.misses_needed for write_set in self.write_sets()
        )

    def confirmed_through(self, stored_through: Sequence[int], pushed: EntryId) -> EntryId:
        """Return the last entry up to which all entries are stored on an ack quorum.

        Args:
            stored_through: for each position, the entry up to which that bookie stores all entries
                striped to it (-1: none). Acks of a bookie count only as a prefix (SLOT-LOG rule
                R2), so one number is enough.
            pushed: the last entry handed to the bookies.
        """
        if not self.is_striped:  # one write set: all bookies
            reached = sorted(stored_through)[-self.ack_quorum_size]
            return min(pushed, EntryId(reached))
        confirmed = pushed
        for stripe, write_set in enumerate(self.write_sets()):
            reached = sorted(stored_through[p] for p in write_set)[-self.ack_quorum_size]
            unconfirmed = reached + 1  # the first entry of this stripe class after `reached`
            unconfirmed += (stripe - unconfirmed) % self.ensemble_size
            confirmed = min(confirmed, EntryId(unconfirmed - 1))
        return confirmed


@dataclass(frozen=True, slots=True)
class Share:
    """The entries ``first .. last`` of one fragment that are striped to a position of it."""

    quorum: Quorum
    position: int
    first: EntryId
    last: EntryId
    """``first - 1`` if the fragment holds no entries."""


@lru_cache(maxsize=1024)
def _write_set(first: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Cached, because every entry needs it and there are few distinct ones."""
    return tuple((first + i) % ensemble_size for i in range(write_quorum_size))
