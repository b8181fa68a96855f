"""What an agent does in the background: each duty in turn, whatever becomes of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from spark_bookkeeper.agent.duties import Duties, Duty, DutyStatus, Turn
from spark_bookkeeper.errors import BookieUnavailableError, InvalidArgumentError
from spark_bookkeeper.metrics import BookieMetrics
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from tests.worlds import there

OFTEN, SELDOM = 1, 3_600_000


class Steps:
    """A duty's step that tells when it was taken, and does what a test says."""

    def __init__(self) -> None:
        self.taken = threading.Semaphore(0)
        self.turn: Turn | None = None
        self.does: Callable[[], None] = lambda: None

    def __call__(self, turn: Turn) -> None:
        self.turn = turn
        try:
            self.does()
        finally:
            self.taken.release()

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.taken.acquire(timeout=60)


class DutyWorld:
    def __init__(self) -> None:
        self.metrics = BookieMetrics()
        self.running: list[Duties] = []

    def run(self, *duties: Duty) -> Duties:
        made = Duties(ThreadRuntime(), "10.0.0.3:3181", duties, self.metrics)
        self.running.append(made)
        made.start()
        return made


@pytest.fixture
def world() -> Iterator[DutyWorld]:
    world = DutyWorld()
    yield world
    for duties in world.running:
        duties.stop()


def test_a_duty_is_done_at_once_and_again_after_each_interval(world: DutyWorld) -> None:
    scrub = Steps()
    world.run(Duty("scrub", OFTEN, scrub))
    scrub.wait(3)


def test_a_duty_that_hangs_holds_up_no_other(world: DutyWorld) -> None:
    hung, released, scrub, hangs = threading.Event(), threading.Event(), Steps(), Steps()

    def hang() -> None:
        hung.set()
        released.wait(60)

    hangs.does = hang
    duties = world.run(Duty("compact", OFTEN, hangs), Duty("scrub", OFTEN, scrub))

    assert hung.wait(60)
    scrub.wait(2)

    compact, _ = duties.status()
    assert compact.is_running
    assert compact.runs == 0
    released.set()


@pytest.mark.parametrize(
    "error",
    [
        BookieUnavailableError("input/output error", bookie_id="a:1"),
        ValueError("a mistake of ours"),
    ],
)
def test_a_step_that_fails_is_counted_and_told_and_the_next_turn_comes(
    world: DutyWorld, error: Exception
) -> None:
    scrub = Steps()

    def fail() -> None:
        raise error

    scrub.does = fail
    duties = world.run(Duty("scrub", OFTEN, scrub))
    scrub.wait(2)
    duties.stop()

    (status,) = duties.status()
    assert status.failures == status.runs >= 2
    assert str(error) in there(status.last_error)
    assert status.last_run_ms is not None
    counted = world.metrics.as_dict()
    assert counted['bookie_duty_failures_total{duty="scrub"}'] == status.failures
    assert counted['bookie_duty_seconds_count{duty="scrub"}'] == status.runs


def test_the_last_error_is_that_of_the_last_step(world: DutyWorld) -> None:
    scrub, errors = Steps(), [BookieUnavailableError("input/output error", bookie_id="a:1")]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    scrub.does = fail_once
    duties = world.run(Duty("scrub", OFTEN, scrub))
    scrub.wait(2)
    duties.stop()

    (status,) = duties.status()
    assert (status.failures, status.last_error) == (1, None)


def test_what_happens_can_take_the_next_turn_before_its_time(world: DutyWorld) -> None:
    audit = Steps()
    world.run(Duty("audit", SELDOM, audit))
    audit.wait()
    assert audit.turn is not None

    audit.turn.wake()

    audit.wait()


def test_who_wakes_a_duty_during_its_step_gets_another_one(world: DutyWorld) -> None:
    audit = Steps()
    woken: list[int] = []

    def wake_once() -> None:
        if not woken:
            woken.append(1)
            there(audit.turn).wake()

    audit.does = wake_once
    world.run(Duty("audit", SELDOM, audit))

    audit.wait(2)


def test_a_stop_is_seen_by_the_step_under_way_and_waits_for_it(world: DutyWorld) -> None:
    begun, scrub = threading.Event(), Steps()
    ended: list[bool] = []

    def until_stopped() -> None:
        begun.set()
        assert scrub.turn is not None
        while not scrub.turn.is_stopping():
            pass
        ended.append(True)

    scrub.does = until_stopped
    duties = world.run(Duty("scrub", SELDOM, scrub))
    assert begun.wait(60)

    duties.stop()

    assert ended == [True]
    assert duties.status()[0].runs == 1


def test_what_was_stopped_can_be_started_again(world: DutyWorld) -> None:
    scrub = Steps()
    duties = world.run(Duty("scrub", SELDOM, scrub))
    scrub.wait()
    duties.stop()
    duties.stop()

    duties.start()

    scrub.wait()


def test_before_the_first_step_there_is_nothing_to_tell() -> None:
    duties = Duties(ThreadRuntime(), "b", [Duty("scrub", 5, lambda _: None)], BookieMetrics())

    assert duties.status() == (DutyStatus("scrub", 5),)


def test_where_space_becomes_short_what_makes_room_takes_its_turn_at_once(world: DutyWorld) -> None:
    collect, scrub = Steps(), Steps()
    duties = world.run(
        Duty("collect", SELDOM, collect, makes_room=True), Duty("scrub", SELDOM, scrub)
    )
    collect.wait()
    scrub.wait()

    duties.make_room()

    collect.wait()
    duties.stop()
    assert [each.runs for each in duties.status()] == [2, 1]


def test_two_duties_of_one_name_and_one_without_an_interval_are_refused() -> None:
    duty = Duty("scrub", 5, lambda _: None)
    with pytest.raises(InvalidArgumentError, match="'scrub'"):
        Duties(ThreadRuntime(), "b", [duty, duty], BookieMetrics())
    with pytest.raises(InvalidArgumentError, match="interval_ms=0"):
        Duty("scrub", 0, lambda _: None)
