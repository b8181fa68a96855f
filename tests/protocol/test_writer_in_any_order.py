"""The writer's machine in whatever order events arrive: thousands of seeds, short stories first."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.writer import (
    Acknowledge,
    AddRequested,
    BookieFailed,
    BookiesLookedAt,
    ChangeEnsemble,
    Command,
    EnsembleChanged,
    EnsembleStays,
    Event,
    FailPending,
    LookBegins,
    Send,
    Stored,
    Writer,
)
from tests.support.describe import describe_fragments

SEEDS = 2_000


@dataclass
class WriterWorld:
    """Bookies that store prefixes, answers on their way, and the metadata's ensembles."""

    quorum: Quorum
    writer: Writer = field(init=False)
    truth: dict[BookieId, set[EntryId]] = field(default_factory=dict)
    channels: dict[int, tuple[BookieId, EntryId]] = field(default_factory=dict)
    answers: list[Event] = field(default_factory=list)
    fragments: list[tuple[EntryId, tuple[BookieId, ...]]] = field(default_factory=list)
    change: ChangeEnsemble | None = None
    is_published: bool = False
    left: set[BookieId] = field(default_factory=set)
    late: set[BookieId] = field(default_factory=set)
    """Bookies that had no agent and were behind at the last look."""
    given_up: set[BookieId] = field(default_factory=set)
    """Those that were at the last two."""
    acknowledged: EntryId = NO_ENTRY
    named: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        ensemble = tuple(self.new_bookie() for _ in range(self.quorum.ensemble_size))
        self.fragments.append((EntryId(0), ensemble))
        self.writer = Writer(self.quorum, ensemble)
        self.carry_out(self.writer.start())

    def new_bookie(self) -> BookieId:
        self.named += 1
        bookie = BookieId(f"b{self.named}")
        self.truth[bookie] = set()
        return bookie

    def step(self, event: Event) -> None:
        self.carry_out(self.writer.step(event))

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(position, bookie, first):
                    assert self.fragments[-1][1][position] == bookie, "sent before it is published"
                    assert first == self.acknowledged + 1, "a lane begins behind the LAC"
                    self.channels[position] = (bookie, first)
                case Acknowledge(through):
                    self.acknowledge(through)
                case ChangeEnsemble(first, failed, may_stay):
                    assert self.change is None, "one change at a time"
                    assert first == self.acknowledged + 1
                    assert failed
                    for position, bookie in failed.items() if may_stay else ():
                        share = self.share(position)
                        is_whole = share <= self.truth[bookie]
                        assert is_whole or bookie in self.given_up, "left-bookies-are-whole"
                    self.change = command
                case FailPending():
                    raise AssertionError("nobody fenced, and there are always bookies")

    def acknowledge(self, through: EntryId) -> None:
        assert self.change is None, "ec_cas_first: confirmed during a change"
        assert through > self.acknowledged, "acknowledgements are in entry order"
        self.acknowledged = through
        self.check()

    def check(self) -> None:
        """Every acknowledged entry is on an ack quorum of the ensemble the metadata names."""
        for entry_id in map(EntryId, range(self.acknowledged + 1)):
            ensemble = next(e for first, e in reversed(self.fragments) if first <= entry_id)
            holders = [
                p for p in self.quorum.write_set(entry_id) if entry_id in self.truth[ensemble[p]]
            ]
            assert len(holders) >= self.quorum.ack_quorum_size, (
                f"acked-entries-are-readable: entry {entry_id} is on {len(holders)} bookies{self}"
            )

    def __str__(self) -> str:
        last = self.writer.last_add_pushed
        return describe_fragments(self.quorum, self.fragments, self.truth, last)

    def store(self, position: int, count: int) -> None:
        """A bookie stores the next entries; its answer is on its way."""
        bookie, following = self.channels[position]
        last = EntryId(min(following + count - 1, self.writer.last_add_pushed))
        if last < following:
            return
        self.truth[bookie].update(
            EntryId(e)
            for e in range(following, last + 1)
            if self.quorum.holds(position, EntryId(e))
        )
        self.channels[position] = (bookie, EntryId(last + 1))
        self.answers.append(Stored(position, bookie, last))

    def fail(self, position: int) -> None:
        """A bookie is lost to the writer; what it stored is there, its answers may still come."""
        self.failures += 1
        bookie, _ = self.channels.pop(position)
        self.answers.append(BookieFailed(position, bookie))

    def look(self, readonly: dict[int, BookieId], gone: dict[int, BookieId]) -> None:
        late, self.late = self.late, {b for p, b in gone.items() if self.writer._is_behind(p)}
        self.given_up = late & self.late
        self.step(BookiesLookedAt(readonly, gone))

    def publish(self, is_back: bool = False) -> None:
        """Others take the places of the bookies that are replaced: ones that were left, or new."""
        assert self.change is not None
        ensemble = list(self.fragments[-1][1])
        back = self.may_be_gone_back_to() if is_back else []
        for position, bookie in self.change.failed.items():
            ensemble[position] = back.pop() if back else self.new_bookie()
            if self.change.may_stay:
                self.left.add(bookie)
        if self.fragments[-1][0] == self.change.first:
            self.fragments.pop()
        self.fragments.append((self.change.first, tuple(ensemble)))
        self.is_published = True
        self.check()

    def may_be_gone_back_to(self) -> list[BookieId]:
        """Bookies that were left, whose last answer came and of which all is acknowledged."""
        return [
            bookie
            for bookie in sorted(self.left - set(self.fragments[-1][1]))
            if max(self.truth[bookie], default=NO_ENTRY) <= self.acknowledged
            and all(not isinstance(a, Stored) or a.bookie != bookie for a in self.answers)
        ]

    def share(self, position: int) -> set[EntryId]:
        """What the bookie at a position is to have of what is acknowledged."""
        entries = map(EntryId, range(self.fragments[-1][0], self.acknowledged + 1))
        return {e for e in entries if self.quorum.holds(position, e)}

    def stay(self) -> None:
        """Nobody could take the place of a bookie that is to be left."""
        self.change = None
        self.step(EnsembleStays())

    def finish_change(self) -> None:
        self.change, self.is_published = None, False
        self.step(EnsembleChanged(self.fragments[-1][1]))


QUORUMS = [Quorum(*q) for q in [(3, 3, 2), (4, 3, 2), (5, 2, 2), (3, 3, 3), (2, 2, 1), (3, 2, 1)]]


def test_in_whatever_order_events_arrive_no_promise_is_broken() -> None:
    for seed in range(SEEDS):
        try:
            live(seed)
        except AssertionError as error:
            raise AssertionError(f"{error}\nrepeat with `live({seed})`") from error


def live(seed: int) -> None:
    """The first seeds have few events, so that a mistake shows itself in a short story."""
    dice = random.Random(seed)
    world = WriterWorld(dice.choice(QUORUMS))
    for _ in range(5 + seed * 56 // SEEDS):
        happen(world, dice)
        assert world.writer.last_add_confirmed == world.acknowledged

    writer = world.writer
    while world.answers or world.change or writer.last_add_confirmed < writer.last_add_pushed:
        for position in sorted(world.channels):
            world.store(position, 1 << 20)
        while world.answers:
            world.step(world.answers.pop(0))
        if world.change is not None:
            if not world.is_published:
                world.publish()
            world.finish_change()

    assert world.acknowledged == writer.last_add_pushed, "everything is acknowledged" + str(world)
    world.check()


def happen(world: WriterWorld, dice: random.Random) -> None:
    """One event of those that are possible."""
    change = world.change
    can = ["add", "look", "look begins"]
    can += ["store", "store"] if world.channels else []
    can += ["answer", "answer"] if world.answers else []
    can += ["fail"] if world.channels and world.failures < 6 else []
    can += ["publish"] if change is not None and not world.is_published else []
    can += ["stay"] if change is not None and change.may_stay and not world.is_published else []
    can += ["finish"] if world.is_published else []
    match dice.choice(can):
        case "add":
            world.step(AddRequested(dice.randint(1, 4)))
        case "store":
            world.store(dice.choice(sorted(world.channels)), dice.randint(1, 4))
        case "answer":
            world.step(world.answers.pop(dice.randrange(len(world.answers))))
        case "fail":
            world.fail(dice.choice(sorted(world.channels)))
        case "look":
            channels = {p: bookie for p, (bookie, _) in world.channels.items()}
            found = {p: dice.choice(["", "readonly", "gone"]) for p in channels}
            readonly = {p: b for p, b in channels.items() if found[p] == "readonly"}
            gone = {p: b for p, b in channels.items() if found[p] == "gone"}
            world.look(readonly, gone)
        case "look begins":
            world.step(LookBegins())
        case "stay":
            world.stay()
        case "publish":
            world.publish(is_back=dice.random() < 0.5)
        case _:
            world.finish_change()
