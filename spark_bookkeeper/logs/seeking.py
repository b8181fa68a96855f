"""The place in a log at a time, by the clocks of its writers: for people (SLOT-LOG rule R17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.read.times import to_ms
from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead, Position


def position_at(
    context: ClientContext,
    head: LogHead,
    listed: Sequence[LedgerId],
    time: datetime,
    open_reader: Callable[[LedgerId], LedgerReader],
) -> Position:
    """See ``Log.position_at``. Reads the metadata of a few ledgers, found by bisection."""
    time_ms = to_ms(time)
    low, high = 0, len(listed)
    while low < high:  # the first ledger that was created after the time
        middle = (low + high) // 2
        if _created_ms(context, listed[middle]) <= time_ms:
            low = middle + 1
        else:
            high = middle
    for ledger_id in listed[max(low - 1, 0) : low]:
        try:
            reader = open_reader(ledger_id)
        except NoSuchLedgerError:  # truncated meanwhile
            continue
        entry_id = reader.entry_at(time)
        if entry_id <= reader.last_add_confirmed or low == len(listed):
            return Position(ledger_id, entry_id)
    if low < len(listed):
        return Position(listed[low], EntryId(0))
    return Position(head.begins_at, EntryId(0))


def _created_ms(context: ClientContext, ledger_id: LedgerId) -> int:
    """When a ledger was created; long ago where it is gone or does not say."""
    try:
        return context.store.read_ledger(ledger_id).value.ctime_ms or 0
    except NoSuchLedgerError:
        return 0
