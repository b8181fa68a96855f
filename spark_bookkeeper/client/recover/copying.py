"""Copies of entries on another bookie: of whole part files where the entries lie in parts.

Used wherever entries are made again: by recovery before it closes a ledger, and by
re-replication. A copy is named by its content, so making it twice makes it once; it needs no
slot and never disturbs a writer (SLOT-LOG "Copies").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from spark_bookkeeper.bookie.entry import NO_ROW, Location, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.client.read.holdings import crosswise, locate, read_verified, verify
from spark_bookkeeper.errors import (
    BookieError,
    BookieUnavailableError,
    BookKeeperError,
    CorruptEntryError,
    EntryUnreadableError,
)
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.reader import Reader, Unreadable
from spark_bookkeeper.runtime.runtime import Runtime

COPY_BYTES = 8 << 20
"""Small entries that share one copy file, about."""

COPY_ENTRIES = 16_384
"""And at most so many."""

FILES_AT_ONCE = 4
"""Written at once for one share: some are read or read back while others are synced."""

Throttle = Callable[[int], None]
"""Called with bytes that are copied; waits while they are too many. Any thread calls."""


class TargetError(Exception):
    """The bookie that was to take the copies could not; the cause says why."""

    def __init__(self, cause: BookKeeperError) -> None:
        super().__init__(cause.message)
        self.cause = cause


def no_throttle(size_bytes: int) -> None:
    """Copies as fast as the storage goes."""


def copy_entries(
    runtime: Runtime,
    ledger_id: LedgerId,
    quorum: Quorum,
    ensemble: tuple[BookieId, ...],
    entries: Sequence[EntryId],
    sources: Mapping[int, LedgerLog],
    preference: Sequence[int],
    target: LedgerLog,
    throttle: Throttle = no_throttle,
    *,
    held: Collection[EntryId] | None = None,
) -> int:
    """Copy entries of one fragment to a bookie, durably, and read them back.

    What the target holds already, verified, is not copied again. Several files are under way at
    once: while one is synced, the next is read, and another is read back.

    Args:
        entries: ascending, at least one.
        sources: a bookie's log for each position that may be read from.
        preference: positions in the order they are asked.
        held: what the target is known to hold; ``None`` is what can be read there now.

    Returns:
        bytes of the entries that were copied.

    Raises:
        EntryUnreadableError: no source could deliver an entry.
        TargetError: the target could not store, or not read back. What was copied stays, and is
            found when the copy is repeated.
    """
    try:
        there = verify(target, entries)[0] if held is None else held
    except BookKeeperError as error:
        raise TargetError(error) from error
    wanted = [e for e in entries if e not in there]
    reader = Reader(quorum, ensemble, wanted, [p for p in preference if p in sources])
    copied = 0
    while wanted:
        asks = reader.next()
        if isinstance(asks, Unreadable):
            run = _CopyRun(runtime, next(iter(sources.values()), target), target, throttle)
            done = run.copy_crosswise(list(sources.values()), reader.waiting)
            if asks.entry_id not in done:
                raise _unreadable(ledger_id, asks)
            copied += run.copied_bytes
            reader.delivered(done)
            continue
        if not asks:
            break
        for ask in asks:
            run = _CopyRun(runtime, sources[ask.position], target, throttle)
            done, refused = run.copy(ask.entries)
            copied += run.copied_bytes
            reader.answered(ask, done, refused)
    if wanted:
        _check_found(target, wanted)
    return copied


def _check_found(target: LedgerLog, entries: Sequence[EntryId]) -> None:
    """Whoever looks for the copies finds them. Every file was read back when it was written."""
    try:
        missing = locate(target, entries).lacking(entries)
    except BookKeeperError as error:
        raise TargetError(error) from error
    if missing:
        raise TargetError(
            BookieUnavailableError(
                f"bookie {target.bookie_id}: {len(missing)} entries copied there are not found, "
                f"entry {missing[0]} first",
                bookie_id=target.bookie_id,
            )
        )


class _CopyRun:
    """Copies from one bookie to another."""

    def __init__(
        self, runtime: Runtime, source: LedgerLog, target: LedgerLog, throttle: Throttle
    ) -> None:
        self._runtime = runtime
        self._source = source
        self._target = target
        self._throttle = throttle
        self.copied_bytes = 0

    def copy(self, entries: Sequence[EntryId]) -> tuple[list[EntryId], dict[EntryId, str]]:
        """Copy what the source can deliver; the reasons for the rest. Raises ``TargetError``."""
        try:
            index = locate(self._source, entries)
        except BookKeeperError as error:
            return [], dict.fromkeys(entries, error.message)
        done = self._copy_parts(index, entries)
        left = [e for e in entries if e not in done]
        refused = self._copy_inline(self._source, index, left)
        return [e for e in entries if e not in refused], refused

    def _copy_parts(self, index: EntryIndex, entries: Sequence[EntryId]) -> set[EntryId]:
        """Whole part files, for all the entries wanted that lie in parts."""
        wanted = set(entries)
        useful: list[PlacedPart] = []
        for part in (part for holding in index.holdings for part in holding.record.parts):
            inside = wanted.intersection(map(EntryId, part.entry_ids))
            if inside:
                useful.append(part)
                wanted -= inside
        copies = self._runtime.map(self._copy_part, useful, FILES_AT_ONCE)
        placed = [part for part in copies if part is not None]
        if placed:
            self._write((), placed)
        self.copied_bytes += sum(part.ref.size_bytes for part in placed)
        return set(entries).intersection(EntryId(e) for part in placed for e in part.entry_ids)

    def _copy_part(self, part: PlacedPart) -> PlacedPart | None:
        """A part as it is named at the target, read back; ``None`` if the source's is no good."""
        try:
            ref = self._target.parts.copy_from(self._source.parts, part.ref, self._throttle)
            if not self._target.parts.holds(ref):
                raise BookieUnavailableError(
                    f"bookie {self._target.bookie_id}: {ref.name} is not read back as written",
                    bookie_id=self._target.bookie_id,
                )
        except BookieError as error:
            if getattr(error, "bookie_id", None) == self._target.bookie_id:
                raise TargetError(error) from error
            return None  # entry by entry then: most of a damaged part may still be good
        placed = replace(part, ref=ref)
        return placed if self._matches_digests(placed) else None

    def _matches_digests(self, part: PlacedPart) -> bool:
        """Whether a part at the target, whose checksum is right, is what was once appended.

        Anybody can make a checksum fit; a keyed digest says more. If it does not match, the bytes
        are as they were read: the fault is the source's, or of what the target had before.
        """
        if self._target.encoding.digest_type is not DigestType.MAC:
            return True
        try:
            for _ in self._target.read_many(_places(self._target.key.part(part.ref.name), part)):
                pass
        except CorruptEntryError:
            return False
        except BookieError as error:
            raise TargetError(error) from error
        return True

    def _copy_inline(
        self, source: LedgerLog, index: EntryIndex, entries: Sequence[EntryId]
    ) -> dict[EntryId, str]:
        """Entry by entry, in files of ``COPY_BYTES``; why the rest could not be read."""

        def copy(group: Sequence[EntryId]) -> tuple[dict[EntryId, str], int]:
            found, refused = read_verified(source, group, index)
            entries = [found[entry_id] for entry_id in sorted(found)]
            return refused, self._write(entries, ()) if entries else 0

        refused: dict[EntryId, str] = {}
        groups = list(_groups(index, entries))
        for bad, size in self._runtime.map(copy, groups, FILES_AT_ONCE):
            refused |= bad
            self.copied_bytes += size
        return refused

    def copy_crosswise(
        self, logs: Sequence[LedgerLog], entries: Sequence[EntryId]
    ) -> list[EntryId]:
        """Copy what one bookie's records tell of from another's files; what was copied."""
        done: dict[EntryId, None] = {}
        for log, index, known in crosswise(logs, entries):
            wanted = [entry_id for entry_id in known if entry_id not in done]
            refused = self._copy_inline(log, index, wanted)
            done |= dict.fromkeys(entry_id for entry_id in wanted if entry_id not in refused)
        return list(done)

    def _write(self, group: Sequence[StoredEntry], parts: Sequence[PlacedPart]) -> int:
        """Bytes of the group, when they are durably there."""
        size = sum(entry.size_bytes for entry in group)
        self._throttle(size)
        try:
            self._target.write_copy(group, parts)
        except BookKeeperError as error:
            raise TargetError(error) from error
        return size


def _places(path: str, part: PlacedPart) -> Iterator[Location]:
    """Where the entries of a part are, at that path."""
    offset = part.ref.first_offset
    for entry_id, size, length_after, digest in zip(
        part.entry_ids, part.ref.sizes, part.lengths_after, part.ref.digests, strict=True
    ):
        yield Location(
            entry_id, path, offset, size, 0, NO_ROW, size, length_after, NO_ENTRY, digest,
            part.appended_at_ms,
        )  # fmt: skip
        offset += size


def _groups(index: EntryIndex, entries: Sequence[EntryId]) -> Iterator[list[EntryId]]:
    """Entries that share a copy file: neighbours, and those that share a message not parted.

    A large message has a file for itself: it is copied as it is, and not encoded again.
    """
    group: list[EntryId] = []
    size = 0
    for message, more in _messages(index, entries):
        is_large = max(size, more) > COPY_BYTES // 2
        if group and (is_large or len(group) + len(message) > COPY_ENTRIES):
            yield group
            group, size = [], 0
        group += message
        size += more
    if group:
        yield group


def _messages(
    index: EntryIndex, entries: Sequence[EntryId]
) -> Iterator[tuple[Sequence[EntryId], int]]:
    """Runs of entries that lie in one message, each with its size."""
    numbers, sizes = index.messages(entries)
    is_new = (numbers[1:] != numbers[:-1]) | (numbers[1:] == -1)
    starts = (np.flatnonzero(is_new) + 1).tolist()
    sizes_before = [0, *np.cumsum(sizes).tolist()]
    for start, end in pairwise([0, *starts, len(entries)]):
        for at in range(start, end, COPY_ENTRIES):
            until = min(at + COPY_ENTRIES, end)
            yield entries[at:until], sizes_before[until] - sizes_before[at]


def _unreadable(ledger_id: LedgerId, found: Unreadable) -> EntryUnreadableError:
    causes = "; ".join(f"{b}: {why}" for b, why in found.causes.items()) or "no bookie is left"
    return EntryUnreadableError(
        f"entry {found.entry_id} of ledger {ledger_id} cannot be read from any bookie of its write "
        f"set ({causes}). Bring one of them back with its storage, then repeat; do not delete the "
        "ledger",
        ledger_id=ledger_id,
        entry_id=found.entry_id,
        causes=dict(found.causes),
    )
