"""The auditor's regular checks of all ledgers, in bounded pieces, with a limit on bytes.

No check marks a healthy ledger because a bookie was slow: it publishes only replicas that certainly
do not exist, or are not as they were written.

A check of a large cluster takes hours. So it calls ``heed`` again and again, and ends when that
raises. After an ``EndedError`` the findings so far are published.

Source: BookKeeper ``replication/AuditorCheckAllLedgersTask``, ``AuditorPlacementPolicyCheckTask``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

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
from spark_bookkeeper.autorecovery.scan_batches import ScanBatches
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.errors import (
    BookKeeperError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.compare_and_swap import CONFLICTS_MAX
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.metrics import ClientMetrics
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import is_table
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.racks import fewest_racks, most_racks
from spark_bookkeeper.protocol.stored_json import decoded, number
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.replication.check_ledgers import CheckWork, Finding, check_step, check_works
from spark_bookkeeper.replication.report import Outcome, Row, report_rows
from spark_bookkeeper.replication.runner import NotDone, Runner
from spark_bookkeeper.runtime.spool import Spool

CERTAIN: Final = frozenset({Outcome.MISSING, Outcome.DAMAGED})
"""Findings that are published. ``unreadable``, ``unavailable`` and ``pending`` are not: a replica
that was not read in time may exist, and the check of bookies finds absent ones."""


_NOTHING: Final = frozenset({Outcome.HEALTHY, Outcome.GONE, Outcome.PENDING})


@dataclass(frozen=True, repr=False)
class AuditorCheck(AuditReport):
    """The report of one of the auditor's checks, and the result that is kept in the cluster."""

    result: CheckResult | None = None


def check_all_ledgers(
    context: ClientContext,
    runner: Runner,
    percentage: int = 0,
    *,
    bytes_per_second: int | None = None,
    heed: Heed | None = None,
) -> AuditorCheck:
    """Read from every replica of every ledger, and publish ledgers with missing or damaged ones.

    Args:
        heed: called between batches of ledgers; where this process reads, also within a replica
            (``ShareCheck``).

    Raises:
        DisabledError: autorecovery is disabled, or was disabled during the check.
        EndedError: ``heed`` raised it. The findings up to then are published.
    """
    heed = _for_good(heed or partial(check_enabled, context))
    step, here = check_step(), check_step(partial(_is_over, heed))
    batches = ScanBatches(context, runner, "check_all_ledgers", bytes_per_second, heed)

    def check(chunk: list[LedgerId], found: Found) -> Iterator[Row]:
        missing: dict[LedgerId, set[str]] = {}
        left: set[LedgerId] = set()
        told: set[tuple[str, LedgerId]] = set()
        try:
            for result in batches.run(check_works(context, chunk, percentage), step, here):
                heed()
                finding = _not_checked(result) if isinstance(result, NotDone) else result
                # ``doctor`` reports a table that lacks entries; it is not published here.
                is_tables = finding.source is not None and is_table(finding.source)
                if finding.status in _NOTHING:
                    continue
                if finding.status is Outcome.LEFT:
                    left.add(finding.ledger_id)
                kind = _as_kept(context, finding).value, finding.ledger_id
                if kind not in told:  # one ledger's results may be apart: from Spark and from here
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

    return report_of_check(context, Check.ALL_LEDGERS, check, heed, batches)


def _as_kept(context: ClientContext, finding: Finding) -> Outcome:
    """Return the status to keep. An ``unavailable`` bookie that the ledger still counts as live
    becomes ``unreadable``: its list of entries may be on a bad sector, for example. The check of
    bookies does not find such a bookie, and only an operator can have its copies made again.
    """
    registered = registered_incarnations(context.bookies.last_registrations())
    if finding.status is not Outcome.UNAVAILABLE or finding.source not in registered:
        return finding.status
    with suppress(NoSuchLedgerError, MetadataFormatError):
        _, found = context.ledger(finding.ledger_id)
        if finding.source in live_members(found.value, registered):
            return Outcome.UNREADABLE
    return finding.status


def _not_checked(what: NotDone[CheckWork]) -> Finding:
    return Finding(what.work.ledger_id, Outcome.LEFT, what.failure.reason)


def _is_over(heed: Heed) -> bool:
    """Whether ``heed`` ends the check, for callers that need a boolean: they leave their current
    work. They go on if the metadata store does not answer.
    """
    try:
        heed()
    except (EndedError, DisabledError):
        return True
    except BookKeeperError:
        pass
    return False


def _for_good(heed: Heed) -> Heed:
    """Return a ``heed`` that repeats the error with which it ended a check. Some ledgers were then
    left unchecked, so the check is not complete, even if ``heed`` would pass by now.
    """
    over: list[EndedError | DisabledError] = []

    def again() -> None:
        if over:
            raise over[0]
        try:
            heed()
        except (EndedError, DisabledError) as error:
            over.append(error)
            raise

    return again


def _publish(
    context: ClientContext, missing: Mapping[LedgerId, Collection[str]], percentage: int
) -> None:
    for ledger_id, bookies in missing.items():
        publish_finding(context, ledger_id, sorted(bookies), percentage)


def publish_finding(
    context: ClientContext, ledger_id: LedgerId, bookies: Sequence[str], percentage: int
) -> None:
    """Publish that present bookies lack entries, or have damaged ones. A task that a worker is
    doing is published again too, so that a worker that checked earlier does not remove it.

    The note is written first, because the worker that takes the task must check as closely as here.
    It is written again if it is missing after the task is: a note without a task is removed, and
    then a worker may have checked without it.

    Raises:
        MetadataUnavailableError: the store did not answer, or other clients kept removing the note.
    """
    notes, tree = Notes(context.store.registers), context.store.underreplication
    for _ in range(CONFLICTS_MAX):
        notes.change(ledger_id, partial(TaskNote.found_damaged, percentage=percentage))
        tree.mark(ledger_id, bookies, context.cluster_ms(), anew=True)
        if not percentage or notes.read(ledger_id).percentage >= percentage:
            return
    raise MetadataUnavailableError(
        f"the note of ledger {ledger_id} kept being removed, so nobody may see what "
        f"{', '.join(bookies)} lack. Nothing is lost by it: the next check says it again"
    )


@dataclass(frozen=True, slots=True)
class _Misplaced:
    """Finds fragments with copies on too few racks. Picklable."""

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
                    continue  # an operator decided how few copies stay
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
    """Find closed ledgers with copies on fewer racks than a new ledger's; publish nothing.

    A fragment with an absent bookie is skipped, because it is to be copied anyway.

    Args:
        runner: does the work where there are many ledgers; ``None`` is this process.
        heed: called between batches of ledgers.

    Raises:
        DisabledError: autorecovery is disabled, or was disabled during the check.
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


def report_of_check(
    context: ClientContext,
    which: Check,
    check: Callable[[list[LedgerId], Found], Iterator[Row]],
    heed: Heed,
    batches: ScanBatches,
) -> AuditorCheck:
    """Run a check on all ledgers, batch by batch, and return its report."""
    started = context.runtime.now()
    rows: Spool[Row] = Spool()
    found = Found()
    for chunk in chunks(context.store.ledger_ids(), LEDGERS_AT_ONCE):
        heed()
        rows.extend(check(chunk, found))
    duration_ms = round((context.runtime.now() - started) * 1000)
    result = found.result(which, context.cluster_ms(), duration_ms)
    job, kept = f"check_{result.check}", report_rows(rows)
    return AuditorCheck(job, kept, duration_ms=duration_ms, failure=batches.failure, result=result)


BOOKIES: Final = "bookies"
"""The check that looks for absent bookies in all ledgers. Each new auditor runs it, whenever it was
last run: without an auditor, no process noticed which bookies came and went."""

MOST_NAMED: Final = 20
"""The most ledgers of each kind that a result names."""

ABSENT_BOOKIE: Final = "counts on an absent bookie"
NO_REPLICA: Final = "no replica"
BELOW_ACK_QUORUM: Final = "fewer than Qa"
BELOW_WRITE_QUORUM: Final = "fewer than Qw"
"""Findings of the replica count, with the two above: some entry has only so many replicas."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one complete check of all ledgers, kept in the cluster for later readers.

    One register for each check holds its newest result. It shows the state when the check ended;
    it still names what was repaired since. No rule depends on it (SLOT-LOG rule R17).

    Source: BookKeeper ``replication/AuditorStats``: the same numbers as gauges, without ids.
    """

    check: str
    """``bookies``, ``all_ledgers``, ``placement`` or ``replicas``."""
    ended_at_ms: int
    duration_ms: int
    ledgers: int
    """The number of ledgers that were checked."""
    found: Mapping[str, int] = field(default_factory=dict)
    """The number of ledgers with a fault, by kind of finding."""
    named: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The first ledgers of each kind, at most ``MOST_NAMED``."""


class Found:
    """The findings of a check so far."""

    def __init__(self) -> None:
        self.ledgers = 0
        """The number of ledgers that were checked."""
        self._counts: Counter[str] = Counter()
        self._named: dict[str, list[int]] = {}
        self._last: dict[str, int] = {}

    def add(self, what: str, ledger_id: LedgerId) -> None:
        """Add one finding. Equal findings of one ledger must follow each other; they count once."""
        if self._last.get(what) == ledger_id:
            return
        self._last[what] = ledger_id
        self._counts[what] += 1
        named = self._named.setdefault(what, [])
        if len(named) < MOST_NAMED:
            named.append(ledger_id)

    def result(self, check: Check | None, ended_at_ms: int, duration_ms: int) -> CheckResult:
        """Return the result of the finished check; ``None`` is the check of bookies."""
        named = {what: tuple(ids) for what, ids in self._named.items()}
        name = BOOKIES if check is None else check.name.lower()
        return CheckResult(name, ended_at_ms, duration_ms, self.ledgers, dict(self._counts), named)


def write_result(registers: Registers, result: CheckResult) -> None:
    """Store a result in place of the earlier one."""
    change_register(
        registers,
        _name(result.check),
        _decode,
        lambda value: json.dumps(None if value is None else asdict(value)).encode(),
        lambda _: result,
    )


def read_results(registers: Registers) -> tuple[CheckResult, ...]:
    """Return the newest result of each check: of bookies, then in the order of ``Check``."""
    names = (BOOKIES, *(check.name.lower() for check in Check))
    found = (_decode(registers.read(_name(name))) for name in names)
    return tuple(result for result in found if result is not None)


def show_results(metrics: ClientMetrics, registers: Registers) -> None:
    """Set the gauges from the newest results, whichever process was the auditor then."""
    for result in read_results(registers):
        if result.check == Check.REPLICAS.name.lower():
            metrics.ledgers_without_replica.set(result.found.get(NO_REPLICA, 0))
            metrics.ledgers_below_ack_quorum.set(result.found.get(BELOW_ACK_QUORUM, 0))
            metrics.ledgers_below_write_quorum.set(result.found.get(BELOW_WRITE_QUORUM, 0))
        elif result.check == Check.PLACEMENT.name.lower():
            metrics.ledgers_misplaced.set(sum(result.found.values()))


def show_nothing(metrics: ClientMetrics) -> None:
    """Set the gauges to 0 in a process that is no longer the auditor: its numbers grow old."""
    for gauge in (
        metrics.underreplicated_ledgers,
        metrics.ledgers_without_replica,
        metrics.ledgers_below_ack_quorum,
        metrics.ledgers_below_write_quorum,
        metrics.ledgers_misplaced,
    ):
        gauge.set(0)


def _name(check: str) -> str:
    return f"autorecovery/checks/{check}"


def _decode(found: Versioned[bytes] | None) -> CheckResult | None:
    """Return the result; ``None`` if it is missing or unreadable: the next check replaces it."""
    if found is None:
        return None
    try:
        return decoded(found.value, _result)
    except ValueError:
        return None


def _result(values: Any) -> CheckResult:
    return CheckResult(
        check=str(values["check"]),
        ended_at_ms=number(values["ended_at_ms"]),
        duration_ms=number(values["duration_ms"]),
        ledgers=number(values["ledgers"]),
        found={str(what): number(count) for what, count in values["found"].items()},
        named={str(what): tuple(map(number, ids)) for what, ids in values["named"].items()},
    )
