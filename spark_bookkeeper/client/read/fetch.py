"""Fetch and verify entries of a ledger in order, from any bookie that can deliver them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from spark_bookkeeper.bookie.bookie import Rows
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.holdings import Holdings
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.bookies.gather import Gather, TimedOut
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, log_of
from spark_bookkeeper.client.read.salvage import salvage
from spark_bookkeeper.client.write.rows import one_batch
from spark_bookkeeper.errors import (
    BookKeeperError,
    CorruptEntryError,
    EntryUnreadableError,
    NoSuchEntryError,
    remedy,
)
from spark_bookkeeper.protocol.accepted_loss import kept_entries, loss_text
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, is_table
from spark_bookkeeper.protocol.reader import Ask, Reader, Unreadable
from spark_bookkeeper.runtime.own_machine import is_here

T = TypeVar("T")

WINDOW_BYTES = 16 << 20
"""About how many bytes of entries one window fetches before it yields the first of them."""

WINDOW_ENTRIES = 65_536
"""The most entries that one window fetches."""


class Fetcher:
    """Reads entries of one ledger and remembers which bookies failed or were slow.

    One thread uses it. Calls to bookies run in other threads; these get all they need as arguments
    and change nothing here.
    """

    def __init__(
        self,
        context: ClientContext,
        ledger: Ledger,
        spread: int = 0,
        *,
        columns: Sequence[str] | None = None,
        only: BookieId | None = None,
        skip_lost: bool = False,
        has_details: bool = False,
    ) -> None:
        """Prepare to read.

        Args:
            context: the cluster.
            ledger: the ledger, with its metadata as far as known.
            spread: lets readers of the same ledger begin with different replicas.
            columns: the columns that ``scan`` decodes; ``None`` is all.
            only: read from this bookie alone, and only the entries that it should have.
            skip_lost: skip entries that no bookie can deliver, and add them to ``lost``.
            has_details: let ``scan`` add to each entry where it was read.
        """
        self.lost: list[Unreadable] = []
        """The entries that were skipped, in order."""
        self._context = context
        self._ledger = ledger
        self._spread = spread
        self._columns = columns
        self._only = only
        self._skip_lost = skip_lost
        self._has_details = has_details
        self._replicas: dict[BookieId, Replica] = {}
        self._down: dict[BookieId, str] = {}
        self._slow: set[BookieId] = set()
        """Slow bookies, for which another bookie was called as a hedge."""

    def fetch(self, first: EntryId, last: EntryId) -> Iterator[StoredEntry]:
        """Return the entries ``first .. last`` in order, verified.

        Raises:
            EntryUnreadableError: no replica of an entry could be read; names each bookie and why.
            NoSuchLedgerError: the ledger was deleted meanwhile.
        """
        for entries, answers in self._windows(first, last, _read_entries):
            found: dict[EntryId, StoredEntry] = {}
            for answer in answers:
                found.update((EntryId(entry.entry_id), entry) for entry in answer.content)
            for entry_id in entries:
                if EntryId(entry_id) in found:  # lost entries are skipped
                    yield found.pop(EntryId(entry_id))

    def scan(self, first: EntryId, last: EntryId) -> Iterator[Rows]:
        """Return the rows of the same entries in the same order, by messages; this is faster.

        Raises what ``fetch`` raises.
        """
        read = partial(_scan_rows, columns=self._columns, has_details=self._has_details)
        for _, answers in self._windows(first, last, read):
            yield from in_entry_order([rows for answer in answers for rows in answer.content])

    def _windows(
        self, first: EntryId, last: EntryId, read: _Read[T]
    ) -> Iterator[tuple[range, list[_Answer[T]]]]:
        """Yield each window of the range: its entries, and the answers of the bookies."""
        window = self._first_window()
        start = first
        while start <= last:
            fragment = self._ledger.metadata.fragment_of(start)
            end = min(last, self._fragment_end(start, last), EntryId(start + window - 1))
            entries = range(start, end + 1)
            wanted = self._wanted(fragment.ensemble, entries)
            found = self._window(fragment.ensemble, wanted, read)
            if isinstance(found, Unreadable):
                if self._refresh(found):
                    continue
                if not self._skip_lost:
                    raise self._unreadable(found, last)
                found = self._window(fragment.ensemble, wanted, read, self.lost)
                assert not isinstance(found, Unreadable), "what is lost is passed over"
            size = sum(answer.size_bytes for answer in found)
            self._context.metrics.read_bytes.inc(size)
            self._context.metrics.read_entries.inc(sum(len(a.entry_ids) for a in found))
            average = max(1, size // len(entries))
            if found:
                yield entries, found
            window = max(1, min(WINDOW_ENTRIES, window * 4, WINDOW_BYTES // average))
            start = EntryId(end + 1)

    def _first_window(self) -> int:
        """Return how many entries the first window has, before the size of an entry is known."""
        metadata = self._ledger.metadata
        if not metadata.length_bytes or not metadata.last_entry_id:
            return 4
        average = max(1, metadata.length_bytes // (metadata.last_entry_id + 1))
        return max(1, min(64, WINDOW_BYTES // average))

    def _fragment_end(self, entry_id: EntryId, last: EntryId) -> EntryId:
        later = (f.first_entry_id for f in self._ledger.metadata.fragments)
        return EntryId(min((f - 1 for f in later if f > entry_id), default=last))

    def _wanted(self, ensemble: tuple[BookieId, ...], entries: range) -> list[EntryId]:
        """Return the entries to read; with ``only``, those that this bookie should have."""
        ids = [EntryId(entry_id) for entry_id in entries]
        if self._only is None:
            return ids
        quorum = self._ledger.metadata.quorum
        places = [p for p, bookie in enumerate(ensemble) if bookie == self._only]
        return [entry_id for entry_id in ids if any(quorum.holds(p, entry_id) for p in places)]

    def _window(
        self,
        ensemble: tuple[BookieId, ...],
        ids: list[EntryId],
        read: _Read[T],
        lost: list[Unreadable] | None = None,
    ) -> list[_Answer[T]] | Unreadable:
        """Return the answers of bookies for some entries, or the first entry that none can deliver.

        Args:
            lost: gets the entries that no bookie can deliver; the other entries are then read.
        """
        if not ids:
            return []
        quorum = self._ledger.metadata.quorum
        reader = Reader(quorum, ensemble, ids, self._preference(ensemble))
        answers = Gather[Ask, _Delivery[T]](self._context.runtime)
        asked: set[Ask] = set()
        late: set[Ask] = set()
        found: list[_Answer[T]] = []
        is_twofold = False
        while True:
            asks = reader.next(asked, late)
            if isinstance(asks, Unreadable):
                if not asked:
                    rescued = self._salvage(ensemble, reader.waiting, read)
                    is_rescued = any(asks.entry_id in answer.entry_ids for answer in rescued)
                    if lost is None and not is_rescued:
                        return asks
                    found += rescued
                    for rescue in rescued:
                        reader.delivered(rescue.entry_ids)
                    if lost is not None:
                        gone = reader.lost()
                        lost += gone
                        reader.delivered([each.entry_id for each in gone])
                    is_twofold = True
                    continue
                asks = []
            for ask in asks[: max(0, self._context.config.read_threads - len(asked))]:
                try:
                    self._ask(answers, ensemble[ask.position], ask, read)
                except BookKeeperError as error:
                    self._refuse(reader, ask, error)
                else:
                    asked.add(ask)
            if not reader.waiting:
                return found  # late answers are not needed
            came = answers.next(self._context.config.read_hedge_ms / 1000)
            if came is None:
                continue
            if isinstance(came, TimedOut):
                is_twofold = True
                asked.difference_update(came.keys)
                late.update(came.keys)
                self._note_late([ensemble[ask.position] for ask in came.keys])
                continue
            ask, result = came
            asked.discard(ask)
            late.discard(ask)
            try:
                answer, refused = result()
            except BookKeeperError as error:
                self._refuse(reader, ask, error)
                continue
            if is_twofold:
                answer = answer.of(set(reader.waiting))
            found.append(answer)
            self._context.metrics.read_retries.inc(len(refused))
            reader.answered(ask, answer.entry_ids, {EntryId(e): why for e, why in refused.items()})

    def _note_late(self, bookies: Sequence[BookieId]) -> None:
        """Note that these bookies are late, and that other bookies were called too."""
        self._context.metrics.speculative_reads.inc(len(bookies))
        self._slow.update(bookies)
        for bookie in bookies:  # the late call may still use the replica
            self._replicas.pop(bookie, None)

    def _refuse(self, reader: Reader, ask: Ask, error: BookKeeperError) -> None:
        """Note that a bookie could not deliver any of its entries."""
        self._down[reader.ensemble[ask.position]] = error.message
        self._context.metrics.read_retries.inc(len(ask.entries))
        reader.answered(ask, (), dict.fromkeys(ask.entries, error.message))

    def _preference(self, ensemble: tuple[BookieId, ...]) -> list[int]:
        """Return positions, best first: on this machine, then on others, then slow ones, then
        tables, and last those that failed before or that time out now.
        """
        size = len(ensemble)
        turned = [(p + self._spread) % size for p in range(size)]
        if self._only is not None:
            return [p for p in turned if ensemble[p] == self._only]
        return sorted(turned, key=lambda p: self._burden(ensemble[p]))

    def _burden(self, bookie: BookieId) -> tuple[bool, bool, bool, bool]:
        """Return a sort key; the least is best. A table reads whole files for a few entries."""
        is_poor = bookie in self._down or self._context.bookies.is_silent(bookie)
        return is_poor, is_table(bookie), bookie in self._slow, not is_here(bookie)

    def _ask(
        self, answers: Gather[Ask, _Delivery[T]], bookie: BookieId, ask: Ask, read: _Read[T]
    ) -> None:
        """Request entries from a bookie; the answer has the reason for each missing one."""
        replica = self._replicas.get(bookie)
        if replica is None:
            replica = self._context.bookies.replica(bookie, self._ledger)
            self._replicas[bookie] = replica
        purpose = f"reading ledger {self._ledger.ledger_id}"
        # The read may run late: it keeps this replica, since the dictionary may change.
        deliver = partial(read, replica, ask.entries, None)
        answers.ask(ask, self._context.bookies.bookie_client(bookie), purpose, deliver)

    def _salvage(
        self, ensemble: tuple[BookieId, ...], entries: Sequence[EntryId], read: _Read[T]
    ) -> list[_Answer[T]]:
        """Read entries by one bookie's records from another's files; return each entry once."""
        if self._only is not None:
            return []
        rescued: list[_Answer[T]] = []
        missing = set(entries)
        replicas = [each for bookie, each in self._replicas.items() if bookie in ensemble]
        for replica, told, known in salvage(replicas, entries):
            wanted = [entry_id for entry_id in known if entry_id in missing]
            if wanted:
                answer, _ = read(replica, wanted, told)
                missing.difference_update(answer.entry_ids)
                rescued.append(answer)
        return [answer for answer in rescued if answer.entry_ids]

    def _refresh(self, found: Unreadable) -> bool:
        """Whether the fragment has changed or a bookie has moved, so that a retry may succeed."""
        ledger, _ = self._context.ledger(self._ledger.ledger_id, self._ledger.metadata.nonce)
        before = self._ledger.metadata.fragment_of(found.entry_id).ensemble
        is_same = ledger.metadata.fragment_of(found.entry_id).ensemble == before
        if is_same and not self._context.bookies.have_moved():
            return False
        self._ledger = ledger
        self._replicas.clear()
        return True

    def _unreadable(self, found: Unreadable, last: EntryId) -> EntryUnreadableError:
        if self._only is not None:
            return EntryUnreadableError(
                f"entry {found.entry_id} of ledger {self._ledger.ledger_id} cannot be read from "
                f"bookie {self._only}: {found.causes.get(self._only)}. No other was asked, as only "
                "this one was to be read",
                ledger_id=self._ledger.ledger_id,
                entry_id=found.entry_id,
                causes=dict(found.causes),
            )
        ledger_id, log = self._ledger.ledger_id, log_of(self._ledger.metadata)
        of_log = "" if log is None else f" of log {log!r}"
        causes = "\n".join(f"  {bookie}: {why}" for bookie, why in found.causes.items())
        act = remedy(found.causes.values(), "bring one of them back with its storage")
        act += ", then read again; do not delete the ledger"
        if not kept_entries(self._ledger.metadata, found.entry_id, found.entry_id):
            act = f"Nobody looks for it any more: {loss_text(self._ledger.metadata)}"
        return EntryUnreadableError(
            f"entry {found.entry_id} of ledger {ledger_id}{of_log} cannot be read from any bookie "
            f"of its write set:\n{causes}\n{act}. Entries {found.entry_id} to {last} were still to "
            f"be read: bk.lost_entries([{ledger_id}]) tells which of them no bookie can deliver; "
            "skip_lost=True (failOnDataLoss=false of Spark's data source) passes those over",
            ledger_id=self._ledger.ledger_id,
            entry_id=found.entry_id,
            causes=dict(found.causes),
        )


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    """The entries that one bookie delivered."""

    entry_ids: list[EntryId]
    size_bytes: int
    content: list[T]

    def of(self, wanted: Set[EntryId]) -> _Answer[T]:
        """Return the same answer without entries that another bookie delivered before."""
        if all(entry_id in wanted for entry_id in self.entry_ids):
            return self
        kept = [piece for piece in (_of(piece, wanted) for piece in self.content) if piece]
        return _Answer([e for e in self.entry_ids if e in wanted], self.size_bytes, kept)


def _of(piece: T, wanted: Set[EntryId]) -> T | None:
    if isinstance(piece, StoredEntry):
        return piece if EntryId(piece.entry_id) in wanted else None
    assert isinstance(piece, Rows)
    entries = tuple(entry_id for entry_id in piece.entries if EntryId(entry_id) in wanted)
    if len(entries) == len(piece.entries):
        return piece
    keep = np.isin(piece.entry_ids, np.array(entries, dtype=np.int64))
    details = zip(piece.entries, piece.details, strict=True) if piece.details else ()
    rows = Rows(
        piece.batch.filter(pa.array(keep)),
        piece.entry_ids[keep],
        piece.positions[keep],
        entries,
        piece.size_bytes * len(entries) // len(piece.entries),
        tuple(detail for entry_id, detail in details if EntryId(entry_id) in wanted),
    )
    return cast(T, rows) if entries else None


_Delivery = tuple[_Answer[T], Mapping[int, str]]

_Read = Callable[[Replica, Sequence[EntryId], Holdings | None], _Delivery[T]]


def _read_entries(
    replica: Replica, entries: Sequence[EntryId], known: Holdings | None
) -> _Delivery[StoredEntry]:
    delivery = replica.read(entries, known)
    found: list[StoredEntry] = []
    refused = dict(delivery.refused)
    for entry in delivery.found:
        try:
            # The bytes may match their digest and still be no rows; another bookie may have rows.
            found.append(entry if entry.is_payload else entry._replace(rows=entry.batch()))
        except CorruptEntryError as error:
            refused[entry.entry_id] = error.message
    size = sum(entry.size_bytes for entry in found)
    return _Answer([EntryId(entry.entry_id) for entry in found], size, found), refused


def _scan_rows(
    replica: Replica,
    entries: Sequence[EntryId],
    known: Holdings | None,
    columns: Sequence[str] | None = None,
    has_details: bool = False,
) -> _Delivery[Rows]:
    delivery = replica.scan(entries, known, columns, has_details=has_details)
    found = [EntryId(entry_id) for rows in delivery.found for entry_id in rows.entries]
    size = sum(rows.size_bytes for rows in delivery.found)
    return _Answer(found, size, list(delivery.found)), delivery.refused


def in_entry_order(found: list[Rows]) -> Iterator[Rows]:
    """Merge the rows of several bookies into one sequence in entry order.

    Entries that are batches only need sorting. Small entries share messages, and in a striped
    ledger the messages of several bookies interleave: their rows are put in order one by one.
    """
    found = sorted(found, key=lambda rows: rows.entries[0])
    overlap = any(before.entries[-1] > after.entries[0] for before, after in pairwise(found))
    if not overlap:
        yield from found
        return
    table = pa.Table.from_batches([rows.batch for rows in found])
    entry_ids = np.concatenate([rows.entry_ids for rows in found])
    positions = np.concatenate([rows.positions for rows in found])
    order = np.lexsort((positions, entry_ids))
    details = {e: told for rows in found for e, told in zip(rows.entries, rows.details)}  # noqa: B905
    entries = sorted(entry_id for rows in found for entry_id in rows.entries)
    yield Rows(
        one_batch(table.take(pa.array(order))),
        entry_ids[order],
        positions[order],
        tuple(entries),
        sum(rows.size_bytes for rows in found),
        tuple(details[entry_id] for entry_id in entries) if details else (),
    )


def checked_range(
    metadata: LedgerMetadata, ledger_id: int, first: int, last: int | None, readable: EntryId
) -> tuple[EntryId, EntryId]:
    """Return ``(first, last)`` of a read, or raise an error that says which entries can be read.

    Args:
        readable: the last entry, or the last add confirmed of a ledger that is not closed.

    Raises:
        NoSuchEntryError: the range is outside of the readable entries.
        InvalidArgumentError: an argument is not a number.
    """
    first = whole_number("first", first)
    end = readable if last is None else whole_number("last", last)
    is_empty = last is None and first == readable + 1
    if first < 0 or end > readable or (first > end and not is_empty):
        what = "last entry" if metadata.is_closed else "last add confirmed"
        there = f"entries 0 to {readable} can be" if readable >= 0 else "there is none to read"
        asked = f"entry {first}" if last is None else f"entries {first} to {end}"
        order = "the first is behind the last, and " if last is not None and first > end else ""
        raise NoSuchEntryError(
            f"{asked} of ledger {ledger_id} cannot be read: {order}its {what} is {readable}, so "
            f"{there}"
            + ("" if metadata.is_closed else "; refresh(), or open it with recovery, to read on"),
            ledger_id=ledger_id,
            entry_id=end if end > readable else first,
        )
    return EntryId(first), EntryId(end)
