"""What goes wrong, and where: at the doors between an actor and storage or metadata.

The memory twins call a hook before and after each operation. The hook lets others go on first,
and asks the choices whether something fails: a request or an answer is lost, either takes its
time, a write arrives after its caller gave up, the actor freezes or dies. What happens to whole
bookies (down, wiped, power cut, session expired) is drawn as a list of disasters, each at the
n-th operation of the run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from spark_bookkeeper.bookie import memory as bookie_memory
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata import memory as metadata_memory
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.testing.simulation.scheduler import Actor, World

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


Kind = Literal["down", "wipe", "destroy", "damage", "power cut", "expire"]


@dataclass(frozen=True, slots=True)
class Disaster:
    """Something that happens to a bookie, or to its session."""

    kind: Kind
    """A wiped bookie is formatted again later, a destroyed one is not; damage changes files."""
    bookie: int
    """Which one, counted from 0 (modulo how many there are)."""
    at_operation: int
    """Happens before the n-th operation of the run."""
    seconds: float
    """How long until it is over, where it ends."""


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
            )

        kinds: list[Kind] = ["down", "power cut", "expire"]
        losses: list[Kind] = ["wipe", "wipe", "destroy", "damage"]
        disasters = [
            _disaster(dice, dice.choice(kinds), bookies, operations)
            for _ in range(dice.choice((0, 0, 1, 2, 3)))
        ]
        wiped = dice.sample(range(bookies), dice.randint(0, min(wipes_max, bookies)))
        disasters += [
            replace(_disaster(dice, dice.choice(losses), bookies, operations), bookie=bookie)
            for bookie in wiped
        ]
        calm = dice.random() < 0.05
        return cls() if calm else cls(rates(1.0), rates(0.7), tuple(disasters))


def _disaster(dice: random.Random, kind: Kind, bookies: int, operations: int) -> Disaster:
    return Disaster(
        kind, dice.randrange(bookies), dice.randrange(operations), _seconds(dice.random())
    )


def _seconds(fraction: float) -> float:
    """Evenly spread magnitudes from 1 ms to 100 s."""
    return float(10 ** (fraction * 5 - 3))


NO_FAULTS: Final = FaultPlan()


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
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self.operations = 0
        """Operations begun by all actors."""
        self.down: set[str] = set()
        """Bookies that give no answer now."""
        for disaster in plan.disasters:
            self.at_operation(disaster.at_operation, lambda d=disaster: self._strike(d))  # type: ignore[misc]  # bound early

    def at_operation(self, number: int, do: Callable[[], None]) -> None:
        """Call something before the n-th operation of the run, if there are so many."""
        heapq.heappush(self._due, (number, len(self._due), do))

    def stop(self) -> None:
        """Nothing fails from now on, and every bookie answers."""
        self._at_storage = self._at_metadata = _Chances(Rates())
        self._due.clear()
        self.down.clear()

    def storage(self, actor: Actor, bookie: BookieId) -> bookie_memory.Faults:
        """The hook for one actor's door to a bookie."""

        def error(why: str) -> BookKeeperError:
            return BookieUnavailableError(f"bookie {bookie}: {why}", bookie_id=bookie)

        def late() -> Exception:
            return bookie_memory.LateEffect(f"bookie {bookie}: no answer", bookie_id=bookie)

        door = _Door(actor, bookie, error, late)

        def hook(operation: str, path: str, moment: bookie_memory.Moment) -> None:
            if moment == "before":
                self._begin(actor)
                if bookie in self.down:
                    self._fail_slowly(door, operation, path, "is down")
                self._before(door, operation, path, self._at_storage)
            elif moment == "visible":
                outages = self._ground.outages(bookie)
                self._world.point()
                self._meanwhile(door, operation, path, self._at_storage)
                if self._ground.outages(bookie) != outages:
                    self._fail_slowly(door, operation, path, "went down before the file was durable")
            else:
                self._after(door, operation, path, self._at_storage)

        return hook

    def metadata(self, actor: Actor) -> metadata_memory.Faults:
        """The hook for one actor's door to the metadata store."""

        def error(why: str) -> BookKeeperError:
            return MetadataUnavailableError(f"metadata store: {why}")

        door = _Door(actor, "", error, metadata_memory.Postponed)

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
        self._ground.strike(disaster)

    def _before(self, door: _Door, operation: str, subject: str, chances: _Chances) -> None:
        can_be_late = operation in POSTPONABLE
        match self._choose(chances.before_a_write if can_be_late else chances.before):
            case 0:
                pass
            case 1:
                self._note(door, operation, subject, "takes its time")
                self._world.delay(self._seconds())
            case 2:
                self._fail_slowly(door, operation, subject, "request lost")
            case 3:
                self._note(door, operation, subject, "not reached")
                self._world.crash(door.actor)
            case 4:
                self._pause(door.actor)
            case 5:
                self._note(door, operation, subject, "will arrive late")
                self._ground.land_later(door.name, self._seconds())
                raise door.late()

    def _meanwhile(self, door: _Door, operation: str, subject: str, chances: _Chances) -> None:
        match self._choose(chances.meanwhile):
            case 0:
                pass
            case 1:
                self._note(door, operation, subject, "visible, not yet durable")
                self._world.delay(self._seconds())
            case 2:
                self._note(door, operation, subject, "visible, never made durable")
                self._world.crash(door.actor)
            case 3:
                self._pause(door.actor)
            case 4:
                why = "visible, not made durable, answer lost"
                self._fail_slowly(door, operation, subject, why)

    def _after(self, door: _Door, operation: str, subject: str, chances: _Chances) -> None:
        self._note(door, operation, subject, "")
        self._ground.took_effect(door.name, operation, subject)
        match self._choose(chances.after):
            case 0:
                pass
            case 1:
                self._world.delay(self._seconds())
            case 2:
                self._fail_slowly(door, operation, subject, "answer lost")
            case 3:
                self._world.crash(door.actor)
            case 4:
                self._pause(door.actor)

    def _choose(self, probabilities: tuple[float, ...]) -> int:
        return self._world.choices.fault(probabilities) if probabilities else 0

    def _pause(self, actor: Actor) -> None:
        self._world.later(self._seconds(), lambda: self._world.resume(actor))
        self._world.pause(actor)

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
        self.before = _any(rates.delay, rates.request_lost, rates.crash, rates.pause)
        self.before_a_write = _any(
            rates.delay, rates.request_lost, rates.crash, rates.pause, rates.late_effect
        )
        self.meanwhile = _any(rates.delay, rates.crash, rates.pause, rates.answer_lost)
        self.after = _any(rates.delay, rates.answer_lost, rates.crash, rates.pause)


def _any(*probabilities: float) -> tuple[float, ...]:
    return probabilities if any(probabilities) else ()


@dataclass(frozen=True, slots=True)
class _Door:
    """What one actor does its operations on."""

    actor: Actor
    name: str
    error: Callable[[str], BookKeeperError]
    late: Callable[[], Exception]


POSTPONABLE: Final = frozenset({"put", "create_ledger", "write_ledger"})
"""Writes that can still arrive after their caller gave up."""
