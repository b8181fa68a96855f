"""Who looks after bookies while ledgers live: collectors of garbage, and compactors.

They come at any moment, die and sleep like everybody. What they remove is judged as they remove
it (``removals.py``).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from spark_bookkeeper.agent.collection import Collection, collect_garbage
from spark_bookkeeper.agent.compaction_job import CompactionRequest, compact_ledgers
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import Outcome, Row
from tests.simulator.checkers import InvariantError
from tests.simulator.ground import SimCluster
from tests.simulator.scheduler import Actor

FILES_LEAST: Final = 2
"""Of a ledger of a few entries, any two files are compacted."""

UNFORESEEN: Final = re.compile(r"[A-Z]\w*(?:Error|Exception): |.*\banother program\b", re.DOTALL)
"""The reason in a row that nothing in a simulated world may give: an error that is not ours, and a
change that no client makes."""

Kind = Literal["collector", "compactor"]

KINDS: Final[tuple[Kind, ...]] = ("compactor", "collector")
"""In the order in which they come at the end."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """One that comes once."""

    kind: Kind
    at_operation: int


def drawn_keepers(seed: int, last_operation: int = 300) -> tuple[Keeper, ...]:
    """None in most lifetimes, so that these stay what they were."""
    dice = random.Random(f"{seed}/upkeep")
    if dice.random() < 0.7:
        return ()
    kinds: tuple[Kind, ...] = ("collector", "compactor", "compactor")
    return tuple(
        Keeper(dice.choice(kinds), dice.randint(20, last_operation))
        for _ in range(dice.randint(1, 4))
    )


class Upkeep:
    """The keepers of one lifetime.

    Args:
        context: makes what an actor needs to be a client of the cluster.
    """

    def __init__(self, cluster: SimCluster, context: Callable[[Actor], ClientContext]) -> None:
        self._cluster = cluster
        self._context = context

    def body(self, kind: Kind) -> Callable[[Actor], None]:
        """What one of that kind does."""
        return self._collect if kind == "collector" else self._compact

    def _collect(self, actor: Actor) -> None:
        context = self._context(actor)
        self._run(actor, lambda: collect_garbage(context, wish=Collection()).rows)

    def _compact(self, actor: Actor) -> None:
        context = self._context(actor)
        wish = CompactionRequest(files_least=FILES_LEAST)
        self._run(actor, lambda: compact_ledgers(context, wish=wish).rows)

    def _run(self, actor: Actor, work: Callable[[], Sequence[Row]]) -> None:
        history = self._cluster.lives[0].history
        try:
            rows = work()
        except BookKeeperError as error:
            history.note(actor.name, "was told", error.condition, error.message)
            return
        for row in rows:
            history.note(actor.name, "row", row.status, row.reason)
            if row.status in (Outcome.DELETED, Outcome.COMPACTED):
                self._cluster.faults.happened[f"upkeep: {row.status}"] += 1
            if row.reason is not None and UNFORESEEN.match(row.reason):
                raise InvariantError(f"no-error-but-ours: {row.reason}")
