"""One log under a seed: several who want to write it, one who follows it, and whatever fails.

Each writer takes over, appends, rolls and truncates, and ends as its term says; others may begin
at any moment, and one may be made to crash before any operation. Then faults stop, one more
takes over, and everything is read back. The list of ledgers is judged after every effect, from
the raw register and the raw files.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Literal

from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.staging import STAGED
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookKeeperError, NoSuchEntryError
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from tests.simulator.checkers import InvariantError
from tests.simulator.choices import Choices
from tests.simulator.evidence import take_apart
from tests.simulator.faults import FaultPlan
from tests.simulator.ground import SimCluster
from tests.simulator.history import History
from tests.simulator.scheduler import Actor, SimulationError, World

NAME: Final = "orders"
ELECTED_MS: Final = 5_000
"""Who is not to lead after so long believes it all the same: leadership is a suggestion."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one writer does once it took over."""

    begins_at: int
    """The operation of the run at which it begins."""
    rows: int
    rolls: frozenset[int]
    """Before which of its rows it rolls."""
    truncates: frozenset[int]
    """Before which of its rows it truncates everything before its ledger."""
    ending: Literal["close", "abandon", "leave"]
    is_elected: bool = False
    """Whether it waits for its turn first, for some time."""


@dataclass(frozen=True, slots=True)
class LogScript:
    """What happens in one lifetime of a log, as far as it is decided beforehand."""

    quorum: Quorum
    bookies: int
    terms: tuple[Term, ...]
    follower_at: int | None
    plan: FaultPlan
    explicit_lac_ms: int = 0
    crash_at: int | None = None
    """The operation, counted from 0, before which the first writer crashes; the second begins
    then."""

    @classmethod
    def drawn(cls, seed: int) -> LogScript:
        """The script of a seed."""
        dice = random.Random(f"{seed}/log")
        quorum = dice.choice((Quorum(3, 3, 2), Quorum(3, 3, 2), Quorum(2, 2, 2), Quorum(4, 2, 2)))
        wipes_max = quorum.ack_quorum_size - 1
        bookies = quorum.ensemble_size + wipes_max + 1

        def some(rows: int, share: float) -> frozenset[int]:
            return frozenset(n for n in range(1, rows) if dice.random() < share)

        def term(number: int) -> Term:
            rows = dice.randint(1, 8)
            return Term(
                begins_at=dice.randint(0, 150) * number,
                rows=rows,
                rolls=some(rows, 0.4),
                truncates=some(rows, 0.2),
                ending=dice.choice(("close", "abandon", "leave")),
                is_elected=dice.random() < 0.3,
            )

        return cls(
            quorum=quorum,
            bookies=bookies,
            terms=tuple(term(number) for number in range(dice.randint(1, 4))),
            follower_at=dice.randint(5, 200) if dice.random() < 0.5 else None,
            plan=FaultPlan.drawn(seed, bookies=bookies, wipes_max=wipes_max, operations=400),
            explicit_lac_ms=dice.choice((0, 100, 1_000)),
        )

    @classmethod
    def crashing(cls, step: int) -> LogScript:
        """The first writer takes over, rolls and truncates, and crashes before an operation."""
        busy = Term(0, 4, frozenset({1, 3}), frozenset({2}), "close")
        second = Term(step, 3, frozenset({1}), frozenset({2}), "close")
        return cls(Quorum(3, 3, 2), 4, (busy, second), 0, FaultPlan(), 100, crash_at=step)


@dataclass(slots=True)
class LogOutcome:
    """What came of a lifetime."""

    history: History
    operations: int
    happened: Counter[str]
    acknowledged: int
    first_ended_itself: bool
    """Whether the first writer came to its end before it was to crash."""


@dataclass(slots=True)
class _Told:
    """What clients were told."""

    appended: dict[bytes, int] = field(default_factory=dict)
    """The rows that were handed in, and how many were acknowledged before."""
    acknowledged: list[tuple[Position, bytes]] = field(default_factory=list)
    followed: list[tuple[Position, bytes]] = field(default_factory=list)


def run_log_lifetime(
    seed: int, script: LogScript | None = None, choices: Choices | None = None
) -> LogOutcome:
    """Run one lifetime of a log to its end.

    Raises:
        SimulationError: an invariant broke, or the code hung or failed in an unforeseen way.
    """
    drawn = LogScript.drawn(seed) if script is None else script
    with World(seed, choices) as world:
        try:
            return LogLifetime(world, drawn).run()
        except SimulationError as error:
            crash = "" if drawn.crash_at is None else f" --crash {drawn.crash_at}"
            raise type(error)(
                f"{error}\n{drawn}\nseed {seed}; repeat with `python -m "
                f"tests.simulator.log_lifetime {seed}{crash}`"
            ) from error


class _LogCluster(SimCluster):
    """Judges the list of one log after every effect."""

    def __init__(self, world: World, script: LogScript) -> None:
        self.holding: set[LedgerId] = set()
        """Ledgers that durably held an entry on some bookie."""
        super().__init__(world, script.bookies, script.plan)
        options = LogOptions(script.quorum)
        logs.create_log(self.metadata.session().registers, NAME, LogHead("life", options.to_json()))

    def begins_at(self) -> int:
        return self._head()[0]

    @override
    def _see_file(self, bookie: BookieId, path: str) -> None:
        disk = self.disks[bookie]
        kind = path.split("/")
        if kind[0] == "ledgers" and path in disk.durable and path in disk.files:
            record = take_apart(disk.files[path]) if kind[2] == "slots" else None
            ledger_id = LedgerId(int(kind[1].split("-")[0]))
            ledger = self.metadata.ledgers.get(ledger_id)
            # What is staged has its rows before it is in the list, and may be removed.
            is_listed = ledger is not None and STAGED not in ledger.value.custom_metadata
            if is_listed and record is not None and (record.entries or record.parts):
                self.holding.add(ledger_id)
        self._judge()

    @override
    def _see_metadata(self) -> None:
        self._judge()

    def _head(self) -> tuple[int, list[int]]:
        """Where the log begins, and the ids in its list, out of the raw registers."""
        registers = self.metadata.registers
        head = json.loads(registers[f"logs/{NAME}"].value)
        listed: list[int] = []
        for chunk, *_ in head["chunks"]:
            listed += json.loads(registers[f"logs/{NAME}/{chunk}"].value)
        return head["begins_at"], [*listed, *head["recent"]]

    def _judge(self) -> None:
        if f"logs/{NAME}" not in self.metadata.registers:
            return
        begins_at, listed = self._head()
        ledgers = self.metadata.ledgers
        lost = [i for i in sorted(self.holding) if i >= begins_at and i not in listed]
        gone = [i for i in listed if i >= begins_at and i not in ledgers]
        are_open = [
            i
            for i in listed[:-2]
            if i in ledgers and ledgers[LedgerId(i)].value.state is not LedgerState.CLOSED
        ]
        for name, found, what in (
            ("non-empty-ledgers-are-in-the-log", lost, "hold entries and are not in the list"),
            ("non-empty-ledgers-are-in-the-log", gone, "are in the list, and deleted"),
            ("one-open-ledger-per-log", are_open, "are open, and not among the last two"),
        ):
            if found:
                self._world.fail(InvariantError(f"{name}: ledgers {found} {what}: {listed}"))


class LogLifetime:
    """One run of a script. The tests have one with writes in it."""

    def __init__(self, world: World, script: LogScript) -> None:
        self._world = world
        self._script = script
        self._cluster = _LogCluster(world, script)
        self._config = ClientConfig(explicit_lac_ms=script.explicit_lac_ms)
        self._told = _Told()
        self._waiting: list[Callable[[], None]] = []
        self._first_ended = False

    def run(self) -> LogOutcome:
        script = self._script
        first = self._world.actor("writer-0")
        if script.crash_at is not None:
            self._cluster.faults.at_operation(
                script.crash_at + 1, lambda: None if self._first_ended else self._world.crash(first)
            )
        for number, term in enumerate(script.terms):
            self._enter(
                f"writer-{number}",
                term.begins_at,
                lambda a, n=number, t=term: self._write(a, n, t),  # type: ignore[misc]  # bound early
            )
        if script.follower_at is not None:
            self._enter("follower", script.follower_at, self._follow)
        while self._waiting:
            self._waiting[0]()
            self._world.run_all()
        self._cluster.heal()
        last = self._world.actor("last")
        self._world.start(last, lambda: self._finish(last))
        self._world.run_all()
        return LogOutcome(
            self._world.history,
            self._cluster.faults.operations,
            self._cluster.faults.happened,
            len(self._told.acknowledged),
            self._first_ended,
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

    def _context(self, actor: Actor) -> ClientContext:
        return self._cluster.context(actor, self._config)

    # Actors

    def _write(self, actor: Actor, number: int, term: Term) -> None:
        try:
            with ExitStack() as stack:
                log = open_log(self._context(actor), NAME)
                if term.is_elected:
                    stack.enter_context(log.elect()).wait(ELECTED_MS)
                writer = log.become_writer()
                for n in range(term.rows):
                    self._append(actor, log, writer, term, n, b"%d.%d" % (number, n))
                if term.ending == "close":
                    writer.close()
                elif term.ending == "abandon":
                    writer.abandon()
        except BookKeeperError as error:
            self._note(actor, error)
        if number == 0:
            self._first_ended = True

    def _append(
        self, actor: Actor, log: Log, writer: LogWriter, term: Term, n: int, row: bytes
    ) -> None:
        told = self._told
        for what, is_due in (
            (writer.roll, n in term.rolls),
            (lambda: log.truncate(writer.ledger_id), n in term.truncates),
        ):
            try:
                if is_due:
                    what()
            except BookKeeperError as error:  # the append tells whether it is the writer still
                self._note(actor, error)
        told.appended[row] = len(told.acknowledged)
        self._world.history.note(actor.name, "append", row)
        position = writer.append(row)
        self._world.history.note(actor.name, "acknowledged", row, str(position))
        before = told.acknowledged[: told.appended[row]]
        if any(position <= other for other, _ in before):
            self._fail(f"entries-in-write-order: {row!r} is at {position}, not behind {before}")
        told.acknowledged.append((position, row))

    def _follow(self, actor: Actor) -> None:
        told = self._told.followed
        try:
            for entry in open_log(self._context(actor), NAME).tail(timeout_ms=20_000):
                place = Position(entry.ledger_id, EntryId(entry.entry_id))
                self._world.history.note(actor.name, "followed", entry.payload, str(place))
                told.append((place, entry.payload))
        except NoSuchEntryError as error:  # truncated before it was read
            self._note(actor, error)
        except BookKeeperError as error:
            self._note(actor, error)

    def _finish(self, actor: Actor) -> None:
        """Nothing fails any more: somebody can write the log, and all of it is read."""
        try:
            log = open_log(self._context(actor), NAME)
            with log.become_writer() as writer:
                end = writer.append(b"end")
            found = [(Position(e.ledger_id, EntryId(e.entry_id)), e.payload) for e in log.entries()]
        except BookKeeperError as error:
            raise InvariantError(f"ledger-gets-closed: {type(error).__name__}: {error}") from error
        begins_at = self._cluster.begins_at()
        told = self._told
        rows = [row for _, row in found]
        there = dict(found)
        for position, row in [*told.acknowledged, (end, b"end")]:
            if position.ledger_id >= begins_at and there.get(position) != row:
                self._fail(
                    f"acked-entries-are-readable: {row!r} at {position} is {there.get(position)!r}"
                )
        if len(set(rows)) < len(rows) or not set(rows) <= {*told.appended, b"end"}:
            self._fail(f"entries-in-write-order: not what was appended, once each: {rows}")
        followed = [each for each in told.followed if each[0].ledger_id >= begins_at]
        ahead = [each for each in found if not followed or each[0] >= followed[0][0]]
        if followed != ahead[: len(followed)] or told.followed != sorted(told.followed):
            self._fail(f"entries-in-write-order: followed {followed}, the log has {ahead}")

    def _note(self, actor: Actor, error: BookKeeperError) -> None:
        self._world.history.note(actor.name, "was told", error.condition, error.message)

    def _fail(self, text: str) -> None:
        raise InvariantError(text)


def main(arguments: Sequence[str]) -> None:
    """Run one lifetime, and print what happened in it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--crash", type=int, help="the script of the crash at this operation")
    wish = parser.parse_args(arguments)
    script = None if wish.crash is None else LogScript.crashing(wish.crash)
    sys.stdout.write(f"{run_log_lifetime(wish.seed, script).history}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
