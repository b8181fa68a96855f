"""The writer of a log, as its users hold it: append, roll, close."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

import pyarrow as pa
from typing_extensions import Self

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bulk import Frames
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    LogOwnershipLostError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from spark_bookkeeper.logs.opening import (
    FollowedError,
    OvertakenError,
    add_to_list,
    new_ledger,
    withdraw,
)
from spark_bookkeeper.logs.options import LogOptions, evolve
from spark_bookkeeper.logs.truncation import retain
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.runtime.public_names import PublicNames

_log = logging.getLogger(__name__)

ROLL_RETRY_SECONDS: Final = 10.0
"""Wait after a failed roll that the log's options required, before the next one."""


class LogWriter(PublicNames):
    """Appends to one log, until it is closed or another writer takes over.

    As a context manager, a normal exit closes the newest ledger; an exception leaves it to the next
    writer to close. Safe to use from several threads; rows are in the order of the calls.
    """

    def __init__(
        self,
        context: ClientContext,
        name: str,
        nonce: str,
        options: LogOptions,
        ledger: LedgerWriter,
        frames: Frames | None = None,
    ) -> None:
        self.name = name
        self._context = context
        self._nonce = nonce
        self._options = options
        self._frames = frames
        self._ledger = ledger
        self._turn = context.runtime.condition()
        """Held while an append is handed to a ledger, so that a roll falls between two appends."""
        self._rolling = context.runtime.condition()
        """Held during a roll, so that only one runs at a time."""
        self._next: LedgerWriter | None = None
        """A ledger that is or may be in the list, and that no roll has switched to yet."""
        self._previous: LedgerWriter | None = None
        """The ledger before the current one, until it is known to be closed."""
        self._waiting: deque[tuple[Any, Future[Position]]] | None = None
        """Appends that arrive while the writer switches to the next ledger. They wait no longer
        than the pending appends before them. ``None`` at any other time."""
        self._began = context.runtime.now()
        """When writing to the current ledger began."""
        self._is_rolling_due = False
        """Whether a roll that the log's options require is running."""
        self._roll_not_before = self._began
        """Earliest time of the next such roll, after one that failed."""
        self._is_closed = False

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger that the next append goes to."""
        return self._ledger.ledger_id

    @property
    def schema(self) -> pa.Schema:
        """The columns of the log's rows."""
        return self._ledger.schema

    @property
    def last_position(self) -> Position:
        """The last acknowledged entry of the newest ledger; entry -1 if it has none."""
        ledger = self._ledger
        return Position(ledger.ledger_id, ledger.last_add_confirmed)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "writing"
        return f"LogWriter({self.name!r}, ledger_id={self.ledger_id}, {state})"

    def __reduce__(self) -> NoReturn:
        how = f".open_log({self.name!r}).become_writer()"
        self._context.refuse_pickling(f"writer of log {self.name!r}", how)

    def _repr_html_(self) -> str:
        return fields_table({"log": self.name, "last_position": str(self.last_position)})

    def append(self, data: Any) -> Position:
        """Append rows, wait until they are acknowledged, and return their last entry's position.

        Args:
            data: rows, as ``LedgerWriter.append`` takes them.

        Raises:
            LogOwnershipLostError: another writer took over. Pending rows may or may not be written:
                read the end of the log to know.
            AppendFailedError, InvalidArgumentError: as ``LedgerWriter.append``.
        """
        if self._frames is not None and self._frames.is_frame(data):
            with self._turn, self._told():
                while self._waiting is not None:
                    self._turn.wait()
                ledger = self._open_ledger()
                position = Position(ledger.ledger_id, ledger.append(data))
                self._roll_when_due()
                return position
        return self._context.runtime.wait(self.append_async(data))

    def append_async(self, data: Any) -> Future[Position]:
        """Append rows without waiting; the future returns the position of their last entry.

        Takes the data of ``append`` except Spark DataFrames, as ``LedgerWriter.append_async``.
        """
        position: Future[Position] = Future()
        position.set_running_or_notify_cancel()
        with self._turn, self._told():
            ledger = self._open_ledger()
            if self._waiting is not None:
                self._waiting.append((data, position))
                return position
            added = ledger.append_async(data)
            self._roll_when_due()
        self._tell(ledger, added, position)
        return position

    def flush(self) -> Position:
        """Wait until all earlier appends are acknowledged; return ``last_position``."""
        with self._told():
            while True:
                with self._turn:
                    ledger, is_all = self._open_ledger(), self._waiting is None
                ledger.flush()  # raises in a callback, where no roll could go on either
                if is_all:
                    return self.last_position
                with self._turn:
                    while self._waiting is not None:
                        self._turn.wait()

    def roll(self) -> LedgerId:
        """Go on in a new ledger, so that older ones can be truncated; return its id.

        Until the switch, appends go to the old ledger. At the switch they wait only for those that
        are pending. If the old ledger cannot be closed now, it is closed before the next one is
        added, since the next writer fences only the last two.

        Raises:
            LogOwnershipLostError: another writer took over.
            NoSuchLogError: the log was deleted.
            NotEnoughBookiesError, MetadataUnavailableError: no ledger was created; the writer goes
                on in the old one.
            RecoveryUndecidedError: likewise; another client began to recover the ledger before the
                old one, and it cannot be closed now.

        Source: The BookKeeper protocol, "Rolling ledgers" (create, add by compare-and-swap, close
        the previous one).
        """
        with self._rolling:
            old = self._open_ledger()
            try:
                new = self._added_ledger(old)
                self._switch(old, new)
            finally:
                if self._is_closed:  # closed by ``abandon`` during the roll
                    self._abandon_all()
            try:
                self._close_previous()
            except BookKeeperError as error:
                _log.warning(
                    "ledger %d is closed later: %s",
                    *(old.ledger_id, error.message),
                    extra=about(ledger_id=old.ledger_id, log=self.name),
                )
            else:
                retain(self._context, self.name, self._nonce, self._options)
            return new.ledger_id

    def evolve(self, schema: Any) -> LedgerId:
        """Go on with other columns, in a new ledger; return the id of the current ledger.

        Columns may be added after the others, nullable, and types widened. Readers see all rows of
        the log under the new columns. An append never adds columns by itself: a mistyped name would
        be a column for ever.

        Args:
            schema: all columns, as an Arrow schema or Spark's.

        Raises:
            InvalidArgumentError: the columns cannot follow the log's columns; the message shows
                both. Nothing was changed.
            LogOwnershipLostError, NoSuchLogError: as ``roll``, with its other errors. The next
                ledger has the new columns.
        """
        self._open_ledger()
        options = evolve(self._context, self.name, self._nonce, schema, self._frames)
        self._options = options
        while not self.schema.equals(options.schema, check_metadata=False):
            self.roll()  # twice, if an earlier roll has created a ledger with the old columns
        return self.ledger_id

    def close(self) -> None:
        """Wait for pending appends and close the newest ledger; idempotent.

        Raises ``LogOwnershipLostError`` and the errors of ``LedgerWriter.close``.
        """
        with self._rolling:  # not the turn, since callbacks of pending appends may append
            if self._is_closed:
                return
            with self._told():
                self._ledger.close()
            self._close_previous()
            self._close_next()
            self._is_closed = True
            retain(self._context, self.name, self._nonce, self._options)

    def abandon(self) -> None:
        """Stop without closing: the next writer finds the end. Pending rows may be written."""
        self._is_closed = True
        self._abandon_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if exception_type is None:
            self.close()
        else:
            self.abandon()

    def _added_ledger(self, old: LedgerWriter) -> LedgerWriter:
        """Return a new ledger that follows the old one in the list."""
        self._close_previous()
        head = logs.read_life(self._context.store.registers, self.name, self._nonce)
        new = self._next
        if new is None or head.newest != new.ledger_id:
            if head.newest != old.ledger_id:
                raise self._lost(f"ledger {head.newest} follows its ledger {old.ledger_id}")
            new = new or new_ledger(self._context, self.name, head, self._frames)
            self._next = new
            try:
                add_to_list(self._context, self.name, head, new.ledger_id)
            except (OvertakenError, FollowedError, NoSuchLogError) as error:
                self._next = None
                withdraw(self._context, new, error)
                if isinstance(error, NoSuchLogError):
                    raise
                raise self._lost("it added a ledger first") from None
        return new

    def _switch(self, old: LedgerWriter, new: LedgerWriter) -> None:
        """Wait for pending appends, and switch to the new ledger; after an error keep the old."""
        following = old
        try:
            with self._turn:
                self._waiting = deque()
            with self._told():
                old.flush()  # no later entry may be acknowledged before these
            self._previous = old  # in this order: Ctrl-C may come between any two
            following = new
            self._next = None
        finally:
            self._go_on(following)

    def _close_previous(self) -> None:
        """Close the ledger before the current one: only the last two may be open."""
        previous = self._previous
        if previous is None or previous is self._ledger:
            return
        try:
            previous.close()
        except (LedgerFencedError, LedgerClosedError):  # a reader or another writer recovers it
            with suppress(NoSuchLedgerError):
                recover_ledger(self._context, previous.ledger_id)
            previous.abandon()
        except NoSuchLedgerError:
            previous.abandon()
        self._previous = None

    def _close_next(self) -> None:
        """Close or withdraw the empty ledger of a roll that failed."""
        new = self._next
        if new is None:
            return
        try:
            head = logs.read_life(self._context.store.registers, self.name, self._nonce)
        except NoSuchLogError as error:
            withdraw(self._context, new, error)
        else:
            if head.newest == new.ledger_id:
                with self._told():
                    new.close()
            else:
                withdraw(
                    self._context, new, FollowedError() if head.may_hold(new.ledger_id) else None
                )
        self._next = None

    def _abandon_all(self) -> None:
        for ledger in (self._ledger, self._previous, self._next):
            if ledger is not None:  # does nothing to a closed ledger
                ledger.abandon()

    def _roll_when_due(self) -> None:
        """Start a roll in the background, if the log's options require one. Needs the turn."""
        options, ledger = self._options, self._ledger
        most_bytes, most_entries = options.roll_bytes, options.roll_entries
        most_seconds = options.written_seconds
        now = self._context.runtime.now()
        is_large = most_bytes is not None and ledger.length_bytes >= most_bytes
        is_long = most_entries is not None and ledger.last_add_confirmed + 1 >= most_entries
        is_old = most_seconds is not None and now - self._began >= most_seconds
        is_time = now >= self._roll_not_before
        if (is_large or is_long or is_old) and is_time and not self._is_rolling_due:
            self._is_rolling_due = True
            self._context.runtime.spawn(f"roll-{self.name}", self._roll_beside)

    def _roll_beside(self) -> None:
        try:
            if not self._is_closed:
                self.roll()
        except BookKeeperError as error:  # an append raises the same error, or a later one rolls
            if self._is_closed:
                return  # closed meanwhile, so that no roll is due
            self._roll_not_before = self._context.runtime.now() + ROLL_RETRY_SECONDS
            _log.warning(
                "log %s was not rolled: %s", self.name, error.message, extra=about(log=self.name)
            )
        finally:
            self._is_rolling_due = False

    def _go_on(self, ledger: LedgerWriter) -> None:
        """Hand the waiting appends to a ledger. Every future completes, even on errors."""
        handed = deque[tuple[Future[int], Future[Position]]]()
        waiting = deque() if self._waiting is None else self._waiting  # appends may still be added
        try:
            with self._turn:
                try:
                    if ledger is not self._ledger:
                        self._ledger, self._began = ledger, self._context.runtime.now()
                    while waiting:
                        handed.append((self._added(ledger, waiting[0][0]), waiting[0][1]))
                        waiting.popleft()
                finally:
                    self._waiting = None
                    self._turn.notify_all()
        finally:  # the turn is free: callbacks may append
            for added, position in handed:
                self._tell(ledger, added, position)
            for _, position in waiting:  # interrupted by Ctrl-C
                if not position.done():
                    position.set_exception(self._interrupted(ledger))

    def _added(self, ledger: LedgerWriter, data: Any) -> Future[int]:
        """Append; an error goes to the future."""
        try:
            return ledger.append_async(data)
        except Exception as error:  # noqa: BLE001  (whoever waits is told)
            refused = Future[int]()
            refused.set_exception(error)
            return refused

    def _interrupted(self, ledger: LedgerWriter) -> AppendFailedError:
        return AppendFailedError(
            f"a roll of log {self.name!r} was interrupted, and this append, which waited for it, "
            "with it. It may or may not be written; the writer goes on. Read the end of the log "
            "to know",
            ledger_id=ledger.ledger_id,
        )

    def _tell(self, ledger: LedgerWriter, added: Future[int], position: Future[Position]) -> None:
        """Complete a future with the position. Needs the turn free: callbacks may append."""

        def told(done: Future[int]) -> None:
            error = done.exception()
            if error is None:
                position.set_result(Position(ledger.ledger_id, EntryId(done.result())))
            else:
                position.set_exception(self._translated(error))

        added.add_done_callback(told)

    def _open_ledger(self) -> LedgerWriter:
        if self._is_closed:
            raise InvalidArgumentError(
                f"this writer of log {self.name!r} was closed; become_writer() gives a new one"
            )
        return self._ledger

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Translate a fence into an error about the log, not only about one ledger."""
        try:
            yield
        except (LedgerFencedError, NoSuchLedgerError) as error:
            raise self._translated(error) from error

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, LogOwnershipLostError):
            return error
        if isinstance(error, LedgerFencedError | NoSuchLedgerError):
            lost = self._lost(error.message)
            lost.__cause__ = error
            return lost
        return error

    def _lost(self, how: str) -> LogOwnershipLostError:
        return LogOwnershipLostError(
            f"this is no longer the writer of log {self.name!r}: another one took over, or "
            f"somebody recovered or deleted its newest ledger: {how}. What was acknowledged is in "
            "the log as long as the log is there; what was pending may or may not be. Read its end "
            "to know, then become_writer() again if this process is still to lead",
            log=self.name,
            ledger_id=self._ledger.ledger_id,
        )
