"""Copies of entries on another bookie: of whole part files where the entries lie in parts.

Used wherever entries are made again: by recovery before it closes a ledger, and by
re-replication. A copy is named by its content, so making it twice makes it once; it needs no
slot and never disturbs a writer (SLOT-LOG "Copies").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spark_bookkeeper.bookie.entry import PlacedPart, StoredEntry
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.client.holdings import crosswise, locate, read_verified, verify
from spark_bookkeeper.errors import (
    BookieError,
    BookieUnavailableError,
    BookKeeperError,
    EntryUnreadableError,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.reader import Reader, Unreadable

COPY_BYTES = 8 << 20
"""Small entries that share one copy file, about."""

COPY_ENTRIES = 16_384
"""And at most so many."""

Throttle = Callable[[int], None]
"""Called with bytes about to be copied; waits while they are too many."""


class TargetError(Exception):
    """The bookie that was to take the copies could not; the cause says why."""

    def __init__(self, cause: BookKeeperError) -> None:
        super().__init__(cause.message)
        self.cause = cause


def no_throttle(size_bytes: int) -> None:
    """Copies as fast as the storage goes."""


def copy_entries(
    ledger_id: LedgerId,
    quorum: Quorum,
    ensemble: tuple[BookieId, ...],
    entries: Sequence[EntryId],
    sources: Mapping[int, LedgerLog],
    preference: Sequence[int],
    target: LedgerLog,
    throttle: Throttle = no_throttle,
) -> int:
    """Copy entries of one fragment to a bookie, durably, and read them back.

    What the target holds already, verified, is not copied again.

    Args:
        entries: ascending, at least one.
        sources: a bookie's log for each position that may be read from.
        preference: positions in the order they are asked.

    Returns:
        bytes of the entries that were copied.

    Raises:
        EntryUnreadableError: no source could deliver an entry.
        TargetError: the target could not store, or not read back. What was copied stays, and is
            found when the copy is repeated.
    """
    try:
        held, _ = verify(target, entries)
    except BookKeeperError as error:
        raise TargetError(error) from error
    wanted = [e for e in entries if e not in held]
    reader = Reader(quorum, ensemble, wanted, [p for p in preference if p in sources])
    copied = 0
    while wanted:
        asks = reader.next()
        if isinstance(asks, Unreadable):
            run = _CopyRun(next(iter(sources.values()), target), target, throttle)
            done = run.copy_crosswise(list(sources.values()), reader.waiting)
            if asks.entry_id not in done:
                raise _unreadable(ledger_id, asks)
            copied += run.copied_bytes
            reader.delivered(done)
            continue
        if not asks:
            break
        for ask in asks:
            run = _CopyRun(sources[ask.position], target, throttle)
            done, refused = run.copy(ask.entries)
            copied += run.copied_bytes
            reader.delivered(done)
            for entry_id, cause in refused.items():
                reader.refused(ask.position, [entry_id], cause)
    if wanted:
        _, refused = verify(target, entries)
        if refused:
            entry_id, cause = next(iter(refused.items()))
            raise TargetError(
                BookieUnavailableError(
                    f"bookie {target.bookie_id}: {len(refused)} entries copied there cannot be "
                    "read "
                    f"back, entry {entry_id} first: {cause}",
                    bookie_id=target.bookie_id,
                )
            )
    return copied


class _CopyRun:
    """Copies from one bookie to another."""

    def __init__(self, source: LedgerLog, target: LedgerLog, throttle: Throttle) -> None:
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
        refused = self._copy_inline(index, left)
        return [e for e in entries if e not in refused], refused

    def _copy_parts(self, index: EntryIndex, entries: Sequence[EntryId]) -> set[EntryId]:
        """Whole part files, for all the entries wanted that lie in parts."""
        wanted = set(entries)
        done: set[EntryId] = set()
        placed: list[PlacedPart] = []
        for part in (part for holding in index.holdings for part in holding.record.parts):
            inside = wanted.intersection(map(EntryId, part.entry_ids)) - done
            if not inside:
                continue
            self._throttle(part.ref.size_bytes)
            try:
                ref = self._target.copy_part(self._source, part.ref)
            except BookieError as error:
                if getattr(error, "bookie_id", None) == self._target.bookie_id:
                    raise TargetError(error) from error
                continue  # entry by entry then: most of a damaged part may still be good
            placed.append(PlacedPart(ref, part.entry_ids, part.lengths_after))
            done |= inside
            self.copied_bytes += part.ref.size_bytes
        if placed:
            self._write((), placed)
        return done

    def _copy_inline(self, index: EntryIndex, entries: Sequence[EntryId]) -> dict[EntryId, str]:
        refused: dict[EntryId, str] = {}
        for start in range(0, len(entries), COPY_ENTRIES):
            found, bad = read_verified(self._source, entries[start : start + COPY_ENTRIES], index)
            refused |= bad
            self._write_groups(found)
        return refused

    def copy_crosswise(
        self, logs: Sequence[LedgerLog], entries: Sequence[EntryId]
    ) -> list[EntryId]:
        """Copy what one bookie's records tell of from another's files; what was copied."""
        done: list[EntryId] = []
        for log, index, known in crosswise(logs, entries):
            wanted = [entry_id for entry_id in known if entry_id not in done]
            for start in range(0, len(wanted), COPY_ENTRIES):
                found, _ = read_verified(log, wanted[start : start + COPY_ENTRIES], index)
                self._write_groups(found)
                done += found
        return done

    def _write_groups(self, found: Mapping[EntryId, StoredEntry]) -> None:
        group: list[StoredEntry] = []
        size = 0
        for entry_id in sorted(found):
            entry = found[entry_id]
            if group and size + entry.size_bytes > COPY_BYTES:
                self._write(group, ())
                group, size = [], 0
            group.append(entry)
            size += entry.size_bytes
        if group:
            self._write(group, ())

    def _write(self, group: Sequence[StoredEntry], parts: Sequence[PlacedPart]) -> None:
        size = sum(entry.size_bytes for entry in group)
        self._throttle(size)
        try:
            self._target.write_copy(group, parts)
        except BookKeeperError as error:
            raise TargetError(error) from error
        self.copied_bytes += size


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
