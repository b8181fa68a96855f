"""Several partitions in one process: what happens to one is nothing to the others."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection

import pytest

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.health_server import HealthServer, exposition, health_of_all
from spark_bookkeeper.agent.partitions import Partitions, ServedPartition
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metrics import BookieMetrics, Metrics
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster
from tests.agent.agents import free_port, half_full
from tests.worlds import there

CONFIG = BookieConfig(20, 100, 200)


class ThreeDisks:
    """Three partitions on disks of their own, some of which fail."""

    def __init__(self) -> None:
        self.runtime = ThreadRuntime()
        self.metadata = MemoryCluster()
        self.store = self.metadata.session()
        self.store.initialize_cluster()
        self.failing: set[str] = set()
        self.unmounted: set[str] = set()
        self.disks = {f"127.0.0.1:{port}": half_full(str(port)) for port in (3181, 3182, 3183)}
        self.told: list[str] = []
        self.heard = AutoResetEvent(self.runtime)
        self.shared = Metrics()
        self.partitions = Partitions(
            self.runtime,
            [self.partition(bookie) for bookie in self.disks],
            retry_seconds=0.02,
            tell=self.tell,
        )

    def tell(self, text: str) -> None:
        self.told.append(text)
        if "now" in text:
            self.heard.set()

    def partition(self, bookie: str) -> ServedPartition:
        def fail(operation: str, path: str, moment: str) -> None:
            if bookie in self.failing:
                raise BookieUnavailableError("input/output error", bookie_id=bookie)

        def opened(metrics: BookieMetrics) -> tuple[BookieAgent, Callable[[], None]]:
            if bookie in self.unmounted:
                raise InvalidArgumentError(f"/disks/{bookie} is not a directory")
            storage = MemoryStorage(self.disks[bookie], fail)
            agent = BookieAgent(
                self.store,
                Partition(storage),
                BookieId(bookie),
                self.runtime,
                CONFIG,
                metrics=metrics,
            )
            return agent, storage.close

        return ServedPartition(BookieId(bookie), f"/disks/{bookie}", opened)

    def registered(self) -> list[str]:
        return sorted(r.bookie_id for r in self.metadata.session().registrations())


@pytest.fixture
def world() -> Iterator[ThreeDisks]:
    world = ThreeDisks()
    yield world
    world.failing.clear()
    world.partitions.stop()


@pytest.fixture
def interrupts() -> Iterator[int]:
    """The thread that Ctrl-C interrupts, also where these tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield there(threading.main_thread().ident)
    signal.signal(signal.SIGINT, before)


def eventually(world: ThreeDisks, expected: list[str]) -> None:
    deadline = world.runtime.now() + 60
    while world.registered() != expected:
        assert world.runtime.now() < deadline, world.registered()
        world.runtime.sleep(0.01)


def test_each_is_a_bookie_of_its_own(world: ThreeDisks) -> None:
    world.partitions.start()

    assert world.registered() == sorted(world.disks)
    store = world.metadata.session()
    cookies = {c.value.bookie_id: c.value.incarnation for c in store.cookies()}
    assert len(set(cookies.values())) == 3
    world.partitions.stop()
    assert world.registered() == []


def test_a_disk_that_fails_takes_its_own_bookie_and_no_other(world: ThreeDisks) -> None:
    first, second, third = world.disks
    world.partitions.start()

    world.failing.add(second)
    eventually(world, [first, third])
    while world.partitions.partitions[1].status.problem is None:
        world.runtime.sleep(0.01)  # it is told a moment after it is done
    told = health_of_all(world.partitions.partitions)
    world.failing.clear()
    eventually(world, [first, second, third])

    assert (told["writable"], told["unregistered"]) == (2, 1)
    states = {each["bookie_id"]: (each["state"], each["reason"]) for each in told["bookies"]}
    assert states[second][0] == "unregistered"
    assert "input/output error" in states[second][1]
    assert states[first] == states[third] == ("writable", None)


@pytest.mark.parametrize("trouble", ["failing", "unmounted"])
def test_one_that_cannot_be_started_is_tried_again_beside_the_others(
    world: ThreeDisks, trouble: str
) -> None:
    first, second, third = world.disks
    getattr(world, trouble).add(second)

    world.partitions.start()

    assert world.registered() == [first, third]
    assert len(world.told) == 1
    assert f"bookie {second} at /disks/{second} is not served" in world.told[0]
    told = health_of_all(world.partitions.partitions)["bookies"][1]
    assert told["state"] == "unregistered"
    assert told["reason"]
    getattr(world, trouble).clear()
    assert world.heard.wait(60)
    eventually(world, [first, second, third])


def test_one_that_is_another_bookies_stays_out_and_the_others_serve(world: ThreeDisks) -> None:
    first, second, third = world.disks
    world.partitions.start()
    world.partitions.stop()
    world.disks[second] = world.disks[third]
    again = Partitions(
        world.runtime,
        [world.partition(b) for b in (first, second)],
        retry_seconds=0.02,
        tell=world.tell,
    )

    again.start()
    registered = world.registered()
    again.stop()

    assert registered == [first]
    assert f"the storage is that of bookie {third}" in world.told[-1]


def test_when_none_can_be_started_it_is_an_error(world: ThreeDisks) -> None:
    world.unmounted |= set(world.disks)

    with pytest.raises(InvalidArgumentError, match="is not a directory"):
        world.partitions.start()

    assert world.registered() == []


def test_when_none_can_be_started_for_want_of_an_answer_all_are_tried_again(
    world: ThreeDisks,
) -> None:
    def away(moment: str, operation: str, subject: str) -> None:
        raise MetadataUnavailableError("ZooKeeper did not answer")

    world.store.faults = away

    world.partitions.start()
    world.store.faults = None

    eventually(world, sorted(world.disks))
    assert sum("tried again" in told for told in world.told) == 3


@pytest.mark.parametrize("moment", ["start", "stop"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_interrupt_waits_for_no_partition_that_hangs(
    world: ThreeDisks, moment: str, count: int, interrupts: int
) -> None:
    let_go = threading.Event()
    waited_for: list[str] = []

    class Hanging(ServedPartition):
        """Its disk hangs, and the person in front of it has had enough."""

        def _hang(self, now: str) -> None:
            if now == moment and not let_go.is_set():
                signal.pthread_kill(interrupts, signal.SIGINT)
                let_go.wait(20)  # so that this test ends where it fails
                waited_for.append(self.bookie_id)

        def start(self) -> None:
            self._hang("start")

        def stop(self) -> None:
            self._hang("stop")

    *others, last = list(world.disks)[:count]
    hanging = Hanging(BookieId(last), last, lambda _: pytest.fail("it is not opened"))
    partitions = Partitions(world.runtime, [*map(world.partition, others), hanging])
    if moment == "stop":
        partitions.start()

    with pytest.raises(KeyboardInterrupt):
        getattr(partitions, moment)()

    assert waited_for == []
    let_go.set()
    partitions.stop()


def test_the_same_bookie_or_root_twice_is_refused(world: ThreeDisks) -> None:
    one = world.partition("127.0.0.1:3181")
    other = world.partition("127.0.0.1:3182")
    other.root = one.root + "/"

    with pytest.raises(InvalidArgumentError, match=r"bookie .* is named twice"):
        Partitions(world.runtime, [one, one])
    with pytest.raises(InvalidArgumentError, match=r"root .* is named twice"):
        Partitions(world.runtime, [one, other])


def test_metrics_have_the_bookie_as_a_label_and_each_name_once(world: ThreeDisks) -> None:
    first, second, _ = world.disks
    world.failing.add(second)
    world.partitions.start()

    text = exposition(world.partitions.partitions, world.shared).decode()
    alone = exposition(world.partitions.partitions[:1]).decode()

    assert f'bookie_SERVER_STATUS{{bookie="{first}"}} 1.0' in text
    assert f'bookie_SERVER_STATUS{{bookie="{second}"}} -1.0' in text
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert text.count("zookeeper_client_retries_total 0.0") == 1
    assert "bookie_SERVER_STATUS 1.0" in alone


def test_health_of_all_and_of_each_has_its_page(world: ThreeDisks) -> None:
    first, second, _ = world.disks
    world.failing.add(second)
    world.partitions.start()
    port = free_port()
    config = BookieConfig(http_port=port)

    def asked(page: str) -> tuple[int, dict[str, object]]:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", page)
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    with HealthServer(world.partitions.partitions, config, world.shared):
        code, everything = asked("/health")
        well, _ = asked(f"/health/{first}")
        ill, told = asked(f"/health/{second}")

    assert (code, everything["writable"]) == (200, 2)
    assert (well, ill) == (200, 503)
    assert told["bookie_id"] == second
