"""What becomes of a bookie's registration while its storage and the cluster come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Set
from dataclasses import replace

import pytest

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.cookies import restore_cookie
from spark_bookkeeper.agent.duties import Duties
from spark_bookkeeper.agent.formatting import format_bookie
from spark_bookkeeper.agent.health import NO_COOKIE
from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.bookie.partition import AGENT_PROBE_PREFIX, Partition
from spark_bookkeeper.cli.shell.settings import EXIT_NOTHING_CHANGED, exit_code_of
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import (
    BookieFullError,
    BookieUnavailableError,
    CookieMismatchError,
    MetadataUnavailableError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import CLOCK_AHEAD, READONLY_BELOW, Cookie, Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore
from tests.agent.agents import STEPPED, TOTAL, NoLoop, half_full
from tests.worlds import there

BOOKIE = BookieId("10.0.0.3:3181")
CONFIG = BookieConfig(20, 100, 200)


class Disturbance:
    """Faults of a storage and of a metadata store, switched on and off by a test."""

    def __init__(self) -> None:
        self.storage_fails = False
        self.writing_fails = False
        self.is_full = False
        self.lost_answers: set[str] = set()
        self.lost_requests: set[str] = set()
        self.hangs = threading.Event()
        self.hung = threading.Event()
        """Somebody met it."""
        self.goes_on = threading.Event()

    def of_storage(self, operation: str, path: str, moment: str) -> None:
        if self.hangs.is_set():
            self.hung.set()
            self.goes_on.wait(120)
        if self.writing_fails and operation == "put":
            raise BookieUnavailableError("read-only file system", bookie_id="b:1")
        if self.storage_fails:
            raise BookieUnavailableError("input/output error", bookie_id="b:1")
        if self.is_full and operation == "put":
            raise BookieFullError("no space left on device", bookie_id="b:1")

    def of_store(self, moment: str, operation: str, subject: str) -> None:
        if operation in (self.lost_requests if moment == "before" else self.lost_answers):
            raise MetadataUnavailableError("no answer")


class AgentWorld:
    """One bookie in memory. Its agent is moved by ``step``, or by its own loop if it has one."""

    def __init__(self) -> None:
        self.disturb = Disturbance()
        self.metadata = MemoryCluster()
        self.metadata.session().initialize_cluster()
        self.store = MemoryStore(self.metadata, self.disturb.of_store)
        self.disk = half_full()
        self.storage = MemoryStorage(self.disk, self.disturb.of_storage)
        self.agent = BookieAgent(self.store, Partition(self.storage), BOOKIE, NoLoop(), STEPPED)

    def start_loop(self, interval_ms: int) -> None:
        config = BookieConfig(interval_ms, 100, 200)
        self.agent = BookieAgent(
            self.store, Partition(self.storage), BOOKIE, ThreadRuntime(), config
        )
        self.agent.start()

    def lose_cookie(self) -> None:
        self.store.delete_cookie(BOOKIE, self.cookie_version())

    def cookie_version(self) -> int:
        return there(self.store.cookie_version(BOOKIE))

    @property
    def registration(self) -> Registration | None:
        held = self.metadata.registrations.get(BOOKIE)
        return held[0] if held else None

    @property
    def causes(self) -> Set[str]:
        """Why it is read-only."""
        return self.registration.readonly_causes if self.registration else set()

    @property
    def state(self) -> str:
        registration = self.registration
        if registration is None:
            return "gone"
        return "readonly" if registration.is_readonly else "writable"


@pytest.fixture
def fresh() -> Iterator[AgentWorld]:
    world = AgentWorld()
    yield world
    world.disturb.__init__()  # type: ignore[misc]  # everything answers again
    world.agent.stop()


@pytest.fixture
def world(fresh: AgentWorld) -> AgentWorld:
    """One whose agent was started."""
    fresh.agent.start()
    return fresh


def test_a_started_bookie_is_registered_with_its_root_incarnation_and_space(
    world: AgentWorld,
) -> None:
    marker = there(read_marker(world.storage))
    assert world.registration == Registration(
        BOOKIE,
        "memory://disk",
        marker.incarnation,
        free_bytes=500,
        total_bytes=TOTAL,
        properties={READONLY_BELOW: "100"},
    )
    assert not [name for name in world.disk.files if name.startswith(AGENT_PROBE_PREFIX)]


def test_a_bookie_writes_its_cookie_again_whenever_it_has_registered(world: AgentWorld) -> None:
    """Who is about to forget it, and found it down before, is refused then."""
    first = world.cookie_version()
    world.agent.step()
    assert world.cookie_version() == first, "it was registered already"

    world.store.expire()
    world.agent.step()

    assert world.state == "writable"
    assert world.cookie_version() == first + 1


def test_a_cookie_that_could_not_be_written_again_is_written_at_a_later_look(
    world: AgentWorld,
) -> None:
    """Else who began to forget the bookie before it was back would still succeed."""
    found_by_who_forgets = world.cookie_version()
    world.store.expire()
    world.disturb.lost_requests = {"write_cookie"}
    world.agent.step()
    world.agent.step()
    assert world.state == "writable"
    assert world.cookie_version() == found_by_who_forgets

    world.disturb.lost_requests = set()
    world.agent.step()
    world.agent.step()

    assert world.cookie_version() == found_by_who_forgets + 1, "once"
    with pytest.raises(VersionConflictError):
        world.store.delete_cookie(BOOKIE, found_by_who_forgets)


def test_a_bookie_that_was_forgotten_just_after_it_registered_looks_again_at_once(
    fresh: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.start_loop(interval_ms=3_600_000)
    write_cookie = fresh.store.write_cookie

    def too_late(cookie: Cookie, version: int | None) -> None:
        assert version is not None
        fresh.metadata.session().delete_cookie(BOOKIE, version)
        write_cookie(cookie, version)

    monkeypatch.setattr(fresh.store, "write_cookie", too_late)

    fresh.store.expire()

    wait_for(fresh, "readonly")
    assert fresh.causes == {NO_COOKIE}


def test_a_stopped_bookie_is_unregistered(world: AgentWorld) -> None:
    world.agent.stop()
    world.agent.stop()

    assert world.state == "gone"


def test_a_bookie_whose_storage_fails_goes_and_comes_back(world: AgentWorld) -> None:
    world.disturb.storage_fails = True
    world.agent.step()
    assert world.state == "gone"
    assert world.agent.status.problem == "input/output error"

    world.disturb.storage_fails = False
    world.agent.step()
    assert world.state == "writable"
    assert world.agent.status.problem is None


def test_a_wiped_bookie_goes_and_is_not_formatted_behind_anybodys_back(world: AgentWorld) -> None:
    world.disk.wipe()
    world.agent.step()
    world.agent.step()

    assert world.state == "gone"
    assert world.disk.files == {}
    assert "wiped" in str(world.agent.status.problem)


def test_a_bookie_that_lost_its_ledgers_and_not_its_marker_goes_and_says_why(
    world: AgentWorld,
) -> None:
    MemoryStorage(world.disk).delete_directory("ledgers")
    world.agent.step()

    assert world.state == "gone"
    assert "what it held was removed" in str(world.agent.status.problem)
    world.agent.stop()
    with pytest.raises(BookieUnavailableError, match="what it held was removed"):
        world.agent.start()


def test_a_bookie_with_another_disk_in_its_place_goes_until_the_right_one_is_back(
    world: AgentWorld,
) -> None:
    right = dict(world.disk.files)
    other = AgentWorld()
    other.agent.start()
    other.agent.stop()

    world.disk.files.clear()
    world.disk.files.update(other.disk.files)
    before = dict(world.disk.files)
    world.agent.step()
    assert world.state == "gone"
    assert world.disk.files == before

    world.disk.files.clear()
    world.disk.files.update(right)
    world.agent.step()
    assert world.state == "writable"


def test_a_bookie_whose_disk_was_replaced_and_formatted_under_its_agent_is_served_as_the_new_one(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.agent.status.incarnation

    world.disk.wipe()
    world.agent.step()
    assert world.state == "gone"
    new = format_bookie(
        world.store, Partition(world.storage), BOOKIE, token=ThreadRuntime().token, is_replaced=True
    )
    world.agent.step()

    assert (world.state, world.agent.status.problem) == ("writable", None)
    assert there(world.registration).incarnation == new.incarnation != before
    assert f"served as incarnation {new.incarnation}, and as {before} no more" in caplog.text


def test_the_disk_of_another_bookie_of_the_cluster_at_the_same_path_is_never_served(
    fresh: AgentWorld,
) -> None:
    """As when a disk is mounted on the wrong machine, where paths are alike."""
    disk = half_full()
    storage, name = MemoryStorage(disk), BookieId("another:1")
    other = BookieAgent(fresh.metadata.session(), Partition(storage), name, NoLoop(), STEPPED)
    other.start()
    other.stop()
    fresh.agent.start()

    fresh.disk.files.clear()
    fresh.disk.files.update(disk.files)
    for _ in range(3):
        fresh.agent.step()
        assert fresh.state == "gone"


def test_a_bookie_whose_disk_was_formatted_before_its_agent_looked_is_gone_before_it_is_new(
    world: AgentWorld,
) -> None:
    world.disk.wipe()
    world.store.unregister(BOOKIE)
    new = format_bookie(
        world.store, Partition(world.storage), BOOKIE, token=ThreadRuntime().token, is_replaced=True
    )
    world.agent.step()
    assert world.state == "gone"
    world.agent.step()

    assert world.state == "writable"
    assert world.agent.status.incarnation == new.incarnation


def test_a_bookie_that_was_formatted_by_another_agent_leaves_it_to_that(world: AgentWorld) -> None:
    world.disk.wipe()
    world.agent.step()
    format_bookie(
        world.store, Partition(world.storage), BOOKIE, token=ThreadRuntime().token, is_replaced=True
    )
    second = BookieAgent(
        world.metadata.session(), Partition(world.storage), BOOKIE, NoLoop(), CONFIG
    )
    second.start()

    world.agent.step()

    assert world.agent.status.published is None
    assert second.status.published is not None
    second.stop()
    world.agent.step()
    assert world.state == "writable", "it takes over what nobody serves any more"


def test_a_bookie_is_readonly_while_space_is_short(world: AgentWorld) -> None:
    states = []
    for free_bytes in (99, 150, 250, 150, 99):
        world.disk.free_bytes = free_bytes
        world.agent.step()
        states.append(world.state)

    assert states == ["readonly", "readonly", "writable", "writable", "readonly"]


def test_an_agent_makes_room_when_space_becomes_short_and_not_again_while_it_is(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Duties, "make_room", lambda _: calls.append(world.state))
    for free_bytes in (99, 90, 150, 250, 99):
        world.disk.free_bytes = free_bytes
        world.agent.step()

    assert calls == ["readonly", "readonly"], "and the cluster knows why"


def test_an_agent_makes_room_when_many_files_have_come_and_walks_nothing(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    files, now = 0, 1_000.0
    monkeypatch.setattr(Duties, "make_room", lambda _: calls.append(files))
    monkeypatch.setattr(NoLoop, "now", lambda _: now)
    for files in (1_000, 50_000, 100_999, 101_000, 150_000, 3_000, 102_999, 103_000):
        if files == 102_999:
            now += STEPPED.compact_interval_s / 10
        inodes = (10_000_000 - files, 10_000_000)
        monkeypatch.setattr(MemoryStorage, "inodes", lambda _, inodes=inodes: inodes)
        world.agent.step()

    assert calls == [101_000, 103_000]
    assert world.agent.status.free_inodes == 10_000_000 - 103_000
    assert there(world.registration).free_inodes == 10_000_000 - 1_000, "as it was first seen"


def test_files_that_others_bring_and_remove_each_minute_make_no_room_each_time(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[float] = []
    now = 0.0
    monkeypatch.setattr(Duties, "make_room", lambda _: calls.append(now))
    monkeypatch.setattr(NoLoop, "now", lambda _: now)
    for minute in range(60):
        now = minute * 60.0
        for used in (0, 100_000):
            inodes = (10_000_000 - used, 10_000_000)
            monkeypatch.setattr(MemoryStorage, "inodes", lambda _, inodes=inodes: inodes)
            world.agent.step()

    assert len(calls) == 10


def test_a_full_disk_makes_a_bookie_readonly_and_not_gone(world: AgentWorld) -> None:
    world.disturb.is_full = True
    world.agent.step()
    assert world.state == "readonly"

    world.disturb.is_full = False
    world.agent.step()
    assert world.state == "writable"


def test_a_disk_that_can_be_read_and_not_written_makes_a_bookie_readonly_and_not_gone(
    world: AgentWorld,
) -> None:
    world.disturb.writing_fails = True
    world.agent.step()
    found = world.registration
    world.disturb.writing_fails = False
    world.agent.step()

    assert there(found).readonly_reason == "it cannot be written: read-only file system"
    assert world.state == "writable"
    world.disturb.storage_fails = True
    world.agent.step()
    assert world.state == "gone"


def test_it_is_known_that_zookeeper_does_not_answer_and_the_disk_is_not_blamed(
    fresh: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while nothing else is asked of it, as the storage is not well."""
    now = [1_000.0]
    monkeypatch.setattr(NoLoop, "now", staticmethod(lambda: now[0]))
    fresh.agent.start()
    fresh.disturb.lost_requests = {"read_register", "has_cookie", "read_cookie"}
    now[0] += 20

    fresh.agent.step()
    now[0] += 16  # so long the next look waits for answers

    status = fresh.agent.status
    assert (status.state, status.zookeeper_problem) == ("writable", "no answer")
    assert status.seconds_since_zookeeper_answered == 36
    assert status.seconds_since_good_probe == 0

    fresh.disturb.lost_requests = set()
    fresh.disturb.storage_fails = True
    fresh.agent.step()
    now[0] += 4

    status = fresh.agent.status
    assert (status.state, status.zookeeper_problem) == ("unregistered", None)
    assert status.seconds_since_zookeeper_answered == 4
    assert status.seconds_since_good_probe == 20


def test_the_clock_of_a_machine_is_told_when_it_is_not_zookeepers(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, wrong_ms, asked, slept_s = [world.agent._runtime.now()], [0], [0], [0]
    monkeypatch.setattr(NoLoop, "now", staticmethod(lambda: now[0]))
    monkeypatch.setattr(
        NoLoop, "wall_ms", lambda _: round((now[0] + slept_s[0]) * 1000) + wrong_ms[0]
    )

    def clock_ms() -> int:
        asked[0] += 1
        return round((now[0] + slept_s[0]) * 1000)

    world.metadata.clock_ms = clock_ms

    def told(ahead_ms: int) -> int | None:
        wrong_ms[0] = ahead_ms
        now[0] += 601
        world.agent.step()
        return there(world.registration).told(CLOCK_AHEAD)

    assert [told(30_000) for _ in range(12)] == [None] * 12
    assert asked == [2], "once in an hour: that costs ZooKeeper two writes"
    behind, ahead = told(-172_800_000), told(172_800_000)
    assert behind is not None
    assert ahead is not None
    assert (-172_801 <= behind <= -172_799, 172_799 <= ahead <= 172_801) == (True, True)
    assert world.agent.status.clock_ahead_s == ahead
    assert [told(0), told(0)] == [None, None], "it was set right"
    slept_s[0] = 7200
    assert told(0) is None, "while it sleeps, `now` stands still and clocks do not"
    assert asked == [7], "and where the clock was set, or the machine slept"


def test_a_lost_session_is_followed_by_a_new_registration(world: AgentWorld) -> None:
    world.store.expire()
    assert world.state == "gone"
    world.agent.step()

    assert world.state == "writable"


def test_a_session_lost_while_registering_is_noticed(world: AgentWorld) -> None:
    world.store.expire()

    def expire_once(moment: str, operation: str, subject: str) -> None:
        if moment == "after" and operation == "register":
            world.store.faults = None
            world.store.expire()

    world.store.faults = expire_once
    world.agent.step()
    assert world.state == "gone"
    world.agent.step()

    assert world.state == "writable"


def test_a_registration_whose_answer_was_lost_is_taken_back_when_the_storage_fails(
    world: AgentWorld,
) -> None:
    world.store.expire()
    world.disturb.lost_answers = {"register"}
    world.agent.step()
    assert world.state == "writable"

    world.disturb.storage_fails = True
    world.agent.step()

    assert world.state == "gone"


def test_an_unregistering_whose_request_was_lost_is_repeated(world: AgentWorld) -> None:
    world.disturb.storage_fails = True
    world.disturb.lost_requests = {"unregister"}
    world.agent.step()
    assert world.state == "writable"

    world.disturb.lost_requests = set()
    world.agent.step()

    assert world.state == "gone"


def test_a_bookie_given_up_while_its_storage_was_away_does_not_come_back(world: AgentWorld) -> None:
    world.disturb.storage_fails = True
    world.agent.step()
    world.lose_cookie()

    world.disturb.storage_fails = False
    world.agent.step()

    assert world.state == "gone"
    assert world.store.read_cookie(BOOKIE) is None
    assert "given up" in str(world.agent.status.problem)


def test_a_living_bookie_whose_cookie_is_deleted_takes_nothing_new_until_it_is_back(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.lose_cookie()

    world.agent.step()
    world.agent.step()

    assert (world.state, world.causes) == ("readonly", {NO_COOKIE})
    assert caplog.text.count("bookie cookie create --bookie-id 10.0.0.3:3181 --root") == 1
    world.store.expire()
    world.agent.step()
    assert world.state == "readonly", "what it has can still be read"

    restore_cookie(world.store, Partition(world.storage), BOOKIE)
    world.agent.step()

    assert (world.state, world.causes) == ("writable", set())


@pytest.mark.parametrize(("free_bytes", "after"), [(150, "writable"), (50, "readonly")])
def test_a_bookie_whose_cookie_is_back_is_what_its_space_says(
    world: AgentWorld, free_bytes: int, after: str
) -> None:
    """Between the two marks of space it stays what it was for its space alone."""
    world.disk.free_bytes = free_bytes
    world.agent.step()
    world.lose_cookie()
    world.agent.step()
    assert world.state == "readonly"

    world.disk.free_bytes = 150
    restore_cookie(world.store, Partition(world.storage), BOOKIE)
    world.agent.step()

    assert world.state == after


def test_a_living_bookie_whose_cookie_became_anothers_goes(world: AgentWorld) -> None:
    cookie = there(world.store.read_cookie(BOOKIE))
    world.store.write_cookie(replace(cookie.value, incarnation="another"), cookie.version)

    world.agent.step()

    assert world.state == "gone"
    assert "formatted by somebody else" in str(world.agent.status.problem)


def test_a_cookie_that_cannot_be_read_for_a_moment_changes_nothing(world: AgentWorld) -> None:
    world.disturb.lost_requests = {"read_cookie"}

    world.agent.step()

    assert world.state == "writable"
    assert world.agent.status.problem is None


def test_a_second_agent_for_the_same_bookie_is_refused(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    second = BookieAgent(
        world.metadata.session(), Partition(world.storage), BOOKIE, ThreadRuntime(), CONFIG
    )

    with caplog.at_level("INFO"), pytest.raises(CookieMismatchError) as caught:
        second.start()
    second.stop()

    assert world.state == "writable"
    assert exit_code_of(caught.value) == EXIT_NOTHING_CHANGED
    assert "unregistered" not in caplog.text, "the other agent's registration stays"


def test_storage_that_does_not_answer_at_the_start_is_refused(world: AgentWorld) -> None:
    world.agent.stop()
    world.disturb.storage_fails = True

    with pytest.raises(BookieUnavailableError, match="input/output error"):
        world.agent.start()

    assert world.state == "gone"


def test_what_a_killed_agent_left_is_removed(world: AgentWorld) -> None:
    world.agent.stop()
    world.disk.files[f"{AGENT_PROBE_PREFIX}0123"] = b"left behind"

    world.agent.start()

    assert f"{AGENT_PROBE_PREFIX}0123" not in world.disk.files


def wait_for(world: AgentWorld, state: str) -> None:
    """Wait for a change of the registrations, without polling a clock."""
    changed = threading.Event()
    stop = world.metadata.session().watch_registrations(changed.set)
    try:
        while world.state != state:
            assert changed.wait(60), f"still {world.state}, not {state}"
            changed.clear()
    finally:
        stop()


def test_the_loop_notices_by_itself(fresh: AgentWorld) -> None:
    fresh.start_loop(interval_ms=50)

    fresh.disturb.storage_fails = True
    wait_for(fresh, "gone")
    fresh.disturb.storage_fails = False
    wait_for(fresh, "writable")
    fresh.disk.free_bytes = 10
    wait_for(fresh, "readonly")


def test_a_lost_session_wakes_the_loop_at_once(fresh: AgentWorld) -> None:
    fresh.start_loop(interval_ms=60_000)

    fresh.store.expire()

    wait_for(fresh, "writable")


def test_storage_that_hangs_is_not_well(fresh: AgentWorld) -> None:
    fresh.start_loop(interval_ms=50)

    fresh.disturb.hangs.set()
    wait_for(fresh, "gone")
    fresh.disturb.hangs.clear()
    fresh.disturb.goes_on.set()

    wait_for(fresh, "writable")


def pause_while_it_looks(world: AgentWorld) -> None:
    """The storage hangs, and goes on hanging when the agent is paused."""
    world.start_loop(interval_ms=60_000)
    world.disturb.hangs.set()
    looking = threading.Thread(target=world.agent.step)
    looking.start()
    assert world.disturb.hung.wait(60)
    world.agent.pause()
    looking.join(60)


def let_the_look_end(world: AgentWorld) -> None:
    world.disturb.hangs.clear()
    world.disturb.goes_on.set()
    for thread in threading.enumerate():
        if thread.name == f"probe-{BOOKIE}":
            thread.join(60)


def test_an_agent_that_is_paused_while_it_looks_changes_nothing(fresh: AgentWorld) -> None:
    pause_while_it_looks(fresh)

    assert fresh.state == "writable"
    let_the_look_end(fresh)


def test_what_an_agent_saw_before_it_was_paused_is_forgotten_when_it_starts_again(
    fresh: AgentWorld,
) -> None:
    pause_while_it_looks(fresh)
    fresh.disturb.storage_fails = True
    let_the_look_end(fresh)

    fresh.disturb.storage_fails = False
    fresh.agent.start()
    fresh.agent.step()

    assert (fresh.state, fresh.agent.status.problem) == ("writable", None)
