"""Scan the ledgers, and publish a task for each that counts on a bookie which is not there.

Source: Bookie Ledger Recovery, "Auditor" ("it immediately scans the complete ledger list ... it
will publish a rereplication task for each ledger under the /underreplicated/ znode"); BookKeeper
``replication/AuditorBookieCheckTask``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import INCARNATIONS, live_members, registered_incarnations
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.underreplication import absent_members
from spark_bookkeeper.replication.report import Outcome, Report, Row, report_rows
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.runtime.spool import Spool

T = TypeVar("T")

LEDGERS_AT_ONCE: Final = 1_000
"""So many are held in memory; and the switch is looked at again."""

AUDITED_AT_ONCE: Final = 5_000
"""Of most of them nothing is held. Between two lots ZooKeeper has nothing to do but to tell of the
switch and to take the tasks, so there are few."""

MARKS_AT_ONCE: Final = 32

DISABLED: Final = (
    "autorecovery is disabled for this cluster. `spark-bookkeeper autorecovery enable` lets it go "
    "on; what was published before stays published"
)


class AuditReport(Report):
    """Of an audit: the ledgers that lack replicas, each with the bookies that are not there."""

    @property
    def is_cut_short(self) -> bool:
        """Whether autorecovery was disabled before all ledgers were looked at."""
        return any(row.ledger_id < 0 for row in self.rows)


class DisabledError(InvalidArgumentError):
    """Autorecovery is disabled for the cluster; what was published before stays."""


@dataclass(frozen=True, slots=True)
class _Mark:
    ledger_id: LedgerId
    missing: tuple[BookieId, ...]


def audit_bookies(
    context: ClientContext,
    lost: Collection[BookieId] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> AuditReport:
    """One task for each ledger that names a bookie which is not there; what is published stays.

    Repeated, or ended in the middle and begun again, it publishes nothing twice.

    Args:
        dry_run: only say which; nothing is published.
        lost: the bookies to look for; ``None`` is every one that is named and not registered in the
            incarnation that the ledger means.

    Raises:
        DisabledError: autorecovery is disabled, and nothing was published. Disabled later, it ends
            with a report of what was published, and a row that says that the rest is left.
    """
    started = context.runtime.now()
    rows: Spool[Row] = Spool()
    naming = None if lost is None else frozenset(lost)
    done = published = 0
    for chunk in chunks(context.store.ledger_ids(), AUDITED_AT_ONCE):
        try:
            check_enabled(context)
        except DisabledError as error:
            if not published:
                raise
            rows.append(Row(-1, "mark", Outcome.LEFT, error.message))
            break
        registered = registered_incarnations(context.bookies.registrations())
        marks: list[_Mark] = []
        missing_in = _absent_by(registered)
        for ledger_id, found in context.store.read_ledgers(chunk, naming=naming):
            if isinstance(found, MetadataFormatError):
                rows.append(Row(ledger_id, "mark", Outcome.LEFT, found.message))
            elif found is not None:
                missing = missing_in(found.value)
                wanted = tuple(b for b in missing if lost is None or b in lost)
                if wanted:
                    marks.append(_Mark(ledger_id, wanted))
        if not dry_run:
            publish(context, marks)
            published += len(marks)
        status = Outcome.PLANNED if dry_run else Outcome.PUBLISHED
        rows.extend(
            Row(each.ledger_id, "mark", status, None, source=bookie)
            for each in marks
            for bookie in each.missing
        )
        done += len(chunk)
        progress("reading ledger metadata", done, done, 0)
    duration_ms = round((context.runtime.now() - started) * 1000)
    return AuditReport("audit", report_rows(rows), dry_run, duration_ms)


def _absent_by(
    registered: Mapping[BookieId, str],
) -> Callable[[LedgerMetadata], tuple[BookieId, ...]]:
    """Which members of a ledger are not there; found once for ledgers that have them in common."""
    known: dict[tuple[object, ...], tuple[BookieId, ...]] = {}

    def absent(metadata: LedgerMetadata) -> tuple[BookieId, ...]:
        ensembles = tuple(fragment.ensemble for fragment in metadata.fragments)
        key = (metadata.custom_metadata.get(INCARNATIONS), *ensembles)
        if key not in known:
            known[key] = absent_members(metadata, live_members(metadata, registered))
        return known[key]

    return absent


def publish(context: ClientContext, marks: Sequence[_Mark]) -> None:
    """Publish tasks, many at once."""
    tree, now_ms = context.store.underreplication, context.cluster_ms()

    def mark(each: _Mark) -> None:
        tree.mark(each.ledger_id, each.missing, now_ms)

    context.runtime.map(mark, list(marks), MARKS_AT_ONCE)


def check_enabled(context: ClientContext) -> None:
    """Raises ``DisabledError``."""
    if not context.store.underreplication.is_enabled():
        raise DisabledError(DISABLED)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of so many items, as they come."""
    following = iter(items)
    while chunk := list(islice(following, size)):
        yield chunk
