"""Which fragments lack which replicas, given the bookies that are lost.

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
"""Entries of a fragment that are looked at one by one. A number that was damaged may ask for more
than there is memory for."""

NEEDS_BOOKIE: Final = "a writable bookie outside its ensemble"
"""What a ledger waits for that has its copies on all the bookies which could take one."""

RECOVER: Final = "spark-bookkeeper bookie recover {} --skip-open-ledgers"
REFILL: Final = "spark-bookkeeper bookie refill {} --skip-open-ledgers"
"""Proposed to whoever looks. A writer that lives replaces the bookie itself; without the option
its ledger would be closed."""

SKIPPED: Final = (
    "skipped: its last fragment is still open. Its writer replaces the bookie with the next "
    "append; if that has ended, `ledger recover` it and repeat"
)
"""Why a ledger that is not closed was left alone."""

OLD_DISK: Final = (
    "where an old disk of {bookies} can be read: stop the agent, mount that disk at its root, do "
    f"not start it, and copy from it (`{RECOVER.format('BOOKIE')}`)"
)
"""What helps where only a disk that was replaced has copies. Its bookie may never serve it again:
it lacks what was promised since (SLOT-LOG, R11)."""


@dataclass(frozen=True, slots=True)
class MissingReplica:
    """One position of one fragment whose bookie is lost.

    A fragment with a fixed end can be copied. The last fragment of a ledger that is not closed
    has none (``fragment.last_entry_id is None``): the ledger must be recovered first (R13).
    """

    fragment: FragmentRange
    position: int
    bookie: BookieId


def missing_replicas(
    metadata: LedgerMetadata, lost: Collection[BookieId]
) -> Iterator[MissingReplica]:
    """Every position of every fragment that names a lost bookie, in order."""
    for fragment in metadata.fragment_ranges():
        for position, bookie in enumerate(fragment.ensemble):
            if bookie in lost:
                yield MissingReplica(fragment, position, bookie)


def entries_at(quorum: Quorum, position: int, first: EntryId, last: EntryId) -> tuple[range, ...]:
    """The entries ``first .. last`` that are striped to a position, as ascending runs.

    Few runs when the ensemble is not striped (one), as many as there are stripes otherwise.

    Raises:
        MetadataFormatError: there would be more than ``ENTRIES_MAX``.
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
    """Where a ledger has live copies now: on bookies, and in the table that stands for some.

    Whether a table is whole is seen where it is read, as with a bookie (``check_ledgers``).

    Args:
        registered: those that are alive, and their incarnations.
        meant: incarnations that the ledger means (SLOT-LOG rule R11); a bookie it says nothing of
            counts as it is.
        lost: bookies to be given up, alive or not.
    """
    return frozenset(
        bookie
        for bookie, incarnation in registered.items()
        if bookie not in lost and meant.get(bookie, incarnation) == incarnation
    ) | {member for member in meant if is_table(member) and member not in lost}


def live_copies(quorum: Quorum, fragment: FragmentRange, live: Collection[BookieId]) -> int:
    """The fewest copies that any write set of a fragment has on live bookies."""
    return min(
        sum(fragment.ensemble[position] in live for position in write_set)
        for write_set in quorum.write_sets()
    )


def absent_members(metadata: LedgerMetadata, live: Collection[BookieId]) -> tuple[BookieId, ...]:
    """The bookies that a ledger counts on and that are not there, each once, in order."""
    members = (bookie for fragment in metadata.fragments for bookie in fragment.ensemble)
    return tuple(dict.fromkeys(bookie for bookie in members if bookie not in live))


def fewest_copies(metadata: LedgerMetadata, live: Collection[BookieId]) -> int:
    """The fewest live copies that any write set of any fragment has."""
    return min(live_copies(metadata.quorum, f, live) for f in metadata.fragment_ranges())


def below_ack_quorum(
    metadata: LedgerMetadata, live: Collection[BookieId], losing: Collection[BookieId]
) -> Iterator[tuple[FragmentRange, int, int]]:
    """The fragments that would have fewer than Qa live copies of some entry without ``losing``.

    With how many copies there are now, and how many there would be, at the fewest.
    Fragments that name none of ``losing`` are not among them, however few copies they have.
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
    """The fragments that lack a replica and have an end, each with the bookies that could take
    its copies. The last one of a ledger that is not closed has to be recovered first, by anybody.

    A bookie that lost what it held of the ledger takes nothing of it before it was refilled.
    """
    free = frozenset(writable) - set(absent_members(metadata, live))
    for fragment in metadata.fragment_ranges():
        if fragment.last_entry_id is not None and not set(fragment.ensemble) <= set(live):
            yield fragment, free - frozenset(fragment.ensemble)


def needs_bookie(limbo: Collection[BookieId]) -> str:
    """What a ledger waits for that has copies on all the bookies which could take one.

    Args:
        limbo: members that came back without what they held: each can have it again in its place.
    """
    refills = " or ".join(f"`{REFILL.format(bookie)}`" for bookie in sorted(limbo))
    return f"{NEEDS_BOOKIE}, or {refills}" if refills else NEEDS_BOOKIE


def blocked(
    metadata: LedgerMetadata,
    live: Collection[BookieId],
    writable: Collection[BookieId],
    limbo: Collection[BookieId] = (),
) -> str | None:
    """What a ledger waits for before any worker can make any of its copies, as long as neither
    the metadata nor the bookies change; ``None`` when one could be tried, or none is lacking.

    Args:
        live: members that have what they should.
        writable: bookies that take data.
        limbo: members that are there, and came back without what they held.
    """
    if not metadata.is_closed and not set(metadata.last_fragment.ensemble) <= set(live):
        return None  # it has to be recovered first
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
    """Whether any share that a fragment lacks can be read: its end is known, and each entry of the
    share has a live copy.
    """
    return any(
        bookie not in live and not unreadable_without(quorum, fragment, position, live)
        for position, bookie in enumerate(fragment.ensemble)
    )


def unreadable_without(
    quorum: Quorum, fragment: FragmentRange, position: int, live: Collection[BookieId]
) -> Sequence[Sequence[BookieId]]:
    """The write sets without which a share cannot be read: of each, one bookie has to come back, as
    nobody else has some entry of it; none where each of its entries has a live copy.
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
