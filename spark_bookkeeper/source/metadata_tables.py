"""Metadata as rows: the values of ``view``, and how tasks produce each.

One task produces a view that takes a single look at the metadata store. Several tasks, with some
ledgers each, produce a view that queries bookies about many ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_bookkeeper.autorecovery.table import UNDERREPLICATED, underreplicated_table
from spark_bookkeeper.bookie.bookie import EntryView
from spark_bookkeeper.client import views
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, live_members, registered_incarnations
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.errors import BookieError, EntryUnreadableError, MetadataFormatError
from spark_bookkeeper.logs import logs
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.underreplication import entries_at
from spark_bookkeeper.source.options import OF_LEDGERS

ENTRIES: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("last_add_confirmed", pa.int64(), nullable=False),
        pa.field("digest", pa.string()),
        pa.field("replicas", pa.list_(pa.string()), nullable=False),
    ]
)

VIEW_SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    "ledgers": views.LEDGERS,
    "fragments": views.FRAGMENTS,
    "entries": ENTRIES,
    "bookies": views.BOOKIES,
    "underreplicated": UNDERREPLICATED,
    "slots": views.SLOTS,
    "logs": logs.LOGS,
}


def view_table(
    context: ClientContext,
    view: str,
    ledgers: Sequence[LedgerId] | None = None,
    log: str | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a view, for these ledgers only; ``None`` means all ledgers.

    Args:
        log: the only log that the view ``logs`` shows.
    """
    if view in OF_LEDGERS:
        chosen = context.store.ledger_ids() if ledgers is None else ledgers
        make = {"fragments": _fragments, "entries": _entries, "slots": _slots}[view]
        yield from make(context, list(chosen))
        return
    if view == "logs" and log is not None:
        yield logs.log_table(context, log)
        return
    yield _of_cluster[view](context)


def _fragments(context: ClientContext, ledgers: list[LedgerId]) -> Iterator[pa.Table]:
    alive = context.bookies.registrations()
    registered = registered_incarnations(alive)
    rows = [
        row
        for ledger_id, found in context.store.read_ledgers(ledgers)
        if isinstance(found, Versioned)
        for row in views.fragment_rows(
            ledger_id, found.value, live_members(found.value, registered)
        )
    ]
    yield pa.Table.from_pylist(rows, schema=views.FRAGMENTS)


def _slots(context: ClientContext, ledgers: list[LedgerId]) -> Iterator[pa.Table]:
    for ledger in _ours(context, ledgers):
        bookies = sorted(ledger.metadata.bookies())
        rows = [row for bookie in bookies for row in views.slot_rows(context, ledger, bookie)]
        yield pa.Table.from_pylist(rows, schema=views.SLOTS)


def _entries(context: ClientContext, ledgers: list[LedgerId]) -> Iterator[pa.Table]:
    for ledger in _ours(context, ledgers):
        for fragment in ledger.metadata.fragment_ranges():
            stop = fragment.last_entry_id
            if stop is None:
                try:
                    stop = read_last_add_confirmed(context, ledger)
                except EntryUnreadableError:
                    continue
            first = fragment.first_entry_id
            if first <= stop:
                yield _entries_of_fragment(context, ledger, fragment.ensemble, first, stop)


def _entries_of_fragment(
    context: ClientContext,
    ledger: Ledger,
    ensemble: Sequence[BookieId],
    first: EntryId,
    last: EntryId,
) -> pa.Table:
    """Return the entries that the bookies' records list; no entry is read."""
    places: dict[int, EntryView] = {}
    replicas: dict[int, list[str]] = {}
    for position, bookie in enumerate(ensemble):
        runs = entries_at(ledger.metadata.quorum, position, first, last)
        wanted = [EntryId(entry) for run in runs for entry in run]
        for place in _places(context, ledger, bookie, wanted):
            places.setdefault(place.entry_id, place)
            replicas.setdefault(place.entry_id, []).append(bookie)
    ids = np.array(sorted(places), dtype=np.int64)
    found = [places[entry] for entry in ids.tolist()]
    columns = {
        "ledger_id": pa.array(np.full(len(ids), ledger.ledger_id), pa.int64()),
        "entry_id": pa.array(ids),
        # Null where only the batch itself, which is not read, says how many rows it has.
        "rows": pa.array([p.rows for p in found], pa.int64()),
        "bytes": pa.array([p.size_bytes for p in found], pa.int64()),
        "last_add_confirmed": pa.array([p.last_add_confirmed for p in found], pa.int64()),
        "digest": pa.array([p.digest.hex() or None for p in found], pa.string()),
        "replicas": pa.array([replicas[e] for e in ids.tolist()], pa.list_(pa.string())),
    }
    return pa.table(columns, schema=ENTRIES)


def _places(
    context: ClientContext, ledger: Ledger, bookie: BookieId, wanted: Sequence[EntryId]
) -> Sequence[EntryView]:
    if not wanted:
        return []
    try:
        replica = context.bookies.replica(bookie, ledger)
        purpose = f"looking for entries of ledger {ledger.ledger_id}"
        look = partial(replica.entries, wanted[0], wanted[-1])
        found = context.bookies.ask(replica, purpose, look)
    except BookieError:
        return []  # bookies() shows which ones cannot be reached
    owed = set(wanted)
    return [entry for entry in found if entry.entry_id in owed]


def _ours(context: ClientContext, ledgers: list[LedgerId]) -> Iterator[Ledger]:
    """Yield the ledgers that this library wrote: it cannot list entries of other ones."""
    for ledger_id, found in context.store.read_ledgers(ledgers):
        if isinstance(found, Versioned):
            ledger = _ledger(ledger_id, found.value)
            if ledger is not None:
                yield ledger


def _ledger(ledger_id: LedgerId, metadata: LedgerMetadata) -> Ledger | None:
    try:
        return Ledger.of(ledger_id, metadata)
    except MetadataFormatError:
        return None


_of_cluster: Final[Mapping[str, Callable[[ClientContext], Any]]] = {
    "ledgers": views.ledgers_table,
    "bookies": views.bookies_table,
    "logs": logs.logs_table,
    "underreplicated": underreplicated_table,
}
