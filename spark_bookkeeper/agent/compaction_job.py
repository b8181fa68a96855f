"""Compaction of closed ledgers, bookie by bookie: the choice of ledgers, the limits, the report.

How a bookie compacts, and why nothing is lost, is in ``bookie/compaction.py``. Only ledgers whose
metadata say that they are closed, and which name the bookie, are compacted.

Source: BookKeeper 4.17 ``bookie/GarbageCollectorThread`` (compaction with a threshold and a limit
on bytes per second).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_bookkeeper.bookie.bookie import Bookie, Compaction
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.config import COMPACTED_FROM_FILES
from spark_bookkeeper.errors import BookKeeperError, MetadataError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.runtime.throttle import Throttle

LEDGERS_AT_ONCE: Final = 500
"""The number of ledgers whose metadata are read in one call."""

_STEP_BYTES: Final = 64 << 20
"""Bytes that one call to a bookie moves; the throttle waits between two calls."""


class CompactReport(Report):
    """The report of ``compact_ledgers``: one row for each ledger and bookie, compacted or left."""


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """The options of a compaction."""

    dry_run: bool = False
    files_least: int = COMPACTED_FROM_FILES
    bytes_per_second: int | None = None
    """Limit on the bytes written; twice as many are read."""
    is_stopping: Callable[[], bool] = lambda: False
    """Whether to stop now and leave the rest for the next compaction."""
    see_open: Callable[[Ledger], None] = lambda _: None
    """Called with each ledger that is not closed, and so is not compacted."""


def compact_ledgers(
    context: ClientContext,
    ledger_ids: Sequence[LedgerId] | None = None,
    bookies: Sequence[BookieId] | None = None,
    wish: CompactionRequest | None = None,
    *,
    progress: Progress = no_progress,
) -> CompactReport:
    """Compact closed ledgers: the given ones, or all; on the given bookies, or all registered ones.

    It can be interrupted at any moment; the next call continues.
    """
    wish = wish or CompactionRequest()
    started = context.runtime.now()
    gone = "there is no such ledger: it was deleted or never existed"
    rows = [
        Row(ledger_id, "compact", Outcome.GONE, gone)
        for ledger_id, found in context.store.read_ledgers(list(ledger_ids or ()))
        if found is None
    ]
    for bookie in sorted(context.bookies.registrations()) if bookies is None else bookies:
        try:
            rows += _OneBookie(context, bookie, wish, progress).run(ledger_ids)
        except BookKeeperError as error:
            rows.append(Row(-1, "compact", Outcome.LEFT, error.message, source=bookie))
    duration_ms = round((context.runtime.now() - started) * 1000)
    return CompactReport("compact", tuple(rows), wish.dry_run, duration_ms)


class _OneBookie:
    def __init__(
        self, context: ClientContext, bookie: BookieId, wish: CompactionRequest, progress: Progress
    ) -> None:
        self._context = context
        self._bookie = bookie
        self._wish = wish
        self._progress = progress
        self._throttle = Throttle(context.runtime, wish.bytes_per_second)
        self._face: Bookie = context.bookies.bookie(bookie)
        self._bookie_client = context.bookies.bookie_client(bookie)
        self._moved_bytes = 0

    def run(self, ledger_ids: Sequence[LedgerId] | None) -> Iterator[Row]:
        """Compact, one row at a time. Raises errors that concern the whole bookie."""
        wanted = None if ledger_ids is None else set(ledger_ids)
        held = sorted({LedgerId(key.ledger_id) for key in self._face.ledgers()})
        ids = [ledger_id for ledger_id in held if wanted is None or ledger_id in wanted]
        for at in range(0, len(ids), LEDGERS_AT_ONCE):
            for number, (ledger_id, found) in enumerate(
                self._context.store.read_ledgers(ids[at : at + LEDGERS_AT_ONCE])
            ):
                if self._wish.is_stopping():
                    return
                if isinstance(found, Versioned):
                    try:
                        row = self._compact(
                            Ledger.of(ledger_id, found.value), at + number, len(ids)
                        )
                    except (MetadataError, NoSuchLedgerError):
                        continue  # it was deleted, or is not one of this library's
                    except BookKeeperError as error:
                        row = self._row(ledger_id, Outcome.LEFT, error.message)
                    if row is not None:
                        yield row
                done = at + number + 1
                self._progress("compacting", done, len(ids), self._moved_bytes)

    def _compact(self, ledger: Ledger, done_ledgers: int, ledgers: int) -> Row | None:
        if not ledger.metadata.is_closed:
            self._wish.see_open(ledger)
            return None
        incarnation = ledger.incarnations.get(self._bookie)
        last = ledger.metadata.last_entry_id
        if incarnation is None or last is None or last < 0:
            return None
        ref = self._context.bookies.ref(self._bookie, ledger)
        removed = written = entries = size_bytes = 0
        at_least = ""
        while not self._wish.is_stopping():
            at_work = f"compacting, ledger {ledger.ledger_id} on {self._bookie}"
            at_work += f", {removed:,} files so far" if removed else ""
            self._progress(at_work, done_ledgers, ledgers, self._moved_bytes)
            wanted = Compaction(
                ref,
                last,
                self._context.runtime.token(),
                self._wish.files_least,
                bytes_most=_STEP_BYTES,
                dry_run=self._wish.dry_run,
            )
            # One call of the bookie client, which watches its steps: none needs its own thread.
            compact = partial(self._face.compact, wanted)
            done = self._bookie_client.ask(f"compacting {ledger.ledger_id}", compact)
            if done.reason is not None:
                return self._row(ledger.ledger_id, Outcome.LEFT, done.reason)
            removed, written = removed + done.removed, written + done.written
            entries, size_bytes = entries + done.entries, size_bytes + done.size_bytes
            self._moved_bytes += done.size_bytes
            if self._wish.dry_run:
                at_least = "at least " if done.is_partial else ""
                break
            self._throttle(done.size_bytes)
            # After a whole step, small files are copies of other clients that compact the same
            # ledger. Compacting those would make a copy that they compact, and so on for ever.
            if not done.is_partial or not done.removed:
                break
        if not removed:
            return None
        status = Outcome.PLANNED if self._wish.dry_run else Outcome.COMPACTED
        how = f"{at_least}{removed} files become {written}" if self._wish.dry_run else None
        row = self._row(ledger.ledger_id, status, how or f"{removed} files became {written}")
        return Row(
            row.ledger_id, row.action, status, row.reason, 0, last, self._bookie, None,
            entries, size_bytes,
        )  # fmt: skip

    def _row(self, ledger_id: LedgerId, status: Outcome, reason: str | None) -> Row:
        return Row(ledger_id, "compact", status, reason, source=self._bookie)
