"""Scan the ledgers, and publish a task for each ledger that names an absent bookie.

Source: Bookie Ledger Recovery, "Auditor" ("it immediately scans the complete ledger list ... it
will publish a rereplication task for each ledger under the /underreplicated/ znode"); BookKeeper
``replication/AuditorBookieCheckTask``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final, TypeVar

from spark_bookkeeper.autorecovery.scan import Look, scan
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import INCARNATIONS, live_members, registered_incarnations
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.underreplication import absent_members
from spark_bookkeeper.replication.report import Outcome, Report, Row, report_rows
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress
from spark_bookkeeper.runtime.spool import Spool

T = TypeVar("T")

LEDGERS_AT_ONCE: Final = 1_000
"""The most ledgers in memory at once; before each such batch, the switch is read again."""

MARKS_AT_ONCE: Final = 32

DISABLED: Final = (
    "autorecovery is disabled for this cluster. `spark-bookkeeper autorecovery enable` lets it go "
    "on; what was published before stays published"
)


@dataclass(frozen=True, repr=False)
class AuditReport(Report):
    """The report of an audit: the ledgers that lack replicas, each with its absent bookies."""

    is_cut_short: bool = False
    """Whether autorecovery was disabled before all ledgers were scanned."""
    failure: str | None = None
    """Another reason why not all ledgers were scanned; the first, if there are several."""
    looked_at: int = 0
    """The number of ledgers that were scanned."""
    back: frozenset[BookieId] = frozenset()
    """The lost bookies that were present while some ledgers were scanned. Each has one row, however
    many ledgers those were."""

    @property
    def marked_ledgers(self) -> int:
        """The number of ledgers that were published; in a dry run, that would be."""
        marked = (row.ledger_id for row in self.rows if row.status in _MARKED)
        return sum(1 for _ in groupby(marked))  # the rows of a ledger are adjacent


_MARKED: Final = frozenset({Outcome.PUBLISHED, Outcome.PLANNED})

_IS_BACK: Final = "the bookie is there: ledgers that it serves are not published"


class DisabledError(InvalidArgumentError):
    """Autorecovery is disabled for the cluster; existing tasks stay published."""


class EndedError(Exception):
    """A scan or check must end, or its process is not the auditor any more."""


Heed = Callable[[], None]
"""A callback that long work calls again and again. It raises ``EndedError`` or ``DisabledError``
when the work must end."""


@dataclass(frozen=True, slots=True)
class _Mark:
    ledger_id: LedgerId
    missing: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class _AbsentBookies:
    """Publishes the ledgers that name absent bookies. Picklable.

    Args:
        lost: as in ``publish_lost_bookies``.
    """

    lost: frozenset[BookieId] | None
    dry_run: bool
    action: str = "mark"

    def __call__(self, context: ClientContext, ledger_ids: Sequence[LedgerId]) -> Sequence[Row]:
        rows: list[Row] = []
        lacking: list[tuple[LedgerId, LedgerMetadata]] = []
        here: set[BookieId] = set()
        missing_in = self._missing_now(context, here)
        for ledger_id, found in context.store.read_ledgers(ledger_ids, naming=self.lost):
            if isinstance(found, MetadataFormatError):
                rows.append(Row(ledger_id, self.action, Outcome.LEFT, found.message))
            elif found is not None and missing_in(found.value):
                lacking.append((ledger_id, found.value))
        marks: list[_Mark] = []
        if lacking:  # metadata that were read later may name a bookie that came meanwhile
            missing_in = self._missing_now(context, here)
            marks = [_Mark(i, missing) for i, value in lacking if (missing := missing_in(value))]
        if not self.dry_run:
            publish(context, marks)
        status = Outcome.PLANNED if self.dry_run else Outcome.PUBLISHED
        rows += [
            Row(each.ledger_id, self.action, status, None, source=bookie)
            for each in marks
            for bookie in each.missing
        ]
        rows += [
            Row(-1, self.action, Outcome.NO_LONGER_NEEDED, _IS_BACK, source=bookie)
            for bookie in sorted(here)
        ]
        return rows

    def _missing_now(
        self, context: ClientContext, here: set[BookieId]
    ) -> Callable[[LedgerMetadata], tuple[BookieId, ...]]:
        """Return a function that gives the absent bookies of a ledger, limited to ``lost``.

        Args:
            here: gets the bookies of ``lost`` that are registered now.
        """
        registered = registered_incarnations(context.bookies.registrations())
        absent_in = _absent_by(registered)
        if self.lost is None:
            return absent_in
        here |= self.lost & registered.keys()
        lost = self.lost
        return lambda metadata: tuple(b for b in absent_in(metadata) if b in lost)


def publish_lost_bookies(
    context: ClientContext,
    lost: Collection[BookieId] | None = None,
    *,
    runner: Runner | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
    heed: Heed | None = None,
) -> AuditReport:
    """Publish one task for each ledger that names an absent bookie; existing tasks stay.

    Repeated, or interrupted and run again, it publishes nothing twice.

    Args:
        lost: the bookies to look for; ``None`` is every bookie that a ledger names and that is not
            registered in the incarnation that the ledger means.
        runner: does the work where there are many ledgers; ``None`` is this process.
        dry_run: report the ledgers only; publish nothing.
        heed: called between batches of ledgers.

    Raises:
        DisabledError: autorecovery is disabled, and nothing was published. If it is disabled later,
            the report shows what was published, and has a row for the rest.
        EndedError: ``heed`` raised it.
    """
    look = _AbsentBookies(None if lost is None else frozenset(lost), dry_run)
    report = report_of_scan(
        context, runner, "audit", look, dry_run=dry_run, progress=progress, heed=heed
    )
    if report.is_cut_short and report.failure is None and not report.counts.get("published"):
        raise DisabledError(DISABLED)
    return report


def report_of_scan(
    context: ClientContext,
    runner: Runner | None,
    job: str,
    look: Look,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
    heed: Heed | None = None,
) -> AuditReport:
    """Scan all ledgers and return the report; the arguments are those of ``scan``.

    Raises:
        DisabledError: autorecovery was disabled before the scan began.
        EndedError: ``heed`` raised it.
    """
    started = context.runtime.now()
    check_enabled(context)
    rows: Spool[Row] = Spool()
    is_cut_short, failure, looked_at = False, None, 0
    back: set[BookieId] = set()
    for batch in scan(context, runner, job, look, progress):
        for row in batch.rows():
            if row.status is Outcome.NO_LONGER_NEEDED and row.source is not None:
                if row.source in back:
                    continue
                back.add(BookieId(row.source))
            rows.append(row)
        looked_at += batch.ledgers
        is_cut_short = is_cut_short or batch.is_cut_short
        failure = failure or batch.failure
        if heed is not None:
            heed()
    if is_cut_short:
        rows.append(Row(-1, look.action, Outcome.LEFT, DISABLED))
    duration_ms = round((context.runtime.now() - started) * 1000)
    kept = report_rows(rows)
    return AuditReport(
        job,
        kept,
        dry_run,
        duration_ms,
        is_cut_short=is_cut_short,
        failure=failure,
        looked_at=looked_at,
        back=frozenset(back),
    )


def _absent_by(
    registered: Mapping[BookieId, str],
) -> Callable[[LedgerMetadata], tuple[BookieId, ...]]:
    """Return a function that gives a ledger's absent members, computed once for equal ensembles."""
    known: dict[tuple[object, ...], tuple[BookieId, ...]] = {}

    def absent(metadata: LedgerMetadata) -> tuple[BookieId, ...]:
        ensembles = tuple(fragment.ensemble for fragment in metadata.fragments)
        key = (metadata.custom_metadata.get(INCARNATIONS), *ensembles)
        if key not in known:
            known[key] = absent_members(metadata, live_members(metadata, registered))
        return known[key]

    return absent


def publish(context: ClientContext, marks: Sequence[_Mark]) -> None:
    """Publish tasks, many at once. The metric counts only tasks that are new or were changed."""
    tree, now_ms = context.store.underreplication, context.cluster_ms()

    def mark(each: _Mark) -> bool:
        return tree.mark(each.ledger_id, each.missing, now_ms)

    published = sum(context.runtime.map(mark, list(marks), MARKS_AT_ONCE))
    context.metrics.published_ledgers.inc(published)


def check_enabled(context: ClientContext) -> None:
    """Raise ``DisabledError`` if autorecovery is disabled."""
    if not context.store.underreplication.is_enabled():
        raise DisabledError(DISABLED)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items, as they come; the last may be shorter."""
    following = iter(items)
    while chunk := list(islice(following, size)):
        yield chunk
