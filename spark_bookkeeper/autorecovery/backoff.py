"""Decide what a left task waits for, and whether other workers could do it.

Every decision follows from values that were read. ``replication.py`` writes it in a note, and
``table.py`` shows it.

Source: BookKeeper ``replication/ReplicationWorker`` (releases locks of tasks it cannot do).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spark_bookkeeper.client.ledger import Ledger, registered_incarnations
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.underreplication import blocked, live_bookies, needs_bookie
from spark_bookkeeper.replication.report import Outcome, Row

_WRITER: Final = "the writer of the ledger, which is at work: it is repaired when it is closed"


def writable_of(alive: Mapping[BookieId, Registration]) -> frozenset[BookieId]:
    """Return the bookies that take data."""
    return frozenset(bookie for bookie, each in alive.items() if not each.is_readonly)


def awaited_event(
    ledger: Ledger,
    absent: Sequence[BookieId],
    unfinished: Sequence[Row],
    alive: Mapping[BookieId, Registration],
) -> str | None:
    """Return the event without which no worker can do any of the rest, if that is certain."""
    if not all(row.source in absent for row in unfinished):
        return None  # there is another problem as well
    live = live_bookies(registered_incarnations(alive), ledger.incarnations)
    limbo = set(absent) & alive.keys()
    return blocked(ledger.metadata, live, writable_of(alive), limbo)


def is_refused(absent: Sequence[BookieId], unfinished: Sequence[Row]) -> bool:
    """Whether the bookie next to which this worker runs was the only obstacle. (A share that could
    not be read has the status ``UNRECOVERABLE`` instead.)
    """
    return bool(unfinished) and all(
        row.action == "copy" and row.status is Outcome.LEFT and row.source in absent
        for row in unfinished
    )


def is_for_others(
    metadata: LedgerMetadata, absent: Sequence[BookieId], local: BookieId | None
) -> bool:
    """Whether the local bookie is in the ensemble of every fragment that is left. Then only other
    workers can take the shares, and this one simply releases the lock.

    False while the ledger could not be recovered, because any worker can do that. With no note,
    this worker would take the task again at once, without end.
    """
    if not metadata.is_closed and set(metadata.last_fragment.ensemble) & set(absent):
        return False
    lacking = [f for f in metadata.fragments if set(f.ensemble) & set(absent)]
    return local is not None and bool(lacking) and all(local in f.ensemble for f in lacking)


def blocker_of(
    metadata: LedgerMetadata,
    absent: Sequence[BookieId],
    unfinished: Sequence[Row],
    alive: Mapping[BookieId, Registration],
    *,
    has_writer: bool,
) -> str | None:
    """Return what must happen first, in words for people; ``None`` if there is nothing to name.

    Args:
        has_writer: whether the rest must wait until a living writer closes its ledger.
    """
    if any(row.status is Outcome.UNRECOVERABLE for row in unfinished):
        return f"{', '.join(absent) or 'nobody'}: no other bookie has good copies"
    needed = blocked_by(metadata, absent, alive)
    if needed is not None:
        return needed
    if has_writer:
        return _WRITER
    bookies = {row.source for row in unfinished if row.source is not None}
    return ", ".join(sorted(bookies | set(absent))) or None


def blocked_by(
    metadata: LedgerMetadata, absent: Sequence[BookieId], alive: Mapping[BookieId, Registration]
) -> str | None:
    """Return what a ledger waits for that no worker can bring about; ``None`` if nothing."""
    writable = writable_of(alive)
    for fragment in metadata.fragments:
        if set(fragment.ensemble) & set(absent) and not writable - set(fragment.ensemble):
            return needs_bookie(set(absent) & alive.keys())
    return None
