"""The auditor's checks as tests ask for them, and a runner that shows their results alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from spark_bookkeeper.autorecovery.checks import BOOKIES, CheckResult, read_results
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.metadata.store import Registers
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.runner import Failure, LocalRunner, Progress, Step
from spark_bookkeeper.replication.stragglers import Straggler
from spark_bookkeeper.testing.ground import Ground
from tests.support.autorecovery import CONFIG, Process

INTERVALS = {
    Check.ALL_LEDGERS: "ledger_check_interval_s",
    Check.PLACEMENT: "placement_check_interval_s",
    Check.REPLICAS: "replicas_check_interval_s",
}

NEVER = replace(CONFIG, **dict.fromkeys(INTERVALS.values(), 0))

DAILY = replace(CONFIG, **dict.fromkeys(INTERVALS.values(), 86_400))


def is_done(ground: Ground, check: Check) -> bool:
    """Whether a check has come to its end since it was asked for."""
    at = ground.context.store.underreplication.checked_at_ms(check)
    return at is not None and at.value > 0


def only(check: Check, interval_s: int, **others: int) -> AutorecoveryConfig:
    return replace(NEVER, **{INTERVALS[check]: interval_s}, **others)


def of_ledgers(registers: Registers) -> tuple[CheckResult, ...]:
    """What is kept of the checks of ledgers, without the look at all bookies before them."""
    return tuple(result for result in read_results(registers) if result.check != BOOKIES)


class Tasks:
    """Another process's, as far as the auditor can tell: what they do of an item is told at the
    end.
    """

    is_elsewhere = True
    width = 1

    def __init__(
        self,
        context: ClientContext,
        fails: Callable[[Any], bool] = lambda _: False,
        *,
        is_gone: bool = False,
    ) -> None:
        self._tasks = LocalRunner(context)
        self._fails = fails
        self._is_gone = is_gone
        self.batches: list[int] = []
        """How many items each job had."""

    def slowest(self) -> Sequence[Straggler]:
        return ()

    def run(self, step: Step[Any, Any], items: Sequence[Any], progress: Progress) -> Iterator[Any]:
        self.batches.append(len(items))
        pickle.dumps((step, items))
        if self._is_gone:
            raise ConnectionError("no executors")
        for item in items:
            if self._fails(item):
                yield step.failed(item, Failure("the Spark job failed: no executors"))
            else:
                yield from self._tasks.run(step, [item], progress)


def lose_office(process: Process, other: Process) -> None:
    process.context.store.underreplication.stand_down()
    other.audit()
    process.daemon.audit_once()
    assert not process.daemon.is_auditor


def forget_entries(ground: Ground, bookie: BookieId, writer: LedgerWriter) -> None:
    """A bookie has nothing of a ledger any more, and does not know it."""
    ref = writer._pipeline.ledger.key
    gone = [path for path in ground.files(bookie, "slots") if str(ref) in str(path)]
    assert gone
    for path in gone:
        path.unlink()
