"""The public writer of a ledger: append, flush, acks, close."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import pyarrow as pa
from typing_extensions import Self

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.write import rows
from spark_bookkeeper.client.write.acks import acks_table
from spark_bookkeeper.client.write.append_pipeline import AppendPipeline
from spark_bookkeeper.client.write.bulk import BulkPlan, Frames, TaskResult, write_local
from spark_bookkeeper.client.write.columns import BYTES, check_schema, schema_mismatch
from spark_bookkeeper.errors import InvalidArgumentError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.runtime import process
from spark_bookkeeper.runtime.public_names import PublicNames

_log = logging.getLogger(__name__)

_BYTES = (bytes, bytearray, memoryview)


class LedgerWriter(PublicNames):
    """Appends to one ledger, in order, until it is closed.

    A context manager: a normal exit closes the ledger, an exceptional one leaves it to recovery.
    Safe to use from several threads; entry ids follow the order of the calls. It belongs to the
    process that made it: use in a forked child and pickling raise errors that say so.

    A writer that is dropped unclosed warns (``ResourceWarning``), and ends when its entries are
    stored. A process that ends without ``close`` waits ``unclosed.EXIT_SECONDS`` for pending
    entries, and reports on standard error which are certain. In both cases the ledger stays open.
    """

    _INTERNALS = frozenset({"append_written"})

    def __init__(
        self,
        context: ClientContext,
        ledger: Ledger,
        versioned: Versioned[LedgerMetadata],
        frames: Frames | None = None,
    ) -> None:
        self._context = context
        self._pipeline = AppendPipeline(context, ledger, versioned)
        self._frames = frames
        self._takes_bytes = ledger.encoding.has_payload
        self._process = context.process
        self._is_done = False
        self._looked_after = context.runtime.look_after(self, self._pipeline)

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger, with which other clients open it."""
        return self._pipeline.ledger.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote or read it."""
        return self._pipeline.ledger.metadata

    @property
    def schema(self) -> pa.Schema:
        """The columns of the ledger's rows."""
        return self._pipeline.ledger.schema

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last acknowledged entry; -1 before the first."""
        return self._pipeline.machine.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that was appended, acknowledged or not; -1 before the first."""
        return self._pipeline.last_add_pushed

    @property
    def length_bytes(self) -> int:
        """Sum of the lengths of the acknowledged entries."""
        return self._pipeline.confirmed_length

    def __repr__(self) -> str:
        return (
            f"LedgerWriter(ledger_id={self.ledger_id}, {self._state()}, "
            f"last_add_confirmed={self.last_add_confirmed})"
        )

    def _repr_html_(self) -> str:
        names = ("ledger_id", "last_add_confirmed", "last_add_pushed", "length_bytes")
        fields = {name: getattr(self, name) for name in names}
        return fields_table({"writer": self._state(), **fields})

    def _state(self) -> str:
        return self._pipeline.state if self._process is process.here else "of another process"

    def __reduce__(self) -> NoReturn:
        self._context.refuse_pickling(
            f"writer of ledger {self.ledger_id}",
            ".create_ledger(), a ledger of its own, since each has one writer. Or append a "
            "DataFrame where the writer is: its rows are written by tasks",
        )

    def _check_here(self) -> None:
        if self._process is not process.here:
            self._context.check_here(
                f"writer of ledger {self.ledger_id}",
                ".create_ledger(), a ledger of its own, since each has one writer",
            )

    def append(self, data: Any, expected_entry_id: int | None = None) -> EntryId:
        """Append and wait until it is acknowledged; return the id of its last entry.

        Args:
            data: ``bytes`` (one entry), a Spark DataFrame, a ``pyarrow.Table`` or ``RecordBatch``,
                a pandas DataFrame, or another object that exports rows in Arrow's form, as frames
                of Polars do (as many entries as their size needs; none for no rows).
            expected_entry_id: append only if its first entry gets this id.

        Raises:
            InvalidArgumentError: other data, another schema (both are shown), or another entry id
                is next. Nothing was sent.
            LedgerFencedError, AppendFailedError: the entries may or may not be written.
            LedgerClosedError: the writer is closed.

        An error of Spark for a DataFrame (a function of yours fails, a job is cancelled) is raised
        as it is, with a note that nothing was appended and that the writer goes on.
        """
        self._check_here()
        self._pipeline.check_may_wait("append()")
        if self._frames is not None and self._frames.is_frame(data):
            frames = self._frames
            check_schema(frames.schema(data), self.schema)
            return self._append_bulk(lambda plan: frames.write_parts(data, plan), expected_entry_id)
        if not isinstance(data, _BYTES):
            table = rows.to_table(data, self.schema)
            if table.nbytes > 2 * self._pipeline.ledger.entry_target_bytes:
                return self._append_bulk(
                    lambda plan: write_local(plan, table, self._context), expected_entry_id
                )
            data = table
        return EntryId(self._context.runtime.wait(self._push(data, expected_entry_id)))

    def append_written(self, results: Sequence[TaskResult]) -> EntryId:
        """Append rows that tasks have written already, as the first entries of the ledger.

        Args:
            results: the results of tasks whose plan came from ``staging.stage`` for this ledger.

        Raises what ``append`` raises.
        """
        self._check_here()
        return self._append_bulk(lambda _: results, 0)

    def append_async(self, data: Any, expected_entry_id: int | None = None) -> Future[int]:
        """Append without waiting; the future gives the id of its last entry.

        Takes what ``append`` takes except Spark DataFrames. Waits only while more than
        ``max_pending_bytes`` are pending, and never in the callback of an append. Callbacks run in
        entry order; a callback that is added to a finished future runs at once. In a coroutine,
        ``await asyncio.wrap_future(writer.append_async(data))``.
        """
        if self._process is not process.here:
            self._check_here()
        if type(data) is bytes and self._takes_bytes:
            return self._pipeline.push_payload(data, expected_entry_id)
        if not isinstance(data, _BYTES):
            if self._frames is not None and self._frames.is_frame(data):
                raise InvalidArgumentError(
                    "append_async takes bytes, Arrow and pandas data; a Spark DataFrame is a job "
                    "of its own: use append(df)"
                )
            data = rows.to_table(data, self.schema)
        return self._push(data, expected_entry_id)

    def flush(self) -> EntryId:
        """Wait until everything appended so far is acknowledged; return the LAC.

        Raises what ``append`` raises for an entry that cannot be acknowledged any more.
        """
        self._check_here()
        self._pipeline.check_may_wait("flush()")
        return self._pipeline.flush()

    def acks(self) -> Any:
        """Return which bookies acknowledged the last slots, and when, as a Spark DataFrame.

        One row per entry and bookie of its write set: ``entry_id long, bookie_id string, position
        int, status string (stored | pending), stored_at timestamp`` (of this machine's clock),
        ``waited_ms double`` (from the first send to any bookie until this bookie's answer),
        ``acknowledged boolean``.
        """
        if self._frames is None:
            raise InvalidArgumentError("acks() needs a Spark session; acks_arrow() does not")
        return self._frames.from_arrow(self.acks_arrow())

    def acks_arrow(self) -> pa.Table:
        """Return the same as ``acks``, as a ``pyarrow.Table``."""
        self._check_here()
        slots, confirmed, pushed = self._pipeline.acks()
        return acks_table(slots, self.metadata, confirmed, pushed)

    def close(self) -> None:
        """Acknowledge pending entries, then fix the end of the ledger; idempotent.

        Raises:
            LedgerFencedError, LedgerClosedError: another client recovers the ledger, or closed it.
                Acknowledged entries are in it; pending entries may or may not be.
            InvalidArgumentError: called in the callback of an append, where it cannot wait.
            LedgerError: pending entries could not be acknowledged. The ledger was closed at the
                last acknowledged one.
            MetadataUnavailableError: it is unknown whether the ledger is closed. Repeat, or recover
                it.
        """
        self._check_here()
        if self._is_done:
            return
        self._pipeline.check_may_wait("close()")
        failure = self._pipeline.drain()
        try:
            self._pipeline.close()
        except MetadataUnavailableError as error:
            raise MetadataUnavailableError(
                f"whether ledger {self.ledger_id} was closed is not known: {error.message}. What "
                f"was acknowledged, up to entry {self.last_add_confirmed}, is in it. Call close() "
                "again when ZooKeeper answers; without this writer, open_ledger or recover_ledgers "
                "closes it",
                **error.facts,
            ) from error
        self._is_done = True
        self._looked_after()
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Stop without closing: recovery will find the end. Pending entries may be written.

        Does nothing after ``close``; idempotent.
        """
        self._check_here()
        if self._is_done:
            return
        self._is_done = True
        self._looked_after()
        self._pipeline.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if exception_type is None:
            self.close()
        elif self._process is process.here:  # a forked child that unwinds has nothing to stop
            self.abandon()

    def _push(
        self, data: bytes | bytearray | memoryview | pa.Table, expected: int | None
    ) -> Future[int]:
        if isinstance(data, _BYTES):
            if not self._takes_bytes:
                raise InvalidArgumentError(schema_mismatch(BYTES, self.schema))
            return self._pipeline.push_payload(bytes(data), expected)
        batches = rows.entry_batches(data, self._pipeline.ledger.entry_target_bytes)
        sizes = [pa.ipc.get_record_batch_size(batch) for batch in batches]
        return self._pipeline.push(batches, sizes, expected)

    def _append_bulk(
        self, run: Callable[[BulkPlan], Sequence[TaskResult]], expected: int | None
    ) -> EntryId:
        """Append rows that tasks write into part files on the bookies themselves.

        Entries get their ids when the tasks have ended. Until then no other append gets an id, so
        that the ids and the stripe classes continue from here.
        """
        bulk = object()
        try:
            plan = self._pipeline.begin_bulk(bulk, expected)
            try:
                written = run(plan)
            except BaseException as error:
                _add_note(
                    error,
                    f"Nothing of it was appended to ledger {self.ledger_id}; its writer goes on.",
                )
                raise
            future = self._pipeline.end_bulk(plan, written)
        except BaseException:  # Ctrl-C at any point: other appends would wait for ever
            self._pipeline.cancel_bulk(bulk)
            raise
        return EntryId(self._context.runtime.wait(future))


def _add_note(error: BaseException, note: str) -> None:
    """Add a sentence of ours to the end of the traceback, and keep the error as it is.

    Callers know and catch this error, Spark's for example; they would miss an error of ours around
    it. Before Python 3.11, whose tracebacks show notes, the note is logged instead.
    """
    error.__dict__.setdefault("__notes__", []).append(note)
    if sys.version_info < (3, 11):
        _log.warning("%s", note)
