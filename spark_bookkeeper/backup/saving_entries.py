"""Copies entries into a backup, from the bookies of their ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.backup.folder import BackupFolder
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.errors import BookieFullError
from spark_bookkeeper.protocol.accepted_loss import kept_entries
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.replication.runner import Failure, Step
from spark_bookkeeper.replication.stragglers import name_of

FILE_BYTES: Final = 32 << 20
"""Approximate size of a file of a backup."""

PIECE_BYTES: Final = 512 << 20
"""Approximate amount that one task copies."""


@dataclass(frozen=True, slots=True)
class SaveWork:
    """Copy the entries of a range of one ledger that a backup lacks."""

    ledger: Ledger
    uri: str
    incarnation: str
    first_entry_id: EntryId
    last_entry_id: EntryId
    verify: bool
    size_bytes: int

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self.ledger.ledger_id

    def name(self) -> str:
        """Return the name of the range, for messages."""
        return name_of(self.ledger_id, self.first_entry_id)


@dataclass(frozen=True, slots=True)
class Saved:
    """The result for a range."""

    ledger_id: LedgerId
    entries: int
    bytes: int
    length_after: int = 0
    """Bytes in the ledger up to the last entry of the range."""
    reason: str | None = None


def cut(last: EntryId, size_bytes: int) -> Iterator[tuple[EntryId, EntryId, int]]:
    """Cut entries 0 to ``last`` into ranges of ``PIECE_BYTES`` each: yield first, last, bytes."""
    if last == NO_ENTRY:
        return
    count = max(1, (last + 1) * PIECE_BYTES // max(PIECE_BYTES, size_bytes))
    for first in range(0, last + 1, count):
        end = min(last, first + count - 1)
        yield EntryId(first), EntryId(end), size_bytes * (end - first + 1) // (last + 1)


def pieces_of(
    ledger: Ledger, last: EntryId, uri: str, incarnation: str, *, verify: bool
) -> Iterator[SaveWork]:
    """Yield the ranges of a ledger up to its entry ``last``.

    Args:
        uri: URI of the backup's directory.
        verify: read existing copies again.
    """
    for first, end, size_bytes in cut(last, ledger.metadata.length_bytes or 0):
        yield SaveWork(ledger, uri, incarnation, first, end, verify, size_bytes)


def _not_saved(work: SaveWork, failure: Failure) -> Saved:
    return Saved(work.ledger_id, 0, 0, reason=failure.reason)


def _save(context: ClientContext, work: SaveWork) -> Sequence[Saved]:
    """Copy the missing entries, which the bookie reads back, and check that none is missing."""
    ledger_id = work.ledger_id
    folder = BackupFolder(context, work.uri)
    target = folder.replica(work.ledger, work.incarnation)
    ids = kept_entries(work.ledger.metadata, work.first_entry_id, work.last_entry_id)
    held = target.holdings(work.first_entry_id, work.last_entry_id)
    lacking = held.lacking(ids)
    if work.verify:
        there = sorted(set(ids).difference(lacking))
        lacking = sorted({*lacking, *(target.verify(there).refused if there else ())})
    size = 0
    for first, last in runs_of(lacking):
        for entries in _groups(Fetcher(context, work.ledger).fetch(first, last)):
            try:
                target.write_copies(entries)
            except BookieFullError as error:
                return [Saved(ledger_id, 0, size, reason=folder.without_room(error))]
            size += sum(entry.size_bytes for entry in entries)
    now = target.holdings(work.first_entry_id, work.last_entry_id)
    if missing := now.lacking(ids):
        return [Saved(ledger_id, 0, size, reason=f"entry {missing[0]} is not found in the backup")]
    return [Saved(ledger_id, len(lacking), size, now.length_after(work.last_entry_id) or 0)]


def runs_of(entry_ids: Sequence[int]) -> Iterator[tuple[EntryId, EntryId]]:
    """Yield ascending ids as ranges."""
    start, ends = 0, range(1, len(entry_ids) + 1)
    if entry_ids and entry_ids[-1] - entry_ids[0] == len(entry_ids) - 1:
        ends = ends[-1:]  # usually it is one range, and may have millions of ids
    for end in ends:
        if end == len(entry_ids) or entry_ids[end] != entry_ids[end - 1] + 1:
            yield EntryId(entry_ids[start]), EntryId(entry_ids[end - 1])
            start = end


def _groups(entries: Iterator[StoredEntry]) -> Iterator[list[StoredEntry]]:
    """Yield the entries in groups that each fit into one file."""
    group: list[StoredEntry] = []
    size = 0
    for entry in entries:
        if group and size + entry.size_bytes > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size_bytes
    if group:
        yield group


SAVING: Final = Step("copying ledgers", _save, _not_saved)
