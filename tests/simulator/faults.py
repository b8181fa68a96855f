"""What goes wrong, and where: at the doors between an actor and storage or metadata.

The memory twins call a hook before and after each operation. The hook lets others go on first,
and asks the choices whether something fails: a request or an answer is lost, either takes its
time, a write arrives after its caller gave up, the actor freezes or dies. What happens to whole
bookies (down, wiped, power cut, session expired) is drawn as a list of disasters, each at the
n-th operation of the run.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    MetadataUnavailableError,
)
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.testing import memory_storage, memory_store
from tests.simulator.damage import DAMAGES, SELDOM
from tests.simulator.scheduler import Actor, Task, World

CALL_TIMEOUT: Final = 5.0
"""Seconds after which a caller is told that there is no answer, at most."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Probabilities per operation of one door; all 0: nothing fails there."""

    delay: float = 0.0
    """The request, or the answer, takes its time."""
    request_lost: float = 0.0
    """No effect, and the caller is told that the outcome is unknown."""
    answer_lost: float = 0.0
    """The effect happens, and the caller is told that the outcome is unknown."""
    late_effect: float = 0.0
    """The caller is told that the outcome is unknown, and the effect happens afterwards."""
    crash: float = 0.0
    """The actor dies, before or after the effect."""
    pause: float = 0.0
    """The actor freezes, before or after the effect, and goes on later."""
    hang: float = 0.0
    """Neither an answer nor an error, for minutes or for ever; the effect comes before, afterwards
    or not at all. Only where somebody else watches the call: at storage."""


Kind = Literal["down", "wipe", "destroy", "damage", "power cut", "expire", "hang", "read-only"]


@dataclass(frozen=True, slots=True)
class Disaster:
    """Something that happens to a bookie, or to its session."""

    kind: Kind
    """A wiped bookie is formatted again later, a destroyed one is not; damage changes files. A
    bookie that is down says so, one that hangs says nothing. One whose session expires has no agent
    until it is registered again, and its storage answers."""
    bookie: int
    """Which one, counted from 0 (modulo how many there are)."""
    at_operation: int
    """Happens before the n-th operation of the run."""
    seconds: float
    """How long until it is over, where it ends."""
    what: str = ""
    """Which of ``DAMAGES``, if files there allow it; else it is drawn when it strikes."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong in one run."""

    storage: Rates = Rates()
    metadata: Rates = Rates()
    disasters: tuple[Disaster, ...] = ()

    @classmethod
    def drawn(cls, seed: int, *, bookies: int, wipes_max: int, operations: int = 250) -> FaultPlan:
        """A plan from a seed. Each kind of fault is there or not, so that every mixture occurs.

        Args:
            seed: of the run.
            bookies: how many there are.
            wipes_max: how many may lose their storage or a part of it; a ledger survives Qa - 1.
            operations: about how many a run has; disasters happen among the first of them.
        """
        dice = random.Random(f"{seed}/faults")

        def rate(*rates: float) -> float:
            return dice.choice((0.0, *rates))

        def rates(scale: float) -> Rates:
            return Rates(
                delay=rate(0.02, 0.1, 0.3),
                request_lost=rate(0.005, 0.03) * scale,
                answer_lost=rate(0.005, 0.03) * scale,
                late_effect=rate(0.005, 0.03) * scale,
                crash=rate(0.001, 0.005) * scale,
                pause=rate(0.005, 0.02) * scale,
                hang=rate(0.003, 0.01),
            )

        kinds: list[Kind] = ["down", "hang", "power cut", "expire"]
        losses: list[Kind] = ["wipe", "destroy", "damage", "damage", "damage"]
        disasters = [
            _disaster(dice, dice.choice(kinds), bookies, operations)
            for _ in range(dice.choice((0, 0, 1, 2, 3)))
        ]
        wiped = dice.sample(range(bookies), dice.randint(0, min(wipes_max, bookies)))
        for bookie in wiped:
            kind = dice.choice(losses)
            for _ in range(dice.choice((1, 2, 4)) if kind == "damage" else 1):
                disaster = _disaster(dice, kind, bookies, operations)
                what = dice.choice(SELDOM) if dice.random() < 0.5 else ""
                disasters.append(replace(disaster, bookie=bookie, what=what))
        calm = dice.random() < 0.05
        return cls() if calm else cls(rates(1.0), replace(rates(0.7), hang=0.0), tuple(disasters))


def _disaster(dice: random.Random, kind: Kind, bookies: int, operations: int) -> Disaster:
    bookie, operation, fraction = dice.randrange(bookies), dice.randrange(operations), dice.random()
    return Disaster(
        kind, bookie, operation, (hang_seconds if kind == "hang" else _seconds)(fraction)
    )


def _seconds(fraction: float) -> float:
    """Evenly spread magnitudes from 1 ms to 100 s."""
    return float(10 ** (fraction * 5 - 3))


def hang_seconds(fraction: float) -> float:
    """For ever in half of all cases, else up to ten minutes."""
    return math.inf if fraction < 0.5 else 20.0 * float(30 ** (fraction * 2 - 1))


NO_FAULTS: Final = FaultPlan()

STORAGE_OPERATIONS: Final = (
    *("put", "create", "write", "finish", "read", "size", "list"),
    *("make_directory", "sync", "delete", "delete_directory", "space"),
)

FAULT_KINDS: Final = (
    *(f"storage: {what}" for what in ("slow", "request lost", "answer lost", "late effect")),
    *(f"storage: {what}" for what in ("crash", "pause")),
    *(f"metadata: {what}" for what in ("slow", "request lost", "answer lost", "late effect")),
    *(f"metadata: {what}" for what in ("crash", "pause")),
    *(f"hang: {operation}" for operation in STORAGE_OPERATIONS[:9]),
    *("hang: effect long after", "late put landed", "late metadata write landed"),
    *(f"bookie: {what}" for what in ("down", "hang", "wipe", "destroy", "power cut", "expire")),
    *(f"damage: {what}" for what in DAMAGES),
    *("ledger deleted", "id used again", "upkeep: deleted", "upkeep: compacted"),
)
"""What is counted: everything that can go wrong in a lifetime that is drawn."""


class Ground(Protocol):
    """What the faults of a run act upon. A door is a bookie id, or "" for the metadata store."""

    def strike(self, disaster: Disaster) -> None:
        """Carry out a disaster."""

    def took_effect(self, door: str, operation: str, subject: str) -> None:
        """An operation had its effect."""

    def land_later(self, door: str, seconds: float) -> None:
        """Let the write that the twin postpones next take effect after so many seconds."""

    def outages(self, door: str) -> int:
        """How often a bookie's power was cut, or its storage wiped."""


class Faults:
    """Carries out a plan. Hands out the hooks that the twins call.

    Args:
        world: whose choices decide.
        plan: what may go wrong; nothing does after ``stop``.
        ground: what the faults act upon.
    """

    def __init__(self, world: World, plan: FaultPlan, ground: Ground) -> None:
        self._world = world
        self._at_storage = _Chances(plan.storage)
        self._at_metadata = _Chances(plan.metadata)
        self._ground = ground
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self.operations = 0
        """Operations begun by all actors."""
        self.down: set[str] = set()
        """Bookies that refuse everything now."""
        self.happened: Counter[str] = Counter()
        """How often each of ``FAULT_KINDS`` really happened."""
        self._hanging: dict[str, list[tuple[Task, int]]] = {}
        """Bookies that give no answer now, and who waits for one."""
        for disaster in plan.disasters:
            self.at_operation(disaster.at_operation, lambda d=disaster: self._strike(d))  # type: ignore[misc]  # bound early

    def at_operation(self, number: int, do: Callable[[], None]) -> None:
        """Call something before the n-th operation of the run, if there are so many."""
        heapq.heappush(self._due, (number, next(self._numbers), do))

    def stop(self) -> None:
        """Nothing fails from now on, and every bookie answers."""
        self._at_storage = self._at_metadata = _Chances(Rates())
        self._due.clear()
        self.down.clear()
        for bookie in list(self._hanging):
            self.answer(bookie)

    def hang(self, bookie: BookieId, seconds: float) -> None:
        """Let a bookie answer nobody for so long."""
        if bookie not in self._hanging:
            self._hanging[bookie] = []
            if seconds < math.inf:
                self._world.later(seconds, lambda: self.answer(bookie))

    def answer(self, bookie: str) -> None:
        """A bookie that hangs goes on with what it was asked for."""
        for task, epoch in self._hanging.pop(bookie, ()):
            self._world.wake(task, epoch)

    def storage(self, actor: Actor, bookie: BookieId) -> memory_storage.Faults:
        """The hook for one actor's door to a bookie."""

        def error(why: str) -> BookKeeperError:
            return BookieUnavailableError(f"bookie {bookie}: {why}", bookie_id=bookie)

        def late() -> Exception:
            return memory_storage.LateEffect(f"bookie {bookie}: no answer", bookie_id=bookie)

        door = _Door(actor, bookie, error, late)

        def hook(operation: str, path: str, moment: memory_storage.Moment) -> None:
            if moment == "before":
                self._begin(actor)
                if bookie in self.down:
                    self._fail_slowly(door, operation, path, "is down")
                if bookie in self._hanging:
                    self._wait_for_bookie(door, operation, path)
                self._before(door, operation, path, self._at_storage)
            elif moment == "visible":
                outages = self._ground.outages(bookie)
                self._world.point()
                self._meanwhile(door, operation, path, self._at_storage)
                if self._ground.outages(bookie) != outages:
                    self._fail_slowly(
                        door, operation, path, "went down before the file was durable"
                    )
            else:
                self._after(door, operation, path, self._at_storage)

        return hook

    def metadata(self, actor: Actor) -> memory_store.Faults:
        """The hook for one actor's door to the metadata store."""

        def error(why: str) -> BookKeeperError:
            return MetadataUnavailableError(f"metadata store: {why}")

        door = _Door(actor, "", error, memory_store.Postponed)

        def hook(moment: Literal["before", "after"], operation: str, subject: str) -> None:
            if moment == "before":
                self._begin(actor)
                self._before(door, operation, subject, self._at_metadata)
            else:
                self._after(door, operation, subject, self._at_metadata)

        return hook

    def _begin(self, actor: Actor) -> None:
        self._world.point()
        actor.operations += 1
        self.operations += 1
        while self._due and self._due[0][0] <= self.operations:
            heapq.heappop(self._due)[2]()

    def _strike(self, disaster: Disaster) -> None:
        self._world.history.note("world", disaster.kind, disaster.bookie)
        if disaster.kind != "damage":  # what becomes of which files is counted there
            self.happened[f"bookie: {disaster.kind}"] += 1
        self._ground.strike(disaster)

    def _wait_for_bookie(self, door: _Door, operation: str, subject: str) -> None:
        self._count(door, f"hang: {operation}")
        self._note(door, operation, subject, "hangs with its bookie")
        task = self._world.current
        self._hanging[door.name].append((task, task.epoch))
        self._world.block(f"bookie {door.name}, which hangs")
        self.happened["hang: effect long after"] += 1

    def _hang(self, door: _Door, operation: str, subject: str) -> None:
        """No answer for long; who comes back goes on, whether anybody waits for it or not."""
        self._count(door, f"hang: {operation}")
        self._note(door, operation, subject, "hangs")
        seconds = hang_seconds(self._world.choices.fraction())
        self._world.block("an answer that does not come", None if seconds == math.inf else seconds)

    def _before(self, door: _Door, operation: str, subject: str, chances: _Chances) -> None:
        can_be_late = operation in POSTPONABLE
        match self._choose(chances.before_a_write if can_be_late else chances.before):
            case 0:
                pass  # mostly
            case 1:
                self._count(door, "slow")
                self._note(door, operation, subject, "takes its time")
                self._world.delay(self._seconds())
            case 2:
                self._count(door, "request lost")
                self._fail_slowly(door, operation, subject, "request lost")
            case 3:
                self._count(door, "crash")
                self._note(door, operation, subject, "not reached")
                self._world.crash(door.actor)
            case 4:
                self._pause(door)
            case 5:
                self._hang(door, operation, subject)
                self.happened["hang: effect long after"] += 1
            case 6:
                self._count(door, "late effect")
                self._note(door, operation, subject, "will arrive late")
                self._ground.land_later(door.name, self._seconds())
                raise door.late()
            case _:
                raise AssertionError("a choice among what was offered")

    def _meanwhile(self, door: _Door, operation: str, subject: str, chances: _Chances) -> None:
        match self._choose(chances.meanwhile):
            case 0:
                pass  # mostly
            case 1:
                self._count(door, "slow")
                self._note(door, operation, subject, "visible, not yet durable")
                self._world.delay(self._seconds())
            case 2:
                self._count(door, "crash")
                self._note(door, operation, subject, "visible, never made durable")
                self._world.crash(door.actor)
            case 3:
                self._pause(door)
            case 4:
                self._hang(door, operation, subject)
            case 5:
                self._count(door, "answer lost")
                why = "visible, not made durable, answer lost"
                self._fail_slowly(door, operation, subject, why)
            case _:
                raise AssertionError("a choice among what was offered")

    def _after(self, door: _Door, operation: str, subject: str, chances: _Chances) -> None:
        self._note(door, operation, subject, "")
        self._ground.took_effect(door.name, operation, subject)
        match self._choose(chances.after):
            case 0:
                pass  # mostly
            case 1:
                self._count(door, "slow")
                self._world.delay(self._seconds())
            case 2:
                self._count(door, "answer lost")
                self._fail_slowly(door, operation, subject, "answer lost")
            case 3:
                self._count(door, "crash")
                self._world.crash(door.actor)
            case 4:
                self._pause(door)
            case 5:
                self._hang(door, operation, subject)
            case _:
                raise AssertionError("a choice among what was offered")

    def _choose(self, probabilities: tuple[float, ...]) -> int:
        return self._world.choices.fault(probabilities) if probabilities else 0

    def _pause(self, door: _Door) -> None:
        self._count(door, "pause")
        self._world.later(self._seconds(), lambda: self._world.resume(door.actor))
        self._world.pause(door.actor)

    def _count(self, door: _Door, what: str) -> None:
        where = "" if what.startswith("hang: ") else "storage: " if door.name else "metadata: "
        self.happened[where + what] += 1

    def _fail_slowly(self, door: _Door, operation: str, subject: str, why: str) -> None:
        self._note(door, operation, subject, why)
        if (seconds := min(self._seconds(), CALL_TIMEOUT)) > 0.1:
            self._world.delay(seconds)
        raise door.error(why)

    def _seconds(self) -> float:
        return _seconds(self._world.choices.fraction())

    def _note(self, door: _Door, operation: str, subject: str, what: str) -> None:
        self._world.history.note(door.actor.name, operation, door.name, subject, what)


class _Chances:
    """The rates of one door, as the choices are asked; empty where nothing can fail."""

    def __init__(self, rates: Rates) -> None:
        before = rates.delay, rates.request_lost, rates.crash, rates.pause, rates.hang
        self.before = _any(*before)
        self.before_a_write = _any(*before, rates.late_effect)
        self.meanwhile = _any(rates.delay, rates.crash, rates.pause, rates.hang, rates.answer_lost)
        self.after = _any(rates.delay, rates.answer_lost, rates.crash, rates.pause, rates.hang)


def _any(*probabilities: float) -> tuple[float, ...]:
    return probabilities if any(probabilities) else ()


@dataclass(frozen=True, slots=True)
class _Door:
    """What one actor does its operations on."""

    actor: Actor
    name: str
    error: Callable[[str], BookKeeperError]
    late: Callable[[], Exception]


POSTPONABLE: Final = frozenset({"put", "create_ledger", "write_ledger", "write_register"})
"""Writes that can still arrive after their caller gave up."""
