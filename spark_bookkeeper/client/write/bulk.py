"""Bulk appends: tasks write rows into part files on every bookie, in one pass.

A task does not know how many entries the earlier tasks make. So if the ledger is striped, each task
makes a multiple of E entries. Then the k-th entry of every task is at the same position in any
case, and the ids can be given afterwards, in task order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from typing_extensions import Buffer

from spark_bookkeeper.bookie.bookie import LedgerRef, PartSink
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.part import PartEncoder, part_name
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange
from spark_bookkeeper.client.write import rows
from spark_bookkeeper.client.write.pending import BulkBlock
from spark_bookkeeper.errors import BookieUnavailableError, BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.channel import Channel
from spark_bookkeeper.runtime.progress import watched
from spark_bookkeeper.storage.call import Call

CHANNEL_BYTES = 32 << 20
"""Encoded bytes that may wait for one slow bookie before the task waits too."""

Target = tuple[int, BookieId, str, str]
"""Position, bookie id, incarnation, root URI."""


@dataclass(frozen=True, slots=True)
class BulkPlan:
    """The plan that every task of one bulk append needs. Picklable."""

    key: LedgerKey
    encoding: LedgerEncoding
    quorum: Quorum
    first_entry_id: EntryId
    """The id of the first entry of the first task; fixes the stripe class of every entry."""
    targets: tuple[Target, ...]
    entry_target_bytes: int

    @property
    def entries_multiple(self) -> int:
        """Each task makes a multiple of this many entries."""
        return self.quorum.ensemble_size if self.quorum.is_striped else 1

    def stripe_class(self, ordinal: int) -> int:
        """Return the stripe class of a task's ``ordinal``-th entry; 0 when nothing is striped."""
        return (self.first_entry_id + ordinal) % self.entries_multiple


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """One part file and the bookies that store it."""

    stripe_class: int
    ref: PartRef
    holders: tuple[tuple[BookieId, str], ...]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task attempt. Only results that are listed in slots ever count (R15)."""

    task: int
    """Order of the tasks: the order of their rows in the ledger."""
    rows: int
    parts: tuple[WrittenPart, ...]
    failures: Mapping[tuple[int, BookieId], str] = field(default_factory=dict)
    """Bookies that could not store everything, and why."""

    @property
    def entries(self) -> int:
        return sum(len(part.ref.sizes) for part in self.parts)


class Frames(Protocol):
    """Access to Spark DataFrames, given by the session; the client itself has no Spark code."""

    def is_frame(self, data: Any) -> bool:
        """Whether this is a Spark DataFrame (classic or Connect)."""

    def schema(self, frame: Any) -> pa.Schema:
        """Return its schema as Arrow types.

        Raises ``InvalidArgumentError`` if its rows cannot be read: it is a stream, or its session
        was stopped.
        """

    def arrow_schema(self, schema: Any) -> pa.Schema:
        """Return a Spark or Arrow schema as an Arrow schema. Raises ``InvalidArgumentError``."""

    def write_parts(self, frame: Any, plan: BulkPlan) -> Sequence[TaskResult]:
        """Run ``write_task`` over its partitions as one job; return results in partition order."""

    def from_arrow(self, table: pa.Table) -> Any:
        """Return an Arrow table as a DataFrame."""

    def read(
        self,
        context: ClientContext,
        schema: pa.Schema,
        ranges: Sequence[EntryRange],
        *,
        skip_lost: bool = False,
    ) -> Any:
        """Return the rows of ranges of ledgers, one after the other, as a DataFrame whose tasks
        read whole files.

        Args:
            context: the cluster.
            schema: of all the ledgers, or some columns of it: only those are decoded.
            ranges: what to read, in order.
            skip_lost: skip entries that no bookie can deliver.
        """


def write_local(plan: BulkPlan, table: pa.Table, context: ClientContext) -> Sequence[TaskResult]:
    """Write a table as one task in this process: for large Arrow and pandas data."""
    what = f"append to ledger {plan.key.ledger_id}"

    def shown(entries: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return watched(entries, what, table.num_rows, "rows", lambda e: (e.num_rows, e.nbytes))

    return [write_task(plan, iter(table.to_batches()), 0, context, shown)]


def write_task(
    plan: BulkPlan,
    batches: Iterable[pa.RecordBatch],
    task: int,
    context: ClientContext,
    shown: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = iter,
) -> TaskResult:
    """Write a task's rows to part files, one for each stripe class, on each bookie of the class.

    The rows have the ledger's schema. Every entry is encoded once; each bookie has a thread of its
    own. A bookie that fails or hangs is left out and reported; the task goes on while every part is
    stored somewhere.

    Args:
        shown: passes the entries through, to show the progress.

    Raises:
        BookieUnavailableError: no bookie stores some part. Nothing was listed, so nothing of this
            attempt is in the ledger.
    """
    fan_out = FanOut(plan, task, context)
    row_count = 0
    try:
        for ordinal, entry in enumerate(shown(_entries(plan, batches))):
            row_count += entry.num_rows
            fan_out.add(plan.stripe_class(ordinal), entry)
        parts = fan_out.finish()
    except BaseException:
        fan_out.abandon()
        raise
    return TaskResult(task, row_count, tuple(parts), fan_out.failures)


def _entries(plan: BulkPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gather rows and cut them into entries, a multiple of E of them when striped."""
    multiple = plan.entries_multiple
    full = plan.entry_target_bytes * multiple
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece in _cut(batch, full):
            if piece.num_rows == 0:
                continue
            if size and size + piece.nbytes > full * 5 // 4:
                yield from rows.split_evenly(pa.Table.from_batches(gathered), multiple)
                gathered, size = [], 0
            gathered.append(piece)
            size += piece.nbytes
            if size >= full:
                yield from rows.split_evenly(pa.Table.from_batches(gathered), multiple)
                gathered, size = [], 0
    if gathered:
        yield from rows.split_evenly(pa.Table.from_batches(gathered), multiple)


def _cut(batch: pa.RecordBatch, target_bytes: int) -> Iterator[pa.RecordBatch]:
    count = max(1, round(batch.nbytes / target_bytes))
    rows_each = -(-batch.num_rows // count) or 1
    for start in range(0, max(batch.num_rows, 1), rows_each):
        yield batch.slice(start, rows_each)


class FanOut:
    """Sends the parts of one task attempt to every bookie at once."""

    def __init__(self, plan: BulkPlan, task: int, context: ClientContext) -> None:
        self.failures: dict[tuple[int, BookieId], str] = {}
        self._finished: set[int] = set()
        """Positions whose bookie stores everything; no other bookie holds a part that counts."""
        self._plan = plan
        self._task = task
        self._attempt = context.runtime.token()
        self._bookies = context.bookies
        self._runtime = runtime = context.runtime
        self._limit = context.config.bookie_timeout_ms / 1000
        self._changed = runtime.condition()
        self._calls: dict[Target, Call[None] | None] = dict.fromkeys(plan.targets)
        """The bookies that are still written to; a bookie that has left this mapping never returns
        to it."""
        self._over = AutoResetEvent(runtime)
        self._encoders: dict[int, PartEncoder] = {}
        self._channels = {t[0]: Channel[_Chunk](runtime, CHANNEL_BYTES) for t in plan.targets}
        for target in plan.targets:
            runtime.spawn(f"part-{task}-{target[0]}", partial(self._write, target))
        runtime.spawn(f"part-{task}-watch", self._watch)

    def add(self, stripe_class: int, entry: pa.RecordBatch) -> None:
        """Send the next entry of a stripe class."""
        encoder = self._encoders.get(stripe_class)
        if encoder is None:
            encoder = PartEncoder(
                self._plan.key, self._plan.encoding, lambda data: self._send(stripe_class, data)
            )
            self._encoders[stripe_class] = encoder
        encoder.add(entry)

    def finish(self) -> list[WrittenPart]:
        """Complete every part on every bookie; return the parts and their bookies.

        Raises:
            BookieUnavailableError: no bookie stores some part.
        """
        refs = {c: encoder.finish(self._name(c)) for c, encoder in sorted(self._encoders.items())}
        self._end()
        return [self._written(stripe_class, ref) for stripe_class, ref in refs.items()]

    def abandon(self) -> None:
        """Stop: the written parts stay unlisted and will be collected."""
        for channel in self._channels.values():
            channel.abandon()
        self._end()

    def _end(self) -> None:
        for channel in self._channels.values():
            channel.close()
        with self._changed:
            while self._calls:
                self._changed.wait()
        self._over.set()

    def _name(self, stripe_class: int) -> str:
        return part_name(self._attempt, self._task, stripe_class)

    def _send(self, stripe_class: int, data: Buffer) -> None:
        size = memoryview(data).nbytes
        for position in self._plan.quorum.write_set(EntryId(stripe_class)):
            if position in self._channels:
                self._channels[position].put(_Chunk(stripe_class, data), size)

    def _written(self, stripe_class: int, ref: PartRef) -> WrittenPart:
        positions = self._plan.quorum.write_set(EntryId(stripe_class))
        holders = tuple(
            (bookie, incarnation)
            for position, bookie, incarnation, _ in self._plan.targets
            if position in positions and position in self._finished
        )
        if not holders:
            of_it = {b: why for (p, b), why in sorted(self.failures.items()) if p in positions}
            causes = "; ".join(f"{b}: {why}" for b, why in of_it.items()) or "none was asked"
            raise BookieUnavailableError(
                f"part {ref.name} could not be stored on any bookie of its write set ({causes}); "
                "nothing of it is in the ledger",
                bookie_id=next(iter(of_it), self._plan.targets[0][1]),
            )
        return WrittenPart(stripe_class, ref, holders)

    def _write(self, target: Target) -> None:
        """Write the parts of one bookie, in its own thread, from the data of the encoders."""
        failure: str | None = "given up"
        try:
            call = self._bookies.bookie_client(target[1]).attend(
                f"writing parts of {self._plan.key}"
            )
            with self._changed:
                self._calls[target] = call
            call.in_person(lambda: self._write_parts(target))
            failure = None
        except BookKeeperError as error:
            failure = error.message
        except Exception as error:  # noqa: BLE001  (whatever it was, this bookie stores nothing)
            failure = f"{type(error).__name__}: {error}"
        finally:
            self._end_of(target, failure)

    def _write_parts(self, target: Target) -> None:
        position, bookie, incarnation, _ = target
        key, encoding = self._plan.key, self._plan.encoding
        channel = self._channels[position]
        sinks: dict[int, PartSink] = {}
        try:
            ledger = LedgerRef(key, incarnation, encoding)
            replica = Replica(self._bookies.bookie(bookie), ledger)
            replica.prepare()
            for chunk in channel:
                sink = sinks.get(chunk.stripe_class)
                if sink is None:
                    sink = replica.begin_part(self._name(chunk.stripe_class))
                    sinks[chunk.stripe_class] = sink
                sink.write(chunk.data)
            if not channel.is_abandoned:
                for sink in sinks.values():
                    sink.finish()
        finally:
            for sink in sinks.values():
                sink.abandon()

    def _end_of(self, target: Target, failure: str | None) -> None:
        """End the writing to a bookie. After the bookie was given up, its answers are ignored."""
        position, bookie = target[0], target[1]
        channel = self._channels[position]
        with self._changed:
            if target not in self._calls:
                return
            del self._calls[target]
            if failure is not None:
                self.failures[position, bookie] = failure
            elif not channel.is_abandoned:
                self._finished.add(position)
            self._changed.notify_all()
        if failure is not None:
            channel.abandon()

    def _watch(self) -> None:
        """Give up bookies that hang, so that neither the others nor the task wait for them.

        If this process itself stood still, each bookie gets its full time again.
        """
        looked_at = self._runtime.now()
        while True:
            self._over.wait(self._limit / 4)
            with self._changed:
                calls = dict(self._calls)
            if not calls:
                return
            stood_still = self._runtime.now() - looked_at > self._limit / 2
            looked_at = self._runtime.now()
            for target, call in calls.items():
                if call is None:
                    continue
                if stood_still:
                    call.begin_anew()
                elif (error := call.give_up_if_silent()) is not None:
                    self._end_of(target, error.message)


@dataclass(frozen=True, slots=True)
class _Chunk:
    stripe_class: int
    data: Buffer


def place(
    plan: BulkPlan, results: Sequence[TaskResult], length_before: int
) -> tuple[BulkBlock, list[int]]:
    """Give ids to the entries that tasks wrote, in task order.

    Returns:
        The block for the channels, and the size of every entry in id order.
    """
    sizes: list[int] = []
    spans: list[tuple[int, int]] = []
    numbered: list[tuple[WrittenPart, list[int]]] = []
    for result in sorted(results, key=lambda r: r.task):
        if not result.entries:
            continue
        start = len(sizes)
        assert start % plan.entries_multiple == 0, "a task makes a multiple of E entries"
        by_class = {part.stripe_class: part for part in result.parts}
        ordinals: dict[int, list[int]] = {c: [] for c in by_class}
        for ordinal in range(result.entries):
            stripe_class = plan.stripe_class(ordinal)
            part = by_class[stripe_class]
            sizes.append(part.ref.sizes[len(ordinals[stripe_class])])
            ordinals[stripe_class].append(start + ordinal)
        numbered += [(part, ordinals[c]) for c, part in by_class.items()]
        first = plan.first_entry_id + start
        spans.append((first, first + result.entries - 1))
    lengths = []
    for size in sizes:
        length_before += size
        lengths.append(length_before)
    first = plan.first_entry_id
    block = BulkBlock(
        first=first,
        last=EntryId(first + len(sizes) - 1),
        spans=tuple(spans),
        parts=tuple(
            PlacedPart(
                part.ref, tuple(first + o for o in ordinals_), tuple(lengths[o] for o in ordinals_)
            )
            for part, ordinals_ in numbered
        ),
        classes={part.ref.name: part.stripe_class for part, _ in numbered},
        holders={part.ref.name: dict(part.holders) for part, _ in numbered},
    )
    return block, sizes
