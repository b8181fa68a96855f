"""The scheduler itself, with toys in place of ledgers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tests.simulation.processes import HASHES, printed_there
from tests.simulator.choices import (
    Choices,
    EnumeratedChoices,
    SeededChoices,
    explore,
)
from tests.simulator.runtime import SimRuntime
from tests.simulator.scheduler import (
    Crash,
    DeadlockError,
    LivelockError,
    SimulationError,
    TaskFailedError,
    World,
)


class Register:
    """A number under compare-and-swap; each operation is a point."""

    def __init__(self, world: World) -> None:
        self.value = 0
        self._world = world

    def read(self) -> int:
        self._world.point()
        self._world.history.note(self._world.current.actor.name, "read", self.value)
        return self.value

    def write(self, value: int) -> None:
        self._world.point()
        self._world.history.note(self._world.current.actor.name, "write", value)
        self.value = value

    def swap(self, expected: int, value: int) -> bool:
        self._world.point()
        if self.value != expected:
            return False
        self.value = value
        return True


def count(world: World, actors: int, body: Callable[[Register], None]) -> int:
    register = Register(world)
    for number in range(actors):
        world.start(world.actor(f"counter-{number}"), lambda: body(register))
    world.run_all()
    return register.value


def increment_blindly(register: Register) -> None:
    for _ in range(3):
        register.write(register.read() + 1)


def increment_by_swap(register: Register) -> None:
    for _ in range(3):
        while not register.swap(value := register.read(), value + 1):
            pass


def test_some_seed_finds_the_update_that_a_blind_write_loses() -> None:
    totals = set()
    for seed in range(50):
        with World(seed) as world:
            totals.add(count(world, 2, increment_blindly))

    assert min(totals) < 6
    assert max(totals) == 6


def test_no_seed_loses_an_update_made_by_compare_and_swap() -> None:
    for seed in range(200):
        with World(seed) as world:
            assert count(world, 3, increment_by_swap) == 9


def test_one_deviation_is_enough_to_lose_an_update_and_none_is_not() -> None:
    def run(choices: EnumeratedChoices) -> None:
        with World(0, choices) as world:
            assert count(world, 2, increment_blindly) == 6, "an update was lost"

    assert explore(run, deviations=0, faults=0) == 1
    with pytest.raises(AssertionError, match=r"(?s)an update was lost.*repeat with the") as e:
        explore(run, deviations=1, faults=0)

    made = [int(text) for text in str(e.value).rsplit("[", 1)[1].rstrip("]").split(",")]
    with pytest.raises(AssertionError, match="an update was lost"):
        run(EnumeratedChoices(made, deviations=1, faults=0))


def test_every_schedule_of_two_tasks_is_met() -> None:
    orders: list[str] = []

    def run(choices: EnumeratedChoices) -> None:
        order: list[str] = []

        def body(letter: str) -> None:
            for _ in range(2):
                world.point()
                order.append(letter)

        with World(0, choices) as world:
            for letter in "ab":
                world.start(world.actor(letter), lambda letter=letter: body(letter))  # type: ignore[misc]  # bound early
            world.run_all()
        orders.append("".join(order))

    runs = explore(run, deviations=9, faults=0)

    assert runs == len(orders)
    assert set(orders) == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}


def toy(seed: int, choices: Choices | None = None) -> World:
    """Two actors with everything a runtime offers; returns the world after its end."""
    with World(seed, choices) as world:

        def body(runtime: SimRuntime, register: Register) -> None:
            condition = runtime.condition()
            found: list[str] = []

            def helper(item: int) -> str:
                runtime.sleep(world.choices.fraction())
                register.write(register.read() + item)
                with condition:
                    found.append(runtime.token())
                    condition.notify_all()
                return found[-1]

            runtime.map(helper, [1, 2, 3])
            items = list(range(8))
            runtime.shuffle(items)
            with condition:
                while len(found) < 3:
                    condition.wait()
            world.history.note("all", "found", *sorted(found), *items, runtime.now())

        register = Register(world)
        for name in ("one", "two"):
            actor = world.actor(name)
            runtime = SimRuntime(world, actor)
            world.start(actor, lambda runtime=runtime: body(runtime, register))  # type: ignore[misc]  # bound early
        world.run_all()
    return world


def test_the_same_seed_gives_the_same_history_and_another_seed_another() -> None:
    digests = [toy(seed).history.digest() for seed in (1, 2, 1)]

    assert digests[0] == digests[2]
    assert digests[0] != digests[1]


def test_the_history_does_not_depend_on_the_process() -> None:
    printed = printed_there(__file__, "7")

    assert printed == toy(7).history.digest() + "\n", HASHES


def live(body: Callable[[World, SimRuntime], None], step_limit: int = 100_000) -> World:
    """The life of one actor, which does this; the world after it."""
    with World(0, step_limit=step_limit) as world:
        actor = world.actor("writer")
        runtime = SimRuntime(world, actor)
        world.start(actor, lambda: body(world, runtime))
        world.run_all()
    return world


def test_who_waits_for_whom_is_said_when_nobody_can_go_on() -> None:
    def body(world: World, runtime: SimRuntime) -> None:
        first, second = runtime.condition(), runtime.condition()

        def other() -> None:
            with second:
                runtime.sleep(1)
                with first:
                    pass

        task = runtime.spawn("other", other)
        with first:
            runtime.sleep(1)
            with second:
                pass
        task.join()

    with pytest.raises(DeadlockError) as e:
        live(body)

    assert "writer/main waits for condition 2 of writer, held by writer/other" in str(e.value)
    assert "writer/other waits for condition 1 of writer, held by writer/main" in str(e.value)


def test_a_lock_taken_twice_is_refused_as_a_real_one_would_hang() -> None:
    def body(world: World, runtime: SimRuntime) -> None:
        lock = runtime.condition()
        with lock, lock:
            pass

    with pytest.raises(SimulationError, match="which it holds"):
        live(body)


def test_a_run_that_does_not_end_is_stopped() -> None:
    def body(world: World, runtime: SimRuntime) -> None:
        while True:
            try:
                world.point()
            except Exception:
                continue

    with pytest.raises(LivelockError, match="more than 100 steps"):
        live(body, step_limit=100)


def test_an_error_that_nobody_handled_names_its_task() -> None:
    with pytest.raises(TaskFailedError, match="writer/main ended with IndexError"):
        live(lambda world, runtime: [][0])


def test_time_passes_only_when_nobody_can_go_on() -> None:
    moments: list[tuple[str, float]] = []
    with World(3) as world:

        def sleeper() -> None:
            world.delay(2.5)
            moments.append(("woke", world.now))

        def worker() -> None:
            for _ in range(20):
                world.point()
            moments.append(("worked", world.now))

        world.start(world.actor("sleeper"), sleeper)
        world.start(world.actor("worker"), worker)
        world.run_all()

    assert moments == [("worked", 0.0), ("woke", 2.5)]


def test_a_future_and_a_condition_time_out_on_the_simulated_clock() -> None:
    found: list[object] = []

    def body(world: World, runtime: SimRuntime) -> None:
        late: Future[int] = Future()

        def answer() -> None:
            runtime.sleep(5)
            late.set_result(7)

        runtime.spawn("answer", answer)
        with pytest.raises(TimeoutError):
            runtime.wait(late, timeout=2)
        found.append(runtime.now())
        condition = runtime.condition()
        with condition:
            found.append(condition.wait(timeout=1))
        found.append(runtime.now())
        runtime.sleep(0.5)
        found.append(runtime.wait(late, timeout=10))
        found.append(runtime.now())

    live(body)

    assert found == [2.0, False, 3.0, 7, 5.0]


def test_an_answer_to_an_earlier_wait_does_not_end_a_later_one() -> None:
    def body(world: World, runtime: SimRuntime) -> None:
        late: Future[int] = Future()

        def answer() -> None:
            runtime.sleep(2)
            late.set_result(7)

        runtime.spawn("answer", answer)
        with pytest.raises(TimeoutError):
            runtime.wait(late, timeout=1)
        runtime.sleep(9)

    assert live(body).now == 10.0


def test_a_crash_ends_all_tasks_of_the_actor_and_nothing_they_do_after_it_counts() -> None:
    after: list[str] = []
    with World(1) as world:
        actor = world.actor("writer")
        runtime = SimRuntime(world, actor)
        register = Register(world)

        def stubborn() -> None:
            try:
                runtime.sleep(10)
            finally:
                after.append("cleaned up in memory")
                register.write(99)

        def body() -> None:
            runtime.spawn("helper", stubborn)
            runtime.sleep(1)
            try:
                world.crash(actor)
            except BaseException:
                register.write(98)
                raise

        world.start(actor, body)
        world.start(world.actor("bystander"), lambda: world.delay(3))
        world.run_all()

        assert after == ["cleaned up in memory"]
        assert register.value == 0
        assert not actor.tasks
        assert world.now == 3.0


def test_an_actor_can_be_crashed_from_outside_at_any_moment() -> None:
    done: list[int] = []

    def body(world: World, runtime: SimRuntime) -> None:
        world.later(4.5, lambda: world.crash(world.actor("writer")))
        for number in range(10):
            world.delay(1)
            done.append(number)

    live(body)

    assert done == [0, 1, 2, 3]


def test_a_frozen_actor_goes_on_where_it_stood() -> None:
    moments: list[float] = []

    def body(world: World, runtime: SimRuntime) -> None:
        world.later(1.5, lambda: world.pause(world.actor("writer")))
        world.later(7.0, lambda: world.resume(world.actor("writer")))
        for _ in range(3):
            world.delay(1)
            moments.append(world.now)

    live(body)

    assert moments == [1.0, 7.0, 8.0]


def test_an_actor_that_freezes_itself_stays_so_until_somebody_resumes_it() -> None:
    with pytest.raises(DeadlockError, match="writer/main is frozen"):
        live(lambda world, _: world.pause(world.actor("writer")))


def test_effects_under_way_outlive_the_run_that_began_them() -> None:
    landed: list[float] = []
    with World(1) as world:
        world.start(world.actor("writer"), lambda: world.later(5, lambda: landed.append(world.now)))
        world.run_all()
        assert landed == []

        world.start(world.actor("reader"), lambda: world.delay(9))
        world.run_all()

    assert landed == [5.0]


def test_tasks_left_behind_end_with_the_run() -> None:
    ended: list[str] = []

    def body(world: World, runtime: SimRuntime) -> None:
        def channel() -> None:
            try:
                condition = runtime.condition()
                with condition:
                    condition.wait()
            except Crash:
                ended.append("lane")
                raise

        runtime.spawn("lane", channel)
        runtime.sleep(1)

    live(body)

    assert ended == ["lane"]


def test_chance_keeps_to_the_rates_it_is_given() -> None:
    choices = SeededChoices(5)

    drawn = [choices.fault([0.1, 0.0, 0.2]) for _ in range(5000)]

    assert 0.07 < drawn.count(1) / 5000 < 0.13
    assert drawn.count(2) == 0
    assert 0.16 < drawn.count(3) / 5000 < 0.24


if __name__ == "__main__":
    print(toy(int(sys.argv[1])).history.digest())
