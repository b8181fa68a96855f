"""A log, as its users hold it: read it, follow it, become its writer, truncate it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.read.reader import TAIL_POLL_SECONDS, Entry, LedgerReader
from spark_bookkeeper.client.write.bulk import EntryRange, Frames
from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.opening import take_over
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.runtime.public_names import PublicNames

_log = logging.getLogger(__name__)

Place = Position | str
"""Where callers may give a position: also as text, ``"7:12"``."""


class Log(PublicNames):
    """One log. Reading never disturbs its writer; only ``become_writer`` and ``delete`` fence."""

    def __init__(
        self, context: ClientContext, name: str, head: LogHead, frames: Frames | None = None
    ) -> None:
        self.name = name
        self._context = context
        self._nonce = head.nonce
        self._options = LogOptions.from_json(name, head.options)
        self._frames = frames

    def __repr__(self) -> str:
        return f"Log({self.name!r})"

    def _repr_html_(self) -> str:
        return fields_table({"log": self.name, "columns": ", ".join(self.schema.names)})

    @property
    def schema(self) -> pa.Schema:
        """Columns of its rows."""
        return self._options.schema

    def ledgers(self) -> list[LedgerId]:
        """The ids of its ledgers in order, as the list is now.

        Raises:
            NoSuchLogError: it was deleted.
        """
        return list_ledgers(self._context, self.name, self._nonce)[1]

    def become_writer(self, is_leader: Callable[[], bool] | None = None) -> LogWriter:
        """Fence whoever writes the log now, and return its writer.

        Two who do so at once never both write: one is told that it lost, here or at its next
        append.

        Args:
            is_leader: asked after each lost race whether this process is still to lead; without
                it the attempt is repeated some times.

        Raises:
            LogOwnershipLostError: others were faster.
            NoSuchLogError: the log was deleted.
            RecoveryUndecidedError, NotEnoughBookiesError: repeat it when bookies are back.
        """
        ledger = take_over(self._context, self.name, self._nonce, self._frames, is_leader)
        try:
            truncation.finish(self._context, self.name, self._head())
        except BookKeeperError as error:  # the next one does it
            _log.info("a truncation of log %s stays unfinished: %s", self.name, error)
        return LogWriter(self._context, self.name, self._nonce, self._options, ledger, self._frames)

    def entries(self, start: Place | None = None, end: Place | None = None) -> Iterator[Entry]:
        """The entries from ``start`` up to and without ``end``, in order.

        Args:
            start: without it the first entry that is not truncated. One that is truncated is
                refused.
            end: without it the last entry that is acknowledged now.

        Raises:
            NoSuchEntryError: ``start`` was truncated.
            InvalidArgumentError: no position, or one within an entry.
            EntryUnreadableError: no replica of an entry is left.
        """
        for reader, first, last in self._pieces(start, end):
            if first <= last:
                yield from reader.entries(first, last)

    def read_arrow(self, start: Place | None = None, end: Place | None = None) -> pa.Table:
        """The rows of the same range as one table."""
        tables = [
            reader.read_arrow(first, last)
            for reader, first, last in self._pieces(start, end)
            if first <= last
        ]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def read(self, start: Place | None = None, end: Place | None = None) -> Any:
        """The rows of the same range as a Spark DataFrame, in order.

        What is in the range is fixed now; the rows are read whenever Spark runs the DataFrame.
        """
        if self._frames is None:
            raise InvalidArgumentError("read() needs a Spark session; read_arrow() does not")
        ranges = [
            EntryRange(reader.ledger, EntryId(first), EntryId(last))
            for reader, first, last in self._pieces(start, end)
            if first <= last
        ]
        return self._frames.read(self._context, self.schema, ranges)

    def tail(self, start: Place | None = None, timeout_ms: int | None = None) -> Iterator[Entry]:
        """Entries as they are acknowledged, from one ledger to the next, without end.

        Neither rolling nor a change of the writer skips or repeats an entry. As long as a ledger
        is written, its last entry is seen when a later one was appended, or the ledger closed.

        Args:
            start: without it the first entry that is not truncated.
            timeout_ms: ends after this time without a new entry; ``None`` waits for ever.

        Raises:
            NoSuchEntryError: what was to be read next was truncated.
        """
        if timeout_ms is not None:
            whole_number("timeout_ms", timeout_ms, 0)
        runtime = self._context.runtime
        following = self._start(start, self._head())
        waiting_since = runtime.now()
        while True:
            for reader, first, last in self._pieces(following, None):
                if first <= last:
                    yield from reader.entries(first, last)
                    waiting_since = runtime.now()
                following = Position(reader.ledger_id, EntryId(last + 1))
                if reader.is_closed:  # all of it was read, so it may be truncated
                    following = Position(LedgerId(reader.ledger_id + 1), EntryId(0))
            waited_ms = (runtime.now() - waiting_since) * 1000
            if timeout_ms is not None and waited_ms >= timeout_ms:
                return
            runtime.sleep(TAIL_POLL_SECONDS)

    def truncate(self, before: Place | int | datetime) -> list[LedgerId]:
        """Remove whole ledgers from the beginning; returns the ids of those that were deleted.

        Args:
            before: a position, or a ledger id: every ledger below its ledger goes. Or a time, by
                the clocks of the writers: every ledger goes that had ended by then; without a
                time zone it is local time. The newest ledger always stays.

        Raises:
            NoSuchLogError: it was deleted.
        """
        if isinstance(before, datetime):
            time_ms = int(before.timestamp() * 1000)
            found = truncation.ended_before(self._context, self.name, self._nonce, time_ms)
            if found is None:
                return []
            ledger_id = found
        elif isinstance(before, Position | str):
            ledger_id = _position(before).ledger_id
        else:
            ledger_id = parse_ledger_id(before)
        return truncation.truncate(self._context, self.name, self._nonce, ledger_id)

    # Inside

    def _head(self) -> LogHead:
        return logs.read_life(self._context.store.registers, self.name, self._nonce)

    def _start(self, start: Place | None, head: LogHead) -> Position:
        if start is None:
            return Position(head.begins_at, EntryId(0))
        position = _position(start)
        if position.ledger_id < head.begins_at:
            raise NoSuchEntryError(
                f"position {position} of log {self.name!r} was truncated: the log begins at ledger "
                f"{head.begins_at} now. Read from there, and what is lost is what is before it",
                ledger_id=position.ledger_id,
                entry_id=position.entry_id,
            )
        return position

    def _pieces(
        self, start: Place | None, end: Place | None
    ) -> Iterator[tuple[LedgerReader, int, int]]:
        """What there is of a range now: an opened ledger, its first and its last entry.

        Of a ledger that has nothing of the range the last entry is below the first.
        """
        least = None if start is None else _position(start).ledger_id
        head, listed = list_ledgers(self._context, self.name, self._nonce, least)
        first = self._start(start, head)
        stop = None if end is None else _position(end)
        for ledger_id in listed:
            if ledger_id < first.ledger_id or (stop is not None and ledger_id > stop.ledger_id):
                continue
            try:
                reader = lifecycle.open_ledger_no_recovery(
                    self._context, ledger_id, self._options.password, self._frames
                )
            except NoSuchLedgerError:
                self._check_truncated(ledger_id)
                raise
            low = first.entry_id if ledger_id == first.ledger_id else 0
            high = reader.last_add_confirmed
            if stop is not None and ledger_id == stop.ledger_id:
                high = min(high, EntryId(stop.entry_id - 1))
            yield reader, low, max(high, low - 1)
            if not reader.is_closed:
                return  # what follows it may not be acknowledged before it

    def _check_truncated(self, ledger_id: LedgerId) -> None:
        """Whether a ledger that is gone was truncated while it was to be read."""
        head = self._head()
        if ledger_id < head.begins_at:
            raise NoSuchEntryError(
                f"ledger {ledger_id} of log {self.name!r} was truncated while it was read: the log "
                f"begins at ledger {head.begins_at} now",
                ledger_id=ledger_id,
                entry_id=NO_ENTRY,
            ) from None


def _position(place: Place) -> Position:
    position = place if isinstance(place, Position) else Position.parse(place)
    if position.row:
        raise InvalidArgumentError(
            f"position {position} is within an entry, and entries are read whole: give row 0, and "
            "leave out the rows that you have"
        )
    return position
