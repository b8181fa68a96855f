"""Many ledgers of one bookie, taken from step to step together.

What takes time for a small ledger on a disk is a handful of syncs. Here the files of many ledgers
are synced by as few calls as the storage can do with (``Storage.put_all``), in the order that each
ledger needs by itself. In an object store each ledger takes these steps by itself, in rounds with
the others (``storage/batching.py``).

Only ledgers that meet nothing unusual are done here. One that meets a hole, somebody else's fence,
damage, or an error of a call for all of them gets no answer here, and nothing is concluded about
it: the caller does it again by itself, and finds what was put meanwhile,
as after any call whose answer was lost (SLOT-LOG rule R3).
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
    """``LedgerLog.fence`` for those for which a fence behind all that a listing shows is enough.

    In the same order as there: what the fences stand on is made durable [fence_on_durable], the
    fences are put and durable [durable_ack], then the ends are read [fresh_negative], and then the
    marker is [cookie_neg].
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
        # What is below is merely found, and relied on (R9b).
        # What is not new is a lost race, or this very put before.
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
    """``LedgerLog.locate`` for many, with one look at the marker when all were searched: it says
    of each what a look of its own would [cookie_neg].
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
    """``Retrieval.verify`` for those whose files can be made durable with those of others.

    What the fence of this session has read and made durable is not asked for again. So the marker
    is read when all were compared: files of a partition that was wiped since then are not good.
    """
    if not retrievals:
        return {}
    good = _of_each(retrievals, lambda each, _: each.compare(each.log.take_whole()))
    # What a fence of this session stands on was made durable before it (R9b).
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
    """Of those that take copies (``LedgerLog.check``) the ones that have no file here yet."""
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
    """The entries of those that have no parts and are this small; each small file is read once."""

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
    """``LedgerLog.write_copy`` for those whose names are free; which of them are done, and listed
    for whoever looks.
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
    """Those whose files this call has created."""
    if not files:
        return {}
    created = storage.put_all(list(files.values()), relied_on=relied_on, directories=directories)
    return {n: is_new for n, is_new in zip(files, created, strict=True) if is_new}


def _of_each(each: Mapping[int, V], look: Callable[[V, int], W]) -> dict[int, W]:
    """What a look at each tells, without those at which it raises.

    Such an error is met again, and told, by whoever is asked for the ledger by itself.
    """
    found: dict[int, W] = {}
    for n, one in each.items():
        try:
            found[n] = look(one, n)
        except BookKeeperError:
            continue
    return found
