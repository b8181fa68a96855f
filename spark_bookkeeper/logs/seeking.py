"""The position in a log at a time, by the writers' clocks: for people (SLOT-LOG rule R17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.presence import writer_of
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.read.times import to_ms
from spark_bookkeeper.client.staging import STAGED
from spark_bookkeeper.errors import MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.logs.staged_writes import behind_of
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.protocol.metadata import LedgerMetadata

FURTHER: Final = 16
"""Number of machines whose older ledgers are still read after another machine's clock says that
they had ended. In some clusters each job has a machine of its own."""


def position_at(
    context: ClientContext,
    head: LogHead,
    listed: Sequence[LedgerId],
    time: datetime,
    open_reader: Callable[[LedgerId], LedgerReader],
    *,
    is_end: bool,
) -> Position:
    """See ``Log.position_at``. Reads the metadata of all ledgers, and opens a few of them.

    A ledger that was created after the time has no older entry. The older ledgers are read from the
    newest back to one that had ended before the time. A write of many rows creates its ledger long
    before it adds it to the log. The ledgers before it grow meanwhile, also while its rows wait to
    be added. So its end proves nothing about theirs. But when a write began, all ledgers had ended
    except those that it notes (``behind_of``).

    Clocks of machines disagree, so the times of ledgers do not ascend. A beginning is never after
    the first ledger that was created after the time; an end is never before the last one created by
    then. The end of a ledger proves nothing about earlier ledgers of other machines (``FURTHER``),
    nor of its own machine if that created an earlier one at a later time.
    """
    time_ms = to_ms(time)
    ledgers = [found for _, found in context.store.read_ledgers(listed)]
    created = [_created_ms(found) for found in ledgers]
    machines = [None if is_end else _machine(found) for found in ledgers]
    if is_end:
        low = max((n + 1 for n, ms in enumerate(created) if ms <= time_ms), default=0)
    else:
        low = next((n for n, ms in enumerate(created) if ms > time_ms), len(listed))
    found: Position | None = None
    end = Position(head.begins_at, EntryId(0))
    if low < len(listed):
        found = Position(listed[low], EntryId(0))
    least: dict[str | None, LedgerId] = {}
    """For each machine, the ledger before which all its ledgers had ended by then."""
    further: set[str | None] = set()
    for n in reversed(range(low)):
        ledger_id, machine = listed[n], machines[n]
        if ledger_id < least.get(machine, 0):
            continue
        if ledger_id < max(least.values(), default=0):
            further.add(machine)
        if len(further) > FURTHER:
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
        elif reader.last_add_confirmed != NO_ENTRY and not _was_staged(reader):
            before = [ms for ms, m in zip(created[:n], machines, strict=False) if m == machine]
            if is_end or created[n] >= max(before, default=0):  # otherwise its clock was set back
                least[machine] = ledger_id
        behind = behind_of(reader.metadata) or LedgerId(0)
        least[machine] = max(least.get(machine, behind), behind)
    return end if found is None else found


def _was_staged(reader: LedgerReader) -> bool:
    """Whether the rows of a ledger were written before the ledger was added to the log."""
    return STAGED in reader.metadata.custom_metadata


def _machine(found: Versioned[LedgerMetadata] | MetadataFormatError | None) -> str | None:
    """Return the machine that created a ledger; ``None`` (not recorded) counts as one machine."""
    writer = writer_of(found.value) if isinstance(found, Versioned) else None
    return None if writer is None else writer.host


def _created_ms(found: Versioned[LedgerMetadata] | MetadataFormatError | None) -> int:
    """Return when a ledger was created; 0 if it was deleted or has no time."""
    return (found.value.ctime_ms or 0) if isinstance(found, Versioned) else 0
