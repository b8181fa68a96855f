"""What operations cost, as exact counts of what storage and metadata are asked.

Counts do not depend on the machine, so they can be asserted: a put more for each append would
be a third of the speed, and no clock on a noisy disk would show it for certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_bookkeeper.client.lifecycle import create_ledger, open_ledger
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import METADATA, Ground
from tests.support.rows import wait_for_every_copy


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts of one operation, on all bookies together."""

    puts: int
    """Files created under a final name, by put-if-absent."""
    syncs: int
    """Files made durable that were merely found. A put syncs its own."""
    listings: int
    """Directories listed."""
    metadata_reads: int
    metadata_writes: int
    """Compare-and-swaps among them; each is one write to ZooKeeper."""

    def counted(self) -> dict[str, int]:
        """By name, as a report shows them."""
        return {name: getattr(self, name) for name in self.__slots__}


_WRITES = {"create_ledger", "write_ledger", "delete_ledger", "generate_ledger_id"}


def append_cost(directory: Path, quorum: Quorum, appends: int = 10) -> Cost:
    """Of ``appends`` appends, one after the other, to a ledger that has entries already."""
    ground = Ground(directory, bookies=quorum.ensemble_size)
    with create_ledger(ground.context, quorum) as writer:
        for _ in range(quorum.ensemble_size):  # every channel has prepared its directory then
            writer.append(b"the first")
        wait_for_every_copy(writer)
        ground.forget()
        for _ in range(appends):
            writer.append(b"one more")
        wait_for_every_copy(writer)
        return _cost(ground)


def recovery_cost(directory: Path, quorum: Quorum, entries: int = 0) -> Cost:
    """Of opening a ledger that its writer left; all copies of its entries are there."""
    ground = Ground(directory, bookies=quorum.ensemble_size)
    writer = create_ledger(ground.context, quorum)
    for _ in range(entries):
        writer.append(b"an entry")
    wait_for_every_copy(writer)
    writer.abandon()
    recoverer = ground.client()
    recoverer.bookies.registrations()  # somebody has asked before where the bookies are
    ground.forget()
    open_ledger(recoverer, writer.ledger_id)
    return _cost(ground)


def _cost(ground: Ground) -> Cost:
    metadata = [step.operation for step in ground.steps if step.place == METADATA]
    counted = ground.count()
    writes = sum(operation in _WRITES for operation in metadata)
    return Cost(
        counted["put_if_absent"], counted["sync"], counted["list"], len(metadata) - writes, writes
    )
