"""Two bookies that one task asks in turn, of which one may be silent."""

from __future__ import annotations

import pytest

from spark_bookkeeper.client.bookies.asking import CALLS_AT_ONCE, TRIALS, aside
from spark_bookkeeper.client.bookies.call import Call
from spark_bookkeeper.errors import BookieUnavailableError
from tests.client.benches import PATIENCE, Bench, Two, in_a_world, in_world


@in_world(lambda *_: False)
def test_two_bookies_are_asked_in_turn_by_one_task(bench: Bench) -> None:
    two = Two(bench, lambda *_: False)
    employed = bench.note_employed()

    assert two.copy() == 3
    assert two.disk.files["d/copy"] == b"content" * 3
    assert len(employed) == 1
    assert not two.door.calls
    assert not two.other.calls


@pytest.mark.parametrize("silent", ["b:1", "c:1"])
def test_of_two_bookies_that_are_asked_in_turn_the_silent_one_is_given_up(silent: str) -> None:
    def story(bench: Bench) -> None:
        two = Two(bench, lambda asked, _: silent == "c:1" and asked == "write")
        with pytest.raises(
            BookieUnavailableError, match=r"no answer for 10\.0 s: copying"
        ) as caught:
            two.copy()

        assert caught.value.facts["bookie_id"] == silent
        assert bench.runtime.now() == pytest.approx(10.0, abs=0.1)
        assert two.door.is_silent == (silent == "c:1")
        assert two.other.is_silent == (silent == "b:1")

    in_a_world(story, lambda asked, _: silent == "b:1" and asked == "read_range")


@pytest.mark.parametrize("silent", ["b:1", "c:1"])
def test_who_was_given_up_with_two_bookies_asks_neither_of_them_for_more(silent: str) -> None:
    def story(bench: Bench) -> None:
        two = Two(bench, lambda asked, _: silent == "c:1" and asked == "write")
        with pytest.raises(BookieUnavailableError):
            two.copy()
        bench.hang.release()
        two.hang.release()
        bench.runtime.sleep(100.0)

        assert "d/copy" not in two.disk.files
        assert bench.hang.stuck == two.hang.stuck == 0
        assert not two.door.calls
        assert not two.other.calls

    in_a_world(story, lambda asked, _: silent == "b:1" and asked == "read_range")


@pytest.mark.parametrize("silent", ["b:1", "c:1"])
def test_of_two_bookies_the_one_that_answers_is_not_held_up_by_the_silent_one(silent: str) -> None:
    def story(bench: Bench) -> None:
        two = Two(bench, lambda asked, _: silent == "c:1" and asked == "write")
        given_up: list[object] = []

        def copy() -> None:
            with pytest.raises(BookieUnavailableError) as caught:
                two.copy()
            given_up.append(caught.value.facts["bookie_id"])

        tasks = [bench.world.spawn(f"user-{n}", copy) for n in range(CALLS_AT_ONCE)]
        for task in tasks:
            task.join()
        good, calls = (two.source, two.other.calls)
        if silent == "b:1":
            good, calls = (two.target, two.door.calls)

        assert given_up == [silent] * CALLS_AT_ONCE
        assert not calls
        for _ in range(2):  # the copies that come back late give no place back twice
            before = bench.runtime.now()
            good.size("d/nothing")
            assert bench.runtime.now() == before
            bench.hang.release()
            two.hang.release()
            bench.runtime.sleep(1)

    in_a_world(story, lambda asked, _: silent == "b:1" and asked == "read_range")


@pytest.mark.parametrize("tried", ["b:1", "c:1"])
def test_a_trial_that_is_given_up_for_another_bookie_does_not_keep_others_from_trying(
    tried: str,
) -> None:
    def story(bench: Bench) -> None:
        two = Two(bench, lambda asked, _: tried == "c:1" and asked == "size")
        storage = two.source if tried == "b:1" else two.target
        with pytest.raises(BookieUnavailableError):
            storage.size("d/nothing")  # and this one never comes back
        bench.runtime.sleep(PATIENCE.retry + 0.1)

        def hang() -> None:
            other, hangs = (two.target, two.hang) if tried == "b:1" else (two.source, bench.hang)
            hangs.hangs = lambda *_: True
            other.read_range("f", 0, 7)

        with pytest.raises(BookieUnavailableError, match="no answer"):
            two.door.ask_with(two.other, "copying", hang)

        storage.list("d")

    in_a_world(story, lambda asked, _: tried == "b:1" and asked == "size")


@in_world(lambda *_: False)
def test_copies_that_wait_for_their_limit_do_not_make_a_bookie_seem_silent(bench: Bench) -> None:
    two = Two(bench, lambda *_: False)

    def run() -> None:
        for _ in range(3):
            two.source.read_range("f", 0, 7)
            bench.runtime.sleep(30.0)  # the limit

    tasks = two.spawn_copies(run)

    two.target.size("d/nothing")  # when there is a place
    for task in tasks:
        task.join()
    assert two.copied == CALLS_AT_ONCE


@in_world(lambda *_: False)
def test_a_copy_that_waits_for_its_limit_gives_its_place_to_who_wants_it(bench: Bench) -> None:
    two = Two(bench, lambda *_: False)

    def run() -> None:
        for _ in range(3):
            two.source.read_range("f", 0, 7)
            aside(lambda: bench.runtime.sleep(1_000.0))  # the limit
            two.target.size("d/nothing")

    tasks = two.spawn_copies(run)
    before = bench.runtime.now()
    for _ in range(3):
        two.target.size("d/nothing")
    assert bench.runtime.now() == before

    for task in tasks:
        task.join()
    assert two.copied == CALLS_AT_ONCE
    assert not two.door.calls
    assert not two.other.calls


@in_world(lambda *_: False)
def test_whose_place_was_taken_meanwhile_asks_for_nothing_before_there_is_one(bench: Bench) -> None:
    """A bookie that hangs holds no more tasks because some of them waited for a limit before."""
    two = Two(bench, lambda *_: False)
    refused: list[BookieUnavailableError] = []

    def run() -> None:
        aside(lambda: bench.runtime.sleep(100.0))
        two.target.size("d/nothing")

    def copy() -> None:
        with pytest.raises(BookieUnavailableError) as caught:
            two.door.ask_with(two.other, "copying", run)
        refused.append(caught.value)

    def ask() -> None:
        with pytest.raises(BookieUnavailableError):
            two.target.size("d/nothing")

    copies = [bench.world.spawn(f"copy-{n}", copy) for n in range(CALLS_AT_ONCE)]
    bench.runtime.sleep(1.0)
    two.hang.hangs = lambda *_: True
    others = [bench.world.spawn(f"other-{n}", ask) for n in range(CALLS_AT_ONCE)]
    for task in (*others, *copies):
        task.join()

    assert two.hang.stuck <= CALLS_AT_ONCE + TRIALS
    assert {error.facts["bookie_id"] for error in refused} == {"c:1"}
    two.hang.release()


def test_of_two_bookies_none_is_blamed_when_the_silent_one_answers_just_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = Call.give_up_if_silent

    def story(bench: Bench) -> None:
        two = Two(bench, lambda *_: False)

        def late(call: Call[object]) -> BookieUnavailableError | None:
            bench.hang.release()
            bench.runtime.sleep(0.001)
            return look(call)

        monkeypatch.setattr(Call, "give_up_if_silent", late)

        assert two.copy() == 3
        assert two.door.silence() is None

    in_a_world(story, lambda asked, _: asked == "read_range")


@in_world(lambda asked, _: asked == "read")
def test_a_copy_from_a_bookie_that_hangs_is_not_begun(bench: Bench) -> None:
    two = Two(bench, lambda *_: False)
    assert not bench.is_refused()
    with pytest.raises(BookieUnavailableError, match="b:1 hangs"):
        two.copy()
    assert not two.disk.files
