"""Find entries by the time of their append, by the clock of their writer.

This is for people, for example to read from an hour ago on. No decision about safety uses it
(SLOT-LOG rule R17). The writer ensures that times do not decrease within a ledger. So bisection
finds the first entry at or after a time, from the headers of a few records.
"""

from __future__ import annotations

from datetime import datetime, timezone

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieError, EntryUnreadableError, InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId


def to_ms(time: datetime) -> int:
    """Return milliseconds since 1970; a time without a zone is local time.

    Raises:
        InvalidArgumentError: it is no ``datetime``, or is pandas's ``NaT``, which is one by class.
    """
    if not isinstance(time, datetime):
        raise InvalidArgumentError(
            f"time {time!r} is no datetime; for example datetime(2026, 11, 22, 6, 30)"
        )
    try:
        return int(_seconds(time) * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidArgumentError(f"{time!r} is no time: {error}") from None


def check_order(start_time: datetime | None, end_time: datetime | None) -> None:
    """Raise ``InvalidArgumentError`` if a read begins after its end."""
    if start_time is None or end_time is None or to_ms(start_time) <= to_ms(end_time):
        return
    raise InvalidArgumentError(
        f"the read begins behind its end: {start_time} is after {end_time}, up to which is read. "
        "Exchange them"
    )


def _seconds(time: datetime) -> float:
    try:
        return time.timestamp()
    except (ValueError, OverflowError, OSError):
        # The first and last days of the calendar have no local time; callers give them for "all"
        # and "nothing".
        return time.replace(tzinfo=timezone.utc).timestamp()


def first_at_or_after(
    context: ClientContext, ledger: Ledger, last: EntryId, time_ms: int
) -> EntryId:
    """Return the first entry of ``0 .. last`` that was appended at a time or later.

    Entries that an earlier version wrote have no time, and count as older than any.

    Returns:
        the entry after ``last`` if there is none.

    Raises:
        EntryUnreadableError: no bookie can say when an entry was appended.
    """
    low, high = 0, last + 1
    while low < high:
        middle = EntryId((low + high) // 2)
        appended_at_ms = appended_at_ms_of(context, ledger, middle)
        if appended_at_ms is None or appended_at_ms < time_ms:
            low = middle + 1
        else:
            high = middle
    return EntryId(low)


def appended_at_ms_of(
    context: ClientContext, ledger: Ledger, entry_id: EntryId, *, lost_is_old: bool = False
) -> int | None:
    """Return when an entry was appended, by its writer's clock; ``None`` if that is unknown.

    Args:
        context: the cluster.
        ledger: the ledger that has the entry.
        entry_id: the entry.
        lost_is_old: also return ``None`` if every bookie of the write set answered that it does not
            have the entry. A caller that waits for such an entry waits for ever.

    Raises:
        EntryUnreadableError: no bookie of its write set knows the entry.
    """
    ensemble = ledger.metadata.fragment_of(entry_id).ensemble
    causes: dict[str, str] = {}
    all_answered = True
    for position in ledger.metadata.quorum.write_set(entry_id):
        bookie = ensemble[position]
        try:
            held = context.bookies.replica(bookie, ledger).holdings(entry_id, entry_id)
        except BookieError as error:
            causes[bookie] = error.message
            all_answered = False
            continue
        if entry_id in held:
            return held.appended_at(entry_id)
        causes[bookie] = "it does not have the entry"
    if lost_is_old and all_answered:
        return None
    raise EntryUnreadableError(
        f"when entry {entry_id} of ledger {ledger.ledger_id} was appended is not known: no bookie "
        "of its write set says where it is. Start the bookies that do not answer, or give an "
        "entry id instead of a time\n"
        + "\n".join(f"  {bookie}: {why}" for bookie, why in causes.items()),
        ledger_id=ledger.ledger_id,
        entry_id=entry_id,
        causes=causes,
    )
