"""The duties that maintain the data of an agent's bookie: collect, compact, scrub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_bookkeeper.agent.collection import Collection, collect_garbage
from spark_bookkeeper.agent.compaction_job import CompactionRequest, compact_ledgers
from spark_bookkeeper.agent.duties import Duty, Turn
from spark_bookkeeper.agent.health import SHORT_OF_SPACE
from spark_bookkeeper.agent.scrubbing import Scrubbing, ScrubMark, is_due, read_mark, scrub
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import BookKeeperError, CorruptEntryError
from spark_bookkeeper.metrics import BookieMetrics
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import Outcome, Report

_SCRUB_LOOKS_MS: Final = 60_000
"""The interval of the checks whether scrubbing is due; each continues a round that has begun."""


def upkeep_duties(
    context: ClientContext, bookie: BookieId, config: BookieConfig, metrics: BookieMetrics
) -> Sequence[Duty]:
    """Return the duties that the configuration enables.

    Args:
        context: a client of its own, which outlives the duties.
    """
    upkeep = _Upkeep(context, bookie, config, metrics)
    wanted = (
        ("collect", config.gc_interval_s * 1000, upkeep.collect),
        ("collect-copies", config.gc_copies_interval_s * 1000, upkeep.collect_copies),
        ("compact", config.compact_interval_s * 1000, upkeep.compact),
        ("scrub", min(config.scrub_interval_s * 1000, _SCRUB_LOOKS_MS), upkeep.scrub),
    )
    return [
        Duty(name, interval_ms, step, makes_room=name in ("collect", "compact"))
        for name, interval_ms, step in wanted
        if interval_ms
    ]


class _Upkeep:
    def __init__(
        self, context: ClientContext, bookie: BookieId, config: BookieConfig, metrics: BookieMetrics
    ) -> None:
        self._context = context
        self._bookie = bookie
        self._config = config
        self._metrics = metrics
        self._copies_turn: Turn | None = None
        """The turn of ``collect_copies``, once it has begun."""

    def collect(self, turn: Turn) -> None:
        try:
            self._collect(turn, with_copies=False)
        finally:
            live = self._context.bookies.registrations().get(self._bookie)
            if live is not None and SHORT_OF_SPACE in live.readonly_causes and self._copies_turn:
                self._copies_turn.wake()  # a day is too long for a read-only bookie

    def collect_copies(self, turn: Turn) -> None:
        self._copies_turn = turn
        self._collect(turn, with_copies=True)

    def _collect(self, turn: Turn, *, with_copies: bool) -> None:
        wish = Collection(
            with_copies=with_copies,
            leftovers_after_ms=self._config.gc_leftovers_after_s * 1000,
            bytes_per_second=self._config.scrub_bytes_per_second or None,
            is_stopping=turn.is_stopping,
        )
        report = collect_garbage(self._context, [self._bookie], wish)
        deleted = [row for row in report.rows if row.status is Outcome.DELETED]
        self._metrics.deleted_ledgers.inc(sum(row.action == "collect" for row in deleted))
        self._metrics.reclaimed_bytes.inc(sum(row.bytes for row in deleted))
        _raise_trouble(report)

    def compact(self, turn: Turn) -> None:
        files: list[tuple[int, LedgerId]] = []
        face = self._context.bookies.bookie(self._bookie)
        wish = CompactionRequest(
            files_least=self._config.compact_files_least,
            bytes_per_second=self._config.compact_bytes_per_second or None,
            is_stopping=turn.is_stopping,
            see_open=lambda ledger: files.append((face.files_of(ledger.key), ledger.ledger_id)),
        )
        report = compact_ledgers(self._context, None, [self._bookie], wish)
        if all(row.ledger_id >= 0 for row in report.rows):  # else not all ledgers were seen
            self._metrics.open_ledger_files.clear()  # keeps one label, the current one
            if files:
                most, ledger_id = max(files)
                self._metrics.open_ledger_files.labels(ledger_id).set(most)
        compacted = [row for row in report.rows if row.status is Outcome.COMPACTED]
        self._metrics.compacted_ledgers.inc(len(compacted))
        self._metrics.compacted_bytes.inc(sum(row.bytes for row in compacted))
        _raise_trouble(report)

    def scrub(self, turn: Turn) -> None:
        mark = self._read_mark()
        now_ms = self._context.runtime.wall_ms()
        if not is_due(mark, now_ms, self._config.scrub_interval_s * 1000):
            return
        wish = Scrubbing(
            bytes_per_second=self._config.scrub_bytes_per_second or None,
            is_stopping=turn.is_stopping,
        )
        report = scrub(self._context, self._bookie, wish)
        self._read_mark()
        bad = [row for row in report.rows if row.status is Outcome.PUBLISHED]
        self._metrics.corrupt_replicas.inc(len(bad))
        if bad:
            ids = ", ".join(sorted({str(row.ledger_id) for row in bad})[:10])
            raise CorruptEntryError(
                f"{len(bad)} replicas are not as they were written, and were published to "
                f"autorecovery; ledgers {ids}. First: {bad[0].reason}",
                bookie_id=self._bookie,
                path="",
            )
        _raise_trouble(report)

    def _read_mark(self) -> ScrubMark:
        mark = read_mark(self._context.store.registers, self._bookie)
        self._metrics.scrubbed_at.set(mark.ended_at_ms / 1000)
        return mark


def _raise_trouble(report: Report) -> None:
    """Raise if anything is left undone, so that ``/health`` shows it."""
    if report.unfinished:
        first = report.unfinished[0]
        raise BookKeeperError(
            f"{len(report.unfinished)} left; ledger {first.ledger_id}: {first.reason}"
        )
