"""What an auditor looks at now and then, in bounded pieces, with a limit on bytes.

None of them marks a healthy ledger because a bookie was slow: only a replica of which it is known
that it is not there, or not as it was written, is published.

A check of a large cluster takes hours. So it asks again and again whether to go on, and what it
has found by then is published when it does not.

Source: BookKeeper ``replication/AuditorCheckAllLedgersTask``, ``AuditorPlacementPolicyCheckTask``,
``AuditorReplicasCheckTask``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from spark_bookkeeper.autorecovery.check_results import (
    BELOW_ACK_QUORUM,
    BELOW_WRITE_QUORUM,
    NO_REPLICA,
    CheckResult,
    Found,
)
from spark_bookkeeper.autorecovery.lots import Lots, NotDone
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import (
    DISABLED,
    LEDGERS_AT_ONCE,
    AuditReport,
    DisabledError,
    EndedError,
    Heed,
    check_enabled,
    chunks,
    report_of_scan,
)
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import (
    BookieError,
    BookKeeperError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import is_table
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.racks import fewest_racks, most_racks
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.replication.check_ledgers import (
    CheckWork,
    Finding,
    check_step,
    check_works,
)
from spark_bookkeeper.replication.report import Outcome, Row, report_rows
from spark_bookkeeper.replication.runner import Failure, Runner, Step, limited
from spark_bookkeeper.replication.shares import share_of
from spark_bookkeeper.replication.under_way import name_of
from spark_bookkeeper.runtime.spool import Spool
from spark_bookkeeper.runtime.throttle import Throttle

CERTAIN: Final = frozenset({Outcome.MISSING, Outcome.DAMAGED})
"""Findings that are published. ``unreadable``, ``unavailable`` and ``pending`` are not: what
could not be read in time may be there, and who is gone is found by the check of bookies."""


_NOTHING: Final = frozenset({Outcome.HEALTHY, Outcome.GONE, Outcome.PENDING})

REPLICA_BYTES: Final = 4096
ENTRY_BYTES: Final = 16
"""What a bookie reads to tell which entries it has is taken as so much for each replica, and for
each entry of it."""


@dataclass(frozen=True, repr=False)
class AuditorCheck(AuditReport):
    """What one of the auditor's checks found, row by row; and what is kept of it."""

    result: CheckResult | None = None


def check_all_ledgers(
    context: ClientContext,
    runner: Runner,
    percentage: int = 0,
    *,
    bytes_per_second: int | None = None,
    heed: Heed | None = None,
) -> AuditorCheck:
    """Read from every replica of every ledger, and publish those with missing or damaged ones.

    Args:
        heed: asked between lots of ledgers, and where they are read by this process, also within a
            replica (``ShareCheck``).

    Raises:
        DisabledError: somebody disabled autorecovery, before or meanwhile.
        EndedError: ``heed`` raised it. What had been found is published.
    """
    heed = heed or partial(check_enabled, context)
    step, here = check_step(), check_step(partial(_is_over, heed))
    lots = Lots(context, runner, "check_all_ledgers", bytes_per_second, heed)

    def check(chunk: list[LedgerId], found: Found) -> Iterator[Row]:
        missing: dict[LedgerId, set[str]] = {}
        left: set[LedgerId] = set()
        told: set[tuple[str, LedgerId]] = set()
        try:
            for result in lots.run(check_works(context, chunk, percentage), step, here):
                heed()
                finding = _not_checked(result) if isinstance(result, NotDone) else result
                # Of a table that lacks what it stands for, doctor tells.
                is_tables = finding.source is not None and is_table(finding.source)
                if finding.status in _NOTHING:
                    continue
                if finding.status is Outcome.LEFT:
                    left.add(finding.ledger_id)
                kind = finding.status.value, finding.ledger_id
                if kind not in told:  # shares of one ledger may be looked at here and there
                    told.add(kind)
                    found.add(*kind)
                row = finding.row()
                if finding.status in CERTAIN and finding.source is not None and not is_tables:
                    missing.setdefault(finding.ledger_id, set()).add(finding.source)
                    row = replace(row, status=Outcome.PUBLISHED)
                yield row
        except EndedError:
            _publish(context, missing, percentage)
            raise
        _publish(context, missing, percentage)
        found.ledgers += len(chunk) - len(left)

    return _checked(context, Check.ALL_LEDGERS, check, heed, lots)


def _not_checked(what: NotDone[CheckWork]) -> Finding:
    return Finding(what.work.ledger_id, Outcome.LEFT, what.failure.reason)


def _is_over(heed: Heed) -> bool:
    """Whether ``heed`` raises, for those who can only be told yes or no: they leave what they are
    at, and whoever asks next hears why.
    """
    try:
        heed()
    except (EndedError, BookKeeperError):
        return True
    return False


def _publish(
    context: ClientContext, missing: Mapping[LedgerId, Collection[str]], percentage: int
) -> None:
    for ledger_id, bookies in missing.items():
        publish_finding(context, ledger_id, sorted(bookies), percentage)


def publish_finding(
    context: ClientContext, ledger_id: LedgerId, bookies: Sequence[str], percentage: int
) -> None:
    """The note first: whoever takes the task has to look as closely as it was looked here."""

    def looked(note: TaskNote) -> TaskNote:
        return replace(note, percentage=max(note.percentage, percentage))

    if percentage:
        Notes(context.store.registers).change(ledger_id, looked)
    context.store.underreplication.mark(ledger_id, bookies, context.cluster_ms())


@dataclass(frozen=True, slots=True)
class _Misplaced:
    """Finds copies that are on too few racks. Picklable."""

    action: str = "placement"

    def __call__(self, context: ClientContext, ledger_ids: Sequence[LedgerId]) -> Sequence[Row]:
        return list(self._rows(context, ledger_ids))

    def _rows(self, context: ClientContext, ledger_ids: Sequence[LedgerId]) -> Iterator[Row]:
        alive = context.bookies.registrations()
        offered = [each.rack for each in alive.values() if not each.is_readonly]
        most: dict[Quorum, int] = {}
        for ledger_id, found in context.store.read_ledgers(ledger_ids):
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
                    yield Row(ledger_id, self.action, Outcome.MISPLACED, reason, first, last)


def check_placement(
    context: ClientContext, runner: Runner | None = None, *, heed: Heed | None = None
) -> AuditorCheck:
    """Closed ledgers with copies on fewer racks than a new ledger's would be; nothing is published.

    A fragment that counts on a bookie which is not there is passed over: it is to be copied anyhow.

    Args:
        runner: does the work where there are many ledgers; ``None`` is this process.
        heed: asked between lots of ledgers.

    Raises:
        DisabledError: somebody disabled autorecovery, before or meanwhile.
        EndedError: ``heed`` raised it.
    """
    scanned = report_of_scan(context, runner, "check_placement", _Misplaced(), heed=heed)
    if scanned.is_cut_short:
        raise DisabledError(DISABLED)
    found = Found()
    found.ledgers = scanned.looked_at
    for row in scanned.rows:
        if row.status is Outcome.MISPLACED:
            found.add(Outcome.MISPLACED.value, LedgerId(row.ledger_id))
    took_ms = scanned.duration_ms
    result = found.result(Check.PLACEMENT, context.cluster_ms(), took_ms)
    job, rows, failure = scanned.job, scanned.rows, scanned.failure
    return AuditorCheck(job, rows, duration_ms=took_ms, failure=failure, result=result)


@dataclass(frozen=True, slots=True)
class CountWork:
    """Count the replicas of every entry of one closed ledger. Picklable."""

    ledger_id: LedgerId
    size_bytes: int = 0
    bytes_per_second: int | None = None
    """Limit on what bookies read to answer, about."""

    def name(self) -> str:
        """For people."""
        return name_of(self.ledger_id)


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted of one fragment, of which something is not as it should be."""

    row: Row
    few: str | None = None
    """How few replicas there are of some entry; ``None`` where not all bookies could be asked."""

    @property
    def bytes(self) -> int:
        """Nothing was read."""
        return self.row.bytes


def check_replicas(
    context: ClientContext,
    runner: Runner,
    *,
    bytes_per_second: int | None = None,
    heed: Heed | None = None,
) -> AuditorCheck:
    """Closed ledgers with entries of which too few replicas are there; nothing is published.

    Bookies are asked which entries they have, and no entry is read. Ledgers that have a task are
    passed over.

    Raises:
        DisabledError: somebody disabled autorecovery, before or meanwhile.
        EndedError: ``heed`` raised it.
    """
    heed = heed or partial(check_enabled, context)
    step = Step("counting replicas", count_replicas, _not_counted, limited)
    lots = Lots(context, runner, "check_replicas", bytes_per_second, heed)

    def check(chunk: list[LedgerId], found: Found) -> Iterator[Row]:
        tasks = dict(context.store.underreplication.read_many(chunk))
        works = [CountWork(ledger_id) for ledger_id in chunk if tasks.get(ledger_id) is None]
        left: set[LedgerId] = set()
        for result in lots.run(works, step, step):
            heed()
            if isinstance(result, NotDone):
                left.add(result.work.ledger_id)
                counted = _not_counted(result.work, result.failure)
            else:
                counted = result
            found.add(counted.few or counted.row.status.value, LedgerId(counted.row.ledger_id))
            yield counted.row
        found.ledgers += len(chunk) - len(left)

    return _checked(context, Check.REPLICAS, check, heed, lots)


def _not_counted(work: CountWork, failure: Failure) -> Counted:
    return Counted(Row(work.ledger_id, "count", Outcome.LEFT, failure.reason))


def count_replicas(context: ClientContext, work: CountWork) -> Sequence[Counted]:
    """The fragments of a closed ledger that lack replicas, each with the fewest that are there.

    A bookie that cannot be asked is ``unavailable``, and nothing is said of what it holds.
    """
    throttle = Throttle(context.runtime, work.bytes_per_second)
    try:
        ledger, found = context.ledger(work.ledger_id)
    except (NoSuchLedgerError, MetadataFormatError):
        return []
    if not found.value.is_closed:
        return []
    counted: list[Counted] = []
    quorum = found.value.quorum
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
            throttle(REPLICA_BYTES + ENTRY_BYTES * len(entries))
        if not lacking:
            continue
        copies = quorum.write_quorum_size - max(lacking.values())
        if copies == 0:
            few, how = NO_REPLICA, "no replica"
        elif copies < quorum.ack_quorum_size:
            few, how = BELOW_ACK_QUORUM, f"{copies} replicas, fewer than Qa"
        else:
            few, how = BELOW_WRITE_QUORUM, f"{copies} replicas, fewer than Qw"
        not_asked = f"; {', '.join(silent)} could not be asked" if silent else ""
        reason = f"{len(lacking)} entries have {how} at the least{not_asked}"
        status = Outcome.UNAVAILABLE if silent else Outcome.MISSING
        row = Row(work.ledger_id, "count", status, reason, first, last)
        counted.append(Counted(row, None if silent else few))
    return counted


def _checked(
    context: ClientContext,
    which: Check,
    check: Callable[[list[LedgerId], Found], Iterator[Row]],
    heed: Heed,
    lots: Lots,
) -> AuditorCheck:
    started = context.runtime.now()
    rows: Spool[Row] = Spool()
    found = Found()
    for chunk in chunks(context.store.ledger_ids(), LEDGERS_AT_ONCE):
        heed()
        rows.extend(check(chunk, found))
    duration_ms = round((context.runtime.now() - started) * 1000)
    result = found.result(which, context.cluster_ms(), duration_ms)
    job, kept = f"check_{result.check}", report_rows(rows)
    return AuditorCheck(job, kept, duration_ms=duration_ms, failure=lots.failure, result=result)


def _lacking(replica: Replica, entries: Sequence[EntryId]) -> list[EntryId]:
    """Those of a share that a bookie does not say it has."""
    if not entries:
        return []
    held = replica.holdings(entries[0], entries[-1])
    return [EntryId(entry_id) for entry_id in held.lacking(entries)]
