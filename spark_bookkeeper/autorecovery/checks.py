"""What an auditor looks at now and then, in bounded pieces, with a limit on bytes.

None of them marks a healthy ledger because a bookie was slow: only a replica of which it is known
that it is not there, or not as it was written, is published.

A check of a large cluster takes hours. So it asks again and again whether to go on, and what it
has found by then is published when it does not.

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
"""Findings that are published. ``unreadable``, ``unavailable`` and ``pending`` are not: what
could not be read in time may be there, and who is gone is found by the check of bookies."""


_NOTHING: Final = frozenset({Outcome.HEALTHY, Outcome.GONE, Outcome.PENDING})


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
    heed = _for_good(heed or partial(check_enabled, context))
    step, here = check_step(), check_step(partial(_is_over, heed))
    lots = ScanBatches(context, runner, "check_all_ledgers", bytes_per_second, heed)

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
                kind = _as_kept(context, finding).value, finding.ledger_id
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

    return report_of_check(context, Check.ALL_LEDGERS, check, heed, lots)


def _as_kept(context: ClientContext, finding: Finding) -> Outcome:
    """Of a bookie that could not be asked and is there all the same, what is to be read: a file
    with a bad sector, say, that tells where entries are. The check of bookies finds the others, and
    of this one nobody but a person makes the copies again.
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
    """Whether ``heed`` says that the check ends, for those who can only be told yes or no: they
    leave what they are at. Where it could not find out, they go on.
    """
    try:
        heed()
    except (EndedError, DisabledError):
        return True
    except BookKeeperError:
        pass
    return False


def _for_good(heed: Heed) -> Heed:
    """Says again what it said when it ended a check: then something was not looked at, and the
    check has not been done, whatever somebody would say by now.
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
    """Publish that bookies which are there lack entries, or have damaged ones: also where their
    task is under way, so that whoever looked at them before does not take it away.

    The note first: whoever takes the task has to look as closely as it was looked here. And again
    where it is not there after the task: if it had gone meanwhile, as one without a task does, the
    task may have been looked at without it.

    Raises:
        MetadataUnavailableError: there was no answer, or others kept removing the note.
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


def report_of_check(
    context: ClientContext,
    which: Check,
    check: Callable[[list[LedgerId], Found], Iterator[Row]],
    heed: Heed,
    lots: ScanBatches,
) -> AuditorCheck:
    """What a check of some ledgers, and then of others, finds in all of them."""
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


BOOKIES: Final = "bookies"
"""The check that looks for absent bookies in all ledgers. Each new auditor does it, whenever it
was done last: nobody has seen who came and went while there was none."""

MOST_NAMED: Final = 20
"""Ledgers that a result names, of each kind."""

ABSENT_BOOKIE: Final = "counts on an absent bookie"
NO_REPLICA: Final = "no replica"
BELOW_ACK_QUORUM: Final = "fewer than Qa"
BELOW_WRITE_QUORUM: Final = "fewer than Qw"
"""Of what the count of replicas finds: of some entry there are so many, and no more."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of all ledgers that came to its end, kept in the cluster for whoever asks later.

    One register for each check has its newest result. It says how things were when the check
    ended; what was mended since is still in it. Nothing rests on it (SLOT-LOG rule R17).

    Source: BookKeeper ``replication/AuditorStats``: the same numbers as gauges, without ids.
    """

    check: str
    """``bookies``, ``all_ledgers``, ``placement`` or ``replicas``."""
    ended_at_ms: int
    duration_ms: int
    ledgers: int
    """That were looked at."""
    found: Mapping[str, int] = field(default_factory=dict)
    """How many of them are not as they should be, by what was found."""
    named: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The first of them, at most ``MOST_NAMED`` of each."""


class Found:
    """What a check has found so far."""

    def __init__(self) -> None:
        self.ledgers = 0
        """That were looked at."""
        self._counts: Counter[str] = Counter()
        self._named: dict[str, list[int]] = {}
        self._last: dict[str, int] = {}

    def add(self, what: str, ledger_id: LedgerId) -> None:
        """One finding; those of one ledger come one after the other, and count once."""
        if self._last.get(what) == ledger_id:
            return
        self._last[what] = ledger_id
        self._counts[what] += 1
        named = self._named.setdefault(what, [])
        if len(named) < MOST_NAMED:
            named.append(ledger_id)

    def result(self, check: Check | None, ended_at_ms: int, duration_ms: int) -> CheckResult:
        """When the check has ended; ``None`` is that of the bookies."""
        named = {what: tuple(ids) for what, ids in self._named.items()}
        name = BOOKIES if check is None else check.name.lower()
        return CheckResult(name, ended_at_ms, duration_ms, self.ledgers, dict(self._counts), named)


def write_result(registers: Registers, result: CheckResult) -> None:
    """It takes the place of the one before."""
    change_register(
        registers,
        _name(result.check),
        _decode,
        lambda value: json.dumps(None if value is None else asdict(value)).encode(),
        lambda _: result,
    )


def read_results(registers: Registers) -> tuple[CheckResult, ...]:
    """The newest result of each check that has one: bookies, then in the order of ``Check``."""
    names = (BOOKIES, *(check.name.lower() for check in Check))
    found = (_decode(registers.read(_name(name))) for name in names)
    return tuple(result for result in found if result is not None)


def show_results(metrics: ClientMetrics, registers: Registers) -> None:
    """Set the gauges by what was found last, whoever was auditor then."""
    for result in read_results(registers):
        if result.check == Check.REPLICAS.name.lower():
            metrics.ledgers_without_replica.set(result.found.get(NO_REPLICA, 0))
            metrics.ledgers_below_ack_quorum.set(result.found.get(BELOW_ACK_QUORUM, 0))
            metrics.ledgers_below_write_quorum.set(result.found.get(BELOW_WRITE_QUORUM, 0))
        elif result.check == Check.PLACEMENT.name.lower():
            metrics.ledgers_misplaced.set(sum(result.found.values()))


def show_nothing(metrics: ClientMetrics) -> None:
    """Who is not the auditor any more shows none of it: what it knew grows old."""
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
    """``None`` also where what is there cannot be read: the next check writes it again."""
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
