"""The interface of what a stream reads, a log or a ledger, and functions that both share."""

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
    """The approximate size of one micro-batch; each one has at least one new entry."""

    entries: int | None = None
    size_bytes: int | None = None


class Followed(Protocol):
    """The log or ledger that a stream reads."""

    def begin(self, place: Place) -> Offset:
        """Return where a new stream begins. Raises ``NoSuchEntryError`` for an invalid place."""

    def front(self) -> Offset:
        """Return the offset after the last entry that can be read now."""

    def resumed(self, start: Offset) -> Offset:
        """Return where a stream with a checkpoint goes on: at ``start``, if that is in what it
        reads. If the log was deleted and created again, and the loss is accepted, it goes on at
        the beginning. Otherwise raises ``DataLossError``.
        """

    def ahead(self, start: Offset, limits: Limits) -> Offset:
        """Return the end of a micro-batch from ``start`` on. If ``start`` is after all entries and
        the loss is accepted, this is the end of the entries.

        Raises:
            DataLossError: the next entries are lost, and the loss is not accepted.
        """

    def ranges(self, start: Offset, end: Offset) -> list[EntryRange]:
        """Return the entries from ``start`` up to ``end``, without it. Raises ``DataLossError``."""


def watched(context: ClientContext, reader: LedgerReader) -> Unchanged:
    """Watch a ledger that was read, if it is open, and read its metadata again.

    Raises:
        NoSuchLedgerError: it was deleted meanwhile.
    """
    if reader.is_closed:
        return for_good
    is_current = context.store.watch_metadata(reader.ledger_id)
    reader.refresh()  # it may have changed before the watch began
    return is_current


def for_good() -> bool:
    """Return true: the metadata of a closed or deleted ledger do not change any more."""
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
    """Return how many entries of a run fit the limits; at least one for the first run."""
    taken = count
    if limits.entries is not None:
        taken = min(taken, limits.entries)
    if limits.size_bytes is not None and taken > 0:
        average = average_bytes(context, ledger, first, EntryId(first + count - 1))
        taken = min(taken, int(limits.size_bytes / max(average, 1)))
    return max(taken, 1 if is_first and count > 0 else 0)


def check_not_ahead(place: Position, front: Offset) -> None:
    """Raise ``NoSuchEntryError`` for a beginning that is after the end."""
    if place > front.position:
        raise NoSuchEntryError(
            f"startingOffsets {place.ledger_id}:{place.entry_id} is behind the end, which is "
            f"{front.position.ledger_id}:{front.position.entry_id} now; latest begins there",
            ledger_id=place.ledger_id,
            entry_id=place.entry_id,
        )


def ahead_of_end(of: str, start: Offset, end: Offset, options: SourceOptions) -> Offset:
    """Return the end, where a stream goes on that has read beyond it. Entries that it has read are
    lost, so ``DataLossError`` is raised unless the loss is accepted.
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
    """Return the error that entries which a stream was to read are lost."""
    return DataLossError(text, ledger_id=position.ledger_id, entry_id=position.entry_id)
