"""Operations on batches of ledgers of one bookie, which share their slow steps.

On a disk, a few syncs take most of the time of a small ledger. So the files of many ledgers are
synced by few storage calls (``Storage.put_all``), in the order that each ledger needs. In an object
store each ledger takes these steps separately, in rounds with the others (``storage/batching.py``).

A batch handles only the usual case. A ledger with a hole, a fence of another client or damage gets
no answer here. If a call for the whole batch fails, no ledger gets one. No conclusion is drawn
about a ledger without an answer: the caller repeats the operation for that ledger alone, and finds
the files that this call put, as after any lost answer (SLOT-LOG rule R3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TypeVar

from spark_bookkeeper.bookie.bookie import NewCopies
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.index import EntryIndex, Tail
from spark_bookkeeper.bookie.location import Location
from spark_bookkeeper.bookie.log import LedgerLog, MarkerData, read_marker_data
from spark_bookkeeper.bookie.record import encode_copy
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.storage.storage import Storage

V = TypeVar("V")
W = TypeVar("W")


def fence_together(storage: Storage, logs: Mapping[int, LedgerLog]) -> dict[int, Tail]:
    """Fence ledgers as ``LedgerLog.fence`` does, if a fence above all listed slots is enough.

    The order is the same as there: make the slots below the fences durable [fence_on_durable], put
    the fences durably [durable_ack], read the ends [fresh_negative], then read the marker
    [cookie_neg].
    """
    occupied = _of_each(logs, lambda log, _: log.look())
    places = _of_each(occupied, lambda seen, n: logs[n].usual_fence(seen))
    wanted = {n: place for n, place in places.items() if place is not None}
    unknown = {n for n in wanted if not occupied[n]}
    try:
        if unknown:
            storage.make_directories([logs[n].paths.slots for n in sorted(unknown)])
            kept = _of_each({n: logs[n] for n in unknown}, lambda log, _: log.check_tombstone())
            unknown &= kept.keys()  # as in ``LedgerLog.prepare`` [gc_tombstone]
            wanted = {n: place for n, place in wanted.items() if occupied[n] or n in unknown}
        below = {n: logs[n].paths.slot(max(occupied[n])) for n in wanted if n not in unknown}
        # The slots below were only found, and the fences rely on them (R9b).
        # A name that existed means a lost race, or an earlier attempt of this put.
        found = [path for n, path in below.items() if path not in logs[n].durable]
        put = _put(storage, wanted, found)
        for n, path in below.items():
            logs[n].durable.add(path)
        ends = _of_each(put, lambda _, n: logs[n].end(occupied[n]))
        marker = read_marker_data(storage)
    except BookKeeperError:
        return {}
    return _of_each(ends, lambda end, n: logs[n].fenced(end, len(occupied[n]), marker=marker))


def locate_together(
    storage: Storage, wanted: Mapping[int, tuple[LedgerLog, int, int | None]]
) -> dict[int, EntryIndex]:
    """Call ``LedgerLog.locate`` for many ledgers, with one read of the marker after all searches.
    That proves as much for each ledger as a separate read [cookie_neg].
    """
    if not wanted:
        return {}
    found = _of_each(wanted, lambda one, _: one[0].search(one[1], one[2]))
    try:
        marker = read_marker_data(storage)
    except BookKeeperError:
        return {}
    return _of_each(found, lambda index, n: wanted[n][0].located(index, marker=marker))


def verify_together(storage: Storage, retrievals: Mapping[int, Retrieval]) -> dict[int, Verdict]:
    """Call ``Retrieval.verify`` for a batch, with one sync call for the files of all.

    Files that a fence of this session has read and made durable are not read again. So the marker
    is read after all comparisons: if the partition was wiped since the fence, no file is good.
    """
    if not retrievals:
        return {}
    good = _of_each(retrievals, lambda each, _: each.compare(each.log.take_whole()))
    # The slot below a fence of this session was made durable before the fence (R9b).
    paths = [
        path
        for n, found in good.items()
        for path in retrievals[n].relied_on(found)
        if path not in retrievals[n].log.durable
    ]
    try:
        if paths:
            storage.sync_all(paths)
        marker = read_marker_data(storage)
    except BookKeeperError:
        return {}

    def verdict(found: Mapping[int, Location], n: int) -> Verdict:
        retrievals[n].log.check_life(marker)  # [cookie_neg]
        return retrievals[n].verdict(found)

    return _of_each(good, verdict)


def empty_together(storage: Storage, logs: Mapping[int, LedgerLog]) -> Set[int]:
    """Return the ledgers that accept copies (``LedgerLog.check``) and have no file here yet."""
    if not storage.has_directories or not logs:
        return frozenset()

    def is_empty(log: LedgerLog, _: int) -> bool:
        log.check_tombstone()
        return not storage.list(log.paths.directory)

    found = _of_each(logs, is_empty)
    try:
        marker = read_marker_data(storage)
    except BookKeeperError:
        return frozenset()
    empty = {n: logs[n] for n, is_so in found.items() if is_so}
    return _of_each(empty, lambda log, _: log.check_life(marker)).keys()


def read_together(
    storage: Storage, wanted: Mapping[int, tuple[LedgerLog, Sequence[int]]], most_bytes: int
) -> dict[int, Sequence[StoredEntry]]:
    """Read the entries of small ledgers without parts. Each small file is read once."""

    def read(one: tuple[LedgerLog, Sequence[int]], _: int) -> Sequence[StoredEntry] | None:
        log, entry_ids = one
        log.keep_whole()
        try:
            index = log.search(entry_ids[0], entry_ids[-1])
        finally:
            whole = log.take_whole()
        records = [holding.record for holding in index.holdings]
        size = sum(int(record.sizes.sum()) for record in records)
        if log.ledger.era_alone or size > most_bytes or any(record.parts for record in records):
            return None
        return Retrieval(log, entry_ids, index).read(whole).found

    found = _of_each(wanted, read)
    try:
        marker = read_marker_data(storage)
    except BookKeeperError:
        return {}
    small = {n: entries for n, entries in found.items() if entries is not None}

    def checked(entries: Sequence[StoredEntry], n: int) -> Sequence[StoredEntry]:
        wanted[n][0].check_life(marker)
        return entries

    return _of_each(small, checked)


def write_together(storage: Storage, copies: Mapping[int, tuple[LedgerLog, NewCopies]]) -> Set[int]:
    """Call ``LedgerLog.write_copy`` for ledgers whose copies have free names. Return those whose
    copies are stored and listed.
    """
    files: dict[int, tuple[str, bytes]] = {}
    for n, (log, copy) in copies.items():
        name, data = encode_copy(
            log.key, log.encoding, copy.entries, copy.parts, era=log.ledger.era
        )
        files[n] = log.paths.copy(name), bytes(data)
    directories = [log.paths.copies for log, _ in copies.values()]
    try:
        put = _put(storage, files, directories=directories)
        held = _of_each(put, lambda _, n: copies[n][0].finds(*files[n]))
        marker = read_marker_data(storage)
    except BookKeeperError:
        return frozenset()
    back = {n: copies[n] for n, is_held in held.items() if is_held}
    return _of_each(back, lambda copy, _: _check_copy(*copy, marker)).keys()


def _check_copy(log: LedgerLog, copy: NewCopies, marker: MarkerData) -> None:
    log.parts.check_kept(part.ref.name for part in copy.parts)
    log.check_life(marker)


def _put(
    storage: Storage,
    files: Mapping[int, tuple[str, bytes]],
    relied_on: Sequence[str] = (),
    directories: Sequence[str] = (),
) -> dict[int, bool]:
    """Put files, and return those that this call created."""
    if not files:
        return {}
    created = storage.put_all(list(files.values()), relied_on=relied_on, directories=directories)
    return {n: is_new for n, is_new in zip(files, created, strict=True) if is_new}


def _of_each(each: Mapping[int, V], look: Callable[[V, int], W]) -> dict[int, W]:
    """Call ``look`` for each, and return the results without the failed calls.

    The caller meets such an error again, and reports it, when it repeats that ledger alone.
    """
    found: dict[int, W] = {}
    for n, one in each.items():
        try:
            found[n] = look(one, n)
        except BookKeeperError:
            continue
    return found
