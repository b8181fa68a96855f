"""One ledger from its creation to its end, under a seed.

A writer creates it and appends; recoverers may come at any moment, also while it writes; a
reader follows without recovering. Then faults stop, one more recovery must close the ledger,
and everything is read back. The named invariants are checked after every effect.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard

import pyarrow as pa

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES
from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.client.recover.batch_recovery import recover_many
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    BookKeeperError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.runner import LocalRunner
from tests.simulator import checkers
from tests.simulator.checkers import InvariantError
from tests.simulator.choices import Choices
from tests.simulator.faults import Disaster, FaultPlan
from tests.simulator.ground import Life, SimCluster
from tests.simulator.history import History, Rows
from tests.simulator.scheduler import Actor, SimulationError, World
from tests.simulator.upkeep import (
    KINDS,
    UNFORESEEN,
    Keeper,
    Upkeep,
    drawn_keepers,
)

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

SECOND_PAYLOADS: Final = tuple(b"again %d" % number for number in range(6))
"""What is appended to a ledger that was made again under the same id."""

PIECE_BYTES: Final = 64
"""Of re-replication: small enough that some fragments are copied in pieces, and some are not."""


@dataclass(frozen=True, slots=True)
class Script:
    """What happens in one lifetime, as far as it is decided beforehand."""

    quorum: Quorum
    bookies: int
    payloads: tuple[bytes | Rows, ...]
    """What the writer appends, in order: payloads, and tables of so many rows."""
    waits: frozenset[int]
    """The entries that the writer waits for before it goes on."""
    ending: Literal["close", "abandon", "leave"]
    recoverers: tuple[int, ...]
    """For each recoverer: the operation of the run at which it begins."""
    reader_at: int | None
    """The operation at which a reader begins to follow, if there is one."""
    plan: FaultPlan
    rest_seconds: float = 0.0
    """How long the writer rests before each append."""
    max_group_entries: int = 16_384
    entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES
    """A table of more than twice as many bytes is appended in bulk."""
    has_directories: bool = True
    """Whether bookies are like disks, or else like buckets."""
    menders: tuple[int, ...] = ()
    """For each that copies the shares of a lost bookie (or of any, if none is lost) to others:
    the operation at which it begins."""
    delete_at: int | None = None
    """The operation at which somebody deletes the ledger."""
    add_timeout_ms: int = 30_000
    """Of its clients; bookies that became read-only are looked for four times within it."""
    explicit_lac_ms: int = 0
    """After which pause a writer tells how far it has acknowledged."""
    companions: int = 0
    """Ledgers that are left open beside it, and recovered together with it; with none, it is
    recovered by itself."""
    keepers: tuple[Keeper, ...] = ()
    """Who collect garbage and compact, besides those who do at the end of such a lifetime."""
    again_at: int | None = None
    """The operation at which an older client, or another tool, makes a ledger of the same id in its
    place, and writes it; everybody else goes on with the one that he knows."""

    @classmethod
    def drawn(cls, seed: int) -> Script:
        """The script of a seed."""
        dice = random.Random(f"{seed}/script")
        quorum = dice.choice(QUORUMS)
        wipes_max = quorum.ack_quorum_size - 1
        bookies = quorum.ensemble_size + wipes_max + dice.randint(0, 1)
        count = dice.randint(1, 20)
        waits = dice.choice((0.0, 0.2, 1.0))
        tables = dice.choice((0.0, 0.0, 0.3))
        mended_at = dice.randint(20, 250)

        def payload(number: int) -> bytes | Rows:
            rows = dice.randint(2, 8) if dice.random() < tables else 1
            made = tuple(b"%d.%d:%s" % (number, r, b"x" * dice.randint(0, 9)) for r in range(rows))
            return made if rows > 1 else made[0]

        return cls(
            quorum=quorum,
            bookies=bookies,
            payloads=tuple(payload(number) for number in range(count)),
            waits=frozenset(i for i in range(count) if dice.random() < waits),
            ending=dice.choice(("close", "close", "abandon", "leave")),
            recoverers=tuple(dice.randint(5, 250) for _ in range(dice.choice((0, 1, 1, 2)))),
            reader_at=dice.randint(5, 200) if dice.random() < 0.3 else None,
            plan=FaultPlan.drawn(seed, bookies=bookies, wipes_max=wipes_max),
            max_group_entries=dice.choice((1, 3, 16_384)),
            entry_target_bytes=dice.choice((16, 40)),
            has_directories=dice.random() < 0.8,
            menders=dice.choice(((), (), (), (mended_at,), (mended_at, mended_at + 10))),
            delete_at=dice.randint(10, 200) if dice.random() < 0.04 else None,
            again_at=dice.randint(10, 150) if dice.random() < 0.15 else None,
            keepers=drawn_keepers(seed),
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
    happened: Counter[str]
    """How often each of ``faults.FAULT_KINDS`` happened, where it did."""


class LifetimeError(SimulationError):
    """An invariant broke; says the seed and the command that repeats it."""

    def __init__(self, message: str, seed: int, history: History) -> None:
        super().__init__(
            f"{message}\nseed {seed}; repeat with "
            f"`python -m tests.simulator --seed {seed} --verbose`"
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


def _is_open(found: object) -> TypeGuard[Versioned[LedgerMetadata]]:
    return isinstance(found, Versioned) and not found.value.is_closed


class _Lifetime:
    def __init__(self, world: World, script: Script) -> None:
        self._world = world
        self._script = script
        self._cluster = SimCluster(
            world, script.bookies, script.plan, has_directories=script.has_directories
        )
        self._cluster.evidence.is_rereplicated = bool(script.menders)
        self._cluster.evidence.is_compacted = bool(script.keepers)
        self._config = ClientConfig(
            max_group_entries=script.max_group_entries,
            add_timeout_ms=script.add_timeout_ms,
            explicit_lac_ms=script.explicit_lac_ms,
        )
        self._upkeep = Upkeep(
            self._cluster, lambda actor: self._cluster.context(actor, self._config)
        )
        self._ledger_id: LedgerId | None = None
        self._waiting: list[Callable[[], None]] = []
        """What lets each actor begin that has not begun yet."""
        self._companions: list[LedgerId] = []

    def run(self) -> Outcome:
        if self._script.companions:
            self._finally("companion", self._leave_companions)
        self._world.start(self._world.actor("writer"), self._write)
        for number, operation in enumerate(self._script.recoverers):
            self._enter(f"recoverer-{number}", operation, self._recover)
        for number, operation in enumerate(self._script.menders):
            self._enter(f"mender-{number}", operation, self._mend)
        for number, keeper in enumerate(self._script.keepers):
            name = f"{keeper.kind}-{number}"
            self._enter(name, keeper.at_operation, self._upkeep.body(keeper.kind))
        if self._script.reader_at is not None:
            self._enter("reader", self._script.reader_at, self._follow)
        if self._script.delete_at is not None:
            self._enter("deleter", self._script.delete_at, self._delete)
        if self._script.again_at is not None:
            self._enter("second writer", self._script.again_at, self._write_again)
        self._world.run_all()
        for begin in list(self._waiting):
            begin()
        self._world.run_all()
        self._cluster.heal()
        self._finally("last", self._finish)
        if self._script.keepers:
            for kind in KINDS:
                self._finally(f"last {kind}", self._upkeep.body(kind))
            self._finally("reader after upkeep", self._finish)
        if self._script.menders:
            self._finally("last mender", self._mend_all)
            self._lose_some_more()
            self._finally("last reader", self._finish)
        for life in self._cluster.lives:
            which = checkers.ALWAYS if life.evidence.is_deleted else checkers.AT_THE_END
            checkers.check(life.evidence, which)
        return Outcome(
            script=self._script,
            history=self._world.history,
            closed=self._cluster.evidence.closed,
            steps=self._world.steps,
            operations=self._cluster.faults.operations,
            happened=self._cluster.faults.happened,
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

    def _finally(self, name: str, body: Callable[[Actor], None]) -> None:
        """Run an actor alone, when nothing fails any more."""
        actor = self._world.actor(name)
        self._world.start(actor, lambda: body(actor))
        self._world.run_all()

    # The writers

    def _write(self) -> None:
        actor = self._world.actor("writer")
        writer = self._create(actor)
        if writer is None:
            return
        self._ledger_id = writer.ledger_id
        self._cluster.watch(writer.ledger_id)
        self._fill(actor, writer, self._script.payloads)

    def _write_again(self, actor: Actor) -> None:
        """Make a ledger of the same id in place of the one that is there, or was, and write it."""
        if self._ledger_id is None:
            return
        context = self._cluster.context(actor, self._config, self._cluster.older_client(actor))
        try:
            writer = lifecycle.create_ledger(
                context,
                self._script.quorum,
                ledger_id=self._ledger_id,
                entry_target_bytes=self._script.entry_target_bytes,
            )
        except BookKeeperError as error:
            self._told(actor, error)
            return
        self._cluster.watch(writer.ledger_id)
        self._fill(actor, writer, SECOND_PAYLOADS)

    def _fill(self, actor: Actor, writer: LedgerWriter, payloads: tuple[bytes | Rows, ...]) -> None:
        """Append what the script says, and end as it says."""
        life = self._cluster.life(writer.metadata)
        try:
            for number, payload in enumerate(payloads):
                rows = payload if isinstance(payload, tuple) else (payload,)
                data = payload if isinstance(payload, bytes) else pa.table({"payload": rows})
                if self._script.rest_seconds:
                    self._world.delay(self._script.rest_seconds)
                life.history.note_appended(actor.name, *rows)
                if number in self._script.waits:
                    self._acknowledged(actor, life, writer.append(data), rows)
                else:
                    self._append_async(actor, life, writer, data, rows)
            if self._script.ending == "leave":
                writer.flush()
        except BookKeeperError as error:
            self._told(actor, error)
        try:
            if self._script.ending == "close":
                writer.close()
                self._closed(actor, life, writer.metadata)
            elif self._script.ending == "abandon":
                writer.abandon()
        except BookKeeperError as error:
            self._told(actor, error)

    def _create(self, actor: Actor) -> LedgerWriter | None:
        context = self._cluster.context(actor, self._config)
        for _ in range(5):
            try:
                return lifecycle.create_ledger(
                    context,
                    self._script.quorum,
                    entry_target_bytes=self._script.entry_target_bytes,
                )
            except MetadataUnavailableError as error:
                self._told(actor, error)
            except BookKeeperError as error:
                self._told(actor, error)
                context.runtime.sleep(5.0)
        return None

    def _append_async(
        self, actor: Actor, life: Life, writer: LedgerWriter, data: bytes | pa.Table, rows: Rows
    ) -> None:
        def done(future: Future[int]) -> None:
            if future.exception() is None:
                self._acknowledged(actor, life, future.result(), rows)

        writer.append_async(data).add_done_callback(done)

    def _acknowledged(self, actor: Actor, life: Life, entry_id: int, rows: Rows) -> None:
        life.history.note_acknowledged(actor.name, entry_id, *rows)
        self._cluster.acknowledged(life)

    # The others

    def _recover(self, actor: Actor) -> None:
        if self._ledger_id is None:
            return
        context = self._cluster.context(actor, self._config)
        try:
            if self._script.companions:
                closed = self._recovered_together(context, self._ledger_id)
            else:
                closed = recover_ledger(context, self._ledger_id).value
            self._closed(actor, self._cluster.life(closed), closed)
        except BookKeeperError as error:
            self._told(actor, error)

    def _recovered_together(self, context: ClientContext, ledger_id: LedgerId) -> LedgerMetadata:
        """The ledger and its companions, as a task does it: the others of them by themselves."""
        ids = [ledger_id, *self._companions]
        wanted = {i: found for i, found in context.store.read_ledgers(ids) if _is_open(found)}
        done = recover_many(context, wanted)
        if ledger_id in done:
            self._cluster.faults.happened["recovered together"] += 1
            return done[ledger_id].value
        return recover_ledger(context, ledger_id, wanted.get(ledger_id)).value

    def _leave_companions(self, actor: Actor) -> None:
        """Ledgers on the same bookies, whose own fate nobody looks at."""
        context = self._cluster.context(actor, self._config)
        for number in range(self._script.companions):
            try:
                writer = lifecycle.create_ledger(context, self._script.quorum)
                self._companions.append(writer.ledger_id)
                for entry in range(number):
                    writer.append_async(b"%d" % entry)
                writer.abandon()
            except BookKeeperError as error:
                self._told(actor, error)

    def _follow(self, actor: Actor) -> None:
        if self._ledger_id is None:
            return
        context = self._cluster.context(actor, self._config)
        try:
            reader = lifecycle.open_ledger_no_recovery(context, self._ledger_id)
            life = self._cluster.life(reader.metadata)
            for entry in reader.tail(timeout_ms=2_000):
                self._returned(actor, life, entry)
                self._cluster.told(life)
        except BookKeeperError as error:
            self._told(actor, error)

    def _mend(self, actor: Actor) -> None:
        """Make the shares of lost bookies again; without any, move those of a sound one."""
        bookies = self._cluster.lost_bookies()
        if not bookies:
            bookies = [self._world.dice.choice(self._cluster.bookies)]
        context = self._cluster.context(actor, self._config)
        wish = BookieRecovery(tuple(bookies), even_if_alive=True, piece_bytes=PIECE_BYTES)
        try:
            report = recover_bookie(context, LocalRunner(context), wish)
        except BookKeeperError as error:
            self._told(actor, error)
        else:
            for row in report.rows:
                self._world.history.note(actor.name, "row", row.status, row.reason)
                if row.reason is not None and UNFORESEEN.match(row.reason):
                    raise InvariantError(f"no-error-but-ours: {row.reason}")

    def _delete(self, actor: Actor) -> None:
        if self._ledger_id is None:
            return
        try:
            context = self._cluster.context(actor, self._config)
            lifecycle.delete_ledger(context, self._ledger_id, even_if_alive=True)
        except BookKeeperError as error:
            self._told(actor, error)

    def _mend_all(self, actor: Actor) -> None:
        """Nothing fails any more: every share of every lost bookie must be made again."""
        context = self._cluster.context(actor, self._config)
        bookies = self._cluster.lost_bookies()
        wish = BookieRecovery(tuple(bookies), even_if_alive=True, piece_bytes=PIECE_BYTES)
        report = recover_bookie(context, LocalRunner(context), wish)
        left = [row for row in report.rows if row.status in ("left", "unrecoverable")]
        if left:
            raise InvariantError(f"ledger-gets-replicated: {left[0]}")
        again = recover_bookie(context, LocalRunner(context), wish)
        if again.rows:
            raise InvariantError(f"ledger-gets-replicated: done again: {again.rows[0]}")

    def _lose_some_more(self) -> None:
        """What is fully replicated survives the loss of Qa - 1 further bookies."""
        known = self._cluster.lost_bookies()
        sound = [number for number, b in enumerate(self._cluster.bookies) if b not in known]
        for number in self._world.dice.sample(sound, self._script.quorum.ack_quorum_size - 1):
            self._cluster.strike(Disaster("destroy", number, 0, 0.0))

    def _finish(self, actor: Actor) -> None:
        """Nothing fails any more: recovery must close the ledger, and all of it be read."""
        if self._ledger_id is None:
            return
        context = self._cluster.context(actor, self._config)
        came_back: list[int] = []
        try:
            reader = lifecycle.open_ledger(context, self._ledger_id)
            life = self._cluster.life(reader.metadata)
            self._closed(actor, life, reader.metadata)
            for entry in reader.entries():
                self._returned(actor, life, entry)
                came_back.append(entry.entry_id)
        except BookKeeperError as error:
            are_deleted = all(life.evidence.is_deleted for life in self._cluster.lives)
            if isinstance(error, NoSuchLedgerError) and are_deleted:
                return
            name = "acked-entries-are-readable" if came_back else "ledger-gets-closed"
            raise InvariantError(f"{name}: {type(error).__name__}: {error}") from error
        assert reader.metadata.last_entry_id is not None
        if came_back != list(range(reader.metadata.last_entry_id + 1)):
            raise InvariantError(f"acked-entries-are-readable: only {came_back} came back")

    def _returned(self, actor: Actor, life: Life, entry: Entry) -> None:
        rows = entry.batch.column(0).to_pylist()
        life.history.note_returned(actor.name, entry.entry_id, *rows)

    def _closed(self, actor: Actor, life: Life, metadata: LedgerMetadata) -> None:
        assert metadata.last_entry_id is not None
        assert metadata.length_bytes is not None
        life.history.note_closed(actor.name, metadata.last_entry_id, metadata.length_bytes)
        self._cluster.told(life)

    def _told(self, actor: Actor, error: BookKeeperError) -> None:
        if isinstance(error, VersionConflictError):  # nobody else is here to change a ledger
            raise InvariantError(f"all-closes-agree: {error.message}") from error
        self._world.history.note(actor.name, "was told", error.condition, error.message)
