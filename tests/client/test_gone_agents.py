"""Bookies whose agents are gone while their storage answers, and writers that leave them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.lane import Lane
from spark_bookkeeper.client.write.watch import AWAY_SECONDS, Watch
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import AppendFailedError
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground
from tests.client.test_readonly import assert_all_appended, ensemble, is_failed

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext
    from spark_bookkeeper.client.write.lane_set import Reports

USUAL = Quorum(3, 3, 2)
PATIENT = ClientConfig(add_timeout_ms=1_000_000)
"""No bookie is lost for its silence, and nobody looks at bookies but a test."""

pytestmark = pytest.mark.usefixtures("unsynced")


@dataclass
class World:
    """Four bookies, a writer on three of them, and a clock that can be put forward."""

    ground: Ground
    writer: LedgerWriter
    later: Callable[[float], None]
    held: dict[BookieId, threading.Event]

    def look(self) -> None:
        self.writer._adds._watch.look_at_registrations()

    def look_after_a_while(self) -> None:
        self.look()
        self.later(AWAY_SECONDS + 1)
        self.look()

    def leave(self, bookie: BookieId) -> None:
        """The bookie's agent is gone for a while, and the writer leaves it."""
        self.ground.end_agent(bookie)
        self.look_after_a_while()
        self.ground.until(lambda: bookie not in ensemble(self.writer))

    def hold(self, *bookies: BookieId) -> None:
        """What is asked of these bookies has no answer until ``release``."""
        self.held |= {bookie: threading.Event() for bookie in bookies}

    def release(self, bookie: BookieId) -> None:
        self.held[bookie].set()

    def lane(self, bookie: BookieId) -> Lane:
        lanes = self.writer._adds._lanes.by_position.values()
        return next(lane for lane in lanes if lane.bookie == bookie)

    def append_held(self, payload: bytes, bookie: BookieId) -> None:
        """Append an entry, which is on its way to a bookie that does not answer."""
        lane = self.lane(bookie)
        self.writer.append_async(payload)
        self.ground.until(lambda: lane.sending_since is not None)

    def stored(self, bookie: BookieId, entry_id: int) -> None:
        """Wait until the writer knows that a bookie stores an entry."""

        def knows() -> bool:
            acks = self.writer._adds.acks()[0]
            return any(ack.bookie == bookie and ack.last >= entry_id for ack in acks)

        self.ground.until(knows)


@contextmanager
def world_in(directory: Path) -> Iterator[World]:
    ground = Ground(directory, bookies=4, config=PATIENT)
    offset = 0.0

    def later(seconds: float) -> None:
        nonlocal offset
        offset += seconds

    held: dict[BookieId, threading.Event] = {}

    def wait(place: str, operation: str, path: str) -> None:
        if (event := held.get(BookieId(place))) is not None:
            event.wait()

    ground.before.append(wait)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ground.runtime), "now", lambda _: time.monotonic() + offset)
        writer = lifecycle.create_ledger(ground.context, USUAL)
        world = World(ground, writer, later, held)
        writer.append(b"0")
        for bookie in ensemble(writer):
            world.stored(BookieId(bookie), 0)
        yield world
    for event in held.values():
        event.set()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as world:
        yield world


def test_a_writer_leaves_a_bookie_whose_agent_is_gone_though_its_files_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To autorecovery it is lost, and the ledger would be taken from its writer."""
    ground = Ground(tmp_path, bookies=4, config=PATIENT)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    away = BookieId(ensemble(writer)[0])
    watch = writer._adds._watch
    now = 0.0
    monkeypatch.setattr(type(ground.runtime), "now", lambda _: now)

    ground.end_agent(away)
    watch.look_at_registrations()
    now = AWAY_SECONDS - 1
    watch.look_at_registrations()
    ground.start(away)
    watch.look_at_registrations()
    ground.end_agent(away)
    watch.look_at_registrations()
    now += AWAY_SECONDS - 1
    watch.look_at_registrations()
    assert away in ensemble(writer), "an agent that is started again has its time"
    now += 1
    watch.look_at_registrations()
    monkeypatch.undo()
    ground.until(lambda: away not in ensemble(writer))
    writer.append(b"1")
    writer.close()

    assert_all_appended(ground, writer, 2)


def test_a_writer_goes_back_to_a_bookie_that_it_left_when_another_one_is_lost(
    world: World,
) -> None:
    """In the slot behind those that it filled: what it stored there stays where it is."""
    first, second, _ = map(BookieId, ensemble(world.writer))
    world.leave(first)
    slots = world.ground.files(first, "slots")
    world.ground.start(first)
    world.writer.append(b"1")

    world.ground.stop(second)
    world.writer.append(b"2")
    world.ground.until(lambda: second not in ensemble(world.writer))
    assert first in ensemble(world.writer)
    world.writer.append(b"3")
    world.stored(first, 3)
    world.ground.start(second)
    world.writer.close()

    assert set(slots) < set(world.ground.files(first, "slots"))
    entries = lifecycle.open_ledger(world.ground.client(), world.writer.ledger_id).entries()
    assert [entry.payload for entry in entries] == [b"0", b"1", b"2", b"3"]


def test_agents_that_are_started_again_one_after_the_other_are_left_one_after_the_other(
    world: World,
) -> None:
    """The living writer would lose its ledger to autorecovery: there is a bookie to go to."""
    count = 1
    for _ in range(6):
        bookie = BookieId(ensemble(world.writer)[count % 3])
        world.leave(bookie)
        world.ground.start(bookie)
        world.writer.append(b"%d" % count)
        count += 1
    world.writer.close()

    assert_all_appended(world.ground, world.writer, count)


def test_a_writer_does_not_go_back_while_what_it_sent_last_has_no_answer(world: World) -> None:
    """R2, R3: nobody knows for certain which slot is the next one."""
    first, second, _ = map(BookieId, ensemble(world.writer))
    world.hold(first, second)
    world.append_held(b"1", first)
    world.leave(first)
    world.writer.flush()
    world.ground.start(first)

    world.ground.stop(second)
    world.release(second)
    world.ground.until(lambda: is_failed(world.writer) or second not in ensemble(world.writer))

    assert first not in ensemble(world.writer)
    with pytest.raises(AppendFailedError, match="when its agent was gone; what it was sent last"):
        world.writer.append(b"2")


def test_a_writer_goes_back_once_what_it_sent_last_was_answered(world: World) -> None:
    first, second, _ = map(BookieId, ensemble(world.writer))
    lane = world.lane(first)
    world.hold(first, second)
    world.append_held(b"1", first)
    world.leave(first)
    world.ground.start(first)
    world.writer.flush()
    world.release(first)
    world.ground.until(lambda: lane.sending_since is None)

    world.release(second)
    world.leave(second)
    assert first in ensemble(world.writer)
    world.writer.append(b"2")
    world.ground.start(second)
    world.writer.close()

    assert_all_appended(world.ground, world.writer, 3)


def test_a_writer_does_not_go_back_while_what_is_there_is_not_acknowledged(world: World) -> None:
    """Slots ascend in entry ids: what was stored there would be sent there again."""
    first, second, third = map(BookieId, ensemble(world.writer))
    (spare,) = set(world.ground.bookie_ids) - set(ensemble(world.writer))
    world.hold(second, third, spare)
    world.writer.append_async(b"1")
    world.stored(first, 1)
    world.leave(first)
    world.ground.start(first)

    world.ground.stop(second)
    world.release(second)
    world.ground.until(lambda: is_failed(world.writer) or second not in ensemble(world.writer))

    assert first not in ensemble(world.writer)
    with pytest.raises(AppendFailedError, match="up to entry 1, is not acknowledged"):
        world.writer.append(b"2")


def test_a_bookie_that_moved_since_the_writer_left_it_is_lost_to_the_writer(world: World) -> None:
    """What is put to where it was would be found by nobody."""
    first, second, _ = map(BookieId, ensemble(world.writer))
    world.leave(first)
    world.ground.start(first)
    bookies = world.ground.context.bookies
    bookies.registrations()
    root_uri = bookies.root_uri(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(bookies),
            "root_uri",
            lambda self, bookie: f"{root_uri}-moved" if bookie == first else root_uri,
        )
        world.ground.stop(second)
        world.writer.append_async(b"1")
        world.ground.until(lambda: is_failed(world.writer))

    with pytest.raises(AppendFailedError, match="has moved"):
        world.writer.append(b"2")


def test_a_gone_bookie_whose_storage_hangs_holds_up_no_acknowledgement(world: World) -> None:
    gone = BookieId(ensemble(world.writer)[2])
    world.hold(gone)
    world.writer.append(b"1")
    world.ground.end_agent(gone)
    world.look_after_a_while()

    for number in range(2, 6):
        assert world.writer.append_async(b"%d" % number).result(timeout=60) == number
        world.look()

    assert gone in ensemble(world.writer), "it has not its share of what is acknowledged"
    world.release(gone)
    world.ground.until(lambda: gone not in ensemble(world.writer))
    world.writer.append(b"6")
    world.writer.close()
    assert_all_appended(world.ground, world.writer, 7)


@pytest.mark.parametrize("explicit_lac_ms", [0, 1_000, 3_600_000])
@pytest.mark.parametrize("add_timeout_ms", [30_000, 120_000])
def test_how_soon_a_gone_bookie_is_left_does_not_depend_on_the_time_of_an_add(
    world: World, add_timeout_ms: int, explicit_lac_ms: int
) -> None:
    """Within 15 seconds, whenever its agent goes; autorecovery takes the ledger after 30."""
    config = ClientConfig(add_timeout_ms=add_timeout_ms, explicit_lac_ms=explicit_lac_ms)

    for gone_at in range(30, 60):
        assert AWAY_SECONDS <= left_after(world, config, gone_at) <= AWAY_SECONDS * 1.5


def left_after(world: World, config: ClientConfig, gone_at: float) -> float:
    """How long after its agent went the loop of a watch has a bookie left."""
    adds = world.writer._adds
    gone = BookieId(ensemble(world.writer)[0])
    alive = world.ground.context.bookies.registrations()
    now, left_at = 0.0, 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def registrations() -> dict[BookieId, Registration]:
        return {b: r for b, r in alive.items() if b != gone or now < gone_at}

    def leave(lane: Lane, *, is_gone: bool) -> None:
        nonlocal left_at
        assert (lane.bookie, is_gone) == (gone, True)
        left_at = now
        watch.end()

    context = SimpleNamespace(
        config=config,
        runtime=SimpleNamespace(now=lambda: now, condition=threading.Condition),
        bookies=SimpleNamespace(last_registrations=registrations),
    )
    reports = SimpleNamespace(
        confirmed=NO_ENTRY, confirmed_at=0.0, is_busy=False, is_to_be_left=leave
    )
    watch = Watch(
        cast("ClientContext", context),
        adds._changed,
        adds._lanes,
        adds._pending,
        adds._delivery,
        cast("Reports", reports),
    )
    watch._over.wait = wait  # type: ignore[method-assign,assignment]  # time goes by
    watch._run()
    return left_at - gone_at
