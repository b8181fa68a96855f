"""Fetch entries of a ledger in order, each verified, from whichever bookie can deliver it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.reading import ScannedRows
from spark_bookkeeper.client.bookies.asking import Answers, Late
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.holdings import crosswise, locate, read_verified, scan_verified
from spark_bookkeeper.client.write.rows import one_batch
from spark_bookkeeper.errors import BookKeeperError, EntryUnreadableError, NoSuchEntryError
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.reader import Ask, Reader, Unreadable

T = TypeVar("T")

WINDOW_BYTES = 64 << 20
"""About how many bytes of entries are fetched before the first of them is handed on."""

WINDOW_ENTRIES = 65_536
"""And at most how many entries."""


class Fetcher:
    """Reads entries of one ledger; keeps what it learnt of its bookies. One thread uses it."""

    def __init__(
        self,
        context: ClientContext,
        ledger: Ledger,
        spread: int = 0,
        *,
        columns: Sequence[str] | None = None,
        only: BookieId | None = None,
        skip_lost: bool = False,
    ) -> None:
        """Prepare to read.

        Args:
            context: the cluster.
            ledger: as its metadata is known.
            spread: lets readers of the same ledger begin with different replicas.
            columns: what ``scan`` decodes; ``None`` is all.
            only: read the replicas of this bookie alone, and so the entries that it should have.
            skip_lost: go on past entries that no bookie can deliver, and note them in ``lost``.
        """
        self.lost: list[Unreadable] = []
        """What was passed over, in order."""
        self._context = context
        self._ledger = ledger
        self._spread = spread
        self._columns = columns
        self._only = only
        self._skip_lost = skip_lost
        self._logs: dict[BookieId, LedgerLog] = {}
        self._down: dict[BookieId, str] = {}

    def fetch(self, first: EntryId, last: EntryId) -> Iterator[StoredEntry]:
        """The entries ``first .. last`` in order, verified.

        Raises:
            EntryUnreadableError: no replica of an entry could be read; names each bookie and why.
            NoSuchLedgerError: the ledger was deleted meanwhile.
        """
        for entries, answers in self._windows(first, last, _read_entries):
            found: dict[EntryId, StoredEntry] = {}
            for answer in answers:
                found.update((EntryId(entry.entry_id), entry) for entry in answer.content)
            for entry_id in entries:
                if EntryId(entry_id) in found:  # the others were passed over
                    yield found.pop(EntryId(entry_id))

    def scan(self, first: EntryId, last: EntryId) -> Iterator[ScannedRows]:
        """The rows of the same entries in the same order, a message at a time: the quick way.

        Raises what ``fetch`` raises.
        """
        read = partial(_scan_entries, columns=self._columns)
        for _, answers in self._windows(first, last, read):
            yield from in_entry_order([rows for answer in answers for rows in answer.content])

    def _windows(
        self, first: EntryId, last: EntryId, read: _Read[T]
    ) -> Iterator[tuple[range, list[_Answer[T]]]]:
        """The range, piece by piece: the entries of each, and what bookies delivered of them."""
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
                    raise self._unreadable(found)
                found = self._window(fragment.ensemble, wanted, read, self.lost)
                assert not isinstance(found, Unreadable), "what is lost is passed over"
            average = max(1, sum(answer.size_bytes for answer in found) // len(entries))
            if found:
                yield entries, found
            window = max(1, min(WINDOW_ENTRIES, window * 4, WINDOW_BYTES // average))
            start = EntryId(end + 1)

    def _first_window(self) -> int:
        """How many entries to begin with, before it is known how large they are."""
        metadata = self._ledger.metadata
        if not metadata.length_bytes or not metadata.last_entry_id:
            return 4
        average = max(1, metadata.length_bytes // (metadata.last_entry_id + 1))
        return max(1, min(64, WINDOW_BYTES // average))

    def _fragment_end(self, entry_id: EntryId, last: EntryId) -> EntryId:
        later = (f.first_entry_id for f in self._ledger.metadata.fragments)
        return EntryId(min((f - 1 for f in later if f > entry_id), default=last))

    def _wanted(self, ensemble: tuple[BookieId, ...], entries: range) -> list[EntryId]:
        """Those of the entries that are to be read: of one bookie alone, what it should have."""
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
        """What bookies deliver of some entries, or the first that none of them can.

        Args:
            lost: takes the entries that none can deliver; the others are read then.
        """
        if not ids:
            return []
        quorum = self._ledger.metadata.quorum
        reader = Reader(quorum, ensemble, ids, self._preference(ensemble))
        answers = Answers[Ask, _Delivery[T]](self._context.runtime)
        asked: set[Ask] = set()
        late: set[Ask] = set()
        found: list[_Answer[T]] = []
        is_twofold = False
        while True:
            asks = reader.next(asked, late)
            if isinstance(asks, Unreadable):
                if not asked:
                    rescued = self._crosswise(ensemble, reader.waiting, read)
                    is_rescued = any(asks.entry_id in answer.entry_ids for answer in rescued)
                    if lost is None and not is_rescued:
                        return asks
                    for rescue in rescued:
                        found.append(rescue)
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
                return found  # whoever is late may be
            came = answers.next(self._context.config.read_hedge_ms / 1000)
            if came is None:
                continue
            if isinstance(came, Late):
                is_twofold = True
                asked.difference_update(came.keys)
                late.update(came.keys)
                for ask in came.keys:  # what it uses is its own from now on
                    self._logs.pop(ensemble[ask.position], None)
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
            reader.answered(ask, answer.entry_ids, refused)

    def _refuse(self, reader: Reader, ask: Ask, error: BookKeeperError) -> None:
        """A bookie cannot be asked at all."""
        self._down[reader.ensemble[ask.position]] = error.message
        reader.answered(ask, (), dict.fromkeys(ask.entries, error.message))

    def _preference(self, ensemble: tuple[BookieId, ...]) -> list[int]:
        """Positions, those of bookies that failed before, or are silent now, last."""
        size = len(ensemble)
        turned = [(p + self._spread) % size for p in range(size)]
        if self._only is not None:
            return [p for p in turned if ensemble[p] == self._only]
        return sorted(turned, key=lambda p: self._is_poor(ensemble[p]))

    def _is_poor(self, bookie: BookieId) -> bool:
        return bookie in self._down or self._context.bookies.is_silent(bookie)

    def _ask(
        self, answers: Answers[Ask, _Delivery[T]], bookie: BookieId, ask: Ask, read: _Read[T]
    ) -> None:
        """Ask a bookie for entries: what it delivers of them, and why not the rest."""
        log = self._logs.get(bookie)
        if log is None:
            log = self._context.bookies.log(bookie, self._ledger)
            self._logs[bookie] = log
        asked = log  # for ever the same, also where the read comes late

        def deliver() -> _Delivery[T]:
            return read(asked, ask.entries, locate(asked, ask.entries))

        purpose = f"reading ledger {self._ledger.ledger_id}"
        answers.ask(ask, self._context.bookies.door(bookie), purpose, deliver)

    def _crosswise(
        self, ensemble: tuple[BookieId, ...], entries: Sequence[EntryId], read: _Read[T]
    ) -> list[_Answer[T]]:
        """What can be read by one bookie's records from another's files; each entry once."""
        if self._only is not None:
            return []
        rescued: list[_Answer[T]] = []
        missing = set(entries)
        logs = [log for bookie, log in self._logs.items() if bookie in ensemble]
        for log, index, known in crosswise(logs, entries):
            wanted = [entry_id for entry_id in known if entry_id in missing]
            if wanted:
                answer, _ = read(log, wanted, index)
                missing.difference_update(answer.entry_ids)
                rescued.append(answer)
        return [answer for answer in rescued if answer.entry_ids]

    def _refresh(self, found: Unreadable) -> bool:
        """Has the fragment changed under us, or a bookie moved? Then it is worth another try."""
        ledger, _ = self._context.ledger(self._ledger.ledger_id, self._ledger.metadata.nonce)
        before = self._ledger.metadata.fragment_of(found.entry_id).ensemble
        is_same = ledger.metadata.fragment_of(found.entry_id).ensemble == before
        if is_same and not self._context.bookies.have_moved():
            return False
        self._ledger = ledger
        self._logs.clear()
        return True

    def _unreadable(self, found: Unreadable) -> EntryUnreadableError:
        if self._only is not None:
            return EntryUnreadableError(
                f"entry {found.entry_id} of ledger {self._ledger.ledger_id} cannot be read from "
                f"bookie {self._only}: {found.causes.get(self._only)}. No other was asked, as only "
                "this one was to be read",
                ledger_id=self._ledger.ledger_id,
                entry_id=found.entry_id,
                causes=dict(found.causes),
            )
        causes = "\n".join(f"  {bookie}: {why}" for bookie, why in found.causes.items())
        return EntryUnreadableError(
            f"entry {found.entry_id} of ledger {self._ledger.ledger_id} cannot be read from any "
            f"bookie of its write set:\n{causes}\nbring one of them back with its storage, then "
            "read again; do not delete the ledger",
            ledger_id=self._ledger.ledger_id,
            entry_id=found.entry_id,
            causes=dict(found.causes),
        )


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    """What one bookie delivered."""

    entry_ids: list[EntryId]
    size_bytes: int
    content: list[T]

    def of(self, wanted: Set[EntryId]) -> _Answer[T]:
        """The same without entries that another bookie delivered before."""
        if all(entry_id in wanted for entry_id in self.entry_ids):
            return self
        kept = [piece for piece in (_of(piece, wanted) for piece in self.content) if piece]
        return _Answer([e for e in self.entry_ids if e in wanted], self.size_bytes, kept)


def _of(piece: T, wanted: Set[EntryId]) -> T | None:
    if isinstance(piece, StoredEntry):
        return piece if EntryId(piece.entry_id) in wanted else None
    assert isinstance(piece, ScannedRows)
    places = tuple(place for place in piece.locations if EntryId(place.entry_id) in wanted)
    if len(places) == len(piece.locations):
        return piece
    keep = np.isin(piece.entry_ids, np.array([place.entry_id for place in places], dtype=np.int64))
    bookies = dict(zip(piece.locations, piece.bookies, strict=True))
    rows = ScannedRows(
        piece.batch.filter(pa.array(keep)),
        piece.entry_ids[keep],
        piece.positions[keep],
        places,
        tuple(bookies[place] for place in places),
    )
    return cast(T, rows) if places else None


_Delivery = tuple[_Answer[T], Mapping[EntryId, str]]

_Read = Callable[[LedgerLog, Sequence[EntryId], EntryIndex], _Delivery[T]]


def _read_entries(
    log: LedgerLog, entries: Sequence[EntryId], index: EntryIndex
) -> _Delivery[StoredEntry]:
    found, refused = read_verified(log, entries, index)
    size = sum(entry.size_bytes for entry in found.values())
    return _Answer(list(found), size, list(found.values())), refused


def _scan_entries(
    log: LedgerLog,
    entries: Sequence[EntryId],
    index: EntryIndex,
    columns: Sequence[str] | None = None,
) -> _Delivery[ScannedRows]:
    found, refused = scan_verified(log, entries, index, columns)
    places = [place for rows in found for place in rows.locations]
    size = sum(place.size for place in places)
    return _Answer([EntryId(place.entry_id) for place in places], size, found), refused


def in_entry_order(found: list[ScannedRows]) -> Iterator[ScannedRows]:
    """What several bookies delivered, as one sequence in entry order.

    Entries that are batches only need sorting. Small entries share messages, and in a striped
    ledger the messages of several bookies interleave: their rows are put in order one by one.
    """
    found = sorted(found, key=lambda rows: rows.locations[0].entry_id)
    overlap = any(
        before.locations[-1].entry_id > after.locations[0].entry_id
        for before, after in pairwise(found)
    )
    if not overlap:
        yield from found
        return
    table = pa.Table.from_batches([rows.batch for rows in found])
    entry_ids = np.concatenate([rows.entry_ids for rows in found])
    positions = np.concatenate([rows.positions for rows in found])
    order = np.lexsort((positions, entry_ids))
    told = [each for rows in found for each in zip(rows.locations, rows.bookies, strict=True)]
    told.sort(key=lambda each: each[0].entry_id)
    yield ScannedRows(
        one_batch(table.take(pa.array(order))),
        entry_ids[order],
        positions[order],
        tuple(place for place, _ in told),
        tuple(bookie for _, bookie in told),
    )


def checked_range(
    metadata: LedgerMetadata, ledger_id: int, first: int, last: int | None, readable: EntryId
) -> tuple[EntryId, EntryId]:
    """``(first, last)`` of a read, or the error that says what can be read.

    Args:
        readable: the last entry, or the last add confirmed of a ledger that is not closed.

    Raises:
        NoSuchEntryError: outside of what can be read.
        InvalidArgumentError: not a number.
    """
    first = whole_number("first", first)
    end = readable if last is None else whole_number("last", last)
    is_empty = last is None and first == readable + 1
    if first < 0 or end > readable or (first > end and not is_empty):
        what = "last entry" if metadata.is_closed else "last add confirmed"
        raise NoSuchEntryError(
            f"entries {first} to {end} of ledger {ledger_id} cannot be read: its {what} is "
            f"{readable}; 0 <= first <= last <= {readable} can be"
            + ("" if metadata.is_closed else "; refresh(), or open it with recovery, to read on"),
            ledger_id=ledger_id,
            entry_id=end if end > readable else first,
        )
    return EntryId(first), EntryId(end)
