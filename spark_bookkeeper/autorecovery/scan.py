"""Scan all ledgers by their metadata, batch by batch. A batch is some neighbouring ledgers.

Many ledgers are scanned by a Spark job, whose tasks list, read and publish by themselves. Few
ledgers are scanned by this process, with the same functions.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata.store import LedgerRange
from spark_bookkeeper.protocol.ids import LEDGER_IDS_END, LedgerId
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import (
    Failure,
    LocalRunner,
    Progress,
    Runner,
    Step,
    no_progress,
)

LEDGERS_FOR_SPARK: Final = 100_000
"""Fewer ledgers are scanned by this process. A ledger costs about 20 us of processor time, so this
many take two seconds; a Spark job costs half a second, and a session's first job several."""

BATCH_LEDGERS: Final = 20_000
"""The ledgers in a batch: 0.4 s of processor time, far more than the 50 ms of a Spark task."""

SCANNED_AT_ONCE: Final = 5_000
"""The ledgers in a part of a batch; most are not kept. Before each part, the switch and the bookies
are read again. ZooKeeper does nothing else meanwhile, so a batch has few parts."""

BATCHES_AT_ONCE: Final = 256
"""The batches in one Spark job. If all their ledgers lack replicas, their rows are 10 to 30 MB."""


class Look(Protocol):
    """The function that a scan applies to some ledgers. Picklable."""

    @property
    def action(self) -> str:
        """The action that its rows name."""

    def __call__(self, context: ClientContext, ledger_ids: Sequence[LedgerId], /) -> Sequence[Row]:
        """Check some ledgers, in any process; a repetition changes nothing."""


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """Some neighbouring ledgers to scan. Picklable."""

    among: LedgerRange
    look: Look
    size_bytes: int = 0

    @property
    def ledger_id(self) -> LedgerId:
        """The first ledger id that the batch may have."""
        return self.among.first

    def name(self) -> str:
        """Return the name in progress messages."""
        if self.among.end == LEDGER_IDS_END:
            return f"ledgers from {self.among.first} on"
        return f"ledgers {self.among.first} to {self.among.end - 1}"


@dataclass(frozen=True, slots=True)
class BatchScanned:
    """The result of one batch."""

    packed: bytes
    """Its rows, compressed: the rows of all batches of a Spark job are in memory at once."""
    is_cut_short: bool = False
    """Whether autorecovery was disabled before all ledgers were scanned."""
    failure: str | None = None
    """Another reason why not all ledgers were scanned."""
    ledgers: int = 0
    """The number of ledgers that were scanned."""
    bytes: int = 0

    def rows(self) -> list[Row]:
        """Return the rows that ``look`` returned."""
        found: list[Row] = pickle.loads(zlib.decompress(self.packed))
        return found


def scan(
    context: ClientContext,
    runner: Runner | None,
    name: str,
    look: Look,
    progress: Progress = no_progress,
) -> Iterator[BatchScanned]:
    """Scan all ledgers; yield the results batch by batch.

    A batch that fails has a row of its own, and does not end the scan.

    Args:
        runner: carries out the scan of many ledgers; ``None`` is this process.
        name: the name of the job.
        progress: gets the numbers of ledgers, not of batches.

    Raises:
        MetadataError: the metadata store does not answer this process. Tasks alone raise nothing.
    """
    ranges = list(context.store.ledger_ranges(BATCH_LEDGERS))
    ledgers = sum(each.ledgers for each in ranges)
    if runner is None or ledgers < LEDGERS_FOR_SPARK:
        runner = LocalRunner(context)

    def tell(phase: str, done: int, batches: int, _: int) -> None:
        progress(phase, ledgers * done // batches, ledgers, 0)

    job = Job(name, context, runner, no_progress if progress is no_progress else tell)
    step = Step("reading ledger metadata", scan_batch, _failed, is_computing=True)
    batches = [ScanBatch(each, look) for each in ranges]
    for scanned in job.run(step, batches, group_items=BATCHES_AT_ONCE):
        yield scanned
        if scanned.failure is not None:  # raises if the store is down: the next batches would wait
            context.store.underreplication.is_enabled()


def scan_batch(context: ClientContext, batch: ScanBatch) -> Sequence[BatchScanned]:
    """Scan a batch, part by part, as long as autorecovery is enabled."""
    # A task has a session of its own, perhaps with a server that lags behind: there the lost bookie
    # might still be registered, or the newest ledgers might be missing. Reading a register first
    # brings the session up to date with everything that the auditor knew.
    context.store.registers.read("autorecovery")
    rows: list[Row] = []
    ledger_ids = context.store.ledger_ids(batch.among)
    looked_at = 0
    while some := list(islice(ledger_ids, SCANNED_AT_ONCE)):
        if not context.store.underreplication.is_enabled():
            return [BatchScanned(_packed(rows), is_cut_short=True, ledgers=looked_at)]
        rows += batch.look(context, some)
        looked_at += len(some)
    return [BatchScanned(_packed(rows), ledgers=looked_at)]


def _failed(batch: ScanBatch, failure: Failure) -> BatchScanned:
    reason = f"not all of {batch.name()} were looked at: {failure.reason}"
    row = Row(-1, batch.look.action, Outcome.LEFT, reason)
    return BatchScanned(_packed([row]), failure=reason)


def _packed(rows: list[Row]) -> bytes:
    return zlib.compress(pickle.dumps(rows), level=1)
