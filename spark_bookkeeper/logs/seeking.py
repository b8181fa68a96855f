"""The place in a log at a time, by the clocks of its writers: for people (SLOT-LOG rule R17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.read.times import to_ms
from spark_bookkeeper.client.staging import STAGED
from spark_bookkeeper.errors import MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.logs.begun_writes import behind_of
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.protocol.metadata import LedgerMetadata


def position_at(
    context: ClientContext,
    head: LogHead,
    listed: Sequence[LedgerId],
    time: datetime,
    open_reader: Callable[[LedgerId], LedgerReader],
    *,
    is_end: bool,
) -> Position:
    """See ``Log.position_at``. Reads the metadata of the ledgers, and a few ledgers.

    No ledger that was created after the time has an older entry. Of those that were there by then
    the last ones are read, from the newest back to one that ended before: a write of many rows
    begins its ledger long before it adds it to the log, and meanwhile those before it go on. They
    also go on while it waits, with all its rows, to be added; so its end says nothing of theirs.
    But when a write began all ledgers had ended except for those that it notes (``behind_of``).

    Clocks of writers disagree, so the times of ledgers do not ascend. A beginning is not behind
    the first ledger that was created after the time, and what a clock that was late says of an end
    says nothing of the ledgers before; an end is not before the last that was created by then.
    That a clock was late shows only where a ledger before was created later: one that was written
    for longer than the clocks are apart may be left out.
    """
    time_ms = to_ms(time)
    created = [_created_ms(found) for _, found in context.store.read_ledgers(listed)]
    if is_end:
        low = max((n + 1 for n, ms in enumerate(created) if ms <= time_ms), default=0)
    else:
        low = next((n for n, ms in enumerate(created) if ms > time_ms), len(listed))
    found: Position | None = None
    end = Position(head.begins_at, EntryId(0))
    if low < len(listed):
        found = Position(listed[low], EntryId(0))
    least = LedgerId(0)
    for n in reversed(range(low)):
        ledger_id = listed[n]
        is_late = not is_end and created[n] < max(created[:n], default=0)
        if ledger_id < least:
            break
        try:
            reader = open_reader(ledger_id)
        except NoSuchLedgerError:  # truncated meanwhile
            continue
        entry_id = reader.entry_at(time)
        place = Position(ledger_id, entry_id)
        if ledger_id == listed[-1]:
            end = place
        if entry_id <= reader.last_add_confirmed:
            found = place
        elif reader.last_add_confirmed != NO_ENTRY and not _was_staged(reader) and not is_late:
            break
        least = max(least, behind_of(reader.metadata) or least)
    return end if found is None else found


def _was_staged(reader: LedgerReader) -> bool:
    """Whether a ledger had its rows before the log had the ledger."""
    return STAGED in reader.metadata.custom_metadata


def _created_ms(found: Versioned[LedgerMetadata] | MetadataFormatError | None) -> int:
    """When a ledger was created; long ago where it is gone or does not say."""
    return (found.value.ctime_ms or 0) if isinstance(found, Versioned) else 0
