"""Count the replicas of every entry from what bookies list; no entry is read.

Source: BookKeeper ``replication/AuditorReplicasCheckTask``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_bookkeeper.autorecovery.checks import (
    BELOW_ACK_QUORUM,
    BELOW_WRITE_QUORUM,
    NO_REPLICA,
    AuditorCheck,
    Found,
    report_of_check,
)
from spark_bookkeeper.autorecovery.publishing import Heed, check_enabled
from spark_bookkeeper.autorecovery.scan_batches import ScanBatches
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookieError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import Failure, NotDone, Runner, Step, limited
from spark_bookkeeper.replication.shares import share_of
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.runtime.throttle import Throttle

REPLICA_BYTES: Final = 4096
ENTRY_BYTES: Final = 16
"""Estimates of what a bookie reads to list its entries: so many bytes for each replica, and for
each entry of it."""


@dataclass(frozen=True, slots=True)
class CountWork:
    """Count the replicas of every entry of one closed ledger. Picklable."""

    ledger_id: LedgerId
    size_bytes: int = 0
    bytes_per_second: int | None = None
    """The limit on what bookies read to answer, by the estimates above."""

    def name(self) -> str:
        """Return the name in progress messages."""
        return name_of(self.ledger_id)


@dataclass(frozen=True, slots=True)
class Counted:
    """The result for one fragment that has a fault."""

    row: Row
    few: str | None = None
    """The finding for the entry with the fewest replicas; ``None`` if a bookie was unavailable."""

    @property
    def bytes(self) -> int:
        """0, because no entry was read."""
        return self.row.bytes


def check_replicas(
    context: ClientContext,
    runner: Runner,
    *,
    bytes_per_second: int | None = None,
    heed: Heed | None = None,
) -> AuditorCheck:
    """Find closed ledgers that have entries with too few replicas; publish nothing.

    Bookies list the entries that they have, and no entry is read. Ledgers that have a task are
    skipped.

    Raises:
        DisabledError: autorecovery is disabled, or was disabled during the check.
        EndedError: ``heed`` raised it.
    """
    heed = heed or partial(check_enabled, context)
    step = Step("counting replicas", count_replicas, _not_counted, limited)
    batches = ScanBatches(context, runner, "check_replicas", bytes_per_second, heed)

    def check(chunk: list[LedgerId], found: Found) -> Iterator[Row]:
        tasks = dict(context.store.underreplication.read_many(chunk))
        works = [CountWork(ledger_id) for ledger_id in chunk if tasks.get(ledger_id) is None]
        left: set[LedgerId] = set()
        for result in batches.run(works, step, step):
            heed()
            if isinstance(result, NotDone):
                counted = _not_counted(result.work, result.failure)
            else:
                counted = result
            if counted.row.status is Outcome.LEFT:
                left.add(LedgerId(counted.row.ledger_id))
            found.add(counted.few or counted.row.status.value, LedgerId(counted.row.ledger_id))
            yield counted.row
        found.ledgers += len(chunk) - len(left)

    return report_of_check(context, Check.REPLICAS, check, heed, batches)


def _not_counted(work: CountWork, failure: Failure) -> Counted:
    return Counted(Row(work.ledger_id, "count", Outcome.LEFT, failure.reason))


def count_replicas(context: ClientContext, work: CountWork) -> Sequence[Counted]:
    """Return a closed ledger's fragments that lack replicas, with the fewest of any entry.

    If a bookie cannot be queried, its fragment is ``unavailable``; its entries count as lacking.
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
            try:
                entries = share_of(ledger, position, first, last)
            except MetadataFormatError as error:
                return [_not_counted(work, Failure(error.message))]
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


def _lacking(replica: Replica, entries: Sequence[EntryId]) -> list[EntryId]:
    """Return the entries of a share that a bookie does not list."""
    if not entries:
        return []
    held = replica.holdings(entries[0], entries[-1])
    return [EntryId(entry_id) for entry_id in held.lacking(entries)]
