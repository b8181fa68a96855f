"""A cluster that keeps itself whole, under a seed: auditors and replication workers as actors.

Writers make ledgers while bookies go, hang, lose what they hold and come back, as they were or as
new ones; processes of autorecovery die at any step, freeze, and lose their sessions; collectors of
garbage and compactors come, and die as well; somebody turns the switch. Then faults stop, and the
cluster must make itself whole: nobody recovers, audits or repairs by hand. Then it is disabled, a
bookie goes, and nothing may be done; enabled, it is whole again. At the end everything is read, and
again when a last compactor and a last collector have been there.

``python -m tests.simulator.autorecovery_lifetime SEED`` shows one;
``... FIRST --lifetimes 10000`` runs many.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.autorecovery.daemon import Autorecovery
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import AutorecoveryConfig, ClientConfig
from spark_bookkeeper.errors import BookKeeperError, VersionConflictError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.simulator import checkers
from tests.simulator.autorecovery_ground import (
    PROBE_SECONDS,
    AutorecoveryCluster,
)
from tests.simulator.checkers import InvariantError
from tests.simulator.choices import Choices
from tests.simulator.faults import Disaster, FaultPlan
from tests.simulator.ground import Life
from tests.simulator.history import History, Rows
from tests.simulator.quiet import quiet
from tests.simulator.scheduler import Actor, SimulationError, World
from tests.simulator.upkeep import KINDS, Keeper, Kind, Upkeep, drawn_keepers

QUORUMS: Final = (
    Quorum(3, 3, 2),
    Quorum(3, 3, 2),
    Quorum(4, 3, 2),
    Quorum(3, 3, 3),
    Quorum(2, 2, 2),
    Quorum(2, 2, 1),
    Quorum(3, 2, 2),
    Quorum(1, 1, 1),
)

STEPS: Final = 600_000
"""Far more than any sound run takes."""

WHOLE_SECONDS: Final = 1_500.0
"""Of the simulation's clock: the longest delay, check and back-off, and then some."""

_AHEAD_MS: Final = (0, 5 * 3_600_000, -5 * 3_600_000)
"""How much the clocks of the processes are ahead, one after the other."""

_TICK_SECONDS: Final = 5.0
_SESSION_SECONDS: Final = 10.0
"""After which the servers end the session of a process that died."""


@dataclass(frozen=True, slots=True)
class Writing:
    """One ledger, as its writer is to make it."""

    begins_at: float
    payloads: tuple[bytes | Rows, ...]
    pauses: tuple[float, ...]
    """Seconds before each."""
    ending: Literal["close", "abandon", "leave"]


@dataclass(frozen=True, slots=True)
class AutorecoveryScript:
    """What happens in one lifetime, as far as it is decided beforehand."""

    quorum: Quorum
    bookies: int
    writings: tuple[Writing, ...]
    locals: tuple[int | None, ...]
    """For each process the bookie beside which it runs; at least one runs alone, or there is one
    beside each bookie."""
    config: AutorecoveryConfig
    plan: FaultPlan
    faulty_seconds: float
    delay_seconds: int = 0
    """The lost-bookie delay at the beginning."""
    switches: tuple[tuple[float, float], ...] = ()
    """When somebody disables it, and for how long."""
    expiries: tuple[tuple[int, int], ...] = ()
    """Sessions that the servers end: of which process, before which operation of the run."""
    recover_at: float | None = None
    """When somebody opens the first ledger with recovery."""
    delete_at: float | None = None
    """When somebody deletes the first ledger."""
    bytes_per_second: int | None = None
    """The limit on copying, set in the middle."""
    keepers: tuple[Keeper, ...] = ()
    """Who collect garbage and compact, besides those who do at the end of such a lifetime."""
    has_directories: bool = True

    @classmethod
    def drawn(cls, seed: int) -> AutorecoveryScript:
        """The script of a seed."""
        dice = random.Random(f"{seed}/autorecovery")
        quorum = dice.choice(QUORUMS)
        wipes_max = quorum.ack_quorum_size - 1
        bookies = quorum.ensemble_size + wipes_max + dice.choice((0, 1, 1, 2))
        seconds = dice.choice((60.0, 150.0, 400.0))
        tables = dice.choice((0.0, 0.0, 0.3))

        def payload(ledger: int, number: int) -> bytes | Rows:
            rows = dice.randint(2, 6) if dice.random() < tables else 1
            made = tuple(b"%d.%d.%d" % (ledger, number, r) for r in range(rows))
            return made if rows > 1 else made[0]

        def writing(number: int) -> Writing:
            count = dice.randint(0, 8)
            pause = dice.choice((0.0, 0.5, 20.0))
            return Writing(
                begins_at=dice.uniform(0, seconds / 2) * number,
                payloads=tuple(payload(number, n) for n in range(count)),
                pauses=tuple(dice.uniform(0, pause) for _ in range(count)),
                ending=dice.choice(("close", "close", "abandon", "leave")),
            )

        locals_: tuple[int | None, ...]
        if dice.random() < 0.2:
            locals_ = tuple(range(bookies))
        else:
            beside = dice.choices((None, *range(bookies)), k=dice.choice((0, 1, 2)))
            locals_ = (None, *beside)
        return cls(
            quorum=quorum,
            bookies=bookies,
            writings=tuple(writing(n) for n in range(dice.randint(1, 3))),
            locals=locals_,
            config=AutorecoveryConfig(
                bookie_check_interval_s=dice.choice((0, 60, 86_400)),
                ledger_check_interval_s=dice.choice((0, 30, 200)),
                ledger_check_percentage=dice.choice((0, 100, 100)),
                placement_check_interval_s=dice.choice((0, 0, 100)),
                replicas_check_interval_s=dice.choice((0, 0, 100)),
                open_ledger_grace_ms=dice.choice((0, 5_000, 30_000)),
                retry_first_ms=1_000,
                retry_most_ms=20_000,
                ledgers_at_once=dice.choice((1, 2, 8)),
            ),
            plan=FaultPlan.drawn(
                seed,
                bookies=bookies,
                wipes_max=wipes_max,
                operations=dice.choice((250, 1_000)),
            ),
            faulty_seconds=seconds,
            delay_seconds=dice.choice((0, 0, 20)),
            switches=tuple(
                (dice.uniform(0, seconds), dice.uniform(1, 60))
                for _ in range(dice.choice((0, 0, 1, 2)))
            ),
            expiries=tuple(
                (dice.randrange(len(locals_)), dice.randint(20, 1_000))
                for _ in range(dice.choice((0, 0, 1, 3)))
            ),
            recover_at=dice.uniform(0, seconds) if dice.random() < 0.3 else None,
            delete_at=dice.uniform(0, seconds) if dice.random() < 0.1 else None,
            bytes_per_second=dice.choice((None, None, 20, 10_000)),
            keepers=drawn_keepers(seed, 1_000),
            has_directories=dice.random() < 0.8,
        )


@dataclass(slots=True)
class AutorecoveryOutcome:
    """What came of a lifetime."""

    history: History
    operations: int
    steps: int
    happened: Counter[str]
    published: int
    """Tasks that were there at some time."""
    fully_replicated: int
    """Ledgers that workers said they made whole."""


def run_autorecovery_lifetime(
    seed: int, script: AutorecoveryScript | None = None, choices: Choices | None = None
) -> AutorecoveryOutcome:
    """Run one lifetime to its end.

    Raises:
        SimulationError: an invariant broke, or the code hung or failed in an unforeseen way.
    """
    drawn = AutorecoveryScript.drawn(seed) if script is None else script
    with World(seed, choices, step_limit=STEPS) as world:
        try:
            return _Lifetime(world, drawn).run()
        except SimulationError as error:
            raise type(error)(
                f"{error}\nseed {seed}; repeat with `python -m "
                f"tests.simulator.autorecovery_lifetime {seed}`"
            ) from error


class _Process:
    """One process of autorecovery, and those that were started in its place."""

    def __init__(self, number: int, local: BookieId | None) -> None:
        self.number = number
        self.local = local
        self.lives = 0
        self.actor: Actor | None = None
        self.died_at: float | None = None
        self.daemon: Autorecovery | None = None
        self.fully_replicated = 0
        """By those that ended."""


class _Lifetime:
    def __init__(self, world: World, script: AutorecoveryScript) -> None:
        self._world = world
        self._script = script
        self._cluster = AutorecoveryCluster(
            world,
            script.bookies,
            script.plan,
            grace_seconds=script.config.open_ledger_grace_ms / 1000,
            has_directories=script.has_directories,
        )
        self._cluster.evidence.is_compacted = bool(script.keepers)
        self._config = ClientConfig(explicit_lac_ms=0)
        self._upkeep = Upkeep(self._cluster, self._session)
        bookies = self._cluster.bookies
        self._processes = [
            _Process(n, None if local is None else bookies[local])
            for n, local in enumerate(script.locals)
        ]
        self._is_over = False
        self._sessions: dict[str, tuple[Actor, MemoryStore]] = {}
        """Of writers, collectors and compactors, by name; the servers end those of the dead."""
        self._published: set[int] = set()
        self._admin = self._cluster.metadata.session()
        """Whose requests never fail."""

    def run(self) -> AutorecoveryOutcome:
        script = self._script
        self._admin.underreplication.set_delay_seconds(script.delay_seconds)
        for number, writing in enumerate(script.writings):
            self._start(f"writer-{number}", lambda actor, w=writing: self._write(actor, w))  # type: ignore[misc]  # bound early
        if script.recover_at is not None:
            self._start("recoverer", self._recover)
        if script.delete_at is not None:
            self._start("deleter", self._delete)
        for number, operation in script.expiries:
            self._cluster.faults.at_operation(
                operation,
                lambda p=self._processes[number]: self._expire(p),  # type: ignore[misc]  # bound early
            )
        for number, keeper in enumerate(script.keepers):
            self._cluster.faults.at_operation(
                keeper.at_operation,
                lambda n=number, k=keeper: self._keep(f"{k.kind}-{n}", k.kind),  # type: ignore[misc]  # bound early
            )
        self._start("world", self._rule)
        self._world.run_all()
        self._start("last", self._finish)
        self._world.run_all()
        if script.keepers:
            for kind in KINDS:
                self._keep(f"last {kind}", kind)
                self._world.run_all()
            self._start("reader after upkeep", self._finish)
            self._world.run_all()
        for life in self._cluster.judged:
            checkers.check(life.evidence, checkers.AT_THE_END)
        self._lose_some_more()
        self._start("last reader", self._finish)
        self._world.run_all()
        return AutorecoveryOutcome(
            self._world.history,
            self._cluster.faults.operations,
            self._world.steps,
            self._cluster.faults.happened,
            len(self._published),
            sum(process.fully_replicated for process in self._processes),
        )

    def _start(self, name: str, body: Callable[[Actor], None]) -> None:
        actor = self._world.actor(name)
        self._world.start(actor, lambda: body(actor))

    def _keep(self, name: str, kind: Kind) -> None:
        """One that looks after bookies comes; its session ends with it, and its locks."""

        def body(actor: Actor) -> None:
            self._upkeep.body(kind)(actor)
            _, store = self._sessions.pop(actor.name)
            store.close()

        self._start(name, body)

    # The processes of autorecovery

    def _begin(self, process: _Process) -> None:
        process.lives += 1
        process.died_at = None
        name = f"process-{process.number}.{process.lives}"
        actor = process.actor = self._world.actor(name)
        actor.ahead_ms = _AHEAD_MS[process.number % len(_AHEAD_MS)]
        self._world.start(actor, lambda: self._serve(actor, process))

    def _serve(self, actor: Actor, process: _Process) -> None:
        store = self._cluster.stores[actor.name] = self._cluster.process_store(actor)
        context = self._cluster.context(actor, self._config, store)
        config = self._script.config
        runner = LocalRunner(context, config.ledgers_at_once)
        daemon = Autorecovery(context, runner, config, f"spark-bookkeeper@{actor}", process.local)
        process.daemon = daemon
        while not self._is_over:
            try:
                daemon.start()
            except BookKeeperError as error:
                self._told(actor, error)
            context.runtime.sleep(_TICK_SECONDS)
        daemon.stop()
        process.fully_replicated += daemon.fully_replicated
        store.close()

    def _expire(self, process: _Process) -> None:
        """The servers end a session; its process hears of it when it can."""
        store = None if process.actor is None else self._cluster.stores.get(process.actor.name)
        if store is not None and process.actor is not None and not process.actor.is_crashed:
            self._cluster.faults.happened["process: session expired"] += 1
            self._world.history.note("world", "expires", str(process.actor))
            store.expire()

    def _look_after(self, process: _Process) -> None:
        """The session of one that died ends after a while, and another is started then."""
        if process.actor is None:
            self._begin(process)
        elif process.actor.is_crashed:
            if process.died_at is None:
                process.died_at = self._world.now
                if process.daemon is not None:
                    process.fully_replicated += process.daemon.fully_replicated
                    process.daemon = None
            elif self._world.now - process.died_at >= _SESSION_SECONDS:
                store = self._cluster.stores.get(process.actor.name)
                if store is not None:
                    store.expire()
                self._cluster.faults.happened["process: died"] += 1
                self._begin(process)

    # The world

    def _rule(self, actor: Actor) -> None:
        """Time passes: processes are started again, the switch is turned, and faults end."""
        script, tree = self._script, self._admin.underreplication
        turns = sorted(
            turn for at, seconds in script.switches for turn in ((at, "off"), (at + seconds, "on"))
        )
        limits = [(script.faulty_seconds / 2, script.bytes_per_second)]
        while self._world.now < script.faulty_seconds:
            while turns and turns[0][0] <= self._world.now:
                _, what = turns.pop(0)
                self._world.history.note("world", "switch", what)
                _ = tree.disable() if what == "off" else tree.enable()
            if limits and limits[0][0] <= self._world.now:
                self._control(actor).bytes_per_second = limits.pop()[1]
            self._pass_time()
        self._cluster.heal()
        self._world.history.note("world", "heals")
        tree.enable()
        self._world.delay(PROBE_SECONDS + 1)  # by then agents have seen what became of bookies
        self._provide_bookies()
        self._until_whole("faults stopped")
        self._disable_and_lose_one()
        self._is_over = True

    def _control(self, actor: Actor) -> AutorecoveryControl:
        context = self._cluster.context(actor, self._config, self._admin)
        return AutorecoveryControl(context, lambda job: LocalRunner(context))

    def _pass_time(self) -> None:
        for process in self._processes:
            self._look_after(process)
        for name, (actor, store) in list(self._sessions.items()):
            if actor.is_crashed:
                del self._sessions[name]
                self._world.later(_SESSION_SECONDS, store.close)
        self._published.update(self._cluster.metadata.tasks.tasks)
        self._world.delay(_TICK_SECONDS)

    def _provide_bookies(self) -> None:
        """So that every ledger finds a bookie that it has never used, in any incarnation.

        A collector that died may have left a word that keeps a ledger's copies from one bookie.
        """
        there = self._cluster.metadata.registrations
        lost = {bookie for bookie, _ in self._cluster.lives[0].evidence.lost}
        wanted = self._script.quorum.ensemble_size + self._script.quorum.ack_quorum_size
        wanted += sum(keeper.kind == "collector" for keeper in self._script.keepers)
        while sum(b not in lost for b in there) < wanted:
            bookie = self._cluster.add_bookie()
            if all(process.local is not None for process in self._processes):
                self._processes.append(_Process(len(self._processes), bookie))

    def _until_whole(self, since: str) -> None:
        began = self._world.now
        while wrong := self._what_is_not_whole():
            if self._world.now - began > WHOLE_SECONDS:
                self._fail(
                    f"lost-copies-are-made-again: {WHOLE_SECONDS:.0f} s after {since}: {wrong}"
                )
            self._pass_time()
        self._world.history.note("world", "whole", f"{self._world.now - began:.0f} s after {since}")

    def _what_is_not_whole(self) -> str | None:
        tasks = self._cluster.metadata.tasks
        if tasks.tasks:
            noted = Notes(self._admin.registers)
            return f"tasks {[(i, t.value.missing, noted.read(i)) for i, t in tasks.tasks.items()]}"
        left = list(Notes(self._admin.registers).ledger_ids())
        if left:
            return f"notes of ledgers without a task: {left}"
        config = self._script.config
        for life in self._cluster.judged:
            ledger_id, metadata = self._cluster.id_of(life), life.evidence.metadata
            away = [b for b in metadata.bookies() if not self._cluster.is_here(b, life)]
            if away:
                return f"ledger {ledger_id} counts on {away}"
            if config.ledger_check_interval_s and config.ledger_check_percentage == 100:
                for bookie in sorted(metadata.bookies()):
                    if life.evidence.named(bookie, metadata) in life.evidence.lost:
                        continue  # damage may have met bytes that nobody needs
                    lacking = self._cluster.lacking(life.evidence, bookie)
                    if lacking and metadata.is_closed:
                        return f"ledger {ledger_id}: {bookie} lacks {lacking}"
        return None

    def _disable_and_lose_one(self) -> None:
        """What is disabled does nothing, and what went meanwhile is made good afterwards."""
        tree = self._admin.underreplication
        tree.disable()
        self._world.delay(300.0)  # what was under way is finished, with any limit
        acts = self._cluster.acts
        bookie = self._world.dice.choice(sorted(self._cluster.metadata.registrations))
        kind: Literal["expire", "destroy"] = "expire"
        if self._script.quorum.ack_quorum_size > 1 and self._are_all_replicated():
            kind = "destroy"
        number = self._cluster.bookies.index(bookie)
        self._cluster.strike(Disaster(kind, number, 0, 1e9))
        self._world.delay(500.0)
        if self._cluster.acts != acts:
            self._fail(
                f"disabled-does-nothing: {self._cluster.acts - acts} acts after it was disabled"
            )
        tree.enable()
        self._provide_bookies()
        self._until_whole("it was enabled again")

    def _are_all_replicated(self) -> bool:
        """Whether nothing rests on one bookie, however it was written."""
        return not any(
            self._cluster.lacking(life.evidence, bookie)
            or life.evidence.named(bookie, life.evidence.metadata) in life.evidence.lost
            for life in self._cluster.judged
            for bookie in life.evidence.metadata.bookies()
        )

    def _lose_some_more(self) -> None:
        """What is fully replicated survives the loss of Qa - 1 further bookies."""
        if not self._are_all_replicated():
            return
        there = sorted(self._cluster.metadata.registrations)
        for bookie in self._world.dice.sample(there, self._script.quorum.ack_quorum_size - 1):
            self._cluster.strike(Disaster("destroy", self._cluster.bookies.index(bookie), 0, 0.0))

    # Clients

    def _context(self, actor: Actor) -> ClientContext:
        return self._cluster.context(actor, self._config)

    def _session(self, actor: Actor) -> ClientContext:
        """As ``_context``, of one whose session ends some time after its death."""
        store = self._cluster.store(actor)
        self._sessions[actor.name] = actor, store
        return self._cluster.context(actor, self._config, store)

    def _write(self, actor: Actor, writing: Writing) -> None:
        context = self._session(actor)
        context.runtime.sleep(writing.begins_at)
        writer = self._create(actor, context)
        if writer is None:
            return
        life = self._cluster.judge(writer.ledger_id, writer.metadata)
        try:
            for payload, pause in zip(writing.payloads, writing.pauses, strict=True):
                context.runtime.sleep(pause)
                rows = payload if isinstance(payload, tuple) else (payload,)
                data = payload if isinstance(payload, bytes) else pa.table({"payload": rows})
                life.history.note_appended(actor.name, *rows)
                entry_id = writer.append(data)
                life.history.note_acknowledged(actor.name, entry_id, *rows)
                self._cluster.acknowledged(life)
        except BookKeeperError as error:
            self._told(actor, error)
        try:
            if writing.ending == "close":
                writer.close()
                self._closed(actor, life, writer.metadata)
            elif writing.ending == "abandon":
                writer.abandon()
        except BookKeeperError as error:
            self._told(actor, error)
        if writing.ending == "leave":
            self._world.crash(actor)

    def _create(self, actor: Actor, context: ClientContext) -> LedgerWriter | None:
        for _ in range(5):
            try:
                return lifecycle.create_ledger(context, self._script.quorum, entry_target_bytes=16)
            except BookKeeperError as error:
                self._told(actor, error)
                context.runtime.sleep(5.0)
        return None

    def _recover(self, actor: Actor) -> None:
        self._world.delay(self._script.recover_at or 0.0)
        for life in self._cluster.judged[:1]:
            try:
                closed = recover_ledger(self._context(actor), self._cluster.id_of(life)).value
                self._closed(actor, life, closed)
            except BookKeeperError as error:
                self._told(actor, error)

    def _delete(self, actor: Actor) -> None:
        self._world.delay(self._script.delete_at or 0.0)
        for life in self._cluster.judged[:1]:
            try:
                lifecycle.delete_ledger(
                    self._context(actor), self._cluster.id_of(life), even_if_alive=True
                )
            except BookKeeperError as error:
                self._told(actor, error)

    def _finish(self, actor: Actor) -> None:
        """Nothing fails any more: every ledger can be closed, and all of it be read."""
        context = self._context(actor)
        for life in self._cluster.judged:
            came_back: list[int] = []
            try:
                reader = lifecycle.open_ledger(context, self._cluster.id_of(life))
                self._closed(actor, life, reader.metadata)
                for entry in reader.entries():
                    rows = entry.batch.column(0).to_pylist()
                    life.history.note_returned(actor.name, entry.entry_id, *rows)
                    came_back.append(entry.entry_id)
            except BookKeeperError as error:
                name = "acked-entries-are-readable" if came_back else "ledger-gets-closed"
                raise InvariantError(f"{name}: {type(error).__name__}: {error}") from error
            last = reader.metadata.last_entry_id
            if last is None or came_back != list(range(last + 1)):
                raise InvariantError(f"acked-entries-are-readable: only {came_back} came back")

    def _closed(self, actor: Actor, life: Life, metadata: LedgerMetadata) -> None:
        assert metadata.last_entry_id is not None
        assert metadata.length_bytes is not None
        life.history.note_closed(actor.name, metadata.last_entry_id, metadata.length_bytes)
        self._cluster.told(life)

    def _told(self, actor: Actor, error: BookKeeperError) -> None:
        if isinstance(error, VersionConflictError):
            raise InvariantError(f"all-closes-agree: {error.message}") from error
        self._world.history.note(actor.name, "was told", error.condition, error.message)

    def _fail(self, text: str) -> None:
        raise InvariantError(text)


def main(arguments: Sequence[str]) -> int:
    """Run lifetimes; one alone is printed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--lifetimes", type=int, default=1)
    wish = parser.parse_args(arguments)
    failures = published = replicated = 0
    happened: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(wish.seed, wish.seed + wish.lifetimes):
        try:
            with quiet():
                outcome = run_autorecovery_lifetime(seed)
        except SimulationError as error:
            failures += 1
            sys.stdout.write(f"FAILED {error}\n")
            sys.stdout.flush()
            continue
        happened += outcome.happened
        published += outcome.published
        replicated += outcome.fully_replicated
        if not (seed + 1) % 100:
            sys.stderr.write(f"\r{seed + 1 - wish.seed:,} of {wish.lifetimes:,} lifetimes ")
        if wish.lifetimes == 1:
            sys.stdout.write(f"{outcome.history}\n")
    sys.stdout.write(
        f"{wish.lifetimes} lifetimes, {published} ledgers published, {replicated} fully "
        f"replicated, {failures} failures, {time.perf_counter() - began:.0f} s\n{dict(happened)}\n"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
