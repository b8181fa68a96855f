"""Following one ledger, while it is written and afterwards."""

from __future__ import annotations

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.errors import DataLossError, NoSuchEntryError, NoSuchLedgerError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.source.latest_offset import HeadSnapshot, LatestOffset
from spark_bookkeeper.source.micro_batch import (
    Limits,
    ahead_of_end,
    check_not_ahead,
    data_loss,
    entries_within,
    for_good,
    watched,
)
from spark_bookkeeper.source.offset_options import EARLIEST, LATEST, Moment, Offset, Place
from spark_bookkeeper.source.options import SourceOptions


class FollowedLedger:
    """One ledger that a stream reads, while it is written and afterwards."""

    def __init__(self, context: ClientContext, options: SourceOptions) -> None:
        assert options.ledger is not None
        self._context = context
        self._options = options
        self._ledger_id = LedgerId(options.ledger)
        self._reader: LedgerReader | None = None
        self._front = LatestOffset(context.runtime, f"ledger {self._ledger_id}", self._look)

    def begin(self, place: Place) -> Offset:
        front = self.front()
        if place == EARLIEST:
            return front.at(Position(self._ledger_id, EntryId(0)))
        if place == LATEST:
            return front
        if isinstance(place, Moment):
            entry_id = self._opened().entry_at(place.time)
            return front.at(Position(self._ledger_id, entry_id))
        assert isinstance(place, Position)
        if place.ledger_id != self._ledger_id:
            raise NoSuchEntryError(
                f"startingOffsets {place.ledger_id}:{place.entry_id} names ledger "
                f"{place.ledger_id}, and ledger {self._ledger_id} is followed. Name an entry of "
                "that, or earliest or latest",
                ledger_id=place.ledger_id,
                entry_id=place.entry_id,
            )
        check_not_ahead(place, front)
        return front.at(place)

    def front(self) -> Offset:
        return self._offset(self._front.sight().position)

    def resumed(self, start: Offset) -> Offset:
        try:
            own = self._offset(Position(self._ledger_id, EntryId(0)))
        except NoSuchLedgerError as error:
            raise self._gone(error) from error
        if start.nonce != own.nonce:
            is_its_own = start.source() == own.source()  # rare: ids are used once
            what = "that was deleted" if is_its_own else start.source()
            raise data_loss(
                f"ledger {self._ledger_id} is another one than the one that the checkpoint is "
                f"about, {what}. Begin a new checkpoint to read this one",
                start.position,
            )
        return start

    def ahead(self, start: Offset, limits: Limits) -> Offset:
        sight = self._front.sight()
        front = self.resumed(start).at(sight.position)
        if sight.ends_before(start.position):
            return ahead_of_end(f"ledger {self._ledger_id}", start, front, self._options)
        if front.position <= start.position:
            return start
        reader = self._opened()
        count = front.position.entry_id - start.position.entry_id
        taken = entries_within(self._context, reader.ledger, start.position.entry_id, count, limits)
        return start.at(Position(self._ledger_id, EntryId(start.position.entry_id + taken)))

    def ranges(self, start: Offset, end: Offset) -> list[EntryRange]:
        try:
            ledger = self._opened().ledger
        except NoSuchLedgerError as error:
            if self._options.fail_on_data_loss:
                raise self._gone(error) from error
            return []
        start = self.resumed(start)
        first, last = start.position.entry_id, EntryId(end.position.entry_id - 1)
        return [EntryRange(ledger, first, last)] if first <= last else []

    def _look(self, before: HeadSnapshot | None) -> HeadSnapshot:
        reader = self._reader
        if before is not None and reader is not None and before.is_current():
            reader.advance()
            return before._replace(position=self._behind(reader))
        try:
            if reader is None:
                reader = self._opened()
            else:
                reader.refresh()
            is_current = watched(self._context, reader)
        except NoSuchLedgerError as error:
            if self._options.fail_on_data_loss or reader is None:
                raise self._gone(error) from error
            # The last known end stays the end: a deleted ledger gets no more entries.
            return HeadSnapshot(self._behind(reader), is_written=False, is_current=for_good)
        return HeadSnapshot(self._behind(reader), not reader.is_closed, is_current)

    def _offset(self, position: Position) -> Offset:
        return Offset(position, self._opened().ledger.key.nonce)

    def _behind(self, reader: LedgerReader) -> Position:
        return Position(self._ledger_id, EntryId(reader.last_add_confirmed + 1))

    def _opened(self) -> LedgerReader:
        if self._reader is None:
            self._reader = lifecycle.open_ledger_no_recovery(
                self._context, self._ledger_id, self._options.password
            )
        return self._reader

    def _gone(self, error: NoSuchLedgerError) -> DataLossError:
        return data_loss(
            f"{error.message}. The stream reads it, and what it had not read is lost. With "
            "failOnDataLoss=false it goes on without",
            Position(self._ledger_id, EntryId(0)),
        )
