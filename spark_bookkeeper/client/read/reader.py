"""Read a ledger: entries, Arrow tables, and new entries of a ledger that is still written."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, NoReturn

import pyarrow as pa
from typing_extensions import Self, override

from spark_bookkeeper.bookie.entry import StoredEntry, payload_batch
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.ledger import EntryRange, Ledger
from spark_bookkeeper.client.presence import ENDED_FIRST, GONE, WriterState, writer_of, writer_state
from spark_bookkeeper.client.read.fetch import Fetcher, checked_range
from spark_bookkeeper.client.read.last_add_confirmed import (
    Replicas,
    read_last_add_confirmed,
    read_tails,
)
from spark_bookkeeper.client.read.projection import present_in, projected, under
from spark_bookkeeper.client.read.times import check_order, first_at_or_after, to_ms
from spark_bookkeeper.client.read.unreadable import lost_table, warn_of_accepted_loss
from spark_bookkeeper.client.write.bulk import Frames
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import InvalidArgumentError, MetadataError
from spark_bookkeeper.protocol.accepted_loss import AcceptedLoss, accepted_loss_of
from spark_bookkeeper.protocol.arguments import check_flag, whole_number
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.reader import Unreadable
from spark_bookkeeper.runtime import process
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.runtime.progress import watched
from spark_bookkeeper.runtime.public_names import PublicNames

TAIL_POLL_SECONDS = 0.1
"""How long ``tail`` sleeps between two looks at a ledger that has nothing new."""

WRITER_LOOK_MS = 5_000
"""How often ``tail`` checks whether the writer lives, while the ledger has nothing new."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One entry, read and verified; it equals another with the same facts and rows."""

    ledger_id: LedgerId
    entry_id: EntryId
    last_add_confirmed: EntryId
    """The LAC that was known when the entry was written."""
    content: bytes | pa.RecordBatch = field(repr=False)
    """The payload or the rows, as they were read; ``payload`` and ``batch`` convert them. A payload
    stays bytes, because most callers that read entries one by one need only these."""
    schema: pa.Schema = field(repr=False)
    """The schema of the rows."""
    appended_at_ms: int | None = None
    """When the writer accepted the entry, in milliseconds since 1970 by the writer's clock; for
    people. ``None`` where an earlier version wrote the entry."""

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows of the entry."""
        if isinstance(self.content, bytes):
            return payload_batch(self.content, self.schema)
        return self.content

    def with_batch(self, batch: pa.RecordBatch) -> Entry:
        """Return the same entry with other rows: those under a later schema of its log."""
        return replace(self, content=batch, schema=batch.schema)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return self._facts == other._facts and self.batch.equals(other.batch)

    @override
    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[LedgerId, EntryId, EntryId, int | None]:
        return self.ledger_id, self.entry_id, self.last_add_confirmed, self.appended_at_ms

    @property
    def appended_at(self) -> datetime | None:
        """The same time as a ``datetime`` in UTC."""
        if self.appended_at_ms is None:
            return None
        return datetime.fromtimestamp(self.appended_at_ms / 1000, timezone.utc)

    @property
    def payload(self) -> bytes:
        """The bytes of an entry of a ledger with the default schema.

        Raises:
            InvalidArgumentError: the ledger has another schema; use ``batch``.
        """
        if isinstance(self.content, bytes):
            return self.content
        if self.batch.schema.names != ["payload"] or self.batch.num_rows != 1:
            raise InvalidArgumentError(
                f"entry {self.entry_id} of ledger {self.ledger_id} has the columns "
                f"{self.batch.schema.names} and {self.batch.num_rows} rows, not one payload; use "
                ".batch"
            )
        value: bytes = self.batch.column(0)[0].as_py()
        return value


class LedgerReader(PublicNames):
    """Reads one ledger: up to its last entry when closed, up to the LAC when open.

    Entry ranges include both ends. Every byte is verified before it is returned. The reader skips a
    replica that is dead, wiped or damaged and reads the next one.
    """

    _INTERNALS = frozenset({"advance", "check_range", "ledger"})

    def __init__(
        self, context: ClientContext, ledger: Ledger, frames: Frames | None = None
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._frames = frames
        self._replicas: Replicas = {}
        self._confirmed = self._readable()
        self._is_done = False
        self._lost: Sequence[Unreadable] = ()
        """The entries that the last ``read_arrow(skip_lost=True)`` skipped."""
        warn_of_accepted_loss(ledger)

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._ledger.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata when it was opened or refreshed."""
        return self._ledger.metadata

    @property
    def accepted_loss(self) -> AcceptedLoss | None:
        """The loss of entries that an operator accepted; see ``BookKeeper.recover_ledgers``."""
        return accepted_loss_of(self.metadata.custom_metadata)

    @property
    def ledger(self) -> Ledger:
        """Identity and form of the ledger, for readers in other processes."""
        return self._ledger

    @property
    def schema(self) -> pa.Schema:
        """The columns of the ledger's rows."""
        return self._ledger.schema

    @property
    def is_closed(self) -> bool:
        """Whether the ledger was closed, as of the opening or the last ``refresh``."""
        return self._ledger.metadata.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that can be read; -1 when there is none."""
        return self._confirmed

    @property
    def writer(self) -> WriterInfo | None:
        """The process that created the ledger; ``None`` when its client did not record it."""
        return writer_of(self.metadata)

    def writer_state(self) -> WriterState | None:
        """Read from the metadata store whether the ledger's writer lives; ``None`` if closed.

        ``lives``; ``gone``: its process ended, was frozen for long, or lost ZooKeeper, and no
        entries follow until a client recovers the ledger; ``unknown``: the writer did not record
        itself. For people: a writer that is gone may come back.
        """
        self._check_in_use()
        if self.is_closed:
            return None
        return writer_state(self._context, self.ledger_id, self.metadata)

    @property
    def length_bytes(self) -> int | None:
        """Sum of the lengths of all entries; ``None`` while the ledger is not closed."""
        return self._ledger.metadata.length_bytes

    def __repr__(self) -> str:
        return (
            f"LedgerReader(ledger_id={self.ledger_id}, {self.metadata.state.name}, "
            f"last_add_confirmed={self._confirmed})"
        )

    def _repr_html_(self) -> str:
        names = ("ledger_id", "last_add_confirmed", "length_bytes")
        fields = {name: getattr(self, name) for name in names}
        return fields_table({"reader": self.metadata.state.name, **fields})

    def __reduce__(self) -> NoReturn:
        self._context.refuse_pickling(f"reader of ledger {self.ledger_id}", self._opening())

    def _opening(self) -> str:
        how = "open_ledger" if self.is_closed else "open_ledger_no_recovery"
        return f".{how}({self.ledger_id})"

    def refresh(self) -> EntryId:
        """Read again the state of a ledger that was not closed; return the new last add confirmed.

        Raises:
            NoSuchLedgerError: it was deleted, even if another ledger has its id now.
        """
        self._check_in_use()
        if not self.is_closed:
            self._ledger, _ = self._context.ledger(self.ledger_id, self.metadata.nonce)
        return self.advance()

    def advance(self) -> EntryId:
        """Read and return only the LAC, for a caller that knows the metadata to be unchanged."""
        self._check_in_use()
        self._confirmed = max(self._confirmed, self._readable())
        return self._confirmed

    def entry_at(self, time: datetime) -> EntryId:
        """Return the first entry that was appended at a time or later, by the writer's clock.

        If there is none, return the entry after the last readable one. A time without a zone is
        local time. Entries of an earlier version have no time, and count as older than any.

        Raises:
            EntryUnreadableError: no bookie can say when an entry was appended.
        """
        self._check_in_use()
        return first_at_or_after(self._context, self._ledger, self._confirmed, to_ms(time))

    def entries(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
    ) -> Iterator[Entry]:
        """Return the entries ``first .. last`` in order; ``last=None`` means the last readable one.

        Without ``last``, ``first`` may be the entry after the last one, and the result is empty. So
        an empty ledger can be read from 0, and a follower can continue where it stopped.

        Args:
            first: id of the first entry.
            last: id of the last one.
            start_time: instead of ``first``, see ``entry_at``.
            end_time: instead of ``last``: end before the first entry that was appended at this time
                or later.

        Raises:
            NoSuchEntryError: the range is outside of the readable entries.
            EntryUnreadableError: no replica of an entry is left.
            InvalidArgumentError: neither numbers nor times, an end before the beginning, or the
                reader was closed.
        """
        start, end = self._range(first, last, start_time, end_time)
        for stored in Fetcher(self._context, self._ledger).fetch(start, end):
            yield self._entry(stored)
            self._check_here()

    def read_unconfirmed(self) -> Iterator[Entry]:
        """Return the entries after the last add confirmed that bookies can deliver, in order. A
        closed ledger has none. Nothing is fenced.

        These entries may not be acknowledged, and a recovery may end the ledger before them.

        Raises ``EntryUnreadableError``: no bookie of the last fragment answered.
        """
        self._check_in_use()
        tails = [] if self.is_closed else read_tails(self._context, self._ledger)
        last = max((int(e) for tail in tails for e in tail.entries.entry_ids[-1:]), default=-1)
        fetcher = Fetcher(self._context, self._ledger, skip_lost=True)
        for stored in fetcher.fetch(EntryId(self._confirmed + 1), EntryId(last)):
            yield self._entry(stored)
            self._check_here()

    def read_arrow(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        skip_lost: bool = False,
    ) -> pa.Table:
        """Return the rows of the entries ``first .. last`` as one table, in order; see ``entries``.

        Args:
            first, last: the range.
            start_time, end_time: instead of them, see ``entries``.
            columns: decode only these columns, and return them in this order; ``None`` is all.
            skip_lost: skip entries that no bookie can deliver; ``skipped`` then lists them.

        Raises:
            NoSuchEntryError, InvalidArgumentError: as ``entries``; or a column does not exist.
            EntryUnreadableError: no replica of an entry is left.
        """
        check_flag("skip_lost", skip_lost)
        start, end = self._range(first, last, start_time, end_time)
        schema = projected(self.schema, columns)
        fetcher = Fetcher(
            self._context,
            self._ledger,
            columns=present_in(self.schema, schema),
            skip_lost=skip_lost,
        )
        pieces = watched(
            fetcher.scan(start, end),
            f"reading ledger {self.ledger_id}",
            end - start + 1,
            "entries",
            lambda piece: (len(piece.entries), piece.size_bytes),
        )
        batches = [under(piece.batch, schema) for piece in pieces]
        if skip_lost:
            self._lost = fetcher.lost
        return pa.Table.from_batches(batches, schema=schema)

    @property
    def skipped(self) -> pa.Table:
        """Entries that the last ``read_arrow(skip_lost=True)`` skipped; as ``lost_entries``."""
        return lost_table(self.ledger_id, self._lost)

    def read(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        skip_lost: bool = False,
    ) -> Any:
        """Return the rows of the entries ``first .. last`` as a Spark DataFrame, in order.

        The range is that of ``entries``. Spark's tasks read whole files in parallel, each from its
        best replica; they need neither this reader nor its session.

        Args:
            first, last: the range.
            start_time, end_time: instead of them, see ``entries``.
            columns: decode and send only these columns, in this order; ``None`` is all.
            skip_lost: skip entries that no bookie can deliver. The tasks log these entries, and
                ``BookKeeper.lost_entries`` lists them all.

        Raises:
            NoSuchEntryError, InvalidArgumentError: as ``read_arrow``; or there is no Spark session.

        An entry that cannot be read fails the use of the DataFrame with Spark's own error, whose
        text begins with the condition (``[BOOKKEEPER_ENTRY_UNREADABLE]``).
        """
        if self._frames is None:
            raise InvalidArgumentError("read() needs a Spark session; read_arrow() does not")
        check_flag("skip_lost", skip_lost)
        start, end = self._range(first, last, start_time, end_time)
        return self._frames.read(
            self._context,
            projected(self.schema, columns),
            [EntryRange(self._ledger, start, end)],
            skip_lost=skip_lost,
        )

    def tail(self, timeout_ms: int | None = None, *, first: int = 0) -> Iterator[Entry]:
        """Return entries as they are confirmed, until the ledger closes.

        If the writer pauses, its last entry is returned ``explicit_lac_ms`` of its configuration
        after it was acknowledged.

        While no entry comes, it checks from time to time whether the writer lives. If the writer is
        gone, it logs this once, with the remedy: no other process ends or writes the ledger.

        Args:
            timeout_ms: ends after this time without a new entry; ``None`` waits for ever.
            first: id of the first entry.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            EntryUnreadableError: no replica of an entry is left.
            InvalidArgumentError: no time, no id, or the reader was closed.
        """
        if timeout_ms is not None:
            timeout_ms = whole_number("timeout_ms", timeout_ms, 0)
        following = EntryId(whole_number("first", first, 0))
        waiting_since = self._context.runtime.now()
        look_at_ms, is_told = float(WRITER_LOOK_MS), False
        while True:
            self._check_in_use()
            if following <= self._confirmed:
                yield from self.entries(following, self._confirmed)
                following = EntryId(self._confirmed + 1)
                waiting_since = self._context.runtime.now()
                look_at_ms, is_told = float(WRITER_LOOK_MS), False
            if self.is_closed:
                return
            waited_ms = (self._context.runtime.now() - waiting_since) * 1000
            is_over = timeout_ms is not None and waited_ms >= timeout_ms
            if not is_told and (is_over or waited_ms >= look_at_ms):
                is_told = self._tell_if_writer_is_gone()
                look_at_ms = waited_ms + WRITER_LOOK_MS
            if is_over:
                return
            if self.refresh() < following and not self.is_closed:
                self._context.runtime.sleep(TAIL_POLL_SECONDS)

    def close(self) -> None:
        """Read no more. DataFrames that ``read`` returned stay usable; idempotent."""
        self._is_done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_range(self, first: int, last: int | None) -> tuple[EntryId, EntryId]:
        """Return both ends of a read. Raises ``NoSuchEntryError``, ``InvalidArgumentError``."""
        self._check_in_use()
        return checked_range(self.metadata, self.ledger_id, first, last, self._confirmed)

    def _range(
        self, first: int, last: int | None, start_time: datetime | None, end_time: datetime | None
    ) -> tuple[EntryId, EntryId]:
        """Return both ends of a read; if it has no entry, the last one is before the first."""
        if start_time is not None and first:
            raise InvalidArgumentError(
                f"first={first} and start_time={start_time} both say where to begin; give one"
            )
        if end_time is not None and last is not None:
            raise InvalidArgumentError(
                f"last={last} and end_time={end_time} both say where to end; give one"
            )
        check_order(start_time, end_time)
        if start_time is not None:
            first = self.entry_at(start_time)
        begin, end = self.check_range(first, last)
        if end_time is not None:
            end = EntryId(max(self.entry_at(end_time), begin) - 1)
        return begin, end

    def _check_here(self) -> None:
        if self._context.process is not process.here:
            self._context.check_here(f"reader of ledger {self.ledger_id}", self._opening())

    def _check_in_use(self) -> None:
        self._check_here()
        if self._is_done:
            raise InvalidArgumentError(
                f"this reader of ledger {self.ledger_id} was closed; open the ledger again to read "
                "on"
            )

    def _tell_if_writer_is_gone(self) -> bool:
        """Log it if the writer is gone; return whether it is. A ``MetadataError`` is ignored."""
        try:
            if self.writer_state() != "gone":
                return False
        except MetadataError:
            return False
        _log.warning(
            "the writer of ledger %d (%s) is gone: %s. Nothing follows entry %d unless it was only "
            "cut off. To close it, %s; then open_ledger(%d) or recover_ledgers([%d]) keeps what "
            "was acknowledged, and those who follow the ledger come to its end",
            *(self.ledger_id, self.writer, GONE, self._confirmed),
            *(ENDED_FIRST, self.ledger_id, self.ledger_id),
            extra=about(ledger_id=self.ledger_id),
        )
        return True

    def _readable(self) -> EntryId:
        last = self._ledger.metadata.last_entry_id
        if last is not None:
            return last
        return read_last_add_confirmed(self._context, self._ledger, self._replicas)

    def _entry(self, stored: StoredEntry) -> Entry:
        return Entry(
            self.ledger_id,
            EntryId(stored.entry_id),
            EntryId(stored.last_add_confirmed),
            bytes(stored.data) if stored.is_payload else stored.batch(),
            stored.schema,
            stored.appended_at_ms,
        )
