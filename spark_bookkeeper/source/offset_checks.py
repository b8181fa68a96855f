"""Checks whether an entry that a user named is a position of what is read.

Without them a read would silently skip an entry of another log, or one never written.
"""

from __future__ import annotations

from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.errors import NoSuchEntryError, NoSuchLedgerError
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position

READ_ANYWAY: Final = "With failOnDataLoss=false what there is is read"


def readable_end(context: ClientContext, ledger: Ledger) -> EntryId:
    """Return the last entry that can be read now; -1 when there is none."""
    last = ledger.metadata.last_entry_id
    return read_last_add_confirmed(context, ledger) if last is None else last


def check_in_ledger(
    option: str, place: Position, ledger: Ledger, readable: EntryId, remedy: str = READ_ANYWAY
) -> None:
    """Raise ``NoSuchEntryError`` for a position of this ledger that is after its end."""
    if place.ledger_id == ledger.ledger_id and place.entry_id > readable + 1:
        end = Position(place.ledger_id, EntryId(readable + 1))
        raise _beyond_end(option, place, f"ledger {ledger.ledger_id}", end, remedy)


def check_in_log(
    context: ClientContext,
    log: str,
    nonce: str,
    option: str,
    place: Position,
    remedy: str = READ_ANYWAY,
) -> None:
    """Check that a log has an entry, or will have it next. Truncated ones are not checked.

    Entry 0 of any ledger id up to the newest plus one is a position of every log: after the end of
    a ledger a reader waits there for the next ledger, whose id it does not know.

    Args:
        context: the cluster.
        log: its name.
        nonce: identifies one life of the log.
        option: the option that names the position.
        place: the position.
        remedy: another way out, as a sentence without its period.

    Raises:
        NoSuchEntryError: the position is after the end, or in a ledger that the log lacks.
        NoSuchLogError, MetadataUnavailableError, EntryUnreadableError.
    """
    head, listed = list_ledgers(context, log, nonce, place.ledger_id)
    if place.ledger_id < head.begins_at:
        return
    behind = head.begins_at if head.newest is None else LedgerId(head.newest + 1)
    end = Position(behind, EntryId(0))
    if place > end:
        raise _beyond_end(option, place, f"log {log!r}", end, remedy)
    if place.entry_id == 0:
        return
    if place.ledger_id not in listed:
        raise NoSuchEntryError(
            f"{option} {_shown(place)} is no place of log {log!r}, which has no ledger "
            f"{place.ledger_id}: it is of another log, perhaps. `spark-bookkeeper log show {log}` "
            f"lists the ledgers there are. {remedy}",
            ledger_id=place.ledger_id,
            entry_id=place.entry_id,
        )
    try:
        ledger = Ledger.of(place.ledger_id, context.store.read_ledger(place.ledger_id).value)
    except NoSuchLedgerError:
        return  # truncated or deleted since: the read raises
    check_in_ledger(option, place, ledger, readable_end(context, ledger), remedy)


def _beyond_end(
    option: str, place: Position, of: str, end: Position, remedy: str
) -> NoSuchEntryError:
    return NoSuchEntryError(
        f"{option} {_shown(place)} is beyond the end of {of}, which is {_shown(end)} now. {remedy}",
        ledger_id=place.ledger_id,
        entry_id=place.entry_id,
    )


def _shown(place: Position) -> str:
    return f"{place.ledger_id}:{place.entry_id}"
