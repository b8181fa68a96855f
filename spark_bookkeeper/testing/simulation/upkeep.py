"""Who looks after bookies while ledgers live: collectors of garbage, and compactors.

They come at any moment, die and sleep like everybody. What they remove is judged as they remove
it: an entry that goes from a bookie must have been garbage, and must stay so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from spark_bookkeeper.cluster.collection import Collection, collect_garbage
from spark_bookkeeper.cluster.compaction import CompactionWish, compact_ledgers
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.testing.simulation.checkers import InvariantError
from spark_bookkeeper.testing.simulation.evidence import Evidence, write_set
from spark_bookkeeper.testing.simulation.scheduler import Actor

if TYPE_CHECKING:
    from spark_bookkeeper.testing.simulation.ground import SimCluster

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


class Removals:
    """What was removed of one life of a ledger, and that it was garbage."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._removed: dict[BookieId, set[int]] = {}

    def removed(self, bookie: BookieId, before: set[int], now: set[int]) -> None:
        """Files of a bookie were removed.

        Raises:
            InvariantError: ``nothing-named-is-deleted``.
        """
        if self._evidence.is_deleted or not self._evidence.versions:
            return
        closed = self._evidence.closed
        gone = before - now
        if closed is not None and closed.last_entry_id is not None:
            gone = {e for e in gone if e <= (closed.last_entry_id or 0)}
        elif gone:
            raise InvariantError(
                f"nothing-named-is-deleted: {sorted(gone)} went from {bookie}, and the ledger is "
                "not closed"
            )
        self._removed.setdefault(bookie, set()).update(gone)
        self.check()

    def check(self) -> None:
        """Nothing that was removed is named now. Asked again whenever the metadata change."""
        metadata = self._evidence.metadata
        for bookie, entries in self._removed.items():
            if self._evidence.named(bookie, metadata) in self._evidence.lost:
                continue
            held = self._evidence.log(bookie).held
            for entry in self._owed(bookie, entries - held):
                raise InvariantError(
                    f"nothing-named-is-deleted: entry {entry} went from {bookie}, of whose write "
                    "set it is"
                )

    def _owed(self, bookie: BookieId, entries: set[int]) -> Iterator[int]:
        for entry in sorted(entries):
            if bookie in write_set(self._evidence.metadata, entry):
                yield entry
