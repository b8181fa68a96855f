"""What a stream reads, a log or a ledger, and what following either has in common."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange, Ledger
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.read.sizes import average_bytes
from spark_bookkeeper.errors import DataLossError, NoSuchEntryError
from spark_bookkeeper.metadata.store import Unchanged
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.source.offset_options import Offset, Place
from spark_bookkeeper.source.options import SourceOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch takes, about; there is always some progress."""

    entries: int | None = None
    size_bytes: int | None = None


class Followed(Protocol):
    """What a stream reads."""

    def begin(self, place: Place) -> Offset:
        """Where a new stream begins. Raises ``NoSuchEntryError``: there is no such place."""

    def front(self) -> Offset:
        """Behind the last entry that can be read now."""

    def resumed(self, start: Offset) -> Offset:
        """Where a stream goes on that has a place in its checkpoint: there, if it is one of what is
        read; at the beginning, where a log was deleted and made again, and that is to be passed
        over. Raises ``DataLossError``.
        """

    def ahead(self, start: Offset, limits: Limits) -> Offset:
        """As far as a micro-batch from ``start`` on goes; back to the end where ``start`` is behind
        all there is, and that is to be passed over.

        Raises:
            DataLossError: what comes next is gone, and that is not to be passed over.
        """

    def ranges(self, start: Offset, end: Offset) -> list[EntryRange]:
        """The entries from ``start`` up to and without ``end``. Raises ``DataLossError``."""


def watched(context: ClientContext, reader: LedgerReader) -> Unchanged:
    """Begin to watch a ledger that was read, if it is open, and read what it is then.

    Raises:
        NoSuchLedgerError: it was deleted meanwhile.
    """
    if reader.is_closed:
        return for_good
    is_current = context.store.watch_metadata(reader.ledger_id)
    reader.refresh()  # it may have changed before it was watched
    return is_current


def for_good() -> bool:
    """What is read of a ledger that is closed, or gone, does not change any more."""
    return True


def entries_within(
    context: ClientContext,
    ledger: Ledger,
    first: EntryId,
    count: int,
    limits: Limits,
    *,
    is_first: bool = True,
) -> int:
    """How many entries of a run are within limits; at least one of the first run."""
    taken = count
    if limits.entries is not None:
        taken = min(taken, limits.entries)
    if limits.size_bytes is not None and taken > 0:
        average = average_bytes(context, ledger, first, EntryId(first + count - 1))
        taken = min(taken, int(limits.size_bytes / max(average, 1)))
    return max(taken, 1 if is_first and count > 0 else 0)


def check_not_ahead(place: Position, front: Offset) -> None:
    """Raises ``NoSuchEntryError`` for a beginning that is behind the end."""
    if place > front.position:
        raise NoSuchEntryError(
            f"startingOffsets {place.ledger_id}:{place.entry_id} is behind the end, which is "
            f"{front.position.ledger_id}:{front.position.entry_id} now; latest begins there",
            ledger_id=place.ledger_id,
            entry_id=place.entry_id,
        )


def ahead_of_end(of: str, start: Offset, end: Offset, options: SourceOptions) -> Offset:
    """Where a stream goes on that has read further than there is something to read. What it has
    read from there is gone since. Raises ``DataLossError``.
    """
    place, last = start.position, end.position
    text = (
        f"the checkpoint is ahead of the end of {of}: {place.ledger_id}:{place.entry_id} was to be "
        f"read next, and the end is {last.ledger_id}:{last.entry_id}. What was read from there is "
        "no longer in it: an older state was put back, or the checkpoint was changed. Begin a new "
        "checkpoint; with failOnDataLoss=false the stream goes on from the end"
    )
    if options.fail_on_data_loss:
        raise data_loss(text, place)
    _log.warning("passed over: %s", text)
    return end


def data_loss(text: str, position: Position) -> DataLossError:
    """What a stream was to read from a place on is gone."""
    return DataLossError(text, ledger_id=position.ledger_id, entry_id=position.entry_id)
