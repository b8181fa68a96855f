"""Bookies in simulated time that may hang, and what is asked of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.retry_policy import CALLS_AT_ONCE, Patience
from spark_bookkeeper.testing.hanging import Hang, HangingStorage
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.simulator.runtime import SimRuntime
from tests.simulator.scheduler import Task, World

PATIENCE = Patience(give_up=10.0, hedge=0.5, retry=5.0)


class Bench:
    """One bookie in simulated time, that hangs."""

    def __init__(self, world: World, hangs: Callable[[str, str], bool] = lambda *_: True) -> None:
        self.runtime = SimRuntime(world, world.actor("client"))
        self.disk = MemoryDisk("b")
        self.disk.files["f"] = b"content"
        self.disk.directories.add("d")
        self.hang = Hang(self.runtime, hangs)
        self.bookie_client = BookieClient("b:1", "memory://b", self.runtime, PATIENCE)
        self.storage = BoundedStorage(
            HangingStorage(MemoryStorage(self.disk), self.hang), self.bookie_client
        )
        self.world = world

    def is_refused(self) -> bool:
        """Whether the bookie is asked for nothing."""
        before = self.hang.count
        with pytest.raises(BookieUnavailableError):
            self.storage.read("f")
        return self.hang.count == before

    def note_employed(self) -> list[str]:
        """The names of the tasks that are employed from now on."""
        employed: list[str] = []
        employ = self.runtime.employ

        def noted(name: str, run: Callable[[], None]) -> None:
            employed.append(name)
            employ(name, run)

        self.runtime.employ = noted  # type: ignore[method-assign]
        return employed


def in_a_world(
    story: Callable[[Bench], None], hangs: Callable[[str, str], bool] = lambda *_: True
) -> None:
    with World(1) as world:
        bench = Bench(world, hangs)
        world.start(world.actor("client"), lambda: story(bench))
        world.run_all()


def in_world(
    hangs: Callable[[str, str], bool] = lambda *_: True,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test in a simulated world, with a bookie as its first argument."""

    def decorate(story: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(story)
        given_by_pytest = list(signature.parameters.values())[1:]

        def run(**given: object) -> None:
            in_a_world(lambda bench: story(bench, **given), hangs)

        run.__name__ = story.__name__
        run.__doc__ = story.__doc__
        run.__module__ = story.__module__
        run.__signature__ = signature.replace(parameters=given_by_pytest)  # type: ignore[attr-defined]  # pytest asks for it
        return run

    return decorate


class Two:
    """Two bookies in simulated time, of which one is read and the other is written to."""

    def __init__(self, bench: Bench, hangs: Callable[[str, str], bool]) -> None:
        self.bench = bench
        self.source, self.other = bench.storage, bench.bookie_client
        self.disk = MemoryDisk("c")
        self.disk.directories.add("d")
        self.hang = Hang(bench.runtime, hangs)
        self.bookie_client = BookieClient("c:1", "memory://c", bench.runtime, PATIENCE)
        inner = HangingStorage(MemoryStorage(self.disk), self.hang)
        self.target = BoundedStorage(inner, self.bookie_client)
        self.copied = 0

    def copy(self) -> int:
        """Three pieces from one to the other, in one task; how many that were."""

        def run() -> int:
            sink = self.target.create("d/copy")
            try:
                for _ in range(3):
                    data = self.source.read_range("f", 0, 7)
                    assert data is not None
                    sink.write(data)
                    self.bench.runtime.sleep(9.0)  # as long as neither of them is asked
                sink.finish()
            finally:
                sink.abandon()
            return 3

        return self.bookie_client.ask_with(self.other, "copying", run)

    def spawn_copies(self, run: Callable[[], None]) -> list[Task]:
        """As many tasks as there are places, each of which copies; all of them have begun."""

        def copy() -> None:
            self.bookie_client.ask_with(self.other, "copying", run)
            self.copied += 1

        tasks = [self.bench.world.spawn(f"user-{n}", copy) for n in range(CALLS_AT_ONCE)]
        self.bench.runtime.sleep(1.0)
        return tasks
