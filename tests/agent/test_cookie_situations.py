"""Every situation of cookie, marker and storage: what an agent does before it registers anything.

The table is in ``agent/identity.py``, beside what Apache BookKeeper does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.formatting import format_bookie
from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import CookieMismatchError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster
from tests.worlds import there

BOOKIE = BookieId("10.0.0.3:3181")
CONFIG = BookieConfig(3_600_000, 0, 0)


class ServedBookie:
    """A bookie that served its root once, with a ledger there."""

    def __init__(self, directory: Path) -> None:
        self.runtime = ThreadRuntime()
        self.cluster = MemoryCluster()
        self.store = self.cluster.session()
        self.store.initialize_cluster()
        self.root = directory / "bookie"
        self.other = directory / "other"
        for root in (self.root, self.other):
            root.mkdir()
        self.agent(self.root).start()
        self.store.unregister(BOOKIE)
        (self.root / "ledgers" / "0-nonce").mkdir()

    def storage(self, root: Path) -> LocalStorage:
        return LocalStorage(str(root), BOOKIE)

    def agent(self, root: Path, *, moved: bool = False) -> BookieAgent:
        return BookieAgent(
            self.store,
            Partition(self.storage(root)),
            BOOKIE,
            self.runtime,
            CONFIG,
            moved_from=(lambda uri: Partition(self.storage(self.root))) if moved else None,
        )

    def cookie(self, **changed: object) -> None:
        known = there(self.store.read_cookie(BOOKIE))
        self.store.write_cookie(replace(known.value, **changed), known.version)  # type: ignore[arg-type]  # any field

    def without_cookie(self) -> None:
        self.store.delete_cookie(BOOKIE, there(self.store.read_cookie(BOOKIE)).version)

    def wipe(self) -> None:
        shutil.rmtree(self.root)
        self.root.mkdir()

    def mark(self, **changed: str) -> None:
        marker = there(read_marker(self.storage(self.root)))
        (self.root / MARKER_PATH).write_bytes(replace(marker, **changed).encode())  # type: ignore[arg-type]  # any field


@dataclass(frozen=True)
class Situation:
    name: str
    prepare: Callable[[ServedBookie], object]
    refused: str | None
    """What the refusal says; ``None``: it is served."""
    at_other: bool = False
    moved: bool = False


def new(world: ServedBookie) -> None:
    world.without_cookie()
    world.wipe()


def data_without_marker(world: ServedBookie) -> None:
    world.without_cookie()
    (world.root / MARKER_PATH).unlink()


def another_bookie_here(world: ServedBookie) -> None:
    world.wipe()
    Partition(world.storage(world.root)).format(
        "10.0.0.4:3181",
        world.store.instance_id(),
        token=world.runtime.token,
        is_probe_required=False,
    )


def moved(world: ServedBookie) -> None:
    shutil.rmtree(world.other)
    shutil.copytree(world.root, world.other)


def replaced(world: ServedBookie) -> None:
    world.wipe()
    format_bookie(
        world.store,
        Partition(world.storage(world.root)),
        BOOKIE,
        token=world.runtime.token,
        is_replaced=True,
    )


SITUATIONS = [
    Situation("all agree", lambda world: None, None),
    Situation("nobody knows anything", new, None),
    Situation("cookie lost, data there", ServedBookie.without_cookie, "bookie cookie create"),
    Situation("cookie lost, data of nobody", data_without_marker, "nothing says whose it is"),
    Situation("wiped", ServedBookie.wipe, "not mounted, or it was wiped"),
    Situation(
        "marker lost", lambda world: (world.root / MARKER_PATH).unlink(), "not mounted, or it was"
    ),
    Situation("another incarnation", lambda world: world.mark(incarnation="x"), "at another time"),
    Situation("another bookie", another_bookie_here, "is that of bookie 10.0.0.4:3181"),
    Situation(
        "another cluster", lambda world: world.mark(instance_id="x"), "belongs to another cluster"
    ),
    Situation(
        "a cookie from before",
        lambda world: world.cookie(instance_id="x"),
        "from before this cluster was formatted",
    ),
    Situation(
        "BookKeeper's own cookie",
        lambda world: world.cookie(incarnation=""),
        "a bookie of Apache BookKeeper's own",
    ),
    Situation("another root, not said", moved, "under another root", at_other=True),
    Situation("another root, said", moved, None, at_other=True, moved=True),
    Situation("a further directory", lambda world: None, "a bookie has one root", at_other=True),
    Situation("a replaced disk", replaced, None),
]


@pytest.mark.parametrize("case", SITUATIONS, ids=lambda case: case.name)
def test_what_an_agent_does_before_it_registers(case: Situation, tmp_path: Path) -> None:
    world = ServedBookie(tmp_path)
    case.prepare(world)
    root = world.other if case.at_other else world.root
    agent = world.agent(root, moved=case.moved)
    before = world.store.read_cookie(BOOKIE)
    files = sorted(p.relative_to(root) for p in root.rglob("*"))

    if case.refused is None:
        agent.start()
        registered = [r.bookie_id for r in world.store.registrations()]
        agent.stop()
        assert registered == [BOOKIE]
        return
    with pytest.raises(CookieMismatchError, match=case.refused) as caught:
        agent.start()

    assert "What to do: " in caught.value.message
    assert world.store.registrations() == []
    assert world.store.read_cookie(BOOKIE) == before
    assert sorted(p.relative_to(root) for p in root.rglob("*")) == files
