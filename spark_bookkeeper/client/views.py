"""The cluster as tables: ledgers, fragments, bookies, slots, replicas side by side.

This module only reads; it fences and changes nothing. ``ledger_info.py`` has one ledger as a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, needs_refill, registered_incarnations
from spark_bookkeeper.client.presence import ledgers_with_writers, writer_of
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.client.read.newest import Newest, newest_entry
from spark_bookkeeper.client.read.splits import cut
from spark_bookkeeper.errors import BookieError, EntryUnreadableError, MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.underreplication import entries_at
from spark_bookkeeper.runtime.throttle import Throttle

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

UNREADABLE: Final = "UNREADABLE"
"""State of a ledger whose metadata cannot be decoded; ``ledger(id)`` says why."""

LEDGERS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("ensemble_size", pa.int32(), nullable=False),
        pa.field("write_quorum_size", pa.int32(), nullable=False),
        pa.field("ack_quorum_size", pa.int32(), nullable=False),
        pa.field("fragments", pa.int32(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("length_bytes", pa.int64()),
        pa.field("digest_type", pa.string()),
        pa.field("format_version", pa.int32(), nullable=False),
        pa.field("ctime", pa.timestamp("us", tz="UTC")),
        pa.field("bookies", pa.list_(pa.string()), nullable=False),
        pa.field("custom_metadata", pa.map_(pa.string(), pa.binary()), nullable=False),
        pa.field("writer", pa.string()),
        pa.field("writer_state", pa.string()),
        pa.field("last_add_confirmed", pa.int64()),
        pa.field("newest_entry_at", pa.timestamp("us", tz="UTC")),
        pa.field("name", pa.string()),
        pa.field("owner", pa.string()),
    ]
)

FRAGMENTS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("first_entry_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("ensemble", pa.list_(pa.string()), nullable=False),
        pa.field("is_last", pa.bool_(), nullable=False),
        pa.field("missing_bookies", pa.list_(pa.string()), nullable=False),
    ]
)

BOOKIES: Final = pa.schema(
    [
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("root_uri", pa.string()),
        pa.field("incarnation", pa.string()),
        pa.field("rack", pa.string()),
        pa.field("ledgers", pa.int64(), nullable=False),
        pa.field("fragments", pa.int64(), nullable=False),
        pa.field("free_bytes", pa.int64()),
        pa.field("total_bytes", pa.int64()),
        pa.field("free_inodes", pa.int64()),
        pa.field("total_inodes", pa.int64()),
        pa.field("readonly_reason", pa.string()),
        pa.field("limbo_ledgers", pa.int64(), nullable=False),
    ]
)

SLOTS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("first_entry_id", pa.int64()),
        pa.field("last_entry_id", pa.int64()),
        pa.field("last_add_confirmed", pa.int64()),
        pa.field("parts", pa.int32(), nullable=False),
        pa.field("bytes", pa.int64()),
        pa.field("writer", pa.string()),
    ]
)

REPLICAS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("digest", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)


def ledgers_table(context: ClientContext, *, ask_bookies: bool = False) -> pa.Table:
    """Return one row for each ledger (``LEDGERS``); arguments as of ``ledger_rows``."""
    rows = list(ledger_rows(context, ask_bookies=ask_bookies))
    return pa.Table.from_pylist(rows, schema=LEDGERS)


def ledger_rows(context: ClientContext, *, ask_bookies: bool = False) -> Iterator[dict[str, Any]]:
    """Yield rows of ``LEDGERS``, with custom metadata as pairs of name and bytes.

    For printing, rows suffice: pyarrow imports pandas when it makes a table from rows.

    Args:
        ask_bookies: also read how far open ledgers have come, and when; otherwise these columns are
            null. It takes some reads of each bookie of each open ledger.
    """
    for ledger_id, found, state in ledgers_with_writers(context):
        if isinstance(found, MetadataFormatError):
            yield _unreadable_row(ledger_id)
            continue
        if found.is_closed:
            newest = Newest(found.last_entry_id)
        else:
            newest = newest_entry(context, ledger_id, found) if ask_bookies else Newest()
        yield _ledger_row(ledger_id, found, state, newest)


def bookies_table(context: ClientContext) -> pa.Table:
    """Return one row for each bookie (``BOOKIES``)."""
    return pa.Table.from_pylist(list(bookie_rows(context)), schema=BOOKIES)


def bookie_rows(context: ClientContext) -> Iterator[dict[str, Any]]:
    """Yield rows of ``BOOKIES``: bookies that are registered, have a cookie, or are in a ledger."""
    alive = context.bookies.registrations()
    cookies = {c.value.bookie_id: c.value for c in context.store.cookies()}
    ledgers: Counter[BookieId] = Counter()
    fragments: Counter[BookieId] = Counter()
    limbo: Counter[BookieId] = Counter()
    registered = registered_incarnations(context.bookies.registrations())
    for _, found in context.store.read_ledgers(context.store.ledger_ids()):
        if isinstance(found, Versioned):
            ledgers.update(found.value.bookies())
            limbo.update(needs_refill(found.value, registered))
            fragments.update(b for f in found.value.fragments for b in f.ensemble)
    for bookie in sorted(alive.keys() | cookies.keys() | ledgers.keys()):
        live, cookie = alive.get(bookie), cookies.get(bookie)
        known = live or cookie
        state = "lost" if live is None else "readonly" if live.is_readonly else "writable"
        yield {
            "bookie_id": bookie,
            "state": state,
            "root_uri": known.root_uri if known else None,
            "incarnation": known.incarnation if known else None,
            "rack": live.rack if live else None,
            "ledgers": ledgers[bookie],
            "fragments": fragments[bookie],
            "free_bytes": live.free_bytes if live else None,
            "total_bytes": live.total_bytes if live else None,
            "free_inodes": live.free_inodes if live else None,
            "total_inodes": live.total_inodes if live else None,
            "readonly_reason": live.readonly_reason if live and live.is_readonly else None,
            "limbo_ledgers": limbo[bookie],
        }


def replicas_table(
    context: ClientContext, ledger_id: LedgerId, bytes_per_second: int | None = None
) -> pa.Table:
    """Return a row for each entry and bookie of its write set (``REPLICAS``), digests verified.

    When no bookie of the last fragment says how far an open ledger goes, the first entry there
    stands for all of them.
    """
    ledger, found = context.ledger(ledger_id)
    throttle = Throttle(context.runtime, bytes_per_second)
    rows: list[dict[str, Any]] = []
    for fragment in found.value.fragment_ranges():
        stop = fragment.last_entry_id
        if stop is None:
            try:
                stop = read_last_add_confirmed(context, ledger)
            except EntryUnreadableError:
                stop = fragment.first_entry_id
        first = fragment.first_entry_id
        pieces = cut(context, ledger, first, stop, 1) if bytes_per_second else [(first, stop)]
        for (start, end), (position, bookie) in product(pieces, enumerate(fragment.ensemble)):
            runs = entries_at(found.value.quorum, position, start, end)
            entries = [EntryId(e) for run in runs for e in run]
            some = list(_replica_rows(context, ledger, bookie, position, entries))
            throttle(sum(row["bytes"] or 0 for row in some))
            rows += some
    rows.sort(key=lambda row: (row["entry_id"], row["position"]))
    return pa.Table.from_pylist(rows, schema=REPLICAS)


def _unreadable_row(ledger_id: LedgerId) -> dict[str, Any]:
    sizes = ("ensemble_size", "write_quorum_size", "ack_quorum_size", "fragments")
    return {
        "ledger_id": ledger_id,
        "state": UNREADABLE,
        **dict.fromkeys((*sizes, "format_version"), 0),
        **dict.fromkeys(("last_entry_id", "length_bytes", "digest_type", "ctime")),
        **dict.fromkeys(("bookies", "custom_metadata"), ()),
        **dict.fromkeys(("writer", "writer_state", "last_add_confirmed", "newest_entry_at")),
        **dict.fromkeys(("name", "owner")),
    }


def _ledger_row(
    ledger_id: LedgerId, m: LedgerMetadata, state: str | None, newest: Newest
) -> dict[str, Any]:
    writer = writer_of(m)
    return {
        "ledger_id": ledger_id,
        "state": m.state.name,
        "ensemble_size": m.quorum.ensemble_size,
        "write_quorum_size": m.quorum.write_quorum_size,
        "ack_quorum_size": m.quorum.ack_quorum_size,
        "fragments": len(m.fragments),
        "last_entry_id": m.last_entry_id,
        "length_bytes": m.length_bytes,
        "digest_type": m.digest_type.name if m.digest_type else None,
        "format_version": m.format_version,
        "ctime": moment(m.ctime_ms),
        "bookies": sorted(m.bookies()),
        "custom_metadata": sorted(m.custom_metadata.items()),
        "writer": None if writer is None else str(writer),
        "writer_state": state,
        "last_add_confirmed": newest.last_add_confirmed,
        "newest_entry_at": moment(newest.stored_at_ms),
        "name": label_text(m.custom_metadata, "name"),
        "owner": label_text(m.custom_metadata, "owner"),
    }


def label_text(labels: Mapping[str, bytes], name: str) -> str | None:
    """Return a label as text; ``None`` if the ledger has no such label."""
    label = labels.get(name)
    return None if label is None else label.decode("utf-8", "replace")


def moment(milliseconds: int | None) -> datetime | None:
    """Return milliseconds since 1970 as a ``datetime``; ``None`` if it has no such date."""
    if milliseconds is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def moment_text(milliseconds: int | None) -> str:
    """Return milliseconds since 1970 as text for people."""
    at = moment(milliseconds)
    return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def fragment_rows(ledger_id: int, metadata: LedgerMetadata, alive: Any) -> Iterator[dict[str, Any]]:
    """Yield rows of ``FRAGMENTS``; ``alive``: bookies with live copies (``live_members``)."""
    for fragment in metadata.fragment_ranges():
        yield {
            "ledger_id": ledger_id,
            "first_entry_id": fragment.first_entry_id,
            "last_entry_id": fragment.last_entry_id,
            "ensemble": list(fragment.ensemble),
            "is_last": fragment.is_last,
            "missing_bookies": [b for b in fragment.ensemble if b not in alive],
        }


def slot_rows(context: ClientContext, ledger: Ledger, bookie: BookieId) -> Iterator[dict[str, Any]]:
    """Yield rows of ``SLOTS`` of one bookie; none if it cannot be reached."""
    try:
        for slot in context.bookies.replica(bookie, ledger).slots():
            yield {
                "ledger_id": ledger.ledger_id,
                "bookie_id": bookie,
                "slot": slot.slot,
                "kind": slot.kind,
                "first_entry_id": slot.first,
                "last_entry_id": slot.last,
                "last_add_confirmed": slot.last_add_confirmed,
                "parts": slot.parts,
                "bytes": slot.size_bytes,
                "writer": slot.writer,
            }
    except BookieError:
        return  # bookies() shows which ones cannot be reached


def _replica_rows(
    context: ClientContext, ledger: Ledger, bookie: BookieId, position: int, entries: list[EntryId]
) -> Iterator[dict[str, Any]]:
    if not entries:
        return
    verdict = Verdict({}, {})
    cannot_be_asked: str | None = None
    try:
        replica = context.bookies.replica(bookie, ledger)
        purpose = f"verifying entries of ledger {ledger.ledger_id}"
        verdict = context.bookies.ask(replica, purpose, lambda: replica.verify(entries))
    except BookieError as error:
        cannot_be_asked = error.message
    for entry_id in entries:
        good, refusal = verdict.good.get(entry_id), verdict.refused.get(entry_id)
        reason = cannot_be_asked if refusal is None else refusal.reason
        yield {
            "ledger_id": ledger.ledger_id,
            "entry_id": entry_id,
            "bookie_id": bookie,
            "position": position,
            "status": "verified" if reason is None else "unreadable",
            "digest": good.digest.hex() if good is not None else None,
            "bytes": good.size_bytes if good is not None else None,
            "reason": reason,
        }
