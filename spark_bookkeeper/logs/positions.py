"""Checks of positions that callers pass: valid, truncated, or never part of the log."""

from __future__ import annotations

from collections.abc import Sequence

from spark_bookkeeper.errors import InvalidArgumentError, NoSuchEntryError
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.log import LogHead, Position

Place = Position | str
"""A position of a log as callers may give it, also as text: ``"7:12"``."""


def position_of(place: Place) -> Position:
    """Parse and check a position. Entry -1, the position of an empty ledger, becomes entry 0.

    Raises:
        InvalidArgumentError: it is no position, or it is within an entry.
    """
    position = place if isinstance(place, Position) else Position.parse(place)
    ledger_id = parse_ledger_id(position.ledger_id)
    entry_id = whole_number("an entry id", position.entry_id, NO_ENTRY)
    if position.row:
        raise InvalidArgumentError(
            f"position {position} is within an entry, and entries are read whole: give row 0, and "
            "leave out the rows that you have"
        )
    return Position(ledger_id, EntryId(max(entry_id, 0)))


def start_of(log: str, start: Place | None, head: LogHead) -> Position:
    """Return the position where a read begins; without ``start`` the beginning of the log.

    Raises:
        NoSuchEntryError: the position was truncated.
        InvalidArgumentError: as ``position_of``.
    """
    if start is None:
        return Position(head.begins_at, EntryId(0))
    position = position_of(start)
    found = head.resumed(position)
    if found is None:
        raise NoSuchEntryError(
            f"position {position} of log {log!r} was truncated: the log begins at ledger "
            f"{head.begins_at} now. Read from there, and what is lost is what is before it",
            ledger_id=position.ledger_id,
            entry_id=position.entry_id,
        )
    return found


def check_listed(log: str, place: Position, head: LogHead, listed: Sequence[LedgerId]) -> None:
    """Check that the log has the ledger of a position, or that the position is between ledgers.

    Entry 0 is valid for every ledger id up to the newest id plus one: after the end of a ledger a
    reader waits there for the next ledger, whose id it does not know.

    Raises:
        NoSuchEntryError: without the check a read would skip the position silently.
    """
    if place.entry_id != 0 and place.ledger_id not in listed:
        raise _no_place(log, place, f"it has no ledger {place.ledger_id}")
    if head.newest is not None and place.ledger_id > head.newest + 1:
        raise _no_place(log, place, f"its newest ledger is {head.newest}")


def check_in_closed(log: str, place: Position, last: EntryId) -> None:
    """Raise ``NoSuchEntryError`` if a position is after the end of its closed ledger."""
    if place.entry_id > last + 1:
        raise _no_place(log, place, f"the last entry of that ledger is {last}")


def _no_place(log: str, place: Position, why: str) -> NoSuchEntryError:
    return NoSuchEntryError(
        f"position {place} is no place of log {log!r}: {why}. Nothing was read. It is of another "
        "log, perhaps",
        ledger_id=place.ledger_id,
        entry_id=place.entry_id,
    )
