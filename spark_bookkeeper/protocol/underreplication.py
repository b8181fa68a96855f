"""The fragments that lack replicas, and which replicas, given the lost bookies.

Source: Bookie Recovery ("the client goes through all ledger fragments in the ledger, selecting
those which contain the failed bookie"); BookKeeper ``client/LedgerFragment`` and
``BookKeeperAdmin.recoverBookieData``; SLOT-LOG "Re-replicate", rule R13.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata, is_table
from spark_bookkeeper.protocol.quorum import Quorum

ENTRIES_MAX: Final = 1 << 26
"""The most entries of a fragment that are examined one by one. A damaged number could need more
memory than there is."""

NEEDS_BOOKIE: Final = "a writable bookie outside its ensemble"
"""The need of a ledger whose copies are on all bookies that could take one."""

RECOVER: Final = "spark-bookkeeper bookie recover {} --skip-open-ledgers"
REFILL: Final = "spark-bookkeeper bookie refill {} --skip-open-ledgers"
"""Commands for the operator. A living writer replaces the bookie itself; without the option its
ledger would be closed."""

SKIPPED: Final = (
    "skipped: its last fragment is still open. Its writer replaces the bookie with the next "
    "append; if that has ended, `ledger recover` it and repeat"
)
"""The reason why a ledger that is not closed was skipped."""

OLD_DISK: Final = (
    "where an old disk of {bookies} can be read: stop the agent, mount that disk at its root, do "
    f"not start it, and copy from it (`{RECOVER.format('BOOKIE')}`)"
)
"""The advice if only a replaced disk has copies. Its bookie may never serve it again, because it
lacks the promises made since (SLOT-LOG, R11)."""


@dataclass(frozen=True, slots=True)
class MissingReplica:
    """One position of one fragment whose bookie is lost.

    A fragment with a fixed end can be copied. The last fragment of a ledger that is not closed has
    no end (``fragment.last_entry_id is None``): the ledger must be recovered first (R13).
    """

    fragment: FragmentRange
    position: int
    bookie: BookieId


def missing_replicas(
    metadata: LedgerMetadata, lost: Collection[BookieId]
) -> Iterator[MissingReplica]:
    """Yield every position of every fragment that names a lost bookie, in order."""
    for fragment in metadata.fragment_ranges():
        for position, bookie in enumerate(fragment.ensemble):
            if bookie in lost:
                yield MissingReplica(fragment, position, bookie)


def entries_at(quorum: Quorum, position: int, first: EntryId, last: EntryId) -> tuple[range, ...]:
    """Return the entries ``first .. last`` that are striped to a position, as ascending ranges.

    One range if the ensemble is not striped, otherwise one for each run of adjacent entries.

    Raises:
        MetadataFormatError: ``first .. last`` has more than ``ENTRIES_MAX`` entries.
    """
    if last - first >= ENTRIES_MAX:
        raise MetadataFormatError(
            f"a fragment is said to go from entry {first} to entry {last}, and more than "
            f"{ENTRIES_MAX:,} are not counted one by one. Its metadata may be damaged: compare it "
            "with what its bookies hold (`spark-bookkeeper ledger show LEDGER --slots`). Nothing "
            "was changed",
            path=f"fragment at entry {first}",
        )
    if not quorum.is_striped:
        return (range(first, last + 1),) if first <= last else ()
    runs: list[range] = []
    for entry_id in range(first, last + 1):
        if not quorum.holds(position, EntryId(entry_id)):
            continue
        if runs and runs[-1].stop == entry_id:
            runs[-1] = range(runs[-1].start, entry_id + 1)
        else:
            runs.append(range(entry_id, entry_id + 1))
    return tuple(runs)


def live_bookies(
    registered: Mapping[BookieId, str],
    meant: Mapping[BookieId, str],
    lost: Collection[BookieId] = (),
) -> frozenset[BookieId]:
    """Return the members with live copies of a ledger: bookies, and the table that stands for some.

    A reader of the table finds out whether it is whole, as with a bookie (``check_ledgers``).

    Args:
        registered: the live bookies and their incarnations.
        meant: the incarnations that the ledger means (SLOT-LOG rule R11); a bookie that is not in
            it counts with any incarnation.
        lost: bookies to be given up, alive or not.
    """
    return frozenset(
        bookie
        for bookie, incarnation in registered.items()
        if bookie not in lost and meant.get(bookie, incarnation) == incarnation
    ) | {member for member in meant if is_table(member) and member not in lost}


def live_copies(quorum: Quorum, fragment: FragmentRange, live: Collection[BookieId]) -> int:
    """Return the fewest copies that any write set of a fragment has on live bookies."""
    return min(
        sum(fragment.ensemble[position] in live for position in write_set)
        for write_set in quorum.write_sets()
    )


def absent_members(metadata: LedgerMetadata, live: Collection[BookieId]) -> tuple[BookieId, ...]:
    """Return the bookies that a ledger counts on and that are absent, each once, in order."""
    members = (bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
    return tuple(dict.fromkeys(bookie for bookie in members if bookie not in live))


def fewest_copies(metadata: LedgerMetadata, live: Collection[BookieId]) -> int:
    """Return the fewest live copies that any write set of any fragment has."""
    return min(live_copies(metadata.quorum, f, live) for f in metadata.fragment_ranges())


def below_ack_quorum(
    metadata: LedgerMetadata, live: Collection[BookieId], losing: Collection[BookieId]
) -> Iterator[tuple[FragmentRange, int, int]]:
    """Yield the fragments with fewer than Qa live copies of some entry without ``losing``.

    Each comes with the fewest copies now, and the fewest without ``losing``. Fragments that name
    none of ``losing`` are left out, however few copies they have.
    """
    rest = frozenset(live) - frozenset(losing)
    for fragment in metadata.fragment_ranges():
        if not set(fragment.ensemble) & set(losing):
            continue
        after = live_copies(metadata.quorum, fragment, rest)
        if after < metadata.quorum.ack_quorum_size:
            yield fragment, live_copies(metadata.quorum, fragment, live), after


def takers(
    metadata: LedgerMetadata, live: Collection[BookieId], writable: Collection[BookieId]
) -> Iterator[tuple[FragmentRange, frozenset[BookieId]]]:
    """Yield the fragments that lack a replica and have an end, each with the bookies that could
    take its copies. The last one of a ledger that is not closed must be recovered first.

    A bookie that needs refill takes no copies of the ledger before it is refilled.
    """
    free = frozenset(writable) - set(absent_members(metadata, live))
    for fragment in metadata.fragment_ranges():
        if fragment.last_entry_id is not None and not set(fragment.ensemble) <= set(live):
            yield fragment, free - frozenset(fragment.ensemble)


def needs_bookie(limbo: Collection[BookieId]) -> str:
    """Return the event that a ledger waits for if every bookie that could take a copy has one.

    Args:
        limbo: members that need refill: each can have its entries again in its place.
    """
    refills = " or ".join(f"`{REFILL.format(bookie)}`" for bookie in sorted(limbo))
    return f"{NEEDS_BOOKIE}, or {refills}" if refills else NEEDS_BOOKIE


def blocked(
    metadata: LedgerMetadata,
    live: Collection[BookieId],
    writable: Collection[BookieId],
    limbo: Collection[BookieId] = (),
) -> str | None:
    """Return the event before which no worker can make any copy of a ledger while its metadata and
    the bookies stay the same; ``None`` if a copy could be tried, or none is missing.

    Args:
        live: members that have all their entries.
        writable: bookies that take data.
        limbo: registered members that need refill.
    """
    if not metadata.is_closed and not set(metadata.last_fragment.ensemble) <= set(live):
        return None  # it must be recovered first
    has_taker = False
    away: set[BookieId] = set()
    lacking = list(takers(metadata, live, writable))
    for fragment, bookies in lacking:
        for position, bookie in enumerate(fragment.ensemble):
            if bookie in live or not bookies:
                continue
            has_taker = True
            lost = unreadable_without(metadata.quorum, fragment, position, live)
            if not lost:
                return None
            away.update(*lost)
    if not lacking:
        return None
    if not has_taker:
        return needs_bookie(set(limbo).intersection(absent_members(metadata, live)))
    if gone := away.difference(limbo):
        return f"{' or '.join(sorted(gone))} to come back: no other bookie has copies"
    empty = sorted(away)
    return (
        f"copies that nobody has: {', '.join(empty)} came back without them; "
        f"{OLD_DISK.format(bookies=' or '.join(empty))}; or `spark-bookkeeper cluster restore` "
        "from a backup"
    )


def has_source(quorum: Quorum, fragment: FragmentRange, live: Collection[BookieId]) -> bool:
    """Return whether any missing share of a fragment can be read: the fragment's end is known, and
    each entry of the share has a live copy.
    """
    return any(
        bookie not in live and not unreadable_without(quorum, fragment, position, live)
        for position, bookie in enumerate(fragment.ensemble)
    )


def unreadable_without(
    quorum: Quorum, fragment: FragmentRange, position: int, live: Collection[BookieId]
) -> Sequence[Sequence[BookieId]]:
    """Return the write sets without a live copy that keep a share from being read. Of each, one
    bookie must come back. The result is empty if each entry of the share has a live copy.
    """
    first, last = fragment.first_entry_id, fragment.last_entry_id
    assert last is not None
    dead: dict[frozenset[int], Sequence[BookieId]] = {}
    for entry_id in range(first, min(last, first + quorum.ensemble_size - 1) + 1):
        write_set = quorum.write_set(EntryId(entry_id))
        bookies = [fragment.ensemble[p] for p in write_set]
        if position in write_set and not any(bookie in live for bookie in bookies):
            dead.setdefault(frozenset(write_set), bookies)
    return list(dead.values())
