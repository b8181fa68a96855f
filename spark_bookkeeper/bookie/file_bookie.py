"""A bookie that stores its ledgers in files: the slot log behind the ``Bookie`` interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from functools import partial, wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa
from typing_extensions import Buffer, override

from spark_bookkeeper.bookie.batch_ops import (
    empty_together,
    fence_together,
    locate_together,
    read_together,
    verify_together,
    write_together,
)
from spark_bookkeeper.bookie.bookie import (
    Bookie,
    Compacted,
    Compaction,
    Delivered,
    EntriesRef,
    EntryView,
    LedgerRef,
    NewCopies,
    NewestRecord,
    NewRecord,
    PartPlace,
    PartSink,
    RangeRef,
    Rows,
    SlotView,
    Span,
    Swept,
    Verification,
    too_large_for_batch,
)
from spark_bookkeeper.bookie.compaction import Compactor
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.holdings import Holdings, LedgerTail
from spark_bookkeeper.bookie.index import EntryIndex, Tail
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.location import NO_ROW, Location
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.marker import ledger_directories, lost_directory, read_marker
from spark_bookkeeper.bookie.record import RecordKind
from spark_bookkeeper.bookie.removal import clear, sweep
from spark_bookkeeper.bookie.reserve import Reserve
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.schema import LedgerPaths, ledger_of
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.errors import (
    BookieError,
    BookieReadOnlyError,
    BookieUnavailableError,
    BookKeeperError,
    CorruptEntryError,
)
from spark_bookkeeper.protocol.ids import NO_ENTRY
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Share
from spark_bookkeeper.runtime.answer import Answer, value_of
from spark_bookkeeper.storage.batching import BatchingStorage
from spark_bookkeeper.storage.storage import FileSink, Storage, unavailable

SLOTS_LOOKED_AT: Final = 512
"""With more slots than this, appends are small, and a range can be cut anywhere."""

_CALLS_AT_ONCE: Final = 8

_LOGS_KEPT: Final = 256
"""The most ledgers for which a session caches its reads."""

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


def in_rounds(
    method: Callable[Concatenate[FileBookie, Sequence[A], P], Sequence[Answer[T]]],
) -> Callable[Concatenate[FileBookie, Sequence[A], P], Sequence[Answer[T]]]:
    """Make each ledger of a batch call a run of its own (``storage/batching.py``)."""

    @wraps(method)
    def call(
        bookie: FileBookie, wanted: Sequence[A], /, *args: P.args, **options: P.kwargs
    ) -> Sequence[Answer[T]]:
        rounds = bookie.rounds
        if rounds is None or len(wanted) == 1:
            return method(bookie, wanted, *args, **options)

        def run(one: A) -> T:
            return value_of(method(bookie, [one], *args, **options)[0])

        return rounds.together([partial(run, one) for one in wanted])

    return call


class FileBookie(Bookie):
    """One session with a partition. Any thread may call.

    Args:
        storage: the partition, which has the bookie's id.
        reserve: this process's reserve of the partition; ``None`` makes the first. All sessions
            share it: otherwise a thousand small writers could use up the last space.
    """

    def __init__(self, storage: Storage, reserve: Reserve | None = None) -> None:
        self.rounds = BatchingStorage(storage) if storage.requests_at_once > 1 else None
        """Batches requests for many ledgers; ``None`` if the storage sends them one by one."""
        self.storage = self.rounds or storage
        """The storage of the files, for this package and for code that formats partitions."""
        self._logs: dict[LedgerKey, LedgerLog] = {}
        self._reserve = Reserve(storage) if reserve is None else reserve

    def __repr__(self) -> str:
        return f"FileBookie({self.storage!r})"

    @property
    @override
    def bookie_id(self) -> str:
        return self.storage.bookie_id

    @property
    @override
    def calls_at_once(self) -> int:
        return 1 if self.storage.syncs_as_one or self.rounds else _CALLS_AT_ONCE

    @override
    def session(self) -> FileBookie:
        storage = self.rounds.inner if self.rounds else self.storage
        return FileBookie(storage, self._reserve)

    def log(self, ledger: LedgerRef) -> LedgerLog:
        """Return the slot log of a ledger, with this session's cache of it."""
        log = self._logs.get(ledger.key)
        if log is None or (log.ledger is not ledger and log.ledger != ledger):
            if len(self._logs) >= _LOGS_KEPT:
                self._logs.clear()
            log = self._logs[ledger.key] = LedgerLog(self.storage, ledger)
        return log

    @override
    def answer(self) -> None:
        read_marker(self.storage)

    # For writers

    @override
    def prepare(self, ledger: LedgerRef) -> None:
        self.log(ledger).prepare()

    @override
    def add(self, ledger: LedgerRef, record: NewRecord) -> None:
        log = self.log(ledger)
        with self._reserve.spent(len(record.data), is_new=not log.was_sent(record.slot)):
            log.add(record.slot, record.data, (record.first, record.last))

    @override
    def begin_part(self, ledger: LedgerRef, name: str) -> PartSink:
        sink = self.log(ledger).parts.create(name)
        return sink if ledger.may_take_last else _ReservedSink(sink, self._reserve)

    # For recovery and copies

    @override
    def check(self, ledger: LedgerRef) -> None:
        self.log(ledger).check()

    @override
    @in_rounds
    def fence(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        tails: Mapping[int, Tail] = {}
        if self._is_together(ledgers):
            logs = {n: self.log(ledger) for n, ledger in enumerate(ledgers)}
            tails = fence_together(self.storage, logs)
        return _each(
            ledgers, lambda n, ledger: _told(tails[n] if n in tails else self.log(ledger).fence())
        )

    @override
    @in_rounds
    def tail(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        return _each(ledgers, lambda _, ledger: _told(self.log(ledger).tail()))

    @override
    @in_rounds
    def newest(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[NewestRecord]]:
        return _each(ledgers, lambda _, ledger: self._newest(ledger))

    def _newest(self, ledger: LedgerRef) -> NewestRecord:
        log = self.log(ledger)
        confirmed: int = NO_ENTRY
        for record in log.records(newest_first=True):
            if record.kind is RecordKind.ADD:
                confirmed = max(confirmed, record.last_add_confirmed)
                if len(record.ids):  # an explicit LAC has no entries
                    return NewestRecord(
                        confirmed, self.storage.modified_ms(log.paths.slot(record.slot))
                    )
        copied = (record.last_add_confirmed for record in log.copied())
        return NewestRecord(max(confirmed, *copied, NO_ENTRY), None)

    @override
    @in_rounds
    def holdings(self, ranges: Sequence[RangeRef]) -> Sequence[Answer[Holdings]]:
        found: Mapping[int, EntryIndex] = {}
        if self._is_together(ranges):
            logs = {n: (self.log(r.ledger), r.first, r.last) for n, r in enumerate(ranges)}
            found = locate_together(self.storage, logs)

        def answer(n: int, r: RangeRef) -> Holdings:
            index = found[n] if n in found else self.log(r.ledger).locate(r.first, r.last)
            return index.told()

        return _each(ranges, answer)

    @override
    @in_rounds
    def verify(self, wanted: Sequence[Verification]) -> Sequence[Answer[Verdict]]:
        together: Mapping[int, Verdict] = {}
        if self._is_together(wanted):
            plain = {n: one for n, one in enumerate(wanted) if not one.with_files}
            found = locate_together(
                self.storage,
                {
                    n: (self.log(one.ledger), one.entry_ids[0], one.entry_ids[-1])
                    for n, one in plain.items()
                    if not _is_known(one.known)
                },
            )
            retrievals: dict[int, Retrieval] = {}
            for n, one in plain.items():
                if n in found:
                    log = self.log(one.ledger)
                    retrievals[n] = Retrieval(log, one.entry_ids, found[n])
                elif _is_known(one.known):
                    with suppress(BookKeeperError):  # _verify meets the error again
                        retrievals[n] = self._retrieval(one.ledger, one.entry_ids, one.known)
            together = verify_together(self.storage, retrievals)
        return _each(wanted, lambda n, one: together[n] if n in together else self._verify(one))

    def _verify(self, wanted: Verification) -> Verdict:
        retrieval = self._retrieval(wanted.ledger, wanted.entry_ids, wanted.known)
        return retrieval.verify(with_files=wanted.with_files)

    @override
    @in_rounds
    def lacking(self, wanted: Sequence[EntriesRef]) -> Sequence[Answer[Sequence[int]]]:
        logs = {n: self.log(one.ledger) for n, one in enumerate(wanted)}
        empty = empty_together(self.storage, logs)
        rest = [one for n, one in enumerate(wanted) if n not in empty]
        verdicts = iter(self.verify([Verification(one.ledger, one.entry_ids) for one in rest]))

        def answer(n: int, one: EntriesRef) -> Sequence[int]:
            if n in empty:
                return one.entry_ids
            verdict = next(verdicts)
            logs[n].check()
            good = () if isinstance(verdict, BookKeeperError) else verdict.good
            return [entry_id for entry_id in one.entry_ids if entry_id not in good]

        return _each(wanted, answer)

    @override
    @in_rounds
    def read_small(
        self, wanted: Sequence[EntriesRef], most_bytes: int
    ) -> Sequence[Answer[Sequence[StoredEntry]]]:
        logs = {n: (self.log(one.ledger), one.entry_ids) for n, one in enumerate(wanted)}
        found = read_together(self.storage, logs, most_bytes)

        def answer(n: int, one: EntriesRef) -> Sequence[StoredEntry]:
            if n not in found:
                raise too_large_for_batch(self.bookie_id)
            return found[n]

        return _each(wanted, answer)

    @override
    @in_rounds
    def write_copies(self, copies: Sequence[NewCopies]) -> Sequence[Answer[None]]:
        done: Set[int] = frozenset()
        if self._is_together(copies):
            wanted = {n: (self.log(copy.ledger), copy) for n, copy in enumerate(copies)}
            # If there is no room for the batch, there may still be room for some of its ledgers.
            with suppress(BookieReadOnlyError), self._room_for(copies):
                done = write_together(self.storage, wanted)

        def write(n: int, copy: NewCopies) -> None:
            if n in done:
                return
            log = self.log(copy.ledger)
            with self._room_for([copy]):
                path = log.write_copy(copy.entries, copy.parts)
            if copy.is_all and not log.finds(path):
                raise unavailable(self.storage, f"{path} was copied there and is not found", path)

        return _each(copies, write)

    def _room_for(self, copies: Sequence[NewCopies]) -> AbstractContextManager[None]:
        """Reserve space while copies are put. Raises ``BookieReadOnlyError``."""
        size = sum(entry.size_bytes for copy in copies for entry in copy.entries)
        is_bound = not all(copy.ledger.may_take_last for copy in copies)
        return self._reserve.spent(size, is_new=is_bound)

    @override
    def find_part(self, ledger: LedgerRef, part: PartRef, *, is_copy: bool = True) -> PartPlace:
        return self.log(ledger).parts.find(part, is_copy=is_copy)

    @override
    def read_part(self, ledger: LedgerRef, part: PartRef, offset: int) -> bytes | pa.Buffer:
        return self.log(ledger).parts.read(part.name, offset)

    @override
    def check_part(self, ledger: LedgerRef, part: PlacedPart) -> bool:
        log = self.log(ledger)
        path = log.paths.part(part.ref.name)
        if not log.parts.holds(part.ref):
            raise unavailable(self.storage, f"{path} is not read back as written", path)
        # The checksum matches, but anyone can forge it; a keyed digest proves more. If that does
        # not match, the copy is exact, and its source is bad, or the file that was here before.
        if ledger.encoding.digest_type is not DigestType.MAC:
            return True
        try:
            for _ in log.reader.entries(_places(path, part)):
                pass
        except CorruptEntryError:
            return False
        return True

    # For readers

    @override
    def read(
        self, ledger: LedgerRef, entry_ids: Sequence[int], known: Holdings | None = None
    ) -> Delivered[StoredEntry]:
        return self._retrieval(ledger, entry_ids, known).read()

    @override
    def scan(
        self,
        ledger: LedgerRef,
        entry_ids: Sequence[int],
        known: Holdings | None = None,
        columns: Sequence[str] | None = None,
        *,
        has_details: bool = False,
    ) -> Delivered[Rows]:
        return self._retrieval(ledger, entry_ids, known).scan(columns, has_details=has_details)

    def _retrieval(
        self, ledger: LedgerRef, entry_ids: Sequence[int], known: Holdings | None
    ) -> Retrieval:
        log = self.log(ledger)
        index = None if known is None else known.places
        if not isinstance(index, EntryIndex):
            index = log.locate(entry_ids[0], entry_ids[-1])
        elif index.bookie_id != self.bookie_id:
            index = log.translated(index)
        return Retrieval(log, entry_ids, index)

    @override
    def split(self, wanted: RangeRef) -> Sequence[Span]:
        log = self.log(wanted.ledger)
        last = wanted.last
        if len(self.storage.list(log.paths.slots)) > SLOTS_LOOKED_AT:
            return []
        spans: dict[int, Span] = {}
        records = [r for r in log.records() if r.kind is RecordKind.ADD and len(r.ids)]
        for record in records or log.copied():  # no ADD: the ledger was compacted, or copied here
            average = float(record.sizes.mean())
            for start, end in record.spans or [(record.first, record.last)]:
                low, high = max(wanted.first, start), end if last is None else min(last, end)
                if low <= high:
                    spans[low] = Span(low, high, average * (high - low + 1))
        return [spans[low] for low in sorted(spans)]

    # For display

    @override
    def slots(self, ledger: LedgerRef) -> Sequence[SlotView]:
        log = self.log(ledger)
        found: list[SlotView] = []
        try:
            for record in log.records():
                found.append(
                    SlotView(
                        slot=record.slot,
                        kind=record.kind.name,
                        first=record.first if len(record.ids) else None,
                        last=record.last if len(record.ids) else None,
                        last_add_confirmed=record.last_add_confirmed,
                        parts=len(record.parts),
                        size_bytes=self.storage.size(log.paths.slot(record.slot)),
                        writer=record.token or None,
                    )
                )
        except BookieError:
            if not found:
                raise
        return found

    @override
    def entries(self, wanted: RangeRef) -> Sequence[EntryView]:
        index = self.log(wanted.ledger).locate(wanted.first, wanted.last)
        found = (place for place in index.first_places(list(index)) if place is not None)
        return [
            EntryView(
                place.entry_id,
                place.size,
                place.last_add_confirmed,
                place.digest,
                None if place.row == NO_ROW else 1,
            )
            for place in found
        ]

    # For maintenance

    @override
    def ledgers(self) -> Sequence[LedgerKey]:
        found = [ledger_of(name) for name in ledger_directories(self.storage)]
        if not found and (lost := self._why_lost()) is not None:
            raise BookieUnavailableError(
                f"bookie {self.bookie_id}: {lost}; which ledgers it has is not known",
                bookie_id=self.bookie_id,
            )
        return [key for key in found if key is not None]

    def _why_lost(self) -> str | None:
        """Return why the storage is lost: an empty mount looks like a bookie without ledgers."""
        marker = read_marker(self.storage)
        if marker is None:
            return "the storage holds no BOOKIE marker: not mounted, or wiped"
        return lost_directory(self.storage, marker)

    @override
    def sizes_of(self, key: LedgerKey) -> Sequence[int]:
        return [self.storage.size(path) or 0 for path in self._files(key)]

    @override
    def files_of(self, key: LedgerKey) -> int:
        return len(self._files(key))

    def _files(self, key: LedgerKey) -> list[str]:
        paths = LedgerPaths(key)
        return [
            f"{directory}/{name}"
            for directory in (paths.slots, paths.parts, paths.copies)
            for name in self.storage.list(directory)
        ]

    @override
    def retire(self, key: LedgerKey) -> None:
        path = LedgerPaths(key).tombstone
        if not self.storage.put_if_absent(path, b""):
            self.storage.sync(path)  # found, not created (R9b)

    @override
    def delete(self, key: LedgerKey) -> None:
        paths = LedgerPaths(key)
        assert self.storage.exists(paths.tombstone), "gc_tombstone"
        # The FENCE goes last: if this process ends in between, the rest accepts no adds.
        for directory in (paths.parts, paths.copies, paths.slots, paths.directory):
            self.storage.delete_directory(directory)

    @override
    def clear(self, ledger: LedgerRef) -> None:
        clear(self.log(ledger))

    @override
    def compact(self, wanted: Compaction) -> Compacted:
        return Compactor(self.log(wanted.ledger), wanted, self._reserve).run()

    @override
    def sweep(
        self, ledger: LedgerRef, before_ms: int, shares: Sequence[Share], *, dry_run: bool = False
    ) -> Swept:
        return sweep(self.log(ledger), before_ms, shares, dry_run=dry_run)

    @override
    def close(self) -> None:
        self.storage.close()

    def _is_together(self, wanted: Sequence[object]) -> bool:
        """Whether to use ``batch_ops.py``: for several ledgers, or for one run of many."""
        return len(wanted) > 1 or self.rounds is not None


class _ReservedSink(PartSink):
    """A part that may not use the last space."""

    def __init__(self, sink: FileSink, reserve: Reserve) -> None:
        self._sink = sink
        self._reserve = reserve

    @override
    def write(self, data: Buffer) -> None:
        with self._reserve.spent(memoryview(data).nbytes):
            self._sink.write(data)

    @override
    def finish(self) -> None:
        self._sink.finish()

    @override
    def abandon(self) -> None:
        self._sink.abandon()


def _each(wanted: Sequence[A], answer: Callable[[int, A], T]) -> list[Answer[T]]:
    """Answer requests one by one, each with its own error. ``answer`` also gets the number."""
    answers: list[Answer[T]] = []
    for number, one in enumerate(wanted):
        try:
            answers.append(answer(number, one))
        except BookKeeperError as error:
            answers.append(error)
    return answers


def _is_known(holdings: Holdings | None) -> bool:
    """Whether they have the places of entries in files."""
    return holdings is not None and isinstance(holdings.places, EntryIndex)


def _told(tail: Tail) -> LedgerTail:
    return LedgerTail(tail.is_fenced, tail.last_add_confirmed, tail.entries.told())


def _places(path: str, part: PlacedPart) -> Iterator[Location]:
    """Yield the locations of a part's entries in the file at ``path``."""
    offset = part.ref.first_offset
    for entry_id, size, length_after, digest in zip(
        part.entry_ids, part.ref.sizes, part.lengths_after, part.ref.digests, strict=True
    ):
        yield Location(
            entry_id, path, offset, size, 0, NO_ROW, size, length_after, NO_ENTRY, digest
        )
        offset += size
