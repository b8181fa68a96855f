"""Remove files of a closed ledger from a bookie, apart from compaction: entries that the metadata
do not assign to the bookie, and the remains of unfinished writes.

Source: SLOT-LOG rules R15, R19, R21.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_bookkeeper.bookie.bookie import Swept
from spark_bookkeeper.bookie.index import Doubt, EntryIndex
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.part_files import REMOVING
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.errors import CorruptEntryError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Share


def clear(log: LedgerLog) -> None:
    """See ``Bookie.clear``. Slots are removed only below a fence, which stays. A writer that has
    paused since the ledger's metadata listed the bookie still finds that fence.
    """
    paths, storage = log.paths, log.storage
    log.check()
    adds = [number for number in sorted(log.slot_numbers()) if not log.is_fence(number)]
    if adds and not log.ends_in_fence():
        log.fence()
        adds = [number for number in sorted(log.slot_numbers()) if not log.is_fence(number)]
    storage.delete(*(paths.slot(number) for number in adds))
    storage.delete(*(paths.copy(name) for name in storage.list(paths.copies)))
    parts = [name for name in storage.list(paths.parts) if not name.endswith(REMOVING)]
    storage.delete(*(paths.part(name) for name in parts))  # marks stay for ever [part_mark]
    log.look_again()


def sweep(
    log: LedgerLog, before_ms: int, shares: Sequence[Share], *, dry_run: bool = False
) -> Swept:
    """See ``Bookie.sweep``."""
    paths, storage = log.paths, log.storage
    log.check()
    found: list[str] = []
    for directory in (paths.directory, paths.slots, paths.parts, paths.copies):
        found += (f"{directory}/{name}" for name in storage.temporary_files(directory))
    found = [path for path in found if _is_older(log, path, before_ms)]
    found += _unlisted_parts(log, before_ms, shares, dry_run=dry_run)
    size_bytes = sum(storage.size(path) or 0 for path in found)
    if not dry_run:
        storage.delete(*found)
    return Swept(len(found), size_bytes)


def _unlisted_parts(
    log: LedgerLog, before_ms: int, shares: Sequence[Share], *, dry_run: bool
) -> list[str]:
    """Return parts that no record lists or can list from now on. Each gets a mark.

    After a fence no add can list a part. But a copy can: another process may have copied the part
    here, and not have listed it yet. So this function first marks the part, then searches the
    records; the other process first lists the part, then checks for a mark. At least one of the two
    sees the other [part_mark]. Marks stay, so the name is never used again: a process that pauses
    here, and removes the part later, removes no needed file.
    """
    names = [name for name in log.storage.list(log.paths.parts) if not name.endswith(REMOVING)]
    old = [name for name in names if _is_older(log, log.paths.part(name), before_ms)]
    unlisted = _unlisted(log, old, shares)
    if unlisted and not dry_run:
        if not log.ends_in_fence():
            log.fence()
        for name in unlisted:
            log.storage.put_if_absent(log.parts.mark(name), b"")
        unlisted = _unlisted(log, unlisted, shares)
    return [log.paths.part(name) for name in unlisted]


def _unlisted(log: LedgerLog, names: Sequence[str], shares: Sequence[Share]) -> list[str]:
    """Return the parts that no record lists. Raises ``CorruptEntryError`` if that is uncertain.

    A lost slot may have listed parts. But they are not needed if this bookie has every entry that
    the slot may have held and that the metadata assign to the bookie: a compaction moved these
    entries, or a repair restored them.
    """
    if not names:
        return []
    log.look_again()
    index = log.locate(0)
    listed = {part.ref.name for holding in index.holdings for part in holding.record.parts}
    unlisted = sorted(set(names) - listed)
    whole: set[tuple[int, int]] = set()
    for doubt in index.doubts if unlisted else ():
        held = doubt.first, doubt.last  # after compaction, all lost slots have the same range
        if doubt.is_lost and (held in whole or all(_is_here(log, index, doubt, s) for s in shares)):
            whole.add(held)
            continue
        raise CorruptEntryError(
            f"bookie {log.bookie_id}: {doubt.path} cannot be read ({doubt.reason}), so nobody "
            "knows which parts are needed; repair the ledger first, or repeat it",
            bookie_id=log.bookie_id,
            path=doubt.path,
        )
    return unlisted


def _is_here(log: LedgerLog, index: EntryIndex, doubt: Doubt, share: Share) -> bool:
    """Whether the bookie has every entry of a share that a doubtful slot may have held. The entries
    are read, since a record may list a part that is gone or damaged.
    """
    quorum = share.quorum
    first, last = max(share.first, EntryId(doubt.first)), min(share.last, EntryId(doubt.last))
    ids = index.entry_ids
    ids = ids[np.searchsorted(ids, first) : np.searchsorted(ids, last, side="right")]
    is_of_it = (share.position - ids) % quorum.ensemble_size < quorum.write_quorum_size
    wanted = ids[is_of_it].tolist()
    if len(wanted) != quorum.entries_held(share.position, first, last):
        return False
    return not wanted or len(Retrieval(log, wanted, index).verify().good) == len(wanted)


def _is_older(log: LedgerLog, path: str, before_ms: int) -> bool:
    """Whether a file is certainly older than ``before_ms``."""
    modified_ms = log.storage.modified_ms(path)
    return modified_ms is not None and modified_ms < before_ms
