"""Copies entries from a backup to the bookies of restored ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from spark_bookkeeper.backup.folder import BackupFolder
from spark_bookkeeper.backup.saving_entries import cut
from spark_bookkeeper.bookie.bookie import Delivered, LedgerRef
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.replication.runner import Bounds, Failure, Step
from spark_bookkeeper.replication.shares import share_of
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.table.listing import Listing
from spark_bookkeeper.table.neighbours import TOGETHER_ENTRIES, WINDOW_BYTES, together
from spark_bookkeeper.table.opening import table_of

WINDOW_ENTRIES: Final = 4096
"""Number of entries that are read at once, if they have at most ``WINDOW_BYTES`` in all."""

TOGETHER_BYTES: Final = 1 << 20
"""Ledgers with at most this many bytes are read from a table in batches."""


@dataclass(frozen=True, slots=True)
class RestoreWork:
    """Put a range of a ledger on the bookies of its new ensemble."""

    ledger: Ledger
    """The ledger as it will be."""
    uri: str
    incarnation: str
    index: str | None
    """The digest of its list, if a table stands for it."""
    first_entry_id: EntryId
    last_entry_id: EntryId
    size_bytes: int

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self.ledger.ledger_id

    def name(self) -> str:
        """Return the name of the range, for messages."""
        return name_of(self.ledger_id, self.first_entry_id)

    @property
    def may_go_with_others(self) -> bool:
        """Whether it is a whole small ledger that is read from a table."""
        is_whole = self.first_entry_id == 0 and (
            self.last_entry_id == self.ledger.metadata.last_entry_id
        )
        is_small = self.last_entry_id < TOGETHER_ENTRIES and self.size_bytes <= TOGETHER_BYTES
        return self.index is not None and is_whole and is_small


@dataclass(frozen=True, slots=True)
class Restored:
    """The result for a range."""

    ledger_id: LedgerId
    bytes: int
    reason: str | None = None
    """Why a part of the range is missing; ``None`` if it is complete."""
    other_bytes: int = 0
    """Number of entries whose bytes differ from the original ones, with the same values."""


def pieces_of(
    ledger: Ledger, uri: str, incarnation: str, index: str | None
) -> Iterator[RestoreWork]:
    """Yield the ranges that make up a whole ledger.

    Args:
        uri: URI of the backup's directory.
        index: the digest of the ledger's list, if a table stands for it.
    """
    last = ledger.metadata.last_entry_id
    assert last is not None, "restored ledgers are closed"
    for first, end, size_bytes in cut(last, ledger.metadata.length_bytes or 0):
        yield RestoreWork(ledger, uri, incarnation, index, first, end, size_bytes)


def _not_restored(work: RestoreWork, failure: Failure) -> Restored:
    again = "mend that, and repeat the restore: it goes on where it was"
    return Restored(work.ledger_id, 0, f"{failure.reason}; {again}")


def _restore(context: ClientContext, work: RestoreWork) -> Sequence[Restored]:
    """Copy to every bookie the entries of its share that it lacks, and read them back."""
    ledger = work.ledger
    folder = BackupFolder(context, work.uri)
    source = folder.source(ledger, work.incarnation, work.index)
    listing = folder.listing(ledger, work.index)
    size = others = 0
    first, last = work.first_entry_id, work.last_entry_id
    average = max(1, work.size_bytes // (last - first + 1))
    window = max(1, min(WINDOW_ENTRIES, WINDOW_BYTES // average))
    for start in range(first, last + 1, window):
        lacking = _lacking(context, ledger, start, min(last, start + window - 1))
        wanted = sorted(set().union(*lacking.values()))
        if not wanted:
            continue
        delivery = source.read(wanted)
        if delivery.refused:
            entry_id, reason = next(iter(delivery.refused.items()))
            said = folder.unreadable(ledger, entry_id, reason, work.index)
            return [Restored(ledger.ledger_id, size, said)]
        size += _copy(context, ledger, delivery, lacking)
        others += _in_other_bytes(listing, delivery)
    return [Restored(ledger.ledger_id, size, other_bytes=others)]


def _restore_many(
    context: ClientContext, works: Sequence[RestoreWork], _: Bounds
) -> Sequence[Sequence[Restored] | None]:
    """Restore small ledgers, whose rows are read from a table in batches. ``None`` for all other
    works, and for each that failed: ``_restore`` then finds the reason.
    """
    done: list[Sequence[Restored] | None] = [None] * len(works)
    for some in together(works):
        left = []
        for number, work in some:
            lacking = _lacking(context, work.ledger, work.first_entry_id, work.last_entry_id)
            if any(lacking.values()):
                left.append((number, work, lacking))
            else:
                done[number] = [Restored(work.ledger_id, 0)]
        refs = [
            LedgerRef(work.ledger.key, work.index, work.ledger.encoding)
            for _, work, _ in left
            if work.index is not None
        ]
        if not left or (table := BackupFolder(context, left[0][1].uri).table) is None:
            continue
        try:
            found = table_of(context, table).read_many(refs)
        except BookKeeperError:
            continue
        for (number, work, lacking), (listing, delivery) in zip(left, found, strict=True):
            with suppress(BookKeeperError):
                if not delivery.refused:
                    size = _copy(context, work.ledger, delivery, lacking)
                    others = _in_other_bytes(listing, delivery)
                    done[number] = [Restored(work.ledger_id, size, other_bytes=others)]
    return done


def _in_other_bytes(listing: Listing | None, delivery: Delivered[StoredEntry]) -> int:
    """Return how many entries were rebuilt from a table's rows with other bytes than the list says,
    as another version of Arrow does.

    Args:
        listing: the ledger's list; ``None``: the ledger is in no table.
    """
    if listing is None:
        return 0
    others = 0
    for entry in delivery.found:
        told = listing.entry(entry.entry_id)
        others += told is None or (told.digest, told.size) != (entry.digest, entry.size_bytes)
    return others


def _lacking(
    context: ClientContext, ledger: Ledger, first: int, last: int
) -> Mapping[BookieId, Set[int]]:
    """Return the entries of a range that each bookie is to have and lacks."""
    (fragment,) = ledger.metadata.fragments
    lacking: dict[BookieId, Set[int]] = {}
    for position, bookie in enumerate(fragment.ensemble):
        share = share_of(ledger, position, EntryId(first), EntryId(last))
        if share:
            good = context.bookies.replica(bookie, ledger).verify(share).good
            lacking[bookie] = set(share).difference(good)  # a verified entry is durable, too
    return lacking


def _copy(
    context: ClientContext,
    ledger: Ledger,
    delivery: Delivered[StoredEntry],
    lacking: Mapping[BookieId, Set[int]],
) -> int:
    """Let each bookie write the entries that it lacks; return their bytes."""
    entries = sorted(delivery.found, key=lambda entry: entry.entry_id)
    wanted = set().union(*lacking.values())
    assert wanted <= {entry.entry_id for entry in entries}, "what is not refused is found"
    size = 0
    for bookie, ids in lacking.items():
        copies = [entry for entry in entries if entry.entry_id in ids]
        if copies:
            replica = context.bookies.replica(bookie, ledger)
            replica.check()
            replica.write_copies(copies)
            size += sum(entry.size_bytes for entry in copies)
    return size


RESTORING: Final = Step("restoring ledgers", _restore, _not_restored)

RESTORING_FROM_TABLE: Final = replace(RESTORING, do_many=_restore_many, shares_with_neighbours=True)
"""The step if some ledgers are in a table, where neighbours lie next to each other."""
