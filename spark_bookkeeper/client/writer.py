"""The writer of a ledger: carries out what ``protocol.writer.Writer`` decides.

Every bookie of the ensemble has a lane with a task of its own. Appends push entries under one
lock and return at once (``append_async``) or wait for the acknowledgement (``append``); the
lanes take what has gathered, store it, and report to the machine, whose commands are carried
out here: acknowledge, change the ensemble, give up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import Self, assert_never

from spark_bookkeeper.client import rows
from spark_bookkeeper.client.bulk import BulkPlan, Frames, TaskResult, place, write_local
from spark_bookkeeper.client.lane import Group, Lane
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.client.pending import PendingEntries, PendingEntry
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.placement import replace_bookies
from spark_bookkeeper.protocol.writer import (
    Acknowledge,
    AddRequested,
    BookieFailed,
    BookieFenced,
    ChangeEnsemble,
    Command,
    EnsembleChanged,
    EnsembleChangeFailed,
    FailPending,
    Send,
    Stored,
    Writer,
)

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext
    from spark_bookkeeper.client.runtime import Condition, Task

ACKS_KEPT = 10_000
"""Slots of which ``acks`` remembers who stored them, and when."""


@dataclass(frozen=True, slots=True)
class SlotAck:
    """One bookie stored the entries ``first .. last`` that are striped to it."""

    bookie: BookieId
    position: int
    first: EntryId
    last: EntryId
    waited_ms: float
    """From the append of the first of them to the bookie's answer."""


class LedgerWriter:
    """Appends to one ledger, in order, until it is closed.

    A context manager: a normal exit closes the ledger, an exceptional one leaves it to recovery.
    Safe to use from several threads; entry ids are given in the order of the calls.
    """

    def __init__(
        self,
        context: ClientContext,
        ledger: Ledger,
        versioned: Versioned[LedgerMetadata],
        frames: Frames | None = None,
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self._config = context.config
        self._ledger = ledger
        self._versioned = versioned
        self._frames = frames
        self._token = self._runtime.token()
        self._quorum = ledger.metadata.quorum
        self._machine = Writer(self._quorum, ledger.metadata.last_fragment.ensemble)
        self._changed: Condition = self._runtime.condition()
        self._pending = PendingEntries()
        self._length = 0
        self._confirmed_length = 0
        self._lanes: dict[int, Lane] = {}
        self._tasks: list[Task] = []
        self._is_started = False
        self._is_closing = False
        self._is_closed = False
        self._is_bulk_running = False
        self._is_delivering = False
        self._to_deliver: deque[tuple[Future[int], BookKeeperError | None, int]] = deque()
        self._delivered_through = NO_ENTRY
        self._left: dict[BookieId, str] = {}
        self._error: BookKeeperError | None = None
        self._acks: deque[SlotAck] = deque(maxlen=ACKS_KEPT)

    # What it is

    @property
    def ledger_id(self) -> LedgerId:
        return self._ledger.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote or read it."""
        return self._ledger.metadata

    @property
    def schema(self) -> pa.Schema:
        """Columns of the ledger's rows."""
        return self._ledger.schema

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last acknowledged entry; -1 before the first."""
        return self._machine.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that was handed to the bookies; -1 before the first."""
        return self._machine.last_add_pushed

    @property
    def length_bytes(self) -> int:
        """Sum of the lengths of the acknowledged entries."""
        return self._confirmed_length

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self._machine.status.name.lower()
        return (
            f"LedgerWriter(ledger_id={self.ledger_id}, {state}, "
            f"last_add_confirmed={self.last_add_confirmed})"
        )

    # Appending

    def append(self, data: Any, expected_entry_id: int | None = None) -> EntryId:
        """Append and wait until it is acknowledged; returns the id of its last entry.

        Args:
            data: ``bytes`` (one entry), a Spark DataFrame, a ``pyarrow.Table`` or ``RecordBatch``,
                or a pandas DataFrame (as many entries as their size asks for; none for no rows).
            expected_entry_id: append only if its first entry gets this id.

        Raises:
            InvalidArgumentError: other data, another schema (both are shown), or another entry id
                is next. Nothing was sent.
            LedgerFencedError, AppendFailedError: the entries may or may not be written.
            LedgerClosedError: the writer is closed.
        """
        if self._frames is not None and self._frames.is_frame(data):
            frames = self._frames
            return self._append_bulk(
                lambda plan: frames.write_parts(data, plan), expected_entry_id, frames.schema(data)
            )
        if not isinstance(data, bytes | bytearray | memoryview):
            table = rows.to_table(data, self.schema)
            if table.nbytes > 2 * self._ledger.entry_target_bytes:
                return self._append_bulk(
                    lambda plan: write_local(plan, table, self._context), expected_entry_id, None
                )
            data = table
        future = self._push(data, expected_entry_id)
        return EntryId(self._runtime.wait(future))

    def append_async(self, data: Any, expected_entry_id: int | None = None) -> Future[int]:
        """Append without waiting; the future gives the id of its last entry.

        Takes what ``append`` takes but Spark DataFrames. Waits only while more than
        ``max_pending_bytes`` are on their way.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            if self._frames is not None and self._frames.is_frame(data):
                raise InvalidArgumentError(
                    "append_async takes bytes, Arrow and pandas data; a Spark DataFrame is a job of "
                    "its own: use append(df)"
                )
            data = rows.to_table(data, self.schema)
        return self._push(data, expected_entry_id)

    def flush(self) -> EntryId:
        """Wait until everything appended so far is acknowledged; returns the LAC.

        Raises what ``append`` raises for an entry that cannot be acknowledged any more.
        """
        with self._changed:
            target = self._machine.last_add_pushed
            while self._machine.last_add_confirmed < target and self._error is None:
                self._changed.wait()
            if self._machine.last_add_confirmed < target:
                assert self._error is not None
                raise self._error
        return self._machine.last_add_confirmed

    def acks(self) -> Any:
        """Who acknowledged what and when, of the last slots, as a Spark DataFrame.

        One row per entry and bookie of its write set: ``entry_id long, bookie_id string, position
        int, status string (stored | pending), waited_ms double, acknowledged boolean``.
        """
        if self._frames is None:
            raise InvalidArgumentError("acks() needs a Spark session; acks_arrow() does not")
        return self._frames.from_arrow(self.acks_arrow())

    def acks_arrow(self) -> pa.Table:
        """The same as ``acks``, as a ``pyarrow.Table``."""
        with self._changed:
            slots = list(self._acks)
            confirmed = self._machine.last_add_confirmed
            pushed = self._machine.last_add_pushed
            fragments = self._ledger.metadata
        return rows.acks_table(slots, self._quorum, fragments, confirmed, pushed)

    # Closing

    def close(self) -> None:
        """Acknowledge what is pending, then fix the end of the ledger; idempotent.

        Raises:
            LedgerFencedError: another client recovers the ledger, or closed it elsewhere. What
                this writer acknowledged is in the ledger; what was pending may or may not be.
            LedgerError: pending entries could not be acknowledged. The ledger was closed at the
                last acknowledged one.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closing = True
            while self._error is None and (self._machine.has_pending or self._is_bulk_running):
                self._changed.wait()
            while self._error is None and self._is_any_lane_behind():
                self._changed.wait()
            failure = self._error
        self._stop_lanes()
        confirmed, length = self._machine.last_add_confirmed, self._confirmed_length

        def closed(old: LedgerMetadata) -> LedgerMetadata | None:
            if old.state is LedgerState.OPEN:
                return old.closed(confirmed, length)
            if old.state is LedgerState.CLOSED:
                if (old.last_entry_id, old.length_bytes) == (confirmed, length):
                    return None
                raise self._closed_elsewhere(old)
            raise self._fenced("it is IN_RECOVERY in the metadata")

        self._adopt(
            update_ledger(self._context.store, self.ledger_id, closed, known=self._versioned)
        )
        self._is_closed = True
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Stop without closing: recovery will find the end. Pending entries may be written."""
        with self._changed:
            self._is_closing = True
            self._is_closed = True
            self._fail(
                AppendFailedError(
                    f"the writer of ledger {self.ledger_id} was abandoned; pending entries may or "
                    "may not be written: open the ledger to recover it, and read to know",
                    ledger_id=self.ledger_id,
                )
            )
        self._deliver()
        self._stop_lanes()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception_type is None:
            self.close()
        else:
            self.abandon()

    # Pushing entries

    def _push(
        self, data: bytes | bytearray | memoryview | pa.Table, expected: int | None
    ) -> Future[int]:
        payloads: Sequence[bytes | pa.RecordBatch]
        if isinstance(data, pa.Table):
            payloads = rows.entry_batches(data, self._ledger.entry_target_bytes)
            sizes = [pa.ipc.get_record_batch_size(batch) for batch in payloads]
        else:
            if not rows.is_payload_schema(self.schema):
                raise InvalidArgumentError(rows.schema_mismatch("bytes", self.schema))
            payloads = [bytes(data)]
            sizes = [len(payloads[0])]
        future: Future[int] = Future()
        with self._changed:
            self._wait_for_room(sum(sizes))
            self._check_next(expected)
            self._start()
            if not payloads:
                self._to_deliver.append((future, None, self._machine.last_add_pushed))
            now = self._runtime.now()
            for index, (payload, size) in enumerate(zip(payloads, sizes, strict=True)):
                self._length += size
                entry_id = EntryId(self._machine.last_add_pushed + 1 + index)
                last = index == len(payloads) - 1
                self._pending.push(
                    PendingEntry(
                        entry_id, size, self._length, now, payload, future if last else None
                    )
                )
            self._carry_out(self._machine.step(AddRequested(len(payloads))))
            self._changed.notify_all()
        if not payloads:
            self._deliver()
        return future

    def _wait_for_room(self, size_bytes: int) -> None:
        """Back-pressure, and the turn behind a bulk append; the lock is held."""
        while self._error is None and (
            self._is_bulk_running
            or (
                self._pending.size_bytes
                and self._pending.size_bytes + size_bytes > self._config.max_pending_bytes
            )
        ):
            self._changed.wait()
        if self._error is not None:
            raise self._error
        if self._is_closing:
            raise LedgerClosedError(
                f"the writer of ledger {self.ledger_id} is closed; create another ledger to go on",
                ledger_id=self.ledger_id,
                last_entry_id=self._machine.last_add_confirmed,
            )

    def _check_next(self, expected: int | None) -> None:
        following = self._machine.last_add_pushed + 1
        if expected is not None and expected != following:
            raise InvalidArgumentError(
                f"expected_entry_id={expected}, but the next entry of ledger {self.ledger_id} is "
                f"{following}; nothing was appended. If this is a retry, the earlier call may have "
                "succeeded: read the ledger"
            )

    # Bulk appends

    def _append_bulk(
        self,
        run: Callable[[BulkPlan], Sequence[TaskResult]],
        expected: int | None,
        schema: pa.Schema | None,
    ) -> EntryId:
        """Append rows that tasks write into part files on the bookies themselves.

        Entry ids are given when the tasks have ended; until then no other append gets one, so
        that the ids, and with them the stripe classes, follow on from here.
        """
        if schema is not None:
            rows.check_schema(schema, self.schema)
        with self._changed:
            self._wait_for_room(0)
            self._check_next(expected)
            self._is_bulk_running = True
            self._start()
            first = EntryId(self._machine.last_add_pushed + 1)
            plan = self._bulk_plan(first)
        try:
            results = run(plan)
        except BaseException:
            with self._changed:
                self._is_bulk_running = False
                self._changed.notify_all()
            raise
        future: Future[int] = Future()
        with self._changed:
            self._is_bulk_running = False
            if self._error is None:
                self._push_block(plan, results, future)
            self._changed.notify_all()
            if self._error is not None and not future.done():
                raise self._error
        self._deliver()
        return EntryId(self._runtime.wait(future))

    def _bulk_plan(self, first: EntryId) -> BulkPlan:
        targets = []
        for position, lane in sorted(self._lanes.items()):
            uri = self._context.bookies.root_uri(lane.bookie)
            targets.append((position, lane.bookie, lane.incarnation, uri))
        return BulkPlan(
            key=self._ledger.key,
            encoding=self._ledger.encoding,
            quorum=self._quorum,
            first_entry_id=first,
            targets=tuple(targets),
            entry_target_bytes=self._ledger.entry_target_bytes,
        )

    def _push_block(
        self, plan: BulkPlan, results: Sequence[TaskResult], future: Future[int]
    ) -> None:
        """Number the entries that tasks wrote, and hand them to the lanes; the lock is held."""
        block, sizes = place(plan, results, self._length)
        if not sizes:
            self._to_deliver.append((future, None, self._machine.last_add_pushed))
            return
        now = self._runtime.now()
        for index, size in enumerate(sizes):
            self._length += size
            entry_id = EntryId(block.first + index)
            self._pending.push(
                PendingEntry(
                    entry_id,
                    0,  # nothing of it is held in memory
                    self._length,
                    now,
                    None,
                    future if entry_id == block.last else None,
                    block,
                )
            )
        self._carry_out(self._machine.step(AddRequested(len(sizes))))
        for position, bookie, cause in _failed_targets(results):
            lane = self._lanes.get(position)
            if lane is not None and lane.bookie == bookie:
                self._lose(lane, cause)

    # Lanes

    def _start(self) -> None:
        """Start the lanes with the first append; the lock is held."""
        if not self._is_started:
            self._is_started = True
            self._carry_out(self._machine.start())
            self._tasks.append(self._runtime.spawn("writer-watch", self._watch))

    def _run_lane(self, lane: Lane) -> None:
        while True:
            with self._changed:
                while not lane.is_retired and lane.next_entry > self._machine.last_add_pushed:
                    self._changed.wait()
                if lane.is_retired:
                    return
                group = self._take(lane)
                lane.sending_since = self._runtime.now()
            error: BookKeeperError | None = None
            try:
                lane.store(group, self._ledger.key, self._ledger.encoding)
            except BookKeeperError as caught:
                error = caught
            with self._changed:
                lane.sending_since = None
                if lane.is_retired:
                    return
                if error is None:
                    self._stored(lane, group)
                elif isinstance(error, LedgerFencedError):
                    self._error = self._fenced(error.message)
                    self._carry_out(self._machine.step(BookieFenced(lane.position, lane.bookie)))
                else:
                    self._lose(lane, error.message)
                self._changed.notify_all()
            self._deliver()
            if error is not None:
                return

    def _take(self, lane: Lane) -> Group:
        entries = self._pending.group(
            lane.next_entry,
            self._machine.last_add_pushed,
            self._config.max_group_entries,
            self._config.max_group_bytes,
        )
        return Group(
            first=lane.next_entry,
            last=entries[-1].entry_id,
            entries=entries,
            last_add_confirmed=self._machine.last_add_confirmed,
            bulk=entries[0].bulk,
        )

    def _stored(self, lane: Lane, group: Group) -> None:
        lane.next_entry = EntryId(group.last + 1)
        waited_ms = (self._runtime.now() - group.entries[0].pushed_at) * 1000
        self._acks.append(SlotAck(lane.bookie, lane.position, group.first, group.last, waited_ms))
        self._carry_out(self._machine.step(Stored(lane.position, lane.bookie, group.last)))
        self._forget()

    def _lose(self, lane: Lane, cause: str) -> None:
        """A bookie is lost to this writer, for good; the lock is held."""
        if lane.is_retired:
            return
        lane.is_retired = True
        self._left[lane.bookie] = f"lost to this writer: {cause}"
        if self._lanes.get(lane.position) is lane:
            del self._lanes[lane.position]
        if self._is_closing and not self._machine.has_pending:
            return  # everything is acknowledged; re-replication will fill what is missing
        self._carry_out(self._machine.step(BookieFailed(lane.position, lane.bookie)))

    def _forget(self) -> None:
        """Drop entries that nobody needs any more: acknowledged, and stored by every lane."""
        needed = min(
            (lane.next_entry for lane in self._lanes.values()),
            default=self._machine.last_add_pushed + 1,
        )
        self._pending.forget_below(min(needed, self._machine.last_add_confirmed + 1))

    def _is_any_lane_behind(self) -> bool:
        pushed = self._machine.last_add_pushed
        return any(lane.next_entry <= pushed for lane in self._lanes.values())

    def _watch(self) -> None:
        """Give up a bookie whose put takes longer than ``add_timeout_ms``."""
        limit = self._config.add_timeout_ms / 1000
        while True:
            with self._changed:
                if self._is_closed or self._error is not None:
                    return
                now = self._runtime.now()
                for lane in list(self._lanes.values()):
                    if lane.sending_since is not None and now - lane.sending_since > limit:
                        self._lose(lane, f"no answer for {limit:.0f} seconds")
                self._changed.notify_all()
            self._deliver()
            with self._changed:
                if not self._is_closed and self._error is None:
                    self._changed.wait(limit / 4)

    def _stop_lanes(self) -> None:
        with self._changed:
            for lane in self._lanes.values():
                lane.is_retired = True
            self._lanes.clear()
            self._changed.notify_all()

    # Carrying out commands; the lock is held

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Send(position, bookie, first):
                    self._open_lane(position, bookie, first)
                case Acknowledge(through):
                    self._acknowledge(through)
                case ChangeEnsemble(first, failed):
                    self._spawn_change(first, dict(failed))
                case FailPending():
                    self._fail(self._error or self._gave_up("no ensemble could be formed"))
                case _:
                    assert_never(command)

    def _open_lane(self, position: int, bookie: BookieId, first: EntryId) -> None:
        lane = Lane(
            position,
            bookie,
            self._ledger.incarnations[bookie],
            first,
            lambda bookie, incarnation: self._context.bookies.log(
                bookie, self._ledger, incarnation
            ),
            self._quorum,
            self._token,
            self._runtime,
        )
        self._lanes[position] = lane
        name = f"lane-{self.ledger_id}-{position}"
        self._tasks.append(self._runtime.spawn(name, lambda: self._run_lane(lane)))

    def _acknowledge(self, through: EntryId) -> None:
        acknowledged = self._pending.between(self._delivered_through + 1, through)
        for entry in acknowledged:
            if entry.future is not None:
                self._to_deliver.append((entry.future, None, entry.entry_id))
        self._confirmed_length = acknowledged[-1].length_after
        self._delivered_through = through
        self._changed.notify_all()

    def _fail(self, error: BookKeeperError) -> None:
        self._error = self._error or error
        for entry in self._pending.between(
            self._delivered_through + 1, self._machine.last_add_pushed
        ):
            if entry.future is not None:
                self._to_deliver.append((entry.future, self._error, -1))
        for lane in self._lanes.values():
            lane.is_retired = True
        self._lanes.clear()
        self._changed.notify_all()

    def _deliver(self) -> None:
        """Resolve futures in entry order, outside the lock: callbacks may call us again."""
        with self._changed:
            if self._is_delivering:
                return
            self._is_delivering = True
        while True:
            with self._changed:
                if not self._to_deliver:
                    self._is_delivering = False
                    return
                ready = list(self._to_deliver)
                self._to_deliver.clear()
            for future, error, entry_id in ready:
                if error is None:
                    future.set_result(entry_id)
                else:
                    future.set_exception(error)

    # Ensemble change

    def _spawn_change(self, first: EntryId, failed: dict[int, BookieId]) -> None:
        self._tasks.append(
            self._runtime.spawn("ensemble-change", lambda: self._change_ensemble(first, failed))
        )

    def _change_ensemble(self, first: EntryId, failed: dict[int, BookieId]) -> None:
        """Publish an ensemble without the failed bookies, by CAS while OPEN (rule R7)."""
        try:
            updated = update_ledger(
                self._context.store,
                self.ledger_id,
                lambda old: self._without(old, first, failed),
                known=self._versioned,
            )
        except BookKeeperError as error:
            with self._changed:
                self._error = (
                    error if isinstance(error, LedgerError) else self._gave_up(error.message)
                )
                self._carry_out(self._machine.step(EnsembleChangeFailed()))
                self._changed.notify_all()
        else:
            with self._changed:
                self._adopt(updated)
                ensemble = updated.value.last_fragment.ensemble
                self._carry_out(self._machine.step(EnsembleChanged(ensemble)))
                self._forget()
                self._changed.notify_all()
        self._deliver()

    def _without(
        self, old: LedgerMetadata, first: EntryId, failed: dict[int, BookieId]
    ) -> LedgerMetadata | None:
        if old.state is LedgerState.CLOSED:
            raise self._closed_elsewhere(old)
        if old.state is LedgerState.IN_RECOVERY:
            raise self._fenced("it is IN_RECOVERY in the metadata")
        ensemble = old.last_fragment.ensemble
        positions = [p for p, bookie in failed.items() if ensemble[p] == bookie]
        if not positions:
            return None
        bookies = self._context.bookies
        alive = bookies.registrations()
        with self._changed:
            left = dict(self._left)
        excluded = left | {b: "already in the ensemble" for b in ensemble if b not in left}
        reasons = bookies.ineligible(alive, len(positions), self._ledger, excluded)
        chosen = replace_bookies(ensemble, positions, bookies.candidates(alive), reasons)
        added = {b: alive[b].incarnation for b in chosen if b not in ensemble}
        return with_incarnations(old.with_new_ensemble(first, chosen), added)

    def _adopt(self, versioned: Versioned[LedgerMetadata]) -> None:
        self._versioned = versioned
        self._ledger = self._ledger.with_metadata(versioned.value)

    # Errors

    def _fenced(self, cause: str) -> LedgerFencedError:
        return LedgerFencedError(
            f"ledger {self.ledger_id} was fenced by another client ({cause}). Entries after "
            f"{self.last_add_confirmed} may or may not be written: treat this like a time-out. Open "
            "the ledger to recover it and read what is there; do not append the same rows elsewhere "
            "before that",
            ledger_id=self.ledger_id,
        )

    def _closed_elsewhere(self, found: LedgerMetadata) -> LedgerClosedError:
        return LedgerClosedError(
            f"ledger {self.ledger_id} was closed by another client at entry {found.last_entry_id}; "
            f"this writer had acknowledged up to {self.last_add_confirmed}. Later entries may or may "
            "not be written: read the ledger to know",
            ledger_id=self.ledger_id,
            last_entry_id=found.last_entry_id,
        )

    def _gave_up(self, cause: str) -> AppendFailedError:
        lost = "; ".join(f"{bookie} {why}" for bookie, why in sorted(self._left.items()))
        return AppendFailedError(
            f"ledger {self.ledger_id} takes no more entries from this writer: {cause}. "
            + (f"Bookies: {lost}. " if lost else "")
            + f"Entries after {self.last_add_confirmed} may or may not be written: open the ledger to "
            "recover it, and read to know",
            ledger_id=self.ledger_id,
        )


def _failed_targets(results: Sequence[TaskResult]) -> list[tuple[int, BookieId, str]]:
    """Bookies on which some task could not write, each once, with the first cause."""
    failed: dict[tuple[int, BookieId], str] = {}
    for result in results:
        for (position, bookie), cause in result.failures.items():
            failed.setdefault((position, bookie), cause)
    return [(position, bookie, cause) for (position, bookie), cause in failed.items()]
