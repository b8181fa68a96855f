"""Autorecovery step by step, in one thread, with a clock that one sets."""

from __future__ import annotations

from collections.abc import Sequence

from spark_bookkeeper.autorecovery.daemon import Autorecovery
from spark_bookkeeper.autorecovery.worker import ReplicationWorker
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, Hook, InlineRuntime
from tests.support.rows import wait_for_every_copy

USUAL = Quorum(3, 3, 2)
CONFIG = AutorecoveryConfig(ledgers_at_once=1)


def written(
    ground: Ground, quorum: Quorum = USUAL, count: int = 4, *, close: bool = True
) -> LedgerWriter:
    """A ledger with some entries, all of them on all their bookies."""
    writer = lifecycle.create_ledger(ground.context, quorum)
    for number in range(count):
        writer.append(b"%d" % number)
    wait_for_every_copy(writer)
    if close:
        writer.close()
    return writer


def written_on(
    ground: Ground, bookie: BookieId, ledgers: int, quorum: Quorum = USUAL, count: int = 4
) -> list[LedgerWriter]:
    """So many ledgers that name a bookie, and those that were made meanwhile and do not."""
    writers: list[LedgerWriter] = []
    while sum(bookie in writer.metadata.bookies() for writer in writers) < ledgers:
        writers.append(written(ground, quorum, count))
    return writers


class Process:
    """One autorecovery process of a ``Ground``; nothing in it runs by itself."""

    def __init__(
        self,
        ground: Ground,
        name: str = "one",
        *hooks: Hook,
        local: BookieId | None = None,
        config: AutorecoveryConfig = CONFIG,
        runtime: InlineRuntime | None = None,
    ) -> None:
        self.runtime = runtime or InlineRuntime()
        self.context: ClientContext = ground.client(self.runtime, *hooks)
        runner = LocalRunner(self.context, width=config.ledgers_at_once)
        self.daemon = Autorecovery(self.context, runner, config, f"spark-bookkeeper@{name}", local)
        self.worker = ReplicationWorker(
            self.context, runner, config, f"spark-bookkeeper@{name}", local
        )

    def audit(self) -> float:
        """Stand for election, and do an auditor's work when elected, its checks included. What one
        that is new waits for bookies that are away (``LostBookies``) has passed.
        """
        was_auditor = self.daemon.is_auditor
        left = self.daemon.audit_once()
        if self.daemon.is_auditor and not was_auditor:
            if left <= self.context.config.metadata_timeout_ms / 1000:
                self.runtime.sleep(left)
            left = self.daemon.audit_once()
        return min(left, self.daemon.check_once())

    def work(self) -> Sequence[Row]:
        """One round of the worker."""
        return list(self.worker.round())

    def die(self) -> None:
        """Its session ends, and its votes and locks with it."""
        self.context.store.close()
