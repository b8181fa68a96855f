"""Who looks after bookies while ledgers live: collectors of garbage, and compactors.

They come at any moment, die and sleep like everybody. What they remove is judged as they remove
it (``removals.py``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from spark_bookkeeper.cluster.collection import Collection, collect_garbage
from spark_bookkeeper.cluster.compaction import CompactionWish, compact_ledgers
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.testing.simulation.checkers import InvariantError
from spark_bookkeeper.testing.simulation.ground import SimCluster
from spark_bookkeeper.testing.simulation.scheduler import Actor

FILES_LEAST: Final = 2
"""Of a ledger of a few entries, any two files are compacted."""

Kind = Literal["collector", "compactor"]

KINDS: Final[tuple[Kind, ...]] = ("compactor", "collector")
"""In the order in which they come at the end."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """One that comes once."""

    kind: Kind
    at_operation: int


def drawn_keepers(seed: int) -> tuple[Keeper, ...]:
    """None in most lifetimes, so that these stay what they were."""
    dice = random.Random(f"{seed}/upkeep")
    if dice.random() < 0.7:
        return ()
    kinds: tuple[Kind, ...] = ("collector", "compactor", "compactor")
    return tuple(
        Keeper(dice.choice(kinds), dice.randint(20, 300)) for _ in range(dice.randint(1, 4))
    )


class Upkeep:
    """The keepers of one lifetime.

    Args:
        unforeseen: says of the reason of a row whether nothing in a simulated world may give it.
    """

    def __init__(
        self, cluster: SimCluster, config: ClientConfig, unforeseen: Callable[[str], bool]
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._unforeseen = unforeseen

    def body(self, kind: Kind) -> Callable[[Actor], None]:
        """What one of that kind does."""
        return self._collect if kind == "collector" else self._compact

    def _collect(self, actor: Actor) -> None:
        context = self._cluster.context(actor, self._config)
        self._run(actor, lambda: collect_garbage(context, wish=Collection()).rows)

    def _compact(self, actor: Actor) -> None:
        context = self._cluster.context(actor, self._config)
        wish = CompactionWish(files_least=FILES_LEAST)
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
            if row.reason is not None and self._unforeseen(row.reason):
                raise InvariantError(f"no-error-but-ours: {row.reason}")
