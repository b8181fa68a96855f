"""What an auditor looks at now and then, in bounded pieces, with a limit on bytes.

None of them marks a healthy ledger because a bookie was slow: only a replica of which it is known
that it is not there, or not as it was written, is published.

Source: BookKeeper ``replication/AuditorCheckAllLedgersTask``, ``AuditorPlacementPolicyCheckTask``,
``AuditorReplicasCheckTask``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import (
    LEDGERS_AT_ONCE,
    AuditReport,
    check_enabled,
    chunks,
)
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookieError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import is_table
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.racks import fewest_racks, most_racks
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.replication.check_ledgers import check_step, check_works
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome, Row, report_rows
from spark_bookkeeper.replication.runner import Failure, Runner, Step
from spark_bookkeeper.replication.shares import share_of
from spark_bookkeeper.replication.under_way import name_of
from spark_bookkeeper.runtime.spool import Spool

CERTAIN: Final = frozenset({Outcome.MISSING, Outcome.DAMAGED})
"""Findings that are published. ``unreadable``, ``unavailable`` and ``pending`` are not: what
could not be read in time may be there, and who is gone is found by the check of bookies."""


_NOTHING: Final = frozenset({Outcome.HEALTHY, Outcome.GONE, Outcome.PENDING})


def check_all_ledgers(
    context: ClientContext,
    runner: Runner,
    percentage: int = 0,
    *,
    bytes_per_second: int | None = None,
) -> AuditReport:
    """Read from every replica of every ledger, and publish those with missing or damaged ones.

    Raises:
        DisabledError: somebody disabled autorecovery, before or meanwhile.
    """

    def check(chunk: list[LedgerId]) -> Iterator[Row]:
        job = Job("check_all_ledgers", context, runner, bytes_per_second=bytes_per_second)
        missing: dict[LedgerId, set[str]] = {}
        for finding in job.run(check_step(), check_works(context, chunk, percentage)):
            is_table_bad = finding.source is not None and is_table(finding.source)  # doctor tells
            if finding.status in CERTAIN and finding.source is not None and not is_table_bad:
                missing.setdefault(finding.ledger_id, set()).add(finding.source)
                yield replace(finding.row(), status=Outcome.PUBLISHED)
            elif finding.status not in _NOTHING:
                yield finding.row()
        for ledger_id, bookies in missing.items():
            publish_finding(context, ledger_id, sorted(bookies), percentage)

    return _checked(context, "check_all_ledgers", check)


def publish_finding(
    context: ClientContext, ledger_id: LedgerId, bookies: Sequence[str], percentage: int
) -> None:
    """The note first: whoever takes the task has to look as closely as it was looked here."""

    def looked(note: TaskNote) -> TaskNote:
        return replace(note, percentage=max(note.percentage, percentage))

    if percentage:
        Notes(context.store.registers).change(ledger_id, looked)
    context.store.underreplication.mark(ledger_id, bookies, context.cluster_ms())


def check_placement(context: ClientContext) -> AuditReport:
    """Closed ledgers with copies on fewer racks than a new ledger's would be; nothing is published.

    A fragment that counts on a bookie which is not there is passed over: it is to be copied anyhow.

    Raises:
        DisabledError: somebody disabled autorecovery, before or meanwhile.
    """

    def check(chunk: list[LedgerId]) -> Iterator[Row]:
        alive = context.bookies.registrations()
        offered = [each.rack for each in alive.values() if not each.is_readonly]
        most: dict[Quorum, int] = {}
        for ledger_id, found in context.store.read_ledgers(chunk):
            if not isinstance(found, Versioned) or not found.value.is_closed:
                continue
            quorum = found.value.quorum
            wanted = most.setdefault(quorum, most_racks(quorum, offered))
            for fragment in found.value.fragment_ranges():
                if any(map(is_table, fragment.ensemble)):
                    continue  # how few copies stay was somebody's decision
                if not alive.keys() >= set(fragment.ensemble):
                    continue
                count = fewest_racks(quorum, [alive[bookie].rack for bookie in fragment.ensemble])
                if count < wanted:
                    first, last = fragment.first_entry_id, fragment.last_entry_id
                    reason = f"copies on {count} racks, and {wanted} could be used"
                    yield Row(ledger_id, "placement", Outcome.MISPLACED, reason, first, last)

    return _checked(context, "check_placement", check)


@dataclass(frozen=True, slots=True)
class CountWork:
    """Count the replicas of every entry of one closed ledger. Picklable."""

    ledger_id: LedgerId
    size_bytes: int = 0

    def name(self) -> str:
        """For people."""
        return name_of(self.ledger_id)


def check_replicas(context: ClientContext, runner: Runner) -> AuditReport:
    """Closed ledgers with entries of which too few replicas are there; nothing is published.

    Bookies are asked which entries they have, and no entry is read. Ledgers that have a task are
    passed over.

    Raises:
        DisabledError: somebody disabled autorecovery, before or meanwhile.
    """

    def check(chunk: list[LedgerId]) -> Iterator[Row]:
        tasks = dict(context.store.underreplication.read_many(chunk))
        works = [CountWork(ledger_id) for ledger_id in chunk if tasks.get(ledger_id) is None]
        job = Job("check_replicas", context, runner)
        rows = job.run(Step("counting replicas", count_replicas, _not_counted), works)
        yield from (row for row in rows if row.status is not Outcome.HEALTHY)

    return _checked(context, "check_replicas", check)


def _not_counted(work: CountWork, failure: Failure) -> Row:
    return Row(work.ledger_id, "count", Outcome.LEFT, failure.reason)


def count_replicas(context: ClientContext, work: CountWork) -> Sequence[Row]:
    """One row for each fragment of a closed ledger: ``healthy``, or the fewest replicas there.

    A bookie that cannot be asked is ``unavailable``, and nothing is said of what it holds.
    """
    try:
        ledger, found = context.ledger(work.ledger_id)
    except (NoSuchLedgerError, MetadataFormatError):
        return []
    if not found.value.is_closed:
        return []
    rows: list[Row] = []
    for fragment in found.value.fragment_ranges():
        first, last = fragment.first_entry_id, fragment.last_entry_id
        assert last is not None
        lacking: dict[int, int] = {}
        silent: list[BookieId] = []
        for position, bookie in enumerate(fragment.ensemble):
            entries = share_of(ledger, position, first, last)
            try:
                missing = _lacking(context.bookies.replica(bookie, ledger), entries)
            except BookieError:
                silent.append(bookie)
                missing = list(entries)
            for entry in missing:
                lacking[entry] = lacking.get(entry, 0) + 1
        row = Row(work.ledger_id, "count", Outcome.HEALTHY, None, first, last)
        if lacking:
            quorum = found.value.quorum
            copies = quorum.write_quorum_size - max(lacking.values())
            how = (
                "no replica"
                if copies == 0
                else f"{copies} replicas, fewer than Qa"
                if copies < quorum.ack_quorum_size
                else f"{copies} replicas, fewer than Qw"
            )
            not_asked = f"; {', '.join(silent)} could not be asked" if silent else ""
            status = Outcome.UNAVAILABLE if silent else Outcome.MISSING
            reason = f"{len(lacking)} entries have {how} at the least{not_asked}"
            row = replace(row, status=status, reason=reason)
        rows.append(row)
    return rows


def _checked(
    context: ClientContext, job: str, check: Callable[[list[LedgerId]], Iterator[Row]]
) -> AuditReport:
    started = context.runtime.now()
    rows: Spool[Row] = Spool()
    for chunk in chunks(context.store.ledger_ids(), LEDGERS_AT_ONCE):
        check_enabled(context)
        rows.extend(check(chunk))
    duration_ms = round((context.runtime.now() - started) * 1000)
    return AuditReport(job, report_rows(rows), duration_ms=duration_ms)


def _lacking(replica: Replica, entries: Sequence[EntryId]) -> list[EntryId]:
    """Those of a share that a bookie does not say it has."""
    if not entries:
        return []
    held = replica.holdings(entries[0], entries[-1])
    return [EntryId(entry_id) for entry_id in held.lacking(entries)]
