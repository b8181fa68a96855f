"""A log, as its users hold it: read it, follow it, become its writer, truncate it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from numbers import Integral
from typing import Any, NoReturn

import pyarrow as pa

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.client.read.evolution import widen, widen_all
from spark_bookkeeper.client.read.reader import TAIL_POLL_SECONDS, Entry, LedgerReader
from spark_bookkeeper.client.read.times import check_order, to_ms
from spark_bookkeeper.client.write import rows
from spark_bookkeeper.client.write.bulk import Frames, write_local
from spark_bookkeeper.errors import (
    BookKeeperError,
    EntryUnreadableError,
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from spark_bookkeeper.logs import atomic, consumers, seeking, standby, truncation
from spark_bookkeeper.logs.atomic import LogWrite
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.opening import take_over
from spark_bookkeeper.logs.options import LogOptions, evolve
from spark_bookkeeper.logs.positions import (
    Place,
    check_in_closed,
    check_listed,
    position_of,
    start_of,
)
from spark_bookkeeper.logs.staged_writes import StagedWrite, abort
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.metadata import consumers as registers
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.election import Election, Vote
from spark_bookkeeper.protocol.arguments import (
    check_bytes,
    check_callable,
    check_flag,
    whole_number,
)
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.protocol.transactions import Transaction, transaction_of
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.runtime.public_names import PublicNames

_log = logging.getLogger(__name__)


class Log(PublicNames):
    """One log. ``become_writer``, ``write`` and a deletion fence its writer; reading does not."""

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

    def __reduce__(self) -> NoReturn:
        self._context.refuse_pickling(f"log {self.name!r}", f".open_log({self.name!r})")

    def _repr_html_(self) -> str:
        return fields_table({"log": self.name, "columns": ", ".join(self.schema.names)})

    @property
    def schema(self) -> pa.Schema:
        """The columns of the log's rows, as this object last read them.

        Columns that ``evolve`` adds appear after the next read. In older rows an added column is
        null, and values have the widened types.
        """
        return self._options.schema

    def ledgers(self) -> list[LedgerId]:
        """Return the ids of the log's ledgers, in order, from the current list.

        Raises:
            NoSuchLogError: the log was deleted.
        """
        return list_ledgers(self._context, self.name, self._nonce)[1]

    def become_writer(
        self, is_leader: Callable[[], bool] | None = None, *, schema: Any = None
    ) -> LogWriter:
        """Fence the current writer of the log, and return a new writer.

        When two processes do so at once, at most one writes. The other one gets
        ``LogOwnershipLostError``, here or at its next append.

        Args:
            is_leader: called after each lost race; the attempt is repeated only while it returns
                true. Without it the attempt is repeated a few times.
            schema: columns of the new ledger and of later ones, see ``LogWriter.evolve``.

        Raises:
            InvalidArgumentError: the columns cannot follow the log's columns, or ``is_leader`` is
                not a function.
            LogOwnershipLostError: other writers were faster.
            NoSuchLogError: the log was deleted.
            RecoveryUndecidedError, NotEnoughBookiesError: repeat it when bookies are back.
        """
        if is_leader is not None:
            check_callable("is_leader", is_leader, "lambda: vote.is_leader")
        if schema is not None:
            evolve(self._context, self.name, self._nonce, schema, self._frames)
        ledger = take_over(self._context, self.name, self._nonce, self._frames, is_leader)
        try:
            head = self._head()
            self._options = LogOptions.from_json(self.name, head.options)
            truncation.finish(self._context, self.name, head)
        except BookKeeperError as error:  # the next writer finishes it
            _log.info(
                "a truncation of log %s stays unfinished: %s",
                *(self.name, error),
                extra=about(log=self.name),
            )
        return LogWriter(self._context, self.name, self._nonce, self._options, ledger, self._frames)

    def elect(self, identity: bytes | None = None) -> Vote:
        """Become a candidate for writing the log; ``wait()`` returns when this candidate leads.

        The election is advice, for processes that take turns::

            with log.elect() as vote:
                vote.wait()
                with log.become_writer(is_leader=lambda: vote.is_leader) as writer:
                    ...

        A frozen or disconnected leader loses its lead, and may not notice. It still cannot write,
        since ``become_writer`` of its successor has fenced it.

        Args:
            identity: returned by ``leader()`` of all processes; by default it names this process.

        Raises:
            InvalidArgumentError: the identity is not ``bytes``.
            MetadataUnavailableError: this process is not a candidate.
        """
        if identity is None:
            writer = self._context.writer
            identity = b"" if writer is None else writer.encode()
        check_bytes("identity", identity)
        return self._election().join(identity)

    def stand_by(
        self, vote: Vote, apply: Callable[[Entry], object], start: Place | None = None
    ) -> LogWriter:
        """Be a warm standby: follow the log, and return its writer once ``vote`` leads.

        Before it returns, every entry of the log was passed to ``apply``, once and in order. This
        includes the last entries that the previous writer acknowledged::

            with log.elect() as vote, log.stand_by(vote, state.update) as writer:
                writer.append(...)

        When another writer takes over later, the next append raises ``LogOwnershipLostError``. Then
        stand by again, from the entry after the last applied one.

        Args:
            vote: a vote of ``elect()``.
            apply: called with each entry, in the calling thread. If it raises, the standby ends.
            start: the first entry to apply; by default the first one that is not truncated.

        Raises:
            NoSuchEntryError: the next entry to apply was truncated.
            InvalidArgumentError: the vote was left, or it is a vote of another log.
            NoSuchLogError: the log was deleted.
        """
        check_callable("apply", apply, "state.update")
        if not isinstance(vote, Vote) or vote.path != self._election().path:
            raise InvalidArgumentError(
                f"{vote!r} is no vote of log {self.name!r}; elect() of this log gives one"
            )
        return standby.stand_by(self, self._context.runtime, vote, apply, start)

    def leader(self) -> bytes | None:
        """Return the identity of the candidate that leads now; ``None`` without a candidate."""
        return self._election().leader()

    def position_at(self, time: datetime, *, is_end: bool = False) -> Position:
        """Return the position of the first entry that was appended at a time or later.

        Without such an entry this is the end of the log. The times are those of the writers'
        clocks, which may differ where the writer has changed.

        Args:
            time: local time, if it has no time zone.
            is_end: whether the position ends a range. Where the writers' clocks disagree, an end is
                rather too late, and a beginning rather too early.

        Raises:
            NoSuchLogError: the log was deleted.
            EntryUnreadableError: no bookie can say when an entry was appended.
        """
        head, listed = list_ledgers(self._context, self.name, self._nonce)
        return seeking.position_at(self._context, head, listed, time, self._open, is_end=is_end)

    def write(
        self, data: Any, *, txn_app_id: str | None = None, txn_version: int | None = None
    ) -> LogWrite:
        """Add rows as one ledger, atomically: readers see all of them or none.

        This fences the writer of the log, as ``become_writer`` does.

        Args:
            data: rows, as ``LedgerWriter.append`` takes them.
            txn_app_id: name of the writing application; the same for each write.
            txn_version: number of the write. If it is not above the application's last number, the
                log has the write already: nothing is written, and ``is_new`` is false.

        Raises:
            InvalidArgumentError: another schema, or only one of both ``txn_`` arguments.
            LogOwnershipLostError: other writers were faster each time. Nothing was added.
            MetadataUnavailableError: the rows may or may not have been added.
            NoSuchLogError, NotEnoughBookiesError, BookieUnavailableError: nothing was added.
            AppendFailedError, RecoveryUndecidedError: nothing was added either.
        """
        transaction = transaction_of(txn_app_id, txn_version)
        frames = self._frames
        if frames is not None and frames.is_frame(data):
            staged = self._stage(transaction, frames.schema(data))
            run = partial(frames.write_parts, data, staged.plan)
        else:
            self._options = LogOptions.from_json(self.name, self._head().options)
            table = rows.to_table(data, self.schema)
            staged = self._stage(transaction, table.schema)
            run = partial(write_local, staged.plan, table, self._context)
        try:
            return atomic.commit(self._context, staged, run(), transaction)
        except BaseException:
            abort(self._context, staged)
            raise

    def last_transaction(self, txn_app_id: str) -> int | None:
        """Return the number of an application's last write; ``None`` when it is not known."""
        last = self._head().transactions.of(txn_app_id)
        return None if last is None else last.version

    def forget_application(self, txn_app_id: str) -> None:
        """Forget the last write number of an application, which makes room for other ones.

        If the application repeats a write later, the log has its rows twice.
        """
        is_known = self.last_transaction(txn_app_id) is not None
        atomic.forget_application(self._context, self.name, self._nonce, txn_app_id)
        if is_known:
            what = f"application {txn_app_id} of log {self.name}"
            self._context.on_deleted(self._context, "forget_application", what, ())

    def entries(
        self,
        start: Place | None = None,
        end: Place | None = None,
        *,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
    ) -> Iterator[Entry]:
        """Yield the entries from ``start`` up to, not including, ``end``, in order.

        Args:
            start: by default the first entry that is not truncated. A truncated one is refused.
            end: by default the position after the last entry that is acknowledged now.
            start_time, end_time: instead of ``start`` and ``end``, see ``position_at``.

        Raises:
            NoSuchEntryError: ``start`` was truncated, or is no position of this log: it is after
                the end, or in a ledger that the log does not have. After a ledger was read to its
                end, the next position is ``ledger + 1:0``, even if no ledger has that id.
            InvalidArgumentError: no position, one within an entry, or ``end_time`` is before
                ``start_time``.
            EntryUnreadableError: no replica of an entry is left.
        """
        for reader, first, last in self._between(start, end, start_time, end_time):
            if first <= last:
                yield from self._widened(reader, first, last)

    def read_arrow(
        self,
        start: Place | None = None,
        end: Place | None = None,
        *,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
    ) -> pa.Table:
        """Return the rows of the range that ``entries`` would yield, as one table."""
        tables = []
        for reader, first, last in self._between(start, end, start_time, end_time):
            if first <= last:
                with self._told_if_truncated(reader.ledger_id):
                    tables.append(reader.read_arrow(first, last))
        return widen_all(tables, self.schema)

    def read(
        self,
        start: Place | None = None,
        end: Place | None = None,
        *,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
    ) -> Any:
        """Return the rows of the same range as a Spark DataFrame, in order.

        The range is fixed now. Spark reads the rows each time it runs the DataFrame.
        """
        if self._frames is None:
            raise InvalidArgumentError("read() needs a Spark session; read_arrow() does not")
        ranges = [
            EntryRange(reader.ledger, EntryId(first), EntryId(last))
            for reader, first, last in self._between(start, end, start_time, end_time)
            if first <= last
        ]
        return self._frames.read(self._context, self.schema, ranges)

    def tail(self, start: Place | None = None, timeout_ms: int | None = None) -> Iterator[Entry]:
        """Yield entries as they are acknowledged, from one ledger to the next, without end.

        Rolling the log or changing its writer neither skips nor repeats an entry. The last entry of
        an open ledger is yielded after a later entry was appended, after the ledger was closed, or
        after the writer has paused for ``explicit_lac_ms``.

        Args:
            start: by default the first entry that is not truncated.
            timeout_ms: the iterator ends after this time without a new entry; ``None``: never.

        Raises:
            NoSuchEntryError: the next entry to read was truncated, or ``start`` is no position of
                this log, see ``entries``.
        """
        if timeout_ms is not None:
            whole_number("timeout_ms", timeout_ms, 0)
        return self.follow(start, timeout_ms, lambda: False)

    def follow(
        self, start: Place | None, timeout_ms: int | None, is_over: Callable[[], bool]
    ) -> Iterator[Entry]:
        """Yield as ``tail`` does; also end once ``is_over`` is true and all entries were read."""
        runtime = self._context.runtime
        following = start_of(self.name, start, self._head())
        waiting_since = runtime.now()
        reader: LedgerReader | None = None
        while True:
            for found, first, last in self._pieces(following, None, reader):
                reader = found
                if first <= last:
                    yield from self._widened(reader, first, last)
                    waiting_since = runtime.now()
                following = Position(reader.ledger_id, EntryId(last + 1))
                if reader.is_closed:  # read to its end; the ledger may be truncated from here on
                    following = Position(LedgerId(reader.ledger_id + 1), EntryId(0))
            waited_ms = (runtime.now() - waiting_since) * 1000
            if is_over() or (timeout_ms is not None and waited_ms >= timeout_ms):
                return
            runtime.sleep(TAIL_POLL_SECONDS)

    def truncate(self, before: Place | int | datetime, *, dry_run: bool = False) -> list[LedgerId]:
        """Remove whole ledgers from the beginning; return the ids of the deleted ones.

        ``jobs()`` shows who did it, when, and how much was removed, also for retention.

        Args:
            before: a position or a ledger id: removes every ledger below that ledger. Or a time
                (local time without a time zone): removes every ledger that had ended by then, by
                the writers' clocks. The newest ledger always stays.
            dry_run: change nothing, and return the ids of the ledgers that would be deleted now.

        Raises:
            NoSuchLogError: the log was deleted.
            InvalidArgumentError: ``before`` is no position, no ledger id and no ``datetime``.
            EntryUnreadableError: only for a time: the bookies that may know when the last entry of
                a ledger was appended do not answer. Nothing was removed. If no bookie has the last
                entry any more, the ledger counts as ended when the next one was created.
        """
        check_flag("dry_run", dry_run)
        told: Any = before  # a caller may pass any type
        if isinstance(before, datetime):
            time_ms = to_ms(before)
            found = truncation.ended_before(self._context, self.name, self._nonce, time_ms)
            if found is None:
                return []
            ledger_id = found
        elif isinstance(before, Position | str):
            ledger_id = position_of(before).ledger_id
        elif isinstance(told, Integral):
            ledger_id = parse_ledger_id(told)
        else:
            raise InvalidArgumentError(
                f"before={told!r} is a {type(told).__name__}; it is a position ('7:12'), a "
                "ledger id, or a time: datetime(2026, 11, 22, 6, 30)"
            )
        act = truncation.planned if dry_run else truncation.truncate
        return act(self._context, self.name, self._nonce, ledger_id)

    def publish(self, consumer: str, position: Place) -> None:
        """Publish the position that this follower reads next: ``BookKeeper.consumers`` shows it,
        and retention can wait for it (``retain_for``). ``BookKeeper.metrics`` then has its lag.

        Args:
            consumer: the follower's name; the last position published under a name counts.
            position: everything before it was read and processed.

        Raises:
            InvalidArgumentError: the name or the position is not valid.
        """
        consumers.publish(self._context, self.name, self._nonce, consumer, position_of(position))
        consumers.show_lag(self._context, self.name, consumer)

    def forget_consumer(self, consumer: str) -> None:
        """Remove a named follower, so that retention does not wait for it; idempotent."""
        if registers.forget(self._context.store.registers, self.name, consumer):
            what = f"consumer {consumer} of log {self.name}"
            self._context.on_deleted(self._context, "forget_consumer", what, ())

    # Inside

    def _election(self) -> Election:
        return Election(
            self._context.store.ballots, f"{self.name}/{self._nonce}", self._context.runtime
        )

    def _stage(self, transaction: Transaction | None, schema: pa.Schema) -> StagedWrite:
        return atomic.stage(self._context, self.name, transaction, schema=schema, nonce=self._nonce)

    def _head(self) -> LogHead:
        return logs.read_life(self._context.store.registers, self.name, self._nonce)

    def _open(self, ledger_id: LedgerId) -> LedgerReader:
        return lifecycle.open_ledger_no_recovery(
            self._context, ledger_id, self._options.password, self._frames
        )

    def _widened(self, reader: LedgerReader, first: int, last: int) -> Iterator[Entry]:
        """Yield entries under the log's schema, also those of a ledger from before ``evolve``."""
        schema = self.schema
        with self._told_if_truncated(reader.ledger_id):
            if reader.schema.equals(schema, check_metadata=False):
                yield from reader.entries(first, last)
            else:
                for entry in reader.entries(first, last):
                    yield entry.with_batch(widen(entry.batch, schema))

    def _between(
        self,
        start: Place | None,
        end: Place | None,
        start_time: datetime | None,
        end_time: datetime | None,
    ) -> Iterator[tuple[LedgerReader, int, int]]:
        """Yield ``_pieces`` of a range whose ends are given as positions or as times."""
        if start is not None and start_time is not None:
            raise InvalidArgumentError(
                f"start={start} and start_time={start_time} both say where to begin; give one"
            )
        if end is not None and end_time is not None:
            raise InvalidArgumentError(
                f"end={end} and end_time={end_time} both say where to end; give one"
            )
        check_order(start_time, end_time)
        first = start if start_time is None else self.position_at(start_time)
        stop = end if end_time is None else self.position_at(end_time, is_end=True)
        return self._pieces(first, stop)

    def _pieces(
        self, start: Place | None, end: Place | None, known: LedgerReader | None = None
    ) -> Iterator[tuple[LedgerReader, int, int]]:
        """Yield the parts of a range: an opened ledger, its first and its last entry.

        If a ledger has no entry of the range, its last entry is below the first. A ``known`` reader
        is refreshed, which costs less than opening its ledger again.
        """
        least = None if start is None else position_of(start).ledger_id
        head, listed = list_ledgers(self._context, self.name, self._nonce, least)
        self._options = LogOptions.from_json(self.name, head.options)
        first = start_of(self.name, start, head)
        check_listed(self.name, first, head, listed)
        stop = None if end is None else position_of(end)
        for ledger_id in listed:
            if ledger_id < first.ledger_id or (stop is not None and ledger_id > stop.ledger_id):
                continue
            try:
                if known is not None and known.ledger_id == ledger_id:
                    reader = known
                    reader.refresh()
                else:
                    reader = self._open(ledger_id)
            except NoSuchLedgerError:
                place = max(first, Position(ledger_id, EntryId(0)))
                if self._head().resumed(place) not in (None, place):
                    continue  # truncated just now, and no entry from ``place`` on was lost
                self._check_truncated(ledger_id)
                raise
            low = first.entry_id if ledger_id == first.ledger_id else 0
            high = reader.last_add_confirmed
            if reader.is_closed and ledger_id == first.ledger_id:
                check_in_closed(self.name, first, high)
            if stop is not None and ledger_id == stop.ledger_id:
                high = min(high, EntryId(stop.entry_id - 1))
            yield reader, low, max(high, low - 1)
            if not reader.is_closed:
                return  # later ledgers may hold entries that are not acknowledged before it

    @contextmanager
    def _told_if_truncated(self, ledger_id: LedgerId) -> Iterator[None]:
        """Raise that a ledger was truncated during the read, and not that its bookies lost it."""
        try:
            yield
        except (EntryUnreadableError, NoSuchLedgerError):
            self._check_truncated(ledger_id)
            raise

    def _check_truncated(self, ledger_id: LedgerId) -> None:
        """Raise ``NoSuchEntryError`` if a missing ledger was truncated while it was read."""
        head = self._head()
        if ledger_id < head.begins_at:
            raise NoSuchEntryError(
                f"ledger {ledger_id} of log {self.name!r} was truncated while it was read: the log "
                f"begins at ledger {head.begins_at} now",
                ledger_id=ledger_id,
                entry_id=NO_ENTRY,
            ) from None
