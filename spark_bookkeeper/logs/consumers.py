"""Named followers of a log: their positions, and how far behind the log's end these are."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.client.read.sizes import average_bytes
from spark_bookkeeper.client.read.times import appended_at_ms_of
from spark_bookkeeper.client.views import moment
from spark_bookkeeper.errors import BookKeeperError, EntryUnreadableError, MetadataFormatError
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.metadata import consumers as registers
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.consumers import Consumer
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metrics import Metrics
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead, Position, parse_log_name

_log = logging.getLogger(__name__)

CONSUMERS: Final = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("consumer", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("published_at", pa.timestamp("us", tz="UTC")),
        pa.field("entries_behind", pa.int64(), nullable=False),
        pa.field("bytes_behind", pa.int64(), nullable=False),
        pa.field("seconds_behind", pa.float64()),
        pa.field("is_truncated", pa.bool_(), nullable=False),
    ]
)
"""``ledger_id`` and ``entry_id`` name the next entry to read. ``bytes_behind`` is an estimate.
``seconds_behind`` is the age of that entry, by the clocks of its writer and of the caller: 0 when
it does not exist yet, null when its age is not known. ``is_truncated``: that entry was truncated,
and the numbers count from the beginning of the log."""


@dataclass(frozen=True, slots=True)
class _Extent:
    """A ledger of the log, and the number of its entries that readers can read now."""

    ledger: Ledger
    end: int


def publish(
    context: ClientContext, log: str, nonce: str, consumer: str, position: Position
) -> None:
    """Publish the position of a follower; see ``Log.publish``."""
    told = Consumer(consumer, nonce, position, context.runtime.wall_ms())
    registers.publish(context.store.registers, log, told)


def consumers_table(context: ClientContext, log: str) -> pa.Table:
    """Return one row for each named follower of a log (``CONSUMERS``), by name.

    Raises:
        NoSuchLogError: no log has that name.
    """
    head = logs.read_log(context.store.registers, log)
    found = registers.consumers(context.store.registers, log, head.nonce)
    if not found:
        return CONSUMERS.empty_table()
    least = max(head.begins_at, min(each.position.ledger_id for each in found))
    head, listed = list_ledgers(context, log, head.nonce, least)
    extents = _extents(context, [ledger for ledger in listed if ledger >= head.begins_at])
    rows = [_row(context, log, each, head, extents) for each in found]
    return pa.Table.from_pylist(rows, schema=CONSUMERS)


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """One row of ``consumers_table``, in the form that gauges show."""

    consumer: str
    entries_behind: int
    bytes_behind: int
    seconds_behind: float | None


def show_lag(
    context: ClientContext, log: str, consumer: str | None = None, metrics: Metrics | None = None
) -> None:
    """Add gauges for the named followers of a log, computed whenever metrics are read.

    If they cannot be computed, no gauge is shown, and a warning is logged with the reason.

    Args:
        context: the cluster.
        log: its name; the log need not exist yet.
        consumer: show only this follower; ``None`` shows all of them.
        metrics: where the gauges are shown; by default in the context's metrics.

    Raises:
        InvalidArgumentError: the name is not valid for a log.
    """
    parse_log_name(log)

    def look() -> list[ConsumerLag]:
        try:
            found = consumers_table(context, log)
        except BookKeeperError as error:
            _log.warning("how far consumers of log %s are behind is not known: %s", log, error)
            return []
        names = [f.name for f in fields(ConsumerLag)]
        return [ConsumerLag(**row) for row in found.select(names).to_pylist()]

    (metrics or context.metrics).consumers.show(log, look, consumer)


def needed_from(
    context: ClientContext, log: str, nonce: str, names: Iterable[str]
) -> LedgerId | None:
    """Return the lowest ledger that one of these followers reads next.

    ``None`` when one of them has not published a position: it needs all ledgers.
    """
    found = {each.name: each for each in registers.consumers(context.store.registers, log, nonce)}
    positions = []
    for name in names:
        if name not in found:
            return None
        positions.append(found[name].position.ledger_id)
    return min(positions, default=None)


def _extents(context: ClientContext, listed: Sequence[LedgerId]) -> list[_Extent]:
    extents = []
    for ledger_id, found in context.store.read_ledgers(listed):
        if not isinstance(found, Versioned):
            continue  # truncated meanwhile, or unreadable, which bk.logs() shows
        try:
            ledger = Ledger.of(ledger_id, found.value)
        except MetadataFormatError:
            continue
        last = ledger.metadata.last_entry_id
        if last is None:
            try:
                last = read_last_add_confirmed(context, ledger)
            except EntryUnreadableError:
                break
        extents.append(_Extent(ledger, last + 1))
        if not ledger.metadata.is_closed:
            break  # later ledgers may hold entries that are not acknowledged before it
    return extents


def _row(
    context: ClientContext, log: str, consumer: Consumer, head: LogHead, extents: Sequence[_Extent]
) -> dict[str, Any]:
    position = consumer.position
    entries, size = 0, 0.0
    next_entry: tuple[Ledger, EntryId] | None = None
    for extent in extents:
        ledger_id = extent.ledger.ledger_id
        if ledger_id < position.ledger_id:
            continue
        first = position.entry_id if ledger_id == position.ledger_id else EntryId(0)
        count = extent.end - first
        if count <= 0:
            continue
        last = EntryId(extent.end - 1)
        entries += count
        size += count * average_bytes(context, extent.ledger, first, last)
        next_entry = next_entry or (extent.ledger, first)
    return {
        "log": log,
        "consumer": consumer.name,
        "ledger_id": position.ledger_id,
        "entry_id": position.entry_id,
        "published_at": moment(consumer.published_at_ms),
        "entries_behind": entries,
        "bytes_behind": round(size),
        "seconds_behind": 0.0 if next_entry is None else _age(context, *next_entry),
        "is_truncated": head.resumed(position) is None,
    }


def _age(context: ClientContext, ledger: Ledger, entry_id: EntryId) -> float | None:
    try:
        appended_at_ms = appended_at_ms_of(context, ledger, entry_id)
    except EntryUnreadableError:
        return None
    if appended_at_ms is None:
        return None
    return max(0.0, (context.runtime.wall_ms() - appended_at_ms) / 1000)
