"""Bookies whose agents are gone while their storage answers, and writers that leave them."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.ledger import with_incarnations
from spark_bookkeeper.client.write import ensemble_change
from spark_bookkeeper.client.write.bookie_channel import BookieChannel
from spark_bookkeeper.client.write.silence_timer import SilenceTimer
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    AppendFailedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.runtime.runtime import Runtime, Task
from spark_bookkeeper.storage.retry_policy import AWAY_SECONDS
from spark_bookkeeper.testing.ground import Ground
from tests.client.test_readonly import assert_all_appended, ensemble, is_failed
from tests.worlds import USUAL, payloads

if TYPE_CHECKING:
    from spark_bookkeeper.client.context import ClientContext
    from spark_bookkeeper.client.write.ensemble_channels import Reports

PATIENT = ClientConfig(add_timeout_ms=1_000_000)
"""No bookie is lost for its silence."""

pytestmark = pytest.mark.usefixtures("unsynced")


@dataclass
class AgentWorld:
    """Four bookies, a writer on three of them, and a clock that can be put forward.

    Nobody looks at the bookies but a test, however long it takes.
    """

    ground: Ground
    writer: LedgerWriter
    later: Callable[[float], None]
    held: dict[BookieId, threading.Event]

    def look(self) -> None:
        self.writer._pipeline._watch.look_at_registrations()

    def look_after_a_while(self) -> None:
        self.look()
        self.later(AWAY_SECONDS + 1)
        self.look()

    def watch_away(self, bookie: BookieId) -> None:
        """Nobody has looked since the bookie's agent went, a while ago."""
        watch = self.writer._pipeline._watch
        watch._away_since[bookie] = self.ground.runtime.now() - AWAY_SECONDS - 1

    def leave(self, bookie: BookieId) -> None:
        """The bookie's agent is gone for a while, and the writer leaves it."""
        self.ground.end_agent(bookie)
        self.look_after_a_while()
        self.ground.until(lambda: bookie not in ensemble(self.writer))

    def hold(self, *bookies: BookieId) -> None:
        """What is asked of these bookies has no answer until ``release``."""
        self.held |= {bookie: threading.Event() for bookie in bookies}

    def lose(self, bookie: BookieId) -> None:
        """A bookie that does not answer is lost, and the writer needs another one, or fails."""
        self.ground.stop(bookie)
        self.release(bookie)
        self.ground.until(lambda: is_failed(self.writer) or bookie not in ensemble(self.writer))

    def lose_and_not_go_back(self, lost: BookieId, left: BookieId, reason: str) -> None:
        """It needs another bookie, and one that it left is none for it."""
        self.lose(lost)
        assert left not in ensemble(self.writer)
        with pytest.raises(AppendFailedError, match=reason):
            self.writer.append(b"2")

    def release(self, bookie: BookieId) -> None:
        self.held[bookie].set()

    def release_and_wait(self, channel: BookieChannel) -> None:
        """Return when what was on its way to the bookie of a channel has an answer."""
        self.release(channel.bookie)
        self.ground.until(lambda: channel.sending_since is None)

    def channel(self, bookie: BookieId) -> BookieChannel:
        channels = self.writer._pipeline._channels.by_position.values()
        return next(channel for channel in channels if channel.bookie == bookie)

    def append_held(self, payload: bytes, bookie: BookieId) -> Future[int]:
        """Append an entry, which is on its way to a bookie that does not answer."""
        channel = self.channel(bookie)
        added = self.writer.append_async(payload)
        self.ground.until(lambda: channel.sending_since is not None)
        return added

    def append_and_end_agent(self, payload: bytes, bookie: BookieId) -> None:
        """Append an entry that the others store; then the bookie's agent is gone as well."""
        self.hold(bookie)
        self.append_held(payload, bookie).result()
        self.ground.end_agent(bookie)

    def append_held_up(self) -> Future[int]:
        """Append an entry that two bookies store, and that waits for the third: it is to be left.

        That one is read-only and does not answer, and one entry behind.
        """
        *others, behind = ensemble(self.writer)
        self.hold(behind)
        self.append_held(b"1", behind).result()
        self.ground.start(behind, is_readonly=True)
        self.look()
        added = self.writer.append_async(b"2")
        for bookie in others:
            self.stored(bookie, 2)
        assert not added.done()
        return added

    def stored(self, bookie: BookieId, entry_id: int) -> None:
        """Wait until the writer knows that a bookie stores an entry."""

        def knows() -> bool:
            acks = self.writer._pipeline.acks()[0]
            return any(ack.bookie == bookie and ack.last >= entry_id for ack in acks)

        self.ground.until(knows)


@contextmanager
def world_in(directory: Path) -> Iterator[AgentWorld]:
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
        patch.setattr(SilenceTimer, "start", lambda _: None)
        writer = lifecycle.create_ledger(ground.context, USUAL)
        world = AgentWorld(ground, writer, later, held)
        writer.append(b"0")
        for bookie in ensemble(writer):
            world.stored(bookie, 0)
        yield world
    for event in held.values():
        event.set()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    with world_in(tmp_path) as world:
        yield world


def test_a_writer_leaves_a_bookie_whose_agent_is_gone_though_its_files_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To autorecovery it is lost, and the ledger would be taken from its writer."""
    ground = Ground(tmp_path, bookies=4, config=PATIENT)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    away = ensemble(writer)[0]
    watch = writer._pipeline._watch
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
    world: AgentWorld,
) -> None:
    """In the slot behind those that it filled: what it stored there stays where it is."""
    first, second, _ = ensemble(world.writer)
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
    assert payloads(world.ground, world.writer) == [b"0", b"1", b"2", b"3"]


def test_agents_that_are_started_again_one_after_the_other_are_left_one_after_the_other(
    world: AgentWorld,
) -> None:
    """The living writer would lose its ledger to autorecovery: there is a bookie to go to."""
    count = 1
    for _ in range(6):
        bookie = ensemble(world.writer)[count % 3]
        world.leave(bookie)
        world.ground.start(bookie)
        world.writer.append(b"%d" % count)
        count += 1
    world.writer.close()

    assert_all_appended(world.ground, world.writer, count)


def test_a_writer_does_not_go_back_while_what_it_sent_last_has_no_answer(world: AgentWorld) -> None:
    """R2, R3: nobody knows for certain which slot is the next one."""
    first, second, _ = ensemble(world.writer)
    world.hold(first, second)
    world.append_held(b"1", first)
    world.leave(first)
    world.writer.flush()
    world.ground.start(first)

    world.lose_and_not_go_back(second, first, "when its agent was gone; what it was sent last")


def test_a_writer_goes_back_once_what_it_sent_last_was_answered(world: AgentWorld) -> None:
    first, second, _ = ensemble(world.writer)
    channel = world.channel(first)
    world.hold(first, second)
    world.append_held(b"1", first)
    world.leave(first)
    world.ground.start(first)
    world.writer.flush()
    world.release_and_wait(channel)

    world.release(second)
    world.leave(second)
    assert first in ensemble(world.writer)
    world.writer.append(b"2")
    world.ground.start(second)
    world.writer.close()

    assert_all_appended(world.ground, world.writer, 3)


def test_a_writer_does_not_go_back_while_what_is_there_is_not_acknowledged(
    world: AgentWorld,
) -> None:
    """Slots ascend in entry ids: what was stored there would be sent there again."""
    first, second, third = ensemble(world.writer)
    (spare,) = set(world.ground.bookie_ids) - set(ensemble(world.writer))
    world.hold(second, third, spare)
    world.writer.append_async(b"1")
    world.stored(first, 1)
    world.leave(first)
    world.ground.start(first)

    world.lose_and_not_go_back(second, first, "up to entry 1, is not acknowledged")


def test_a_writer_does_not_go_back_where_what_was_on_its_way_came_to_be_stored(
    world: AgentWorld,
) -> None:
    """It had been left by then, and has it all the same: it would be sent there again."""
    first, second, third = ensemble(world.writer)
    (spare,) = set(world.ground.bookie_ids) - set(ensemble(world.writer))
    channel = world.channel(first)
    world.hold(first, second, third, spare)
    world.append_held(b"1", first)
    world.leave(first)
    world.release_and_wait(channel)
    world.ground.start(first)

    world.lose_and_not_go_back(second, first, "up to entry 1, is not acknowledged")


def test_a_writer_does_not_go_back_where_what_was_on_its_way_failed(world: AgentWorld) -> None:
    """Whatever was said, it may be there, or come there (R3)."""
    first, second, _ = ensemble(world.writer)
    channel = world.channel(first)
    world.hold(first, second)
    world.append_held(b"1", first)
    world.leave(first)
    world.writer.flush()
    world.ground.stop(first)
    world.release_and_wait(channel)
    world.ground.start(first)

    world.lose_and_not_go_back(second, first, "what it was sent last has no answer")


def test_a_writer_does_not_go_back_where_an_explicit_lac_has_no_answer(world: AgentWorld) -> None:
    """Nobody gives a bookie up for it, and it may come to be in the next slot."""
    first, second, _ = ensemble(world.writer)
    channel = world.channel(first)
    world.ground.stop(first)
    adds = world.writer._pipeline
    with adds._changed:
        adds._channels.tell(adds.confirmed)
    world.ground.until(lambda: channel._doubt is not None and channel.sending_since is None)
    world.look_after_a_while()
    world.ground.until(lambda: first not in ensemble(world.writer))
    world.ground.start(first)
    world.hold(second)
    world.writer.append(b"1")

    world.lose_and_not_go_back(second, first, "what it was sent last has no answer")


def test_the_slots_of_another_incarnation_are_filled_from_the_first_one(world: AgentWorld) -> None:
    """What was won there went with the incarnation that it was won in."""
    first = ensemble(world.writer)[0]
    position = world.channel(first).position
    world.leave(first)
    world.ground.format(first)
    incarnation = world.ground.context.bookies.registrations()[first].incarnation
    adds = world.writer._pipeline
    adds.ledger = adds.ledger.with_metadata(
        with_incarnations(adds.versioned.value, {first: incarnation}, renewed=True)
    )

    with adds._changed:
        adds._channels.open(position, first, EntryId(1))
    world.writer.append_async(b"1")
    world.ground.until(lambda: world.channel(first).next_entry > 1)

    (slot,) = world.ground.files(first, "slots")
    assert slot.stem == "0".zfill(len(slot.stem))


def test_who_goes_back_to_a_bookie_does_not_make_the_ledgers_directory_again(
    world: AgentWorld,
) -> None:
    """What was there is lost: a slot above it would say nothing of that (R11)."""
    first, second, _ = ensemble(world.writer)
    world.leave(first)
    for directory in world.ground.root(first).glob("ledgers/*"):
        shutil.rmtree(directory)
    world.ground.start(first)
    world.hold(second)
    world.writer.append(b"1")

    world.lose(second)
    assert first in ensemble(world.writer)
    world.writer.append_async(b"2")
    world.ground.until(lambda: is_failed(world.writer))

    assert world.ground.files(first) == []


def test_a_bookie_that_moved_since_the_writer_left_it_is_lost_to_the_writer(
    world: AgentWorld,
) -> None:
    """What is put to where it was would be found by nobody."""
    first, second, _ = ensemble(world.writer)
    world.leave(first)
    world.ground.start(first)
    bookies = world.ground.context.bookies
    bookies.registrations()
    world.hold(second)
    world.writer.append(b"1")
    root_uri = type(bookies).root_uri
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(bookies),
            "root_uri",
            lambda self, bookie: root_uri(self, bookie) + "-moved" * (bookie == first),
        )
        world.lose(second)
        world.writer.append_async(b"2")
        world.ground.until(lambda: is_failed(world.writer))

    with pytest.raises(AppendFailedError, match="has moved"):
        world.writer.append(b"3")


def test_a_gone_bookie_whose_storage_hangs_is_given_up_and_holds_up_no_acknowledgement(
    world: AgentWorld,
) -> None:
    """However long an add may take: autorecovery takes the ledger after a time of its own."""
    gone = ensemble(world.writer)[2]
    world.look()
    world.append_and_end_agent(b"1", gone)
    world.look_after_a_while()

    assert world.writer.append_async(b"2").result(timeout=60) == 2
    assert gone in ensemble(world.writer), "it may be slow, and have its share soon"
    world.look()
    world.ground.until(lambda: gone not in ensemble(world.writer))
    world.writer.append(b"3")
    assert gone in world.writer._pipeline.unfit({}), "what it was sent may still land"
    world.release(gone)
    world.writer.close()

    assert payloads(world.ground, world.writer) == [b"0", b"1", b"2", b"3"]


def test_a_gone_bookie_that_lags_is_waited_for_and_left_with_its_share(world: AgentWorld) -> None:
    gone = ensemble(world.writer)[2]
    world.look()
    world.writer.append(b"1")
    world.stored(gone, 1)
    world.append_and_end_agent(b"2", gone)
    world.watch_away(gone)
    world.look()
    added = world.writer.append_async(b"3")
    for bookie in ensemble(world.writer)[:2]:
        world.stored(bookie, 3)
    assert not added.done(), "or a slow bookie would never have its share"

    world.release(gone)
    assert added.result(timeout=60) == 3
    assert gone not in ensemble(world.writer)
    world.writer.close()
    assert_all_appended(world.ground, world.writer, 4)


def test_a_writer_goes_back_to_a_bookie_that_was_behind_once_it_has_answered(
    world: AgentWorld,
) -> None:
    """Nothing about it is uncertain then, and nobody else takes data."""
    gone, other, _ = ensemble(world.writer)
    world.look()
    world.hold(gone)
    channel = world.channel(gone)
    world.append_held(b"1", gone)
    world.writer.append(b"2")
    world.ground.end_agent(gone)
    world.look_after_a_while()
    world.look()
    world.ground.until(lambda: gone not in ensemble(world.writer))
    world.release_and_wait(channel)
    world.ground.start(gone)

    world.leave(other)
    assert gone in ensemble(world.writer)
    world.writer.append(b"3")
    world.stored(gone, 3)
    world.ground.start(other)
    world.writer.close()

    assert payloads(world.ground, world.writer) == [b"0", b"1", b"2", b"3"]


def test_nothing_is_held_up_while_the_metadata_store_is_silent(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes as long as its answer does."""
    added = world.append_held_up()
    asked: list[int] = []

    def silent(_: Bookies) -> None:
        asked.append(added.result(timeout=60))
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(Bookies, "last_registrations", silent)
    world.look()

    assert asked == [2]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_writer_that_is_closed_or_dropped_waits_for_no_bookie_that_was_to_be_left(
    world: AgentWorld, is_dropped: bool
) -> None:
    added = world.append_held_up()
    ended = threading.Event()

    def end() -> None:
        if is_dropped:
            world.writer._pipeline.wind_up(ended.set)
        else:
            world.writer.close()
            ended.set()

    threading.Thread(target=end, daemon=True).start()

    assert added.result(timeout=60) == 2
    world.release(ensemble(world.writer)[2])
    assert ended.wait(timeout=60)


def test_what_a_look_acknowledges_is_told_later_where_no_thread_can_be_started(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looks go on, or nobody would ever give up a bookie that hangs."""
    added = world.append_held_up()

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(type(world.ground.runtime), "spawn", refused)
        world.look()
    world.look()

    assert added.result(timeout=60) == 2


def test_close_tells_what_nobody_told_as_no_thread_could_be_started(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = world.append_held_up()
    adds, spawn = world.writer._pipeline, type(world.ground.runtime).spawn

    def refused(runtime: Runtime, name: str, run: Callable[[], None]) -> Task:
        if name == "delivery":
            raise RuntimeError("can't start new thread")
        return spawn(runtime, name, run)

    with monkeypatch.context() as patch:
        patch.setattr(type(world.ground.runtime), "spawn", refused)
        closing = threading.Thread(target=world.writer.close, daemon=True)
        closing.start()
        world.ground.until(lambda: adds._standing.is_closing)
        with adds._changed:
            adds.lose(world.channel(ensemble(world.writer)[2]), "no answer")
            adds._changed.notify_all()
        closing.join(timeout=60)

    assert added.result(timeout=1) == 2


def test_nothing_is_held_up_where_the_only_other_bookie_may_not_join_the_ledger(
    world: AgentWorld,
) -> None:
    """It was formatted again since the ledger used it."""
    first, *_, slow = ensemble(world.writer)
    world.leave(first)
    world.ground.format(first)
    world.ground.start(first)
    world.writer.append(b"1")
    world.hold(slow)
    world.append_held(b"2", slow).result()
    world.ground.start(slow, is_readonly=True)
    world.look()

    assert world.writer.append_async(b"3").result(timeout=60) == 3
    world.release(slow)
    world.writer.close()


def test_a_gone_bookie_that_nobody_can_replace_costs_no_writer_that_it_lags_behind(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that takes data could not join the ledger; the others serve on."""
    gone = ensemble(world.writer)[2]
    world.look()
    world.append_and_end_agent(b"1", gone)
    asked: list[int] = []

    def nobody(*arguments: object, **_: object) -> None:
        asked.append(1)
        raise NotEnoughBookiesError("nobody may")

    monkeypatch.setattr(ensemble_change, "replace_bookies", nobody)
    world.look_after_a_while()
    world.look()
    world.ground.until(lambda: bool(asked))

    assert world.writer.append_async(b"2").result(timeout=60) == 2
    assert gone in ensemble(world.writer)
    world.release(gone)
    world.writer.close()
    assert_all_appended(world.ground, world.writer, 3)


@pytest.mark.parametrize("explicit_lac_ms", [0, 1_000, 3_600_000])
@pytest.mark.parametrize("add_timeout_ms", [30_000, 120_000])
def test_how_soon_a_gone_bookie_is_left_does_not_depend_on_the_time_of_an_add(
    world: AgentWorld, add_timeout_ms: int, explicit_lac_ms: int
) -> None:
    """Within 15 seconds, whenever its agent goes; autorecovery takes the ledger after 30."""
    config = ClientConfig(add_timeout_ms=add_timeout_ms, explicit_lac_ms=explicit_lac_ms)

    for gone_at in range(30, 60):
        assert AWAY_SECONDS <= left_after(world, config, gone_at) <= AWAY_SECONDS * 1.5


@pytest.mark.parametrize("add_timeout_ms", [30_000, 120_000])
def test_a_gone_bookie_that_hangs_is_left_well_before_autorecovery_takes_the_ledger(
    world: AgentWorld, add_timeout_ms: int
) -> None:
    """By the loop that looks by itself, in a time that does not depend on that of an add."""
    adds, gone = world.writer._pipeline, ensemble(world.writer)[0]
    adds._watch.end()
    world.append_and_end_agent(b"1", gone)
    waited = 0.0

    def wait(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        world.later(seconds)
        if adds.machine._is_changing:
            world.ground.until(lambda: gone not in ensemble(world.writer))
        if gone not in ensemble(world.writer) or waited > 1_000:
            watch.end()

    context = SimpleNamespace(
        config=ClientConfig(add_timeout_ms=add_timeout_ms),
        runtime=world.ground.runtime,
        bookies=world.ground.context.bookies,
    )
    watch = SilenceTimer(
        cast("ClientContext", context),
        adds._changed,
        adds._channels,
        adds._pending,
        adds._delivery,
        adds,
    )
    watch._over.wait = wait  # type: ignore[method-assign,assignment]  # time goes by
    watch._run()

    assert gone not in ensemble(world.writer)
    assert waited <= AWAY_SECONDS * 2, "an open ledger has 30 seconds"
    world.writer.append(b"2")
    world.release(gone)


def left_after(world: AgentWorld, config: ClientConfig, gone_at: float) -> float:
    """How long after its agent went the loop of a watch has a bookie left."""
    adds = world.writer._pipeline
    gone = ensemble(world.writer)[0]
    alive = world.ground.context.bookies.registrations()
    now, left_at = 0.0, 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def registrations() -> dict[BookieId, Registration]:
        return {b: r for b, r in alive.items() if b != gone or now < gone_at}

    def looked(readonly: list[BookieChannel], away: list[BookieChannel]) -> None:
        nonlocal left_at
        assert not readonly
        if away:
            assert [channel.bookie for channel in away] == [gone]
            left_at = now
            watch.end()

    context = SimpleNamespace(
        config=config,
        runtime=SimpleNamespace(now=lambda: now, condition=threading.Condition),
        bookies=SimpleNamespace(last_registrations=registrations),
    )
    reports = SimpleNamespace(
        confirmed=NO_ENTRY,
        confirmed_at=0.0,
        is_busy=False,
        look_begins=lambda: None,
        looked=looked,
        unfit=lambda _: set(),
    )
    watch = SilenceTimer(
        cast("ClientContext", context),
        adds._changed,
        adds._channels,
        adds._pending,
        adds._delivery,
        cast("Reports", reports),
    )
    watch._over.wait = wait  # type: ignore[method-assign,assignment]  # time goes by
    watch._run()
    return left_at - gone_at
