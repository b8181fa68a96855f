"""The appends of one open ledger: carry out the decisions of ``protocol.writer.Writer``.

Callers push entries under one lock, and the channels send them. The reports of channels go to the
machine. This module carries out the machine's commands: acknowledge, change the ensemble, fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from typing_extensions import assert_never

from spark_bookkeeper.bookie.messages import MOST_ENTRY_BYTES, check_entry_size
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.write.acks import ACKS_KEPT, SlotAck
from spark_bookkeeper.client.write.bulk import BulkPlan, TaskResult, place
from spark_bookkeeper.client.write.delivery import Delivery
from spark_bookkeeper.client.write.ensemble_change import EnsembleChanges
from spark_bookkeeper.client.write.ensemble_channels import EnsembleChannels
from spark_bookkeeper.client.write.pending import PendingEntries
from spark_bookkeeper.client.write.promise import Promise
from spark_bookkeeper.client.write.silence_timer import SilenceTimer
from spark_bookkeeper.client.write.writer_lifecycle import (
    WriterLifecycle,
    close_ledger,
    deleted_error,
    error_of_fence,
    fenced_error,
)
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieFullError,
    BookieReadOnlyError,
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    ProcessLimitError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.writer import (
    Acknowledge,
    AddRequested,
    BookieFailed,
    BookieFenced,
    BookiesLookedAt,
    ChangeEnsemble,
    Command,
    EnsembleChanged,
    EnsembleChangeFailed,
    EnsembleStays,
    FailPending,
    LookBegins,
    Send,
    Stored,
    Writer,
)

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext
    from spark_bookkeeper.client.write.bookie_channel import BookieChannel, Group
    from spark_bookkeeper.metadata.store import Registration
    from spark_bookkeeper.runtime.runtime import Condition


class AppendPipeline:
    """Pending entries, channels and their machine. All methods may be called from any thread."""

    def __init__(
        self, context: ClientContext, ledger: Ledger, versioned: Versioned[LedgerMetadata]
    ) -> None:
        self.ledger = ledger
        """The ledger, with its metadata as the writer last wrote or read it."""
        self.machine = Writer(ledger.metadata.quorum, ledger.metadata.last_fragment.ensemble)
        self.confirmed_length = 0
        """Sum of the lengths of the acknowledged entries."""
        self.confirmed_at = 0.0
        """When a bookie's answer last confirmed an entry, by the runtime's clock."""
        self._counted = NO_ENTRY
        """Entries up to this one are in the counters."""
        self._context = context
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._max_pending_bytes = context.config.max_pending_bytes
        self._quick_bytes = min(self._max_pending_bytes, MOST_ENTRY_BYTES)
        """If no more bytes than this are pending, including a new entry, then that entry is not too
        large and need not wait."""
        self.versioned = versioned
        """The same metadata, with its version."""
        self._quorum = ledger.metadata.quorum
        self._changed: Condition = self._runtime.condition()
        self._pending = PendingEntries()
        self._standing = WriterLifecycle()
        self._is_started = False
        self._ended: Callable[[], None] | None = None
        """Called when a dropped writer has ended; no thread waits for that."""
        self._bulk: object | None = None
        """The bulk append that runs; the others wait for it."""
        self._delivery = Delivery(self._changed, self._runtime)
        self._promises = self._delivery.promises
        self._acks: deque[SlotAck] = deque(maxlen=ACKS_KEPT)
        self._token = self._runtime.token()

    # The objects that send entries are made with the first entry. They refer to the pipeline and it
    # to them, and only Python's garbage collector frees such cycles: for a ledger that stays empty
    # they were an eighth of its cost.

    @cached_property
    def _channels(self) -> EnsembleChannels:
        return EnsembleChannels(
            self._context, self._changed, self._pending, self._delivery, self, self._token
        )

    @cached_property
    def _watch(self) -> SilenceTimer:
        return SilenceTimer(
            self._context, self._changed, self._channels, self._pending, self._delivery, self
        )

    @cached_property
    def _changes(self) -> EnsembleChanges:
        return EnsembleChanges(self._context, self._changed, self._delivery, self)

    # Pushing

    def push(
        self, payloads: Sequence[bytes | pa.RecordBatch], sizes: Sequence[int], expected: int | None
    ) -> Future[int]:
        """Take entries; the future gives the id of the last one when it is acknowledged.

        Waits while more than ``max_pending_bytes`` are pending, or a bulk append runs.
        """
        with self._changed:
            self._admit(sum(sizes), expected)
            for payload, size in zip(payloads, sizes, strict=True):
                self._pending.push(payload, size)
            # If there are no rows, the future is done when the earlier appends are.
            self._channels.wake()
            return Promise(self._promises, self._pending.last)

    def push_payload(self, payload: bytes, expected: int | None) -> Future[int]:
        """Take one entry of bytes; as ``push``, but faster, because small appends call this."""
        size = len(payload)
        pending, standing = self._pending, self._standing
        with self._changed:
            if (  # the checks of ``_admit``, without the call
                pending.size_bytes + size > self._quick_bytes
                or expected is not None
                or standing.error is not None
                or standing.is_closing
                or self._bulk is not None
                or not self._is_started
            ):
                check_entry_size(size)
                self._admit(size, expected)
            entry_id = pending.push(payload, size)
            if self._channels.idle:
                self._channels.wake()
        return Promise(self._promises, entry_id)

    def begin_bulk(self, bulk: object, expected: int | None) -> BulkPlan:
        """Reserve the next entry id for a bulk append; other appends wait until ``end_bulk``.

        Args:
            bulk: identifies the append, so that ``cancel_bulk`` cancels no other.
        """
        with self._changed:
            self._admit(0, expected)
            while len(self._channels.by_position) < self._quorum.ensemble_size:
                self._changed.wait()  # a bookie is being replaced
                self._admit(0, expected)
            plan = BulkPlan(
                key=self.ledger.key,
                encoding=self.ledger.encoding,
                quorum=self._quorum,
                first_entry_id=EntryId(self._pending.last + 1),
                targets=tuple(
                    (
                        p,
                        channel.bookie,
                        channel.incarnation,
                        self._context.bookies.root_uri(channel.bookie),
                    )
                    for p, channel in sorted(self._channels.by_position.items())
                ),
                entry_target_bytes=self.ledger.entry_target_bytes,
            )
            self._bulk = bulk
            return plan

    def end_bulk(self, plan: BulkPlan, results: Sequence[TaskResult]) -> Future[int]:
        """Give ids to the entries that tasks wrote, and pass them to the channels."""
        with self._changed:
            self._bulk = None
            self._changed.notify_all()
            if self._standing.error is not None:
                raise self._standing.told(self._standing.error)
            block, sizes = place(plan, results, self._pending.length)
            self._pending.push_block(block, sizes)
            self._channels.wake()
            for position, bookie, cause in _failed_targets(results):
                channel = self._channels.by_position.get(position)
                if channel is not None and channel.bookie == bookie:
                    self.lose(channel, cause)
            future = Promise(self._promises, self._pending.last)
        self._delivery.deliver()
        return future

    def cancel_bulk(self, bulk: object) -> None:
        """End a bulk append without listing its parts, and let the next append continue.

        Does nothing if the append has not begun or has ended: Ctrl-C comes at any moment.
        """
        with self._changed:
            if self._bulk is bulk:
                self._bulk = None
                self._changed.notify_all()

    def _admit(self, size_bytes: int, expected: int | None) -> None:
        """Wait for pending bytes and a bulk append; refuse an append that is not allowed."""
        limit = self._max_pending_bytes - size_bytes
        while self._bulk is not None or ((held := self._pending.size_bytes) > limit and held):
            if self._standing.error is not None:
                break
            if self._bulk is None and self._delivery.is_here():
                break  # this very thread may hold up the pending entries
            self._changed.wait()
        if self._standing.error is not None:
            raise self._standing.told(self._standing.error)
        if self._standing.is_closing:
            raise LedgerClosedError(
                f"the writer of ledger {self.ledger.ledger_id} is {self.state}; create another "
                "ledger to go on",
                ledger_id=self.ledger.ledger_id,
                last_entry_id=self.machine.last_add_confirmed,
            )
        following = self._pending.last + 1
        if expected is not None and whole_number("expected_entry_id", expected) != following:
            raise InvalidArgumentError(
                f"expected_entry_id={expected}, but the next entry of ledger "
                f"{self.ledger.ledger_id} is {following}; nothing was appended. If this is a "
                "retry, the earlier call may have succeeded: read the ledger"
            )
        if not self._is_started:
            self._start()

    def check_may_wait(self, what: str) -> None:
        """Raise ``InvalidArgumentError`` in a callback, where waiting would never end."""
        if self._delivery.is_here():
            raise InvalidArgumentError(
                f"{what} in the callback of an append would wait for itself; nothing was done. "
                "Use append_async() there, and wait in another thread"
            )

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that was pushed. The machine gets entries when a channel takes them."""
        return self._pending.last

    # Waiting and ending

    def flush(self) -> EntryId:
        """Wait until everything pushed so far is acknowledged; return the LAC."""
        with self._changed:
            target = self._pending.last
            self._wake_missed()
            while self.machine.last_add_confirmed < target and self._standing.error is None:
                self._changed.wait()
            if self.machine.last_add_confirmed < target:
                assert self._standing.error is not None
                raise self._standing.told(self._standing.error)
            return self.machine.last_add_confirmed

    def acks(self) -> tuple[list[SlotAck], EntryId, EntryId]:
        """Return the bookies' acks of the last slots, the LAC, and the last entry pushed."""
        with self._changed:
            return list(self._acks), self.machine.last_add_confirmed, self._pending.last

    def drain(self) -> BookKeeperError | None:
        """Take no more entries; wait until pending entries are on their whole write set.

        Returns:
            why entries could not be acknowledged, or ``None``.
        """
        with self._changed:
            self._begin_to_close()
            while self._standing.error is None and (
                self._has_pending() or self._bulk is not None or self._is_any_behind()
            ):
                self._changed.wait()
            self._end(is_to_be_closed=True)
            error = self._standing.error
        if not self._delivery.is_here():
            self._delivery.deliver()  # if no thread could be started for it
        return None if error is None else self._standing.told(error)

    def _begin_to_close(self) -> None:
        """Take no more entries. From now on only lost bookies are replaced."""
        self._standing.is_closing = True
        self._wake_missed()
        self._carry_out(self.machine.step(BookiesLookedAt({}, {})))
        self._delivery.deliver_in_background()

    def close(self) -> None:
        """Fix the end of the ledger at the LAC, by CAS while OPEN; see ``LedgerWriter.close``.

        Every later call raises the same error if it says what became of the ledger.
        """
        confirmed, length = self.machine.last_add_confirmed, self.confirmed_length
        try:
            self._adopt(close_ledger(self._context, self.ledger, self.versioned, confirmed, length))
        except LedgerError as error:
            self._leave()
            with self._changed:
                self._standing.fail(error)
                self._standing.was_told = True
            raise
        self._leave()
        self._standing.is_closed = True

    def abandon(self) -> None:
        """Stop at once, without closing."""
        with self._changed:
            self._standing.is_closing = self._standing.is_abandoned = True
            self.fail(
                AppendFailedError(
                    f"the writer of ledger {self.ledger.ledger_id} was abandoned; pending entries "
                    "may or may not be written: open the ledger to recover it, and read to know",
                    ledger_id=self.ledger.ledger_id,
                )
            )
            self._end()
        self._delivery.deliver()

    @property
    def state(self) -> str:
        """The state of the writer, in a word or two for people."""
        return self._standing.state

    def _end(self, *, is_to_be_closed: bool = False) -> None:
        self._standing.is_ended = True
        if not is_to_be_closed:
            self._leave()
        self._send_no_more()
        self._changed.notify_all()

    def _send_no_more(self) -> None:
        if self._is_started:
            self._watch.end()
            self._channels.end()

    def _wake_missed(self) -> None:
        if self._is_started:
            self._channels.wake_missed()

    def _is_any_behind(self) -> bool:
        return self._is_started and self._channels.is_any_behind

    # Going on after the writer was dropped (``runtime/unclosed.py``)

    def is_pending(self) -> bool:
        if self._standing.error is None:
            return self._has_pending()
        return self._has_pending() and not (self._standing.was_told or self._promises.was_told)

    def account(self) -> str | None:
        standing = self._standing
        if standing.error is not None and not self.is_pending():
            return None  # a caller has seen the error
        return standing.account(
            self.ledger.ledger_id,
            self.machine.last_add_confirmed,
            self._pending.last,
            is_unknown=standing.is_closing and self._ended is None,  # ``close`` had no answer
        )

    def settle(self, seconds: float) -> None:
        until = self._runtime.now() + seconds
        with self._changed:
            self._wake_missed()
            while self._standing.error is None and self._has_pending():
                left = until - self._runtime.now()
                if left <= 0:
                    return
                self._changed.wait(left)

    def wind_up(self, ended: Callable[[], None]) -> None:
        with self._changed:
            self._ended = ended
            self._begin_to_close()
            self._end_if_dropped()

    def _end_if_dropped(self) -> None:
        """End a dropped writer as soon as all its entries are on their whole write set."""
        if self._ended is None:
            return
        is_over = self._standing.is_ended or self._standing.error is not None
        if not is_over and (self._has_pending() or self._is_any_behind()):
            return
        self._end()
        ended, self._ended = self._ended, None
        ended()

    def _leave(self) -> None:
        """Remove the writer's presence node, without waiting until that is done."""
        self._context.store.leave_ledger(self.ledger.ledger_id)

    def _has_pending(self) -> bool:
        return self.machine.last_add_confirmed < self._pending.last

    def _start(self) -> None:
        """Start the channels with the first append."""
        self._is_started = True
        try:
            self._context.store.watch_ledger(self.ledger.ledger_id, self._hear_of_deletion)
            self._carry_out(self.machine.start())
            self._watch.start()
        except BaseException as error:  # Ctrl-C, or no more threads: too few channels would hang
            self.fail(self._gave_up(f"it could not start ({type(error).__name__})"))
            raise

    def _is_acknowledged(self) -> bool:
        """Whether the ledger is being closed and all its entries are acknowledged."""
        return self._standing.is_closing and not self._has_pending()

    # Reports of channels; the lock is held

    def take(self) -> EntryId:
        """Report pending entries to the machine when a channel takes them; return the LAC."""
        added = self._pending.last - self.machine.last_add_pushed
        if added:
            self.machine.step(AddRequested(added))
        return self.machine.last_add_confirmed

    @property
    def confirmed(self) -> EntryId:
        """The last add confirmed."""
        return self.machine.last_add_confirmed

    @property
    def is_busy(self) -> bool:
        """Whether the ledger is being closed, a bulk append runs, or the writer has failed."""
        standing = self._standing
        return standing.is_closing or self._bulk is not None or standing.error is not None

    def stored(self, channel: BookieChannel, group: Group) -> None:
        """Note that a bookie stores its entries of a group."""
        channel.next_entry = EntryId(group.last + 1)
        now = self._runtime.now()
        waited_ms = (now - group.taken_at) * 1000
        ack = SlotAck(
            channel.bookie, channel.position, group.first, group.last,
            self._runtime.wall_ms(), waited_ms
        )  # fmt: skip
        self._acks.append(ack)
        confirmed = self.machine.last_add_confirmed
        self._carry_out(self.machine.step(Stored(channel.position, channel.bookie, group.last)))
        if self.machine.last_add_confirmed > confirmed:  # once for a group, not for each entry
            self._metrics.add_latency_ms.observe(waited_ms)
            self.confirmed_at = now
        self._channels.forget(self.machine.last_add_confirmed)
        if self._ended is not None:
            self._end_if_dropped()

    def failed(self, channel: BookieChannel, error: BookKeeperError) -> None:
        """Note that a bookie is fenced or lost."""
        if isinstance(error, LedgerFencedError):
            if self.machine.step(BookieFenced(channel.position, channel.bookie)):
                self._metrics.writers_fenced.inc()
                fenced = fenced_error(self.ledger, self.machine.last_add_confirmed, error.message)
                try:
                    self._runtime.spawn("fenced", lambda: self._learn_of_fence(error.message))
                except RuntimeError:  # no more threads
                    self.fail(fenced)
        elif isinstance(error, ProcessLimitError) and not self._is_acknowledged():
            self.fail(self._gave_up(error.message))  # another bookie would fail alike
        else:
            if isinstance(error, BookieFullError | BookieReadOnlyError):
                self._changes.full.add(channel.bookie)
            self.lose(channel, error.message)

    def lose(self, channel: BookieChannel, cause: str) -> None:
        """Give up a bookie, which is lost to this writer for good."""
        if not channel.is_active():
            return
        self._changes.lost[channel.bookie] = f"lost to this writer: {cause}"
        self._channels.drop(channel)
        if self._is_acknowledged():
            self._end_if_dropped()
            return  # rereplication will copy the missing entries
        self._carry_out(self.machine.step(BookieFailed(channel.position, channel.bookie)))

    def unfit(self, alive: Mapping[BookieId, Registration]) -> Set[BookieId]:
        """Return bookies that cannot get the first entry that is not acknowledged."""
        excluded = self._changes.excluded(EntryId(self.machine.last_add_confirmed + 1))
        return self._context.bookies.ineligible(alive, 0, self.ledger, excluded).keys()

    def look_begins(self) -> None:
        """Note that the metadata store is about to be queried for bookies to replace."""
        self._carry_out(self.machine.step(LookBegins()))

    def looked(self, readonly: Sequence[BookieChannel], gone: Sequence[BookieChannel]) -> None:
        """Take in which bookies are read-only or have no agent, to be replaced; often none."""
        event = BookiesLookedAt(
            self._to_be_left(readonly, "it became read-only"),
            self._to_be_left(gone, "its agent was gone"),
        )
        self._carry_out(self.machine.step(event))

    def _to_be_left(self, channels: Sequence[BookieChannel], because: str) -> dict[int, BookieId]:
        if self._standing.is_closing:
            return {}
        for channel in channels:
            channel.left_because = because
        return {channel.position: channel.bookie for channel in channels}

    # Carrying out commands; the lock is held

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Send(position, bookie, first):
                    self._channels.open(position, bookie, first)
                case Acknowledge(through):
                    self._acknowledge(through)
                case ChangeEnsemble():
                    self._changes.begin(command)
                case FailPending():
                    self.fail(self._standing.error or self._gave_up("no ensemble could be formed"))
                case _:
                    assert_never(command)

    def _acknowledge(self, through: EntryId) -> None:
        length = self._pending.length_after(through)
        self._metrics.added_bytes.inc(length - self.confirmed_length)
        self._metrics.added_entries.inc(through - self._counted)
        self.confirmed_length, self._counted = length, through
        self._delivery.acknowledge(through)
        self._changed.notify_all()

    def fail(self, error: BookKeeperError) -> None:
        """Acknowledge no further entry."""
        reason = self._standing.fail(error)
        self._leave()
        self._delivery.fail(reason)
        self._send_no_more()
        self._changed.notify_all()
        self._end_if_dropped()

    # Changes of the ledger by other clients

    def _learn_of_fence(self, cause: str) -> None:
        """Read the metadata to find the cause. The lock is not held, because this waits."""
        confirmed = self.machine.last_add_confirmed  # the machine confirms no more
        self._give_up(error_of_fence(self._context, self.ledger, confirmed, cause))

    def _hear_of_deletion(self) -> None:
        """Called by a thread of the store, which must not wait."""
        self._runtime.spawn("ledger-deleted", self._learn_of_deletion)

    def _learn_of_deletion(self) -> None:
        if not self._standing.is_ended:  # a running close finds it out itself
            self._give_up(deleted_error(self.ledger, self.machine.last_add_confirmed))

    def _give_up(self, error: BookKeeperError) -> None:
        with self._changed:
            self.fail(error)
        self._delivery.deliver()

    # Results of an ensemble change; the lock is held

    @property
    def is_ended(self) -> bool:
        """Whether nothing is sent any more."""
        return self._standing.is_ended

    def not_again(self, first: EntryId) -> dict[BookieId, str]:
        """Return bookies that were left and cannot get entries from ``first`` on, with reasons."""
        return self._channels.not_again(first)

    def ensemble_changed(self, updated: Versioned[LedgerMetadata] | None) -> None:
        """Adopt the metadata with another ensemble; ``None`` keeps the old ensemble."""
        if updated is None:
            self._carry_out(self.machine.step(EnsembleStays()))
        else:
            self._metrics.ensemble_changes.inc()
            self._adopt(updated)
            ensemble = updated.value.last_fragment.ensemble
            self._carry_out(self.machine.step(EnsembleChanged(ensemble)))
        self._channels.forget(self.machine.last_add_confirmed)
        self._changed.notify_all()
        self._end_if_dropped()

    def ensemble_not_changed(self, error: BookKeeperError) -> None:
        """Note that no other ensemble could be published."""
        self._standing.fail(error)
        self._carry_out(self.machine.step(EnsembleChangeFailed()))
        self._changed.notify_all()

    def _adopt(self, versioned: Versioned[LedgerMetadata]) -> None:
        self.versioned = versioned
        self.ledger = self.ledger.with_metadata(versioned.value)

    def _gave_up(self, cause: str) -> AppendFailedError:
        return self._changes.gave_up(cause, EntryId(self.machine.last_add_confirmed + 1))


def _failed_targets(results: Sequence[TaskResult]) -> list[tuple[int, BookieId, str]]:
    """Return each bookie on which a task could not write, once, with the first cause."""
    failed: dict[tuple[int, BookieId], str] = {}
    for result in results:
        for (position, bookie), cause in result.failures.items():
            failed.setdefault((position, bookie), cause)
    return [(position, bookie, cause) for (position, bookie), cause in failed.items()]
