"""Whether an entry that somebody named is a place of what is read, or why it is none.

An entry of another log, or one that was never written, would be read past without a word.
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
    """The last entry that can be read now; -1 when there is none."""
    last = ledger.metadata.last_entry_id
    return read_last_add_confirmed(context, ledger) if last is None else last


def check_in_ledger(
    option: str, place: Position, ledger: Ledger, readable: EntryId, remedy: str = READ_ANYWAY
) -> None:
    """Raises ``NoSuchEntryError`` for a place of this ledger that is behind its end."""
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
    """See whether a log has an entry, or where it would come; what was truncated is not looked at.

    Before entry 0 of any ledger is a place of every log: whoever has read a ledger to its end
    stands before the next one, whichever that will be.

    Args:
        context: the cluster.
        log: its name.
        nonce: of its life.
        option: which names the place.
        place: the entry.
        remedy: what else can be done, as a sentence without its period.

    Raises:
        NoSuchEntryError: the place is behind the end, or in a ledger that the log has not.
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
        return  # truncated since, or deleted by somebody: the read tells
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
