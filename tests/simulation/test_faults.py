"""What the doors do, on the memory twins alone: a plan with one certain fault at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from spark_bookkeeper.errors import BookieUnavailableError, MetadataUnavailableError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster
from tests.simulator.faults import NO_FAULTS, Disaster, FaultPlan, Faults, Rates
from tests.simulator.scheduler import World

B = BookieId("b:3181")


@dataclass
class Ground:
    """One disk and one metadata store, which remember what was done to them."""

    world: World
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    metadata: MemoryCluster = field(default_factory=MemoryCluster)
    struck: list[tuple[str, int]] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    cuts: int = 0

    def strike(self, disaster: Disaster) -> None:
        self.struck.append((disaster.kind, disaster.at_operation))

    def took_effect(self, bookie_client: str, operation: str, subject: str) -> None:
        self.effects.append(f"{operation} {subject}")

    def land_later(self, bookie_client: str, seconds: float) -> None:
        def land() -> None:
            if bookie_client:
                self.disk.land(self.disk.pending[0])
            else:
                self.metadata.pending.pop(0)()

        self.world.later(seconds, land)

    def outages(self, bookie_client: str) -> int:
        return self.cuts


def with_writer(
    plan: FaultPlan,
    body: Callable[[MemoryStorage, Ground, Faults], None],
    seed: int = 1,
    beside: Callable[[Ground], None] = lambda ground: None,
) -> Ground:
    """One actor does ``body`` with a handle on the disk; the disk has a directory."""
    with World(seed) as world:
        ground = Ground(world)
        ground.disk.directories.add("d")
        faults = Faults(world, plan, ground)
        actor = world.actor("writer")
        storage = MemoryStorage(ground.disk, faults.storage(actor, B))
        world.start(actor, lambda: body(storage, ground, faults))
        world.start(world.actor("bystander"), lambda: beside(ground))
        world.run_all()
    return ground


def test_without_faults_everything_takes_effect_and_is_seen() -> None:
    def body(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        assert storage.put_if_absent("d/x", b"1")
        assert storage.read("d/x") == b"1"

    ground = with_writer(NO_FAULTS, body)

    assert ground.effects == ["put d/x", "read d/x"]
    assert ground.disk.durable == {"d/x"}


def test_a_lost_request_has_no_effect_and_a_lost_answer_has_one() -> None:
    def body(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        with pytest.raises(BookieUnavailableError):
            storage.put_if_absent("d/x", b"1")

    lost_request = with_writer(FaultPlan(storage=Rates(request_lost=1.0)), body)
    lost_answer = with_writer(FaultPlan(storage=Rates(answer_lost=1.0)), body)

    assert lost_request.disk.files == {}
    assert lost_answer.disk.files == {"d/x": b"1"}


def test_a_late_put_lands_after_its_caller_gave_up() -> None:
    def body(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        with pytest.raises(BookieUnavailableError):
            storage.put_if_absent("d/x", b"1")
        assert ground.disk.files == {}
        ground.world.delay(1_000)
        assert ground.disk.files == {"d/x": b"1"}

    with_writer(FaultPlan(storage=Rates(late_effect=1.0)), body)


def test_a_late_metadata_write_takes_effect_after_its_caller_gave_up() -> None:
    with World(1) as world:
        ground = Ground(world)
        ground.metadata.session().initialize_cluster()
        faults = Faults(world, FaultPlan(metadata=Rates(request_lost=1.0)), ground)
        actor = world.actor("writer")
        store = ground.metadata.session(faults.metadata(actor))

        def body() -> None:
            with pytest.raises(MetadataUnavailableError):
                store.generate_ledger_id()
            assert ground.metadata.next_ledger_id == 0
            faults.stop()
            assert store.generate_ledger_id() == 0

        world.start(actor, body)
        world.run_all()


def test_a_crash_in_a_put_leaves_nothing_or_what_is_only_visible_or_all_of_it() -> None:
    def body(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        try:
            storage.put_if_absent("d/x", b"1")
        except BaseException:
            storage.put_if_absent("d/after", b"1")
            raise

    left = set()
    for seed in range(30):
        ground = with_writer(FaultPlan(storage=Rates(crash=0.4)), body, seed)
        if ground.world.actors["writer"].is_crashed:
            left.add((tuple(ground.disk.files), tuple(ground.disk.durable)))

    assert left == {((), ()), (("d/x",), ()), (("d/x",), ("d/x",))}


def test_a_put_that_a_power_cut_took_away_is_never_answered() -> None:
    answers = set()

    def write(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        try:
            storage.put_if_absent("d/x", b"1")
        except BookieUnavailableError:
            answers.add(("unknown", *ground.disk.files))
        else:
            answers.add(("stored", *ground.disk.files))

    def cut(ground: Ground) -> None:
        for _ in range(3):
            ground.world.point()
        ground.cuts += 1
        ground.disk.power_cut()

    for seed in range(200):
        with_writer(NO_FAULTS, write, seed, beside=cut)

    assert answers == {("unknown",), ("stored", "d/x")}


def test_a_frozen_actor_goes_on_by_itself() -> None:
    def body(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        for number in range(20):
            storage.put_if_absent(f"d/{number}", b"1")

    ground = with_writer(FaultPlan(storage=Rates(pause=0.2)), body)

    assert len(ground.disk.files) == 20
    assert ground.world.now > 0
    paused = [event for event in ground.world.history.events if event[1] == "pause"]
    resumed = [event for event in ground.world.history.events if event[1] == "resume"]
    assert 0 < len(paused) == len(resumed)


def test_a_bookie_that_is_down_answers_nobody_until_it_is_up() -> None:
    def body(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        faults.down.add(B)
        with pytest.raises(BookieUnavailableError, match="is down"):
            storage.read("d/x")
        faults.stop()
        assert storage.read("d/x") is None

    with_writer(NO_FAULTS, body)


def test_disasters_strike_at_their_operation() -> None:
    plan = FaultPlan(disasters=(Disaster("wipe", 0, 3, 1.0), Disaster("down", 0, 2, 1.0)))

    def body(storage: MemoryStorage, ground: Ground, faults: Faults) -> None:
        storage.read("d/x")
        assert ground.struck == []
        storage.read("d/x")
        assert ground.struck == [("down", 2)]
        storage.read("d/x")
        assert ground.struck == [("down", 2), ("wipe", 3)]

    with_writer(plan, body)


def test_a_seed_always_draws_the_same_plan_and_never_more_wipes_than_allowed() -> None:
    plans = [FaultPlan.drawn(seed, bookies=4, wipes_max=1) for seed in range(300)]

    assert plans == [FaultPlan.drawn(seed, bookies=4, wipes_max=1) for seed in range(300)]
    losses = [
        [d for d in plan.disasters if d.kind in ("wipe", "destroy", "damage")] for plan in plans
    ]
    assert {len({d.bookie for d in of_plan}) for of_plan in losses} == {0, 1}
    assert {d.kind for of_plan in losses for d in of_plan} == {"wipe", "destroy", "damage"}
    assert any(plan == NO_FAULTS for plan in plans)
