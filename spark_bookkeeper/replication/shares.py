"""A bookie's share of a fragment: its entries, its sources, and how to copy it to a bookie."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import cast

from spark_bookkeeper.bookie.holdings import Holdings
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.copying import Throttle, copy_entries
from spark_bookkeeper.errors import BookieError
from spark_bookkeeper.protocol.accepted_loss import accepted_loss_of
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.protocol.underreplication import entries_at
from spark_bookkeeper.runtime.own_machine import is_here


def share_of(ledger: Ledger, position: int, first: EntryId, last: EntryId) -> Sequence[EntryId]:
    """Return the entries ``first .. last`` of a position, without accepted holes, ascending."""
    runs = entries_at(ledger.metadata.quorum, position, first, last)
    if (loss := accepted_loss_of(ledger.metadata.custom_metadata)) is not None:
        return [EntryId(e) for run in runs for e in run if not loss.has_hole(EntryId(e))]
    if len(runs) == 1:
        return cast(Sequence[EntryId], runs[0])
    return [EntryId(entry_id) for run in runs for entry_id in run]


def share_bytes(metadata: LedgerMetadata, fragment: FragmentRange) -> int:
    """Return about how many bytes a share has, as if all entries were of one size."""
    if not metadata.length_bytes or metadata.last_entry_id is None:
        return 0  # an open ledger has no known length
    assert fragment.last_entry_id is not None
    entries = fragment.last_entry_id - fragment.first_entry_id + 1
    quorum = metadata.quorum
    share = entries * quorum.write_quorum_size / quorum.ensemble_size
    return round(metadata.length_bytes * share / max(1, metadata.last_entry_id + 1))


def pieces_to_read(
    held: Holdings, entries: Sequence[EntryId], most_bytes: int, most_entries: int
) -> Iterator[Sequence[EntryId]]:
    """Yield the entries of a share in pieces, each to be read at once.

    An entry larger than a piece is a piece of its own; an entry that the bookie lacks has size 0.

    Args:
        held: the bookie's lookup of the entries.
        entries: ascending.
    """
    _, sizes = held.pieces(entries)
    start = total = 0
    for number, size in enumerate(sizes.tolist()):
        if number > start and (total + size > most_bytes or number - start >= most_entries):
            yield entries[start:number]
            start, total = number, 0
        total += size
    if start < len(entries):
        yield entries[start:]


def in_order(
    ensemble: Sequence[BookieId], positions: Collection[int], last_resort: Collection[BookieId]
) -> list[int]:
    """Return positions in the order of reading: this machine's first, lost bookies last."""
    return sorted(
        positions, key=lambda p: (ensemble[p] in last_resort, not is_here(ensemble[p]), p)
    )


def sources_of(
    context: ClientContext, ledger: Ledger, fragment: FragmentRange
) -> dict[int, Replica]:
    """Return the replicas on the fragment's bookies that can be queried, by position."""
    found: dict[int, Replica] = {}
    for position, bookie in enumerate(fragment.ensemble):
        try:
            found[position] = context.bookies.replica(bookie, ledger)
        except BookieError:
            continue  # if an entry cannot be read without it, the read reports the reason
    return found


def copy_share(
    context: ClientContext,
    ledger: Ledger,
    fragment: FragmentRange,
    entries: Sequence[EntryId],
    target: Replica,
    last_resort: Collection[BookieId],
    throttle: Throttle,
    *,
    held: Collection[EntryId] | None = None,
) -> int:
    """Copy entries of a fragment durably to a bookie and read them back; return the bytes.

    The target is no source, because it lacks the entries. But of an entry in a part it may have one
    half, the record or the file, and another bookie the other; so its log is passed on.

    Args:
        entries: ascending, at least one.
        last_resort: bookies that are read when no other can deliver an entry.
        held: the entries that the target is known to hold; ``None`` reads which it has.

    Raises:
        EntryUnreadableError, TargetError: as ``copy_entries``.
    """
    sources = sources_of(context, ledger, fragment)
    ensemble = fragment.ensemble
    preference = in_order(ensemble, sources, last_resort)
    copied = copy_entries(
        context.runtime,
        ledger.ledger_id,
        ledger.metadata.quorum,
        ensemble,
        entries,
        sources,
        [p for p in preference if ensemble[p] != target.bookie_id],
        target,
        throttle,
        held=held,
        ask_both=context.bookies.ask_both,
    )
    context.metrics.copies.inc()
    context.metrics.copied_bytes.inc(copied)
    return copied


def copied_ahead(
    target: Replica, entries: Sequence[EntryId], is_whole: bool
) -> Collection[EntryId] | None:
    """Return the entries that a target holds of a share, for ``copy_share``; ``None``: unknown.

    Args:
        is_whole: all of it was just copied in pieces and read back, so a lookup is enough.

    Raises:
        BookieError: the target cannot be queried.
    """
    if not is_whole:
        return None
    lacking = target.holdings(entries[0], entries[-1]).lacking(entries)
    return set(entries).difference(map(EntryId, lacking))
