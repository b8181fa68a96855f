"""One ledger from its creation to its end, under a seed.

A writer creates it and appends; recoverers may come at any moment, also while it writes; a
reader follows without recovering. Then faults stop, one more recovery must close the ledger,
and everything is read back. The named invariants are checked after every effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from spark_bookkeeper.client import ledgers
from spark_bookkeeper.client.recovery import recover_ledger
from spark_bookkeeper.client.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookKeeperError, MetadataUnavailableError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.simulation import checkers
from spark_bookkeeper.testing.simulation.checkers import InvariantError
from spark_bookkeeper.testing.simulation.choices import Choices
from spark_bookkeeper.testing.simulation.faults import FaultPlan
from spark_bookkeeper.testing.simulation.ground import SimCluster
from spark_bookkeeper.testing.simulation.history import History
from spark_bookkeeper.testing.simulation.scheduler import Actor, SimulationError, World

QUORUMS = (
    Quorum(3, 3, 2),
    Quorum(3, 3, 2),
    Quorum(4, 3, 2),
    Quorum(3, 3, 3),
    Quorum(2, 2, 1),
    Quorum(2, 2, 2),
    Quorum(5, 2, 2),
    Quorum(3, 2, 2),
    Quorum(1, 1, 1),
)
"""Sizes to draw from: the usual one more often, striped and unstriped, Qa = Qw and Qa = 1."""


@dataclass(frozen=True, slots=True)
class Script:
    """What happens in one lifetime, as far as it is decided beforehand."""

    quorum: Quorum
    bookies: int
    payloads: tuple[bytes, ...]
    """What the writer appends, in order."""
    waits: frozenset[int]
    """The entries that the writer waits for before it goes on."""
    ending: Literal["close", "abandon", "leave"]
    recoverers: tuple[int, ...]
    """For each recoverer: the operation of the run at which it begins."""
    reader_at: int | None
    """The operation at which a reader begins to follow, if there is one."""
    plan: FaultPlan
    max_group_entries: int = 16_384

    @classmethod
    def drawn(cls, seed: int) -> Script:
        """The script of a seed."""
        dice = random.Random(f"{seed}/script")
        quorum = dice.choice(QUORUMS)
        wipes_max = quorum.ack_quorum_size - 1
        bookies = quorum.ensemble_size + wipes_max + dice.randint(0, 1)
        count = dice.randint(1, 20)
        waits = dice.choice((0.0, 0.2, 1.0))
        return cls(
            quorum=quorum,
            bookies=bookies,
            payloads=tuple(b"%d:%s" % (i, b"x" * dice.randint(0, 9)) for i in range(count)),
            waits=frozenset(i for i in range(count) if dice.random() < waits),
            ending=dice.choice(("close", "close", "abandon", "leave")),
            recoverers=tuple(dice.randint(5, 250) for _ in range(dice.choice((0, 1, 1, 2)))),
            reader_at=dice.randint(5, 200) if dice.random() < 0.3 else None,
            plan=FaultPlan.drawn(seed, bookies=bookies, wipes_max=wipes_max),
            max_group_entries=dice.choice((1, 3, 16_384)),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a lifetime."""

    script: Script
    history: History
    closed: LedgerMetadata | None
    """``None`` when the ledger was never created."""
    steps: int
    operations: int


class LifetimeError(SimulationError):
    """An invariant broke; says the seed and the command that repeats it."""

    def __init__(self, message: str, seed: int, history: History) -> None:
        super().__init__(
            f"{message}\nseed {seed}; repeat with "
            f"`python -m spark_bookkeeper.testing.simulation --seed {seed} --verbose`"
        )
        self.seed = seed
        self.history = history


def run_lifetime(
    seed: int, script: Script | None = None, choices: Choices | None = None
) -> Outcome:
    """Run one lifetime to its end.

    Raises:
        LifetimeError: an invariant broke, or the code hung or failed in an unforeseen way.
    """
    with World(seed, choices) as world:
        try:
            return _Lifetime(world, script if script is not None else Script.drawn(seed)).run()
        except SimulationError as error:
            raise LifetimeError(str(error), seed, world.history) from error


class _Lifetime:
    def __init__(self, world: World, script: Script) -> None:
        self._world = world
        self._script = script
        self._cluster = SimCluster(world, script.bookies, script.plan)
        self._config = ClientConfig(max_group_entries=script.max_group_entries)
        self._ledger_id: LedgerId | None = None
        self._waiting: list[Callable[[], None]] = []
        """What lets each actor begin that has not begun yet."""

    def run(self) -> Outcome:
        self._world.start(self._world.actor("writer"), self._write)
        for number, operation in enumerate(self._script.recoverers):
            self._enter(f"recoverer-{number}", operation, self._recover)
        if self._script.reader_at is not None:
            self._enter("reader", self._script.reader_at, self._follow)
        self._world.run_all()
        for begin in list(self._waiting):
            begin()
        self._world.run_all()
        self._cluster.heal()
        self._world.start(self._world.actor("last"), self._finish)
        self._world.run_all()
        evidence = self._cluster.evidence
        checkers.check(evidence, checkers.AT_THE_END)
        operations = self._cluster.faults.operations
        return Outcome(
            self._script, self._world.history, evidence.closed, self._world.steps, operations
        )

    def _enter(self, name: str, operation: int, body: Callable[[Actor], None]) -> None:
        """Let an actor begin at an operation, or when the others have ended before that."""
        actor = self._world.actor(name)

        def begin() -> None:
            if begin in self._waiting:
                self._waiting.remove(begin)
                self._world.start(actor, lambda: body(actor))

        self._waiting.append(begin)
        self._cluster.faults.at_operation(operation, begin)

    # The writer

    def _write(self) -> None:
        actor = self._world.actor("writer")
        writer = self._create(actor)
        if writer is None:
            return
        self._ledger_id = writer.ledger_id
        self._cluster.watch(writer.ledger_id)
        try:
            for entry_id, payload in enumerate(self._script.payloads):
                self._world.history.note_appended(actor.name, payload)
                if entry_id in self._script.waits:
                    self._acknowledged(actor, writer.append(payload), payload)
                else:
                    self._append_async(actor, writer, payload)
            if self._script.ending == "leave":
                writer.flush()
        except BookKeeperError as error:
            self._told(actor, error)
        try:
            if self._script.ending == "close":
                writer.close()
                self._closed(actor, writer.metadata)
            elif self._script.ending == "abandon":
                writer.abandon()
        except BookKeeperError as error:
            self._told(actor, error)

    def _create(self, actor: Actor) -> LedgerWriter | None:
        context = self._cluster.context(actor, self._config)
        for _ in range(5):
            try:
                return ledgers.create_ledger(context, self._script.quorum)
            except MetadataUnavailableError as error:
                self._told(actor, error)
            except BookKeeperError as error:
                self._told(actor, error)
                context.runtime.sleep(5.0)
        return None

    def _append_async(self, actor: Actor, writer: LedgerWriter, payload: bytes) -> None:
        def done(future: Future[int]) -> None:
            if future.exception() is None:
                self._acknowledged(actor, future.result(), payload)

        writer.append_async(payload).add_done_callback(done)

    def _acknowledged(self, actor: Actor, entry_id: int, payload: bytes) -> None:
        self._world.history.note_acknowledged(actor.name, entry_id, payload)
        self._cluster.told()

    # The others

    def _recover(self, actor: Actor) -> None:
        if self._ledger_id is None:
            return
        context = self._cluster.context(actor, self._config)
        try:
            self._closed(actor, recover_ledger(context, self._ledger_id).value)
        except BookKeeperError as error:
            self._told(actor, error)

    def _follow(self, actor: Actor) -> None:
        if self._ledger_id is None:
            return
        context = self._cluster.context(actor, self._config)
        try:
            reader = ledgers.open_ledger_no_recovery(context, self._ledger_id)
            for entry in reader.tail(timeout_ms=2_000):
                self._world.history.note_returned(actor.name, entry.entry_id, entry.payload)
                self._cluster.told()
        except BookKeeperError as error:
            self._told(actor, error)

    def _finish(self) -> None:
        """Nothing fails any more: recovery must close the ledger, and all of it be read."""
        if self._ledger_id is None:
            return
        actor = self._world.actor("last")
        context = self._cluster.context(actor, self._config)
        came_back: list[int] = []
        try:
            reader = ledgers.open_ledger(context, self._ledger_id)
            self._closed(actor, reader.metadata)
            for entry in reader.entries():
                self._world.history.note_returned(actor.name, entry.entry_id, entry.payload)
                came_back.append(entry.entry_id)
        except BookKeeperError as error:
            name = "acked-entries-are-readable" if came_back else "ledger-gets-closed"
            raise InvariantError(f"{name}: {type(error).__name__}: {error}") from error
        assert reader.metadata.last_entry_id is not None
        if came_back != list(range(reader.metadata.last_entry_id + 1)):
            raise InvariantError(f"acked-entries-are-readable: only {came_back} came back")

    def _closed(self, actor: Actor, metadata: LedgerMetadata) -> None:
        assert metadata.last_entry_id is not None
        assert metadata.length_bytes is not None
        self._world.history.note_closed(actor.name, metadata.last_entry_id, metadata.length_bytes)
        self._cluster.told()

    def _told(self, actor: Actor, error: BookKeeperError) -> None:
        self._world.history.note(actor.name, "was told", error.condition, error.message)
