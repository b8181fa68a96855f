"""Copy entries to another bookie; entries in parts are copied as whole part files.

Recovery uses this before it closes a ledger, and so does rereplication. A copy's name derives from
its content, so repeating it makes no second copy. It needs no slot and never disturbs a writer
(SLOT-LOG "Copies").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from spark_bookkeeper.bookie.entry import PlacedPart, StoredEntry
from spark_bookkeeper.bookie.holdings import Holdings
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.read.salvage import salvage
from spark_bookkeeper.errors import (
    BookieError,
    BookieUnavailableError,
    BookKeeperError,
    EntryUnreadableError,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.reader import Reader, Unreadable
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage.bookie_client import aside

COPY_BYTES = 8 << 20
"""About how many bytes of small entries share one copy file."""

COPY_ENTRIES = 16_384
"""The most entries that share one copy file."""

FILES_AT_ONCE = 4
"""Number of a share's files in work at once: some are read (back) while others are synced."""

T = TypeVar("T")

Throttle = Callable[[int], None]
"""Called with the number of copied bytes; waits while there are too many. Any thread calls it."""


class TargetError(Exception):
    """Raised when the target could not store or read back copies; the cause says why."""

    def __init__(self, cause: BookKeeperError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class AskBoth(Protocol):
    """Runs a function that calls two bookies in turn, in one task, as ``Bookies.ask_both``."""

    def __call__(self, source: Replica, target: Replica, purpose: str, run: Callable[[], T]) -> T:
        """Return the result of ``run``."""


def each_by_itself(source: Replica, target: Replica, purpose: str, run: Callable[[], T]) -> T:
    """Call ``run`` directly."""
    return run()


def no_throttle(size_bytes: int) -> None:
    """Never wait: copy as fast as the storage allows."""


def copy_entries(
    runtime: Runtime,
    ledger_id: LedgerId,
    quorum: Quorum,
    ensemble: tuple[BookieId, ...],
    entries: Sequence[EntryId],
    sources: Mapping[int, Replica],
    preference: Sequence[int],
    target: Replica,
    throttle: Throttle = no_throttle,
    *,
    held: Collection[EntryId] | None = None,
    ask_both: AskBoth = each_by_itself,
) -> int:
    """Copy entries of one fragment to a bookie, durably, and read them back.

    Entries that the target holds, verified, are not copied again. Several files are in work at
    once: while one is synced, the next is read, and another is read back.

    Args:
        entries: ascending, at least one.
        sources: the replica for each position that may be read from.
        preference: positions in the order in which they are read.
        held: the entries that the target is known to hold; ``None`` verifies them now.
        ask_both: runs the copy of one file from one bookie to the other.

    Returns:
        bytes of the entries that were copied.

    Raises:
        EntryUnreadableError: no source could deliver an entry.
        TargetError: the target could not store or not read back. Copies stay, and a repeated copy
            finds them.
    """
    there = _held(target, entries) if held is None else held
    wanted = [e for e in entries if e not in there]
    reader = Reader(quorum, ensemble, wanted, [p for p in preference if p in sources])
    copied = 0
    while wanted:
        asks = reader.next()
        if isinstance(asks, Unreadable):
            source = next(iter(sources.values()), target)
            run = _CopyRun(runtime, source, target, throttle, ask_both)
            done = run.copy_salvaged(list(sources.values()), reader.waiting)
            if asks.entry_id not in done:
                raise _unreadable(ledger_id, asks)
            copied += run.copied_bytes
            reader.delivered(done)
            continue
        if not asks:
            break
        for ask in asks:
            run = _CopyRun(runtime, sources[ask.position], target, throttle, ask_both)
            done, refused = run.copy(ask.entries)
            copied += run.copied_bytes
            reader.answered(ask, done, refused)
    if wanted:
        _check_found(target, wanted)
    return copied


def _held(target: Replica, entries: Sequence[EntryId]) -> Collection[int]:
    """Return the entries that can be read at the target now; none if it does not answer."""
    try:
        return target.verify(entries).good.keys()
    except BookKeeperError:
        return ()


def _check_found(target: Replica, entries: Sequence[EntryId]) -> None:
    """Check that a look-up finds the copies. Their bytes were read back when each file was
    written.
    """
    try:
        missing = target.holdings(entries[0], entries[-1]).lacking(entries)
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
        self,
        runtime: Runtime,
        source: Replica,
        target: Replica,
        throttle: Throttle,
        ask_both: AskBoth,
    ) -> None:
        self._runtime = runtime
        self._source = source
        self._target = target
        self._throttle = throttle
        self._ask_both = ask_both
        self.copied_bytes = 0

    def copy(self, entries: Sequence[EntryId]) -> tuple[list[EntryId], dict[EntryId, str]]:
        """Copy entries of the source; return them and the failures. Raises ``TargetError``."""
        try:
            found = self._source.holdings(entries[0], entries[-1])
        except BookKeeperError as error:
            return [], dict.fromkeys(entries, error.message)
        done = self._copy_parts(found, entries)
        left = [e for e in entries if e not in done]
        refused = self._copy_inline(self._source, found, left)
        return [e for e in entries if e not in refused], refused

    def _copy_parts(self, found: Holdings, entries: Sequence[EntryId]) -> set[EntryId]:
        """Copy whole part files, for all wanted entries that are in parts."""
        wanted = set(entries)
        useful: list[PlacedPart] = []
        for part in found.parts:
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
        """Copy a part and read it back; return it under its new name, ``None`` if it is damaged."""

        def copy() -> PlacedPart | None:
            ref = self._target.copy_part(self._source, part.ref, self._wait_for)
            placed = replace(part, ref=ref)
            return placed if self._target.check_part(placed) else None

        try:
            purpose = f"copying {part.ref.name} from {self._source.bookie_id}"
            return self._ask_both(self._source, self._target, purpose, copy)
        except BookieError as error:
            if error.bookie_id == self._target.bookie_id:
                raise TargetError(error) from error
            return None  # then entry by entry: most of the part may be good

    def _copy_inline(
        self, source: Replica, known: Holdings, entries: Sequence[EntryId]
    ) -> dict[EntryId, str]:
        """Copy entry by entry, in files of ``COPY_BYTES``; return why entries could not be read."""

        def copy(group: Sequence[EntryId]) -> tuple[dict[EntryId, str], int]:
            delivery = source.read(group, known)
            entries = sorted(delivery.found, key=lambda entry: entry.entry_id)
            refused = {EntryId(entry_id): why for entry_id, why in delivery.refused.items()}
            return refused, self._write(entries, ()) if entries else 0

        def ask(group: Sequence[EntryId]) -> tuple[dict[EntryId, str], int]:
            purpose = f"copying entries {group[0]} to {group[-1]} from {source.bookie_id}"
            try:
                return self._ask_both(source, self._target, purpose, lambda: copy(group))
            except BookieError as error:
                if error.bookie_id == self._target.bookie_id:
                    raise TargetError(error) from error
                return dict.fromkeys(group, error.message), 0

        refused: dict[EntryId, str] = {}
        groups = list(_groups(known, entries))
        for bad, size in self._runtime.map(ask, groups, FILES_AT_ONCE):
            refused |= bad
            self.copied_bytes += size
        return refused

    def copy_salvaged(
        self, replicas: Sequence[Replica], entries: Sequence[EntryId]
    ) -> list[EntryId]:
        """Copy entries that the records of one bookie list and the files of another hold; return
        the copied ones.
        """
        done: dict[EntryId, None] = {}
        for replica, told, known in salvage(replicas, entries):
            wanted = [entry_id for entry_id in known if entry_id not in done]
            refused = self._copy_inline(replica, told, wanted) if wanted else {}
            done |= dict.fromkeys(entry_id for entry_id in wanted if entry_id not in refused)
        return list(done)

    def _wait_for(self, size_bytes: int) -> None:
        """Wait until the throttle allows these bytes; other calls may use the place meanwhile."""
        aside(partial(self._throttle, size_bytes))

    def _write(self, group: Sequence[StoredEntry], parts: Sequence[PlacedPart]) -> int:
        """Write a file durably; return the bytes of ``group``."""
        size = sum(entry.size_bytes for entry in group)
        self._wait_for(size)
        try:
            self._target.write_copies(group, parts)
        except BookKeeperError as error:
            raise TargetError(error) from error
        return size


def _groups(known: Holdings, entries: Sequence[EntryId]) -> Iterator[list[EntryId]]:
    """Yield the entries of one copy file at a time; those of a message stay in one file.

    A large message has a file for itself: it is copied as it is, and not encoded again.
    """
    group: list[EntryId] = []
    size = 0
    for message, more in _messages(known, entries):
        is_large = max(size, more) > COPY_BYTES // 2
        if group and (is_large or len(group) + len(message) > COPY_ENTRIES):
            yield group
            group, size = [], 0
        group += message
        size += more
    if group:
        yield group


def _messages(
    known: Holdings, entries: Sequence[EntryId]
) -> Iterator[tuple[Sequence[EntryId], int]]:
    """Yield runs of entries that are in one message, each with its size."""
    numbers, sizes = known.pieces(entries)
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
