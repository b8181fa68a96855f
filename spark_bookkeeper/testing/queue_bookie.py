"""A bookie behind a queue: it and its callers share only pickled requests and answers.

It is the second implementation of ``Bookie``, and shows that callers need only that interface.
"""

from __future__ import annotations

import itertools
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from queue import Queue, SimpleQueue
from threading import Thread
from typing import Any, Final

import pyarrow as pa
from typing_extensions import Buffer, override

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
)
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.holdings import Holdings, LedgerTail
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.quorum import Share
from spark_bookkeeper.runtime.answer import Answer
from spark_bookkeeper.storage.bookie_client import BookieClient, step

_SESSIONS_KEPT: Final = 100
"""A session that was dropped here begins anew at its next request."""


class BookieServer:
    """Serves a bookie in a thread of its own, one request after the other."""

    def __init__(self, bookie: Bookie) -> None:
        self.bookie_id = bookie.bookie_id
        self._bookie = bookie
        self._sessions: OrderedDict[int, Bookie] = OrderedDict()
        self._sinks: dict[int, PartSink] = {}
        self._numbers = itertools.count(1)
        self._requests: Queue[tuple[bytes, SimpleQueue[bytes]] | None] = Queue()
        self.requests: list[str] = []
        """The names of all requests, in order."""
        self._thread = Thread(target=self._serve, name=f"serve-{self.bookie_id}", daemon=True)
        self._thread.start()

    def number(self) -> int:
        """Return the number of a new session."""
        return next(self._numbers)

    def ask(self, session: int, request: str, arguments: tuple[Any, ...]) -> Any:
        """Return the bookie's answer to a request of a session, or raise its error."""
        answers: SimpleQueue[bytes] = SimpleQueue()
        self._requests.put((pickle.dumps((session, request, arguments)), answers))
        answer, error = pickle.loads(answers.get())
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Serve the requests so far, and end; idempotent."""
        self._requests.put(None)
        self._thread.join()
        self._bookie.close()

    def _serve(self) -> None:
        while (found := self._requests.get()) is not None:
            data, answers = found
            session, request, arguments = pickle.loads(data)
            self.requests.append(request)
            answer, error = None, None
            try:
                answer = self._answer(session, request, arguments)
            except Exception as caught:  # noqa: BLE001  (raised in ``ask``)
                error = caught
            answers.put(pickle.dumps((answer, error)))

    def _answer(self, session: int, request: str, arguments: tuple[Any, ...]) -> Any:
        if request in ("write", "finish"):
            number, *rest = arguments
            return getattr(self._sinks[number], request)(*rest)
        if request == "abandon":
            self._sinks.pop(*arguments).abandon()
            return None
        bookie = self._session(session)
        if request == "begin_part":
            number = next(self._numbers)
            self._sinks[number] = bookie.begin_part(*arguments)
            return number
        if request == "scan":
            *rest, has_details = arguments
            return bookie.scan(*rest, has_details=has_details)
        if request == "sweep":
            *rest, dry_run = arguments
            return bookie.sweep(*rest, dry_run=dry_run)
        if request == "find_part":
            ledger, part, is_copy = arguments
            return bookie.find_part(ledger, part, is_copy=is_copy)
        return getattr(bookie, request)(*arguments)

    def _session(self, number: int) -> Bookie:
        found = self._sessions.get(number)
        if found is None:
            found = self._sessions[number] = self._bookie.session()
            if len(self._sessions) > _SESSIONS_KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(number)
        return found


class QueueBookie(Bookie):
    """A session with a bookie on a server; each request is a step of its bookie client."""

    def __init__(self, server: BookieServer, bookie_client: BookieClient) -> None:
        self._server = server
        self._bookie_client = bookie_client
        self._number = server.number()

    def ask(self, request: str, *arguments: Any, size_bytes: int = 0) -> Any:
        """Return the answer to one request."""
        ask = self._server.ask
        return step(
            self._bookie_client,
            request,
            "request",
            size_bytes,
            ask,
            self._number,
            request,
            arguments,
        )

    @property
    @override
    def bookie_id(self) -> str:
        return self._server.bookie_id

    @override
    def session(self) -> QueueBookie:
        return QueueBookie(self._server, self._bookie_client)

    @override
    def answer(self) -> None:
        self.ask("answer")

    @override
    def prepare(self, ledger: LedgerRef) -> None:
        self.ask("prepare", ledger)

    @override
    def add(self, ledger: LedgerRef, record: NewRecord) -> None:
        self.ask("add", ledger, record, size_bytes=len(record.data))

    @override
    def begin_part(self, ledger: LedgerRef, name: str) -> PartSink:
        return _QueueSink(self, self.ask("begin_part", ledger, name))

    @override
    def check(self, ledger: LedgerRef) -> None:
        self.ask("check", ledger)

    @override
    def fence(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        answers: Sequence[Answer[LedgerTail]] = self.ask("fence", ledgers)
        return answers

    @override
    def tail(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        answers: Sequence[Answer[LedgerTail]] = self.ask("tail", ledgers)
        return answers

    @override
    def newest(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[NewestRecord]]:
        answers: Sequence[Answer[NewestRecord]] = self.ask("newest", ledgers)
        return answers

    @override
    def holdings(self, ranges: Sequence[RangeRef]) -> Sequence[Answer[Holdings]]:
        answers: Sequence[Answer[Holdings]] = self.ask("holdings", ranges)
        return answers

    @override
    def verify(self, wanted: Sequence[Verification]) -> Sequence[Answer[Verdict]]:
        answers: Sequence[Answer[Verdict]] = self.ask("verify", wanted)
        return answers

    @override
    def lacking(self, wanted: Sequence[EntriesRef]) -> Sequence[Answer[Sequence[int]]]:
        answers: Sequence[Answer[Sequence[int]]] = self.ask("lacking", wanted)
        return answers

    @override
    def read_small(
        self, wanted: Sequence[EntriesRef], most_bytes: int
    ) -> Sequence[Answer[Sequence[StoredEntry]]]:
        answers: Sequence[Answer[Sequence[StoredEntry]]] = self.ask(
            "read_small", wanted, most_bytes
        )
        return answers

    @override
    def write_copies(self, copies: Sequence[NewCopies]) -> Sequence[Answer[None]]:
        size = sum(entry.size_bytes for copy in copies for entry in copy.entries)
        answers: Sequence[Answer[None]] = self.ask("write_copies", copies, size_bytes=size)
        return answers

    @override
    def find_part(self, ledger: LedgerRef, part: PartRef, *, is_copy: bool = True) -> PartPlace:
        place: PartPlace = self.ask("find_part", ledger, part, is_copy)
        return place

    @override
    def read_part(self, ledger: LedgerRef, part: PartRef, offset: int) -> bytes | pa.Buffer:
        data: bytes | pa.Buffer = self.ask("read_part", ledger, part, offset)
        return data

    @override
    def check_part(self, ledger: LedgerRef, part: PlacedPart) -> bool:
        return bool(self.ask("check_part", ledger, part))

    @override
    def read(
        self, ledger: LedgerRef, entry_ids: Sequence[int], known: Holdings | None = None
    ) -> Delivered[StoredEntry]:
        delivery: Delivered[StoredEntry] = self.ask("read", ledger, entry_ids, known)
        return delivery

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
        delivery: Delivered[Rows] = self.ask("scan", ledger, entry_ids, known, columns, has_details)
        return delivery

    @override
    def split(self, wanted: RangeRef) -> Sequence[Span]:
        spans: Sequence[Span] = self.ask("split", wanted)
        return spans

    @override
    def slots(self, ledger: LedgerRef) -> Sequence[SlotView]:
        slots: Sequence[SlotView] = self.ask("slots", ledger)
        return slots

    @override
    def entries(self, wanted: RangeRef) -> Sequence[EntryView]:
        views: Sequence[EntryView] = self.ask("entries", wanted)
        return views

    @override
    def ledgers(self) -> Sequence[LedgerKey]:
        keys: Sequence[LedgerKey] = self.ask("ledgers")
        return keys

    @override
    def sizes_of(self, key: LedgerKey) -> Sequence[int]:
        sizes: Sequence[int] = self.ask("sizes_of", key)
        return sizes

    @override
    def files_of(self, key: LedgerKey) -> int:
        return int(self.ask("files_of", key))

    @override
    def retire(self, key: LedgerKey) -> None:
        self.ask("retire", key)

    @override
    def delete(self, key: LedgerKey) -> None:
        self.ask("delete", key)

    @override
    def clear(self, ledger: LedgerRef) -> None:
        self.ask("clear", ledger)

    @override
    def compact(self, wanted: Compaction) -> Compacted:
        compacted: Compacted = self.ask("compact", wanted)
        return compacted

    @override
    def sweep(
        self,
        ledger: LedgerRef,
        before_ms: int,
        shares: Sequence[Share],
        *,
        dry_run: bool = False,
    ) -> Swept:
        swept: Swept = self.ask("sweep", ledger, before_ms, shares, dry_run)
        return swept

    @override
    def close(self) -> None:
        """Do nothing: no resource is held here. The creator of the server closes it."""


class _QueueSink(PartSink):
    def __init__(self, bookie: QueueBookie, number: int) -> None:
        self._bookie = bookie
        self._number = number
        self._size_bytes = 0

    @override
    def write(self, data: Buffer) -> None:
        size = memoryview(data).nbytes
        self._size_bytes += size
        self._bookie.ask("write", self._number, bytes(data), size_bytes=size)

    @override
    def finish(self) -> None:
        self._bookie.ask("finish", self._number, size_bytes=self._size_bytes)

    @override
    def abandon(self) -> None:
        with suppress(BookKeeperError):
            self._bookie.ask("abandon", self._number)
