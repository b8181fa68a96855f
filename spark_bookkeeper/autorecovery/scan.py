"""All ledgers looked at by their metadata, a lot of them at a time.

Where there are many, that is a Spark job, whose tasks list, read and publish by themselves; where
there are few, this process does it, by the same functions.
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
"""With fewer this process scans them itself. A ledger costs some 20 us of processor, so these are
two seconds; a Spark job costs half a second, and the first one of a session several."""

LOT_LEDGERS: Final = 20_000
"""Ledgers in a lot: 0.4 s of processor, beside which the 50 ms of a Spark task are little."""

SCANNED_AT_ONCE: Final = 5_000
"""Before so many, the switch and the bookies are looked at again. Of most of them nothing is held.
Between two such parts ZooKeeper has nothing to do but to tell of these, so there are few."""

LOTS_AT_ONCE: Final = 256
"""Lots in one Spark job. If all of their ledgers lack replicas, their rows are 10 to 30 MB."""


class Look(Protocol):
    """What is looked for. Picklable."""

    @property
    def action(self) -> str:
        """What its rows say was done."""

    def __call__(self, context: ClientContext, ledger_ids: Sequence[LedgerId], /) -> Sequence[Row]:
        """Look at some ledgers, in whatever process; repeating it changes nothing."""


@dataclass(frozen=True, slots=True)
class Lot:
    """Some neighbouring ledgers to look at. Picklable."""

    among: LedgerRange
    look: Look
    size_bytes: int = 0

    @property
    def ledger_id(self) -> LedgerId:
        """The first that it may have."""
        return self.among.first

    def name(self) -> str:
        """For people."""
        if self.among.end == LEDGER_IDS_END:
            return f"ledgers from {self.among.first} on"
        return f"ledgers {self.among.first} to {self.among.end - 1}"


@dataclass(frozen=True, slots=True)
class LotScanned:
    """What was found in a lot."""

    packed: bytes
    """Its rows, small: of a Spark job those of all lots are in memory together."""
    is_cut_short: bool = False
    """Whether autorecovery was disabled before all of them were looked at."""
    failure: str | None = None
    """Why not all of them were looked at otherwise."""
    ledgers: int = 0
    """That were looked at."""
    bytes: int = 0

    def rows(self) -> list[Row]:
        """As the look gave them."""
        found: list[Row] = pickle.loads(zlib.decompress(self.packed))
        return found


def scan(
    context: ClientContext,
    runner: Runner | None,
    name: str,
    look: Look,
    progress: Progress = no_progress,
) -> Iterator[LotScanned]:
    """Look at all ledgers; what was found, lot by lot.

    A lot that fails is told by a row of its own, and does not end the scan.

    Args:
        runner: carries it out where there are many; ``None`` is this process.
        name: of the job.
        progress: is told of ledgers, not of lots.

    Raises:
        MetadataError: the metadata store does not answer, here and not only in a task.
    """
    ranges = list(context.store.ledger_ranges(LOT_LEDGERS))
    ledgers = sum(each.ledgers for each in ranges)
    if runner is None or ledgers < LEDGERS_FOR_SPARK:
        runner = LocalRunner(context)

    def tell(phase: str, done: int, lots: int, _: int) -> None:
        progress(phase, ledgers * done // lots, ledgers, 0)

    job = Job(name, context, runner, no_progress if progress is no_progress else tell)
    step = Step("reading ledger metadata", scan_lot, _failed, is_computing=True)
    lots = [Lot(each, look) for each in ranges]
    for scanned in job.run(step, lots, group_items=LOTS_AT_ONCE):
        yield scanned
        if scanned.failure is not None:  # without an answer the next lots would only wait for it
            context.store.underreplication.is_enabled()


def scan_lot(context: ClientContext, lot: Lot) -> Sequence[LotScanned]:
    """Look at a lot, part by part, as long as autorecovery is enabled."""
    # A register is read as it is after everything that the auditor was told of, and so is what
    # is read after it. A task has a session of its own, perhaps with a server that lags behind:
    # there the lost bookie might be registered still, or the newest ledgers might not be there.
    context.store.registers.read("autorecovery")
    rows: list[Row] = []
    ledger_ids = context.store.ledger_ids(lot.among)
    looked_at = 0
    while some := list(islice(ledger_ids, SCANNED_AT_ONCE)):
        if not context.store.underreplication.is_enabled():
            return [LotScanned(_packed(rows), is_cut_short=True, ledgers=looked_at)]
        rows += lot.look(context, some)
        looked_at += len(some)
    return [LotScanned(_packed(rows), ledgers=looked_at)]


def _failed(lot: Lot, failure: Failure) -> LotScanned:
    reason = f"not all of {lot.name()} were looked at: {failure.reason}"
    row = Row(-1, lot.look.action, Outcome.LEFT, reason)
    return LotScanned(_packed([row]), failure=reason)


def _packed(rows: list[Row]) -> bytes:
    return zlib.compress(pickle.dumps(rows), level=1)
