"""A writer's process that stands still for longer than a bookie may take, and goes on."""

from __future__ import annotations

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.asking import Door
from spark_bookkeeper.client.bookies.bounded_storage import BoundedStorage
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from spark_bookkeeper.testing.simulation.faults import FaultPlan
from spark_bookkeeper.testing.simulation.ground import SimCluster
from spark_bookkeeper.testing.simulation.runtime import SimRuntime
from spark_bookkeeper.testing.simulation.scheduler import World


def test_a_writer_that_stood_still_does_not_blame_its_bookies() -> None:
    world = World(1)
    cluster = SimCluster(world, 3, FaultPlan())
    actor = world.actor("writer")
    runtime = SimRuntime(world, actor)
    store = cluster.store(actor)
    puts = 0

    def stand_still(operation: str, path: str, moment: str) -> None:
        nonlocal puts
        if operation == "put" and moment == "before":
            puts += 1
            if puts == 2:  # of the three of the first entry
                world.later(100, lambda: world.resume(actor))
                world.pause(actor)

    def opened(_: str, door: Door) -> FileBookie:
        storage = MemoryStorage(cluster.disks[BookieId(door.bookie_id)], stand_still)
        return FileBookie(BoundedStorage(storage, door))

    context = ClientContext(store, Bookies(store, opened, runtime), runtime, ClientConfig())

    def write() -> None:
        with lifecycle.create_ledger(context, Quorum(3, 3, 3)) as writer:
            writer.append(b"before and after")
        fragments.extend(writer.metadata.fragments)

    fragments: list[object] = []
    world.start(actor, write)
    world.run_all()

    assert runtime.now() >= 100
    assert len(fragments) == 1
