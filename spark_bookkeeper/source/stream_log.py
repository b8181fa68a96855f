"""Following a log: the offset of its end, and the entries between two offsets.

``latest_offset.py`` decides when to look for new entries. In between, watches report changes: of
the newest ledger's metadata while it is open, and of the list of ledgers after that. A closed
ledger is not watched: it does not change, and the watch would stay until it is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange, Ledger
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.read.sizes import average_bytes
from spark_bookkeeper.client.read.unreadable import warn_of_accepted_loss
from spark_bookkeeper.errors import MetadataError, NoSuchLedgerError
from spark_bookkeeper.logs import consumers
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.store import Unchanged, Versioned
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.source.latest_offset import HeadSnapshot, LatestOffset
from spark_bookkeeper.source.micro_batch import (
    Limits,
    ahead_of_end,
    check_not_ahead,
    data_loss,
    entries_within,
    watched,
)
from spark_bookkeeper.source.offset_checks import check_in_log
from spark_bookkeeper.source.offset_options import EARLIEST, LATEST, Moment, Offset, Place
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.stream_ledger import FollowedLedger

_log = logging.getLogger(__name__)

PUBLISH_SECONDS: Final = 0.5
"""Least time between two published positions of a named stream."""


class FollowedLog:
    """A log that is followed from ledger to ledger, whatever process writes it.

    After the end of a closed ledger, the position is the beginning of the next one. So a truncation
    of ledgers that were read loses nothing.
    """

    def __init__(self, context: ClientContext, options: SourceOptions) -> None:
        assert options.log is not None
        self._context = context
        self._options = options
        self.name = options.log
        head = logs.read_log(context.store.registers, self.name)
        self.nonce = head.nonce
        self._password = LogOptions.from_json(self.name, head.options).password
        self._newest: LedgerReader | None = None
        self._front = LatestOffset(context.runtime, f"log {self.name}", self._look)
        self._published: Offset | None = None
        self._next_publishing = 0.0

    def begin(self, place: Place) -> Offset:
        head = self._head()
        if place == EARLIEST:
            return self._offset(Position(head.begins_at, EntryId(0)))
        front = self.front()
        if place == LATEST:
            return front
        if isinstance(place, Moment):
            return self._offset(open_log(self._context, self.name).position_at(place.time))
        assert isinstance(place, Position)
        check_not_ahead(place, front)
        if place.ledger_id < head.begins_at:
            return self._offset(self._passed_over(place, head))
        remedy = "earliest and latest are places of every log"
        check_in_log(self._context, self.name, self.nonce, "startingOffsets", place, remedy)
        return self._offset(place)

    def front(self) -> Offset:
        return self._offset(self._front.sight().position)

    def resumed(self, start: Offset) -> Offset:
        if start.nonce == self.nonce and start.log == self.name:
            return start
        text = f"log {self.name!r} is another one than the one that the checkpoint is about"
        if start.log != self.name:  # the query was changed, and no entry is lost
            raise data_loss(
                f"{text}, {start.source()}. Begin a new checkpoint to read this one", start.position
            )
        text += (
            ": that was deleted, and what the stream had not read of it is lost. Begin a new "
            "checkpoint; with failOnDataLoss=false the stream goes on from the beginning of this "
            "one"
        )
        if self._options.fail_on_data_loss:
            raise data_loss(text, start.position)
        _log.warning("passed over: %s", text)
        return self.begin(EARLIEST)

    def ahead(self, start: Offset, limits: Limits) -> Offset:
        start = self.resumed(start)
        sight = self._front.sight()
        begin, front = start.position, sight.position
        if sight.ends_before(begin):
            return ahead_of_end(f"log {self.name!r}", start, self._offset(front), self._options)
        if begin >= front:
            return start
        if limits == Limits():
            return self._offset(front)
        entries, size = 0, 0.0
        place = begin
        for ledger in self._ledgers(begin, front):
            low = place.entry_id if ledger.ledger_id == place.ledger_id else EntryId(0)
            high = _end(ledger, front)
            left = Limits(
                None if limits.entries is None else limits.entries - entries,
                None if limits.size_bytes is None else int(limits.size_bytes - size),
            )
            is_first = entries == 0
            taken = entries_within(self._context, ledger, low, high - low, left, is_first=is_first)
            entries += taken
            size += taken * average_bytes(self._context, ledger, low, EntryId(high - 1))
            if taken < high - low:
                return self._offset(Position(ledger.ledger_id, EntryId(low + taken)))
            place = Position(LedgerId(ledger.ledger_id + 1), EntryId(0))
        return self._offset(front)

    def ranges(self, start: Offset, end: Offset) -> list[EntryRange]:
        start = self.resumed(start)
        if end.nonce != self.nonce:
            return []  # planned before that log was deleted
        found = []
        for ledger in self._ledgers(start.position, end.position):
            is_first = ledger.ledger_id == start.position.ledger_id
            first = start.position.entry_id if is_first else EntryId(0)
            last = EntryId(_end(ledger, end.position) - 1)
            if first <= last:
                found.append(EntryRange(ledger, first, last))
        return found

    def publish(self, consumer: str, offset: Offset, *, is_last: bool = False) -> None:
        """Publish the position of the stream, for users and for retention. Errors are only logged,
        since the next micro-batch publishes again.

        Publishes at most once in ``PUBLISH_SECONDS``, except for the last position.
        """
        is_soon = self._context.runtime.now() < self._next_publishing
        if offset == self._published or (is_soon and not is_last):
            return
        if offset.nonce != self.nonce:
            return  # the position belongs to a log that was deleted
        try:
            log, nonce = self.name, self.nonce
            consumers.publish(self._context, log, nonce, consumer, offset.position)
        except MetadataError as error:
            _log.warning("the position of consumer %s is not published: %s", consumer, error)
        else:
            self._published = offset
        self._next_publishing = self._context.runtime.now() + PUBLISH_SECONDS

    # Inside

    def _offset(self, position: Position) -> Offset:
        return Offset(position, self.nonce, self.name)

    def _head(self) -> LogHead:
        return logs.read_life(self._context.store.registers, self.name, self.nonce)

    def _look(self, before: HeadSnapshot | None) -> HeadSnapshot:
        """Find the position after the last readable entry; ``before`` is the previous result."""
        newest = self._newest
        if newest is not None and not newest.is_closed:
            if before is not None and before.is_current():
                newest.advance()
                return _sight(newest, before.is_current)
            try:
                newest.refresh()
                is_current = watched(self._context, newest)
            except NoSuchLedgerError:
                newest = self._newest = None  # truncated, with its entries that were not read
            else:
                if not newest.is_closed:
                    return _sight(newest, is_current)
        is_listed = logs.watch_log(self._context.store.registers, self.name)
        head = self._head()
        if newest is not None and head.newest == newest.ledger_id:
            return _sight(newest, is_listed)
        reader: LedgerReader | None = None
        is_current = is_listed
        for ledger_id in head.to_fence:
            if ledger_id < head.begins_at:
                continue
            try:
                opened = lifecycle.open_ledger_no_recovery(self._context, ledger_id, self._password)
                is_current = watched(self._context, opened)
            except NoSuchLedgerError:
                continue  # truncated since the head was read; a newer ledger exists
            reader = opened
            if not reader.is_closed:
                break  # later ledgers may hold entries that are not acknowledged before it
        if reader is None:
            return HeadSnapshot(Position(head.begins_at, EntryId(0)), False, is_listed)
        self._newest = reader
        return _sight(reader, is_listed if reader.is_closed else is_current)

    def _ledgers(self, start: Position, end: Position) -> Sequence[Ledger]:
        """Return the ledgers with entries between two positions; ``start`` may be truncated."""
        head, listed = list_ledgers(self._context, self.name, self.nonce, start.ledger_id)
        if start.ledger_id < head.begins_at:
            start = self._passed_over(start, head)
        least, most = start.ledger_id, end.ledger_id - (end.entry_id == 0)
        wanted = [ledger for ledger in listed if least <= ledger <= most]
        found = []
        for ledger_id, metadata in self._context.store.read_ledgers(wanted):
            if metadata is None:
                self._gone(max(start, Position(ledger_id, EntryId(0))))
                continue
            if not isinstance(metadata, Versioned):
                raise metadata
            found.append(Ledger.of(ledger_id, metadata.value))
            warn_of_accepted_loss(found[-1])
        return found

    def _gone(self, place: Position) -> None:
        """Handle a missing ledger: it was truncated meanwhile, or a client deleted it."""
        head = self._head()
        if place.ledger_id < head.begins_at:
            self._passed_over(place, head)
            return
        text = (
            f"ledger {place.ledger_id} of log {self.name!r}, which is to be read from entry "
            f"{place.entry_id} on, was deleted by somebody. With failOnDataLoss=false the stream "
            "goes on behind it"
        )
        if self._options.fail_on_data_loss:
            raise data_loss(text, place)
        _log.warning("passed over: %s", text)

    def _passed_over(self, start: Position, head: LogHead) -> Position:
        """Return where a stream whose ledger was truncated goes on. Raises ``DataLossError``."""
        found = head.resumed(start)
        if found is not None:
            return found
        end, lost = head.truncated_end, "What was between is lost, if there was anything"
        if end is not None and start < end:
            lost = f"What it had from there to {end.ledger_id}:{end.entry_id - 1} is lost"
        text = (
            f"log {self.name!r} was truncated: it begins at ledger {head.begins_at} now, and "
            f"{start.ledger_id}:{start.entry_id} was to be read next. {lost}. With "
            "failOnDataLoss=false the stream goes on from the beginning"
        )
        if self._options.fail_on_data_loss:
            raise data_loss(text, start)
        _log.warning("passed over: %s", text)
        return Position(head.begins_at, EntryId(0))


def followed(context: ClientContext, options: SourceOptions) -> FollowedLedger | FollowedLog:
    """Return what a stream with these options reads. Raises ``NoSuchLogError``."""
    if options.log is not None:
        return FollowedLog(context, options)
    return FollowedLedger(context, options)


def _end(ledger: Ledger, front: Position) -> int:
    """Return the id after the last entry of a ledger that is before a position."""
    if ledger.ledger_id == front.ledger_id:
        return front.entry_id
    assert ledger.metadata.last_entry_id is not None, "one-open-ledger-per-log"
    return ledger.metadata.last_entry_id + 1


def _sight(newest: LedgerReader, is_current: Unchanged) -> HeadSnapshot:
    """Return the snapshot of a log from its newest readable ledger."""
    return HeadSnapshot(_behind(newest), not newest.is_closed, is_current)


def _behind(reader: LedgerReader) -> Position:
    if reader.is_closed:
        return Position(LedgerId(reader.ledger_id + 1), EntryId(0))
    return Position(reader.ledger_id, EntryId(reader.last_add_confirmed + 1))
