"""What holds while a bookie is silent: bounds, hedges, trials, and how many tasks it may hold."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from spark_bookkeeper.client.bookies.gather import Gather, TimedOut
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.storage.bookie_client import BookieClient, aside
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.call import Call, current_call
from spark_bookkeeper.storage.retry_policy import CALLS_AT_ONCE, TRIALS
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.hanging import OPERATIONS, Hang
from tests.client.benches import PATIENCE, Bench, Two, in_a_world, in_world
from tests.client.gates import hangs_at
from tests.simulator.scheduler import World
from tests.worlds import payloads, written

CALLS: dict[str, Callable[[BoundedStorage], object]] = {
    "put_if_absent": lambda s: s.put_if_absent("d/a", b"x"),
    "create": lambda s: s.create("d/b"),
    "write": lambda s: s.create("d/c").write(b"x"),
    "finish": lambda s: s.create("d/e").finish(),
    "read": lambda s: s.read("f"),
    "read_range": lambda s: s.read_range("f", 0, 1),
    "size": lambda s: s.size("f"),
    "list": lambda s: s.list(""),
    "make_directory": lambda s: s.make_directory("e"),
    "sync": lambda s: s.sync("f"),
    "delete": lambda s: s.delete("f"),
    "delete_directory": lambda s: s.delete_directory("d"),
    "space": lambda s: s.space(),
    "inodes": lambda s: s.inodes(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_comes_back_and_says_what_hung(operation: str) -> None:
    def story(bench: Bench) -> None:
        with pytest.raises(BookieUnavailableError) as caught:
            CALLS[operation](bench.storage)

        assert bench.runtime.now() == pytest.approx(10.0, abs=0.1)
        message = caught.value.message
        assert "b:1" in message
        assert "no answer for 10.0 s" in message
        assert "memory://b" in message
        assert caught.value.facts["bookie_id"] == "b:1"
        bench.hang.release()

    in_a_world(story, lambda asked, _: asked == operation)


@pytest.mark.parametrize("operation", ["put_if_absent", "make_directory", "finish", "delete"])
def test_what_was_given_up_may_still_take_effect(operation: str) -> None:
    def story(bench: Bench) -> None:
        with pytest.raises(BookieUnavailableError, match="not known"):
            CALLS[operation](bench.storage)
        before = dict(bench.disk.files), set(bench.disk.directories)
        bench.hang.release()
        bench.runtime.sleep(1)

        assert (bench.disk.files, bench.disk.directories) != before
        assert bench.hang.stuck == 0

    in_a_world(story, lambda asked, _: asked == operation)


@in_world(lambda *_: False)
def test_calls_that_come_back_are_progress_however_long_all_of_them_take(bench: Bench) -> None:
    def slowly() -> int:
        for _ in range(10):
            bench.storage.size("f")
            bench.runtime.sleep(9.0)
        return 7

    assert bench.bookie_client.ask("ten things", slowly) == 7
    assert bench.runtime.now() == pytest.approx(90.0)


@in_world()
def test_a_call_that_moves_many_bytes_has_the_time_that_they_need(bench: Bench) -> None:
    with pytest.raises(BookieUnavailableError):
        bench.storage.read_range("f", 0, 400 << 20)

    assert bench.runtime.now() == pytest.approx(110.0, abs=0.1)


@in_world()
def test_a_read_that_hands_out_pieces_comes_back_as_well(bench: Bench) -> None:
    with pytest.raises(BookieUnavailableError):
        bench.storage.read_through("f", 0, 400 << 20, lambda _: None)

    assert bench.runtime.now() == pytest.approx(110.0, abs=0.1)


@in_world(lambda *_: False)
def test_within_a_call_the_storage_is_asked_without_another_task(bench: Bench) -> None:
    employed = bench.note_employed()

    def several() -> None:
        bench.storage.size("f")
        bench.storage.read("f")
        bench.bookie_client.ask("more", lambda: bench.storage.list(""))

    bench.bookie_client.ask("several things", several)
    assert len(employed) == 1


@in_world(lambda asked, _: asked == "read")
def test_at_an_interrupt_nothing_more_is_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def several() -> None:
        bench.storage.read("f")
        bench.storage.size("f")
        asked.append("both")

    def interrupted(call: Call[object], seconds: float) -> None:
        bench.runtime.sleep(1.0)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Call, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.bookie_client.ask("two things", several)
    bench.hang.release()
    bench.runtime.sleep(1.0)

    assert not asked
    assert not bench.bookie_client.calls
    assert bench.storage.size("f") == 7, "the bookie is not blamed"


@in_world(lambda asked, _: asked == "read")
def test_at_an_interrupt_nothing_more_is_asked_of_several_bookies_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answers = Gather[int, None](bench.runtime)

    def several() -> None:
        bench.storage.read("f")
        bench.storage.size("f")
        asked.append("both")

    def interrupted(bookie_client: BookieClient, changed: object, seconds: float) -> bool:
        raise KeyboardInterrupt

    for number in range(2):
        answers.ask(number, bench.bookie_client, "two things", several)
    bench.runtime.sleep(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(BookieClient, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answers.next()
    bench.hang.release()
    bench.runtime.sleep(1.0)

    assert not asked
    assert not bench.bookie_client.calls
    assert answers.next() is None, "nobody waits for anything"
    assert bench.storage.size("f") == 7, "the bookie is not blamed"


@in_world()
def test_a_bookie_that_hangs_is_refused_for_a_while_and_then_tried_with_one_call(
    bench: Bench,
) -> None:
    assert not bench.is_refused()
    assert bench.is_refused()
    bench.runtime.sleep(4.9)
    assert bench.is_refused()
    bench.runtime.sleep(0.2)
    assert not bench.is_refused()  # the trial; it hangs too
    assert bench.is_refused()

    bench.runtime.sleep(5.1)
    bench.hang.hangs = lambda *_: False
    assert bench.storage.read("f") == b"content"
    assert bench.storage.read("f") == b"content"
    assert not bench.bookie_client.is_silent


@in_world()
def test_a_late_answer_shows_that_a_bookie_answers_again(bench: Bench) -> None:
    assert not bench.is_refused()
    bench.hang.release()
    bench.runtime.sleep(0.1)

    assert bench.storage.read("f") == b"content"


@in_world()
def test_while_a_trial_is_under_way_others_are_refused(bench: Bench) -> None:
    assert not bench.is_refused()
    bench.runtime.sleep(5.1)
    refused: list[bool] = []
    trial = bench.world.spawn("trial", lambda: refused.append(bench.is_refused()))
    bench.runtime.sleep(1.0)
    assert bench.is_refused()
    trial.join()
    assert refused == [False]


@in_world()
def test_a_bookie_that_hangs_holds_so_many_tasks_and_no_more_over_days(bench: Bench) -> None:
    def ask() -> None:
        with pytest.raises(BookieUnavailableError):
            bench.storage.read("f")

    tasks = [bench.world.spawn(f"user-{n}", ask) for n in range(3 * CALLS_AT_ONCE)]
    for task in tasks:
        task.join()
    assert bench.hang.stuck == CALLS_AT_ONCE
    for _ in range(100):
        bench.runtime.sleep(1_000)
        ask()

    assert bench.hang.stuck == CALLS_AT_ONCE + TRIALS


@in_world(lambda *_: False)
def test_a_call_for_which_there_is_no_thread_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(name: str, run: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(bench.runtime, "employ", none_left)
        for _ in range(2 * CALLS_AT_ONCE):
            with pytest.raises(BookieUnavailableError, match="could not start a thread"):
                bench.storage.read("f")
    assert not bench.bookie_client.calls
    assert bench.storage.read("f") == b"content"


@in_world(lambda operation, _: operation == "write")
def test_a_sink_that_hangs_is_abandoned_by_who_is_stuck_in_it(bench: Bench) -> None:
    sink = bench.storage.create("d/part")
    with pytest.raises(BookieUnavailableError):
        sink.write(b"x")
    sink.abandon()  # returns at once
    assert bench.runtime.now() == pytest.approx(10.0, abs=0.1)
    bench.hang.release()
    bench.runtime.sleep(1)
    assert "d/part" not in bench.disk.files


def stand_still(world: World, release: Callable[[], None], at: float) -> None:
    """The running process will, for 99 seconds; another one lets bookies go behind that."""
    frozen = world.current.actor
    world.later(1.0, lambda: world.pause(frozen))
    world.later(100.0, lambda: world.resume(frozen))

    def let_go() -> None:
        world.start(world.actor("other"), release)

    world.later(at, let_go)


def test_a_process_that_stood_still_blames_nobody() -> None:
    with World(1) as world:
        bench = Bench(world, lambda operation, _: operation == "read")
        answers: list[bytes | None] = []

        def freeze() -> None:
            stand_still(world, bench.hang.release, 101.0)
            answers.append(bench.storage.read("f"))

        world.start(world.actor("client"), freeze)
        world.run_all()

    assert answers == [b"content"]


def test_a_process_that_stood_still_blames_none_of_those_that_it_asked_at_once() -> None:
    with World(1) as world:
        benches = [Bench(world) for _ in range(3)]
        runtime = benches[0].runtime
        said: dict[int, bytes | None] = {}

        def release() -> None:
            for bench in benches:
                bench.hang.release()

        def story() -> None:
            stand_still(world, release, 101.0)
            answers = Gather[int, bytes | None](runtime)
            for number, bench in enumerate(benches):
                answers.ask(
                    number, bench.bookie_client, "reading", partial(bench.storage.read, "f")
                )
            while (came := answers.next()) is not None:
                assert not isinstance(came, TimedOut)
                number, answer = came
                said[number] = answer()

        world.start(world.actor("client"), story)
        world.run_all()

    assert said == dict.fromkeys(range(3), b"content")


@pytest.mark.parametrize("how", ["ask", "answers"])
def test_a_process_that_stood_still_blames_nobody_for_the_want_of_a_place(how: str) -> None:
    with World(1) as world:
        bench = Bench(world)
        said: list[bytes | None] = []

        def story() -> None:
            fill(bench)
            stand_still(world, bench.hang.release, 100.2)
            if how == "ask":
                said.append(bench.storage.read("f"))
                return
            answers = Gather[str, bytes | None](bench.runtime)
            answers.ask("full", bench.bookie_client, "reading", lambda: bench.storage.read("f"))
            came = answers.next()
            assert isinstance(came, tuple)
            said.append(came[1]())

        world.start(world.actor("client"), story)
        world.run_all()

    assert said == [b"content"]


@in_world(lambda *_: False)
def test_a_bookie_that_is_busy_is_not_refused_while_calls_come_back(bench: Bench) -> None:
    served = 0

    def slowly() -> None:
        for _ in range(6):
            bench.storage.size("f")
            bench.runtime.sleep(1.0)

    def user() -> None:
        nonlocal served
        bench.bookie_client.ask("a window of reads", slowly)
        served += 1

    count = 4 * CALLS_AT_ONCE  # the last ones wait for 18 s
    for task in [bench.world.spawn(f"user-{n}", user) for n in range(count)]:
        task.join()

    assert served == count


@in_world(lambda *_: False)
def test_a_bookie_is_busy_too_while_something_comes_back_within_each_call(bench: Bench) -> None:
    def at_length() -> None:
        call = current_call(bench.bookie_client)
        assert call is not None
        for _ in range(5):
            call.step("read", "f", 0, bench.runtime.sleep, 6.0)

    def user() -> None:
        bench.bookie_client.ask("a large file", at_length)

    tasks = [bench.world.spawn(f"user-{n}", user) for n in range(CALLS_AT_ONCE)]
    bench.runtime.sleep(1.0)

    assert bench.storage.size("f") == len(b"content")
    for task in tasks:
        task.join()


@in_world()
def test_the_first_answer_of_a_trial_lets_the_others_in(bench: Bench) -> None:
    assert not bench.is_refused()
    bench.hang.hangs = lambda *_: False
    bench.runtime.sleep(5.1)

    def at_length() -> None:
        for _ in range(100):
            bench.storage.size("f")
            bench.runtime.sleep(1.0)

    trial = bench.world.spawn("trial", lambda: bench.bookie_client.ask("looking at all", at_length))
    bench.runtime.sleep(0.5)

    assert bench.storage.read("f") == b"content"
    assert not bench.bookie_client.is_silent
    trial.join()
    assert bench.storage.read("f") == b"content"


def fill(bench: Bench) -> None:
    """Every place at a bookie that hangs is taken."""

    def ask() -> None:
        with suppress(BookieUnavailableError):
            bench.storage.read("f")

    for number in range(CALLS_AT_ONCE):
        bench.world.spawn(f"user-{number}", ask)
    bench.runtime.sleep(0.1)


@in_world()
def test_no_other_bookie_waits_for_a_place_at_one_that_is_full(bench: Bench) -> None:
    other = Bench(bench.world, lambda *_: False)
    fill(bench)
    began = bench.runtime.now()
    answers = Gather[str, bytes | None](bench.runtime)
    answers.ask("full", bench.bookie_client, "reading", lambda: bench.storage.read("f"))
    answers.ask("other", other.bookie_client, "reading", lambda: other.storage.read("f"))
    came = answers.next(PATIENCE.hedge)
    assert isinstance(came, tuple)
    assert (came[0], came[1]()) == ("other", b"content")
    assert bench.runtime.now() == began

    assert answers.next(PATIENCE.hedge) == TimedOut(("full",))
    assert bench.runtime.now() == pytest.approx(began + PATIENCE.hedge, abs=0.1)
    assert not answers.is_waited_for()
    assert "no place" in answers.silence_of("full")
    assert answers.waiting == ("full",)

    came = answers.next()
    assert isinstance(came, tuple)
    with pytest.raises(BookieUnavailableError):
        came[1]()
    assert bench.runtime.now() == pytest.approx(began + PATIENCE.give_up, abs=1.0)
    assert answers.next() is None


@in_world()
def test_what_waits_for_a_place_is_sent_when_there_is_one(bench: Bench) -> None:
    fill(bench)
    answers = Gather[str, bytes | None](bench.runtime)
    answers.ask("full", bench.bookie_client, "reading", lambda: bench.storage.read("f"))
    bench.hang.release()
    came = answers.next()

    assert isinstance(came, tuple)
    assert (came[0], came[1]()) == ("full", b"content")
    assert answers.next() is None


@in_world(lambda operation, _: operation == "read")
def test_who_would_lose_the_bookie_asks_it_also_while_it_hangs(bench: Bench) -> None:
    assert not bench.is_refused()  # one bad file
    with pytest.raises(BookieUnavailableError, match="hangs"):
        bench.bookie_client.attend("writing a part")
    channel = bench.bookie_client.attend("storing entries", insists=True)
    channel.in_person(lambda: bench.storage.put_if_absent("d/a", b"x"))

    assert bench.disk.files["d/a"] == b"x"
    assert bench.storage.size("f") == 7  # it answers


@in_world()
def test_those_who_insist_do_not_get_stuck_in_any_number(bench: Bench) -> None:
    def insist() -> None:
        call = bench.bookie_client.attend("storing entries", insists=True)
        call.in_person(lambda: bench.storage.read("f"))

    assert not bench.is_refused()
    refused = 0
    for number in range(2 * CALLS_AT_ONCE):
        try:
            bench.bookie_client.attend("storing entries", insists=True)
        except BookieUnavailableError:
            refused += 1
        else:
            bench.world.spawn(f"lane-{number}", insist)
            bench.runtime.sleep(0.01)
    assert bench.hang.stuck == CALLS_AT_ONCE + TRIALS
    assert refused > 0
    bench.hang.release()


@in_world(lambda operation, _: operation == "read")
def test_what_a_task_asks_after_it_asked_in_person_is_bounded(bench: Bench) -> None:
    call = bench.bookie_client.attend("storing entries")
    call.in_person(lambda: bench.storage.size("f"))

    assert current_call(bench.bookie_client) is None
    with pytest.raises(BookieUnavailableError, match="no answer"):
        bench.storage.read("f")


# In real time


def test_a_late_fence_and_late_copies_change_nothing(tmp_path: Path) -> None:
    config = ClientConfig(bookie_timeout_ms=1_000, read_hedge_ms=50, bookie_retry_ms=100)
    ground = Ground(tmp_path, bookies=4, config=config)
    writer = written(ground, 5, close=False)
    victim = writer.metadata.last_fragment.ensemble[0]
    ground.until(lambda: ground.count()["put_if_absent"] >= 15)
    writer.abandon()
    hang = Hang(ground.runtime, lambda operation, path: operation != "read")
    recoverer = ground.client(None, hangs_at(victim, hang))

    closed = recover_ledger(recoverer, writer.ledger_id).value
    hang.release()
    ground.until(lambda: hang.stuck == 0)

    assert closed.last_entry_id == 4
    assert ground.context.ledger(writer.ledger_id)[1].value == closed
    assert payloads(ground, writer) == [b"%d" % n for n in range(5)]


STUCK = """
    import sys, tempfile, pathlib
    from spark_bookkeeper.storage.roots import open_storage
    from spark_bookkeeper.storage.bookie_client import BookieClient
    from spark_bookkeeper.storage.call import Patience
    from spark_bookkeeper.storage.bounded_storage import BoundedStorage
    from spark_bookkeeper.runtime.runtime import ThreadRuntime
    from spark_bookkeeper.errors import BookieUnavailableError

    uri, options = {where}
    door = BookieClient("b:1", uri, ThreadRuntime(), Patience(0.3, 0.1, 0.1))
    storage = BoundedStorage(open_storage(uri, options), door)
    try:
        storage.read("f")
    except BookieUnavailableError as error:
        print(error.message)
"""


def last_words(where: str) -> str:
    """What a process says whose storage hangs when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STUCK.format(where=where))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_a_process_ends_while_a_file_system_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")  # nobody ever opens its other end

    assert "no answer" in last_words(repr((f"file://{tmp_path}", {})))


@pytest.mark.full
@pytest.mark.s3
def test_a_process_ends_while_a_bucket_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options = {
            "key": "k",
            "secret": "s",
            "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "x"},
        }

        assert "no answer" in last_words(repr(("s3://bucket/root", options)))


@in_world(lambda *_: False)
def test_two_bookies_are_asked_in_turn_by_one_task(bench: Bench) -> None:
    two = Two(bench, lambda *_: False)
    employed = bench.note_employed()

    assert two.copy() == 3
    assert two.disk.files["d/copy"] == b"content" * 3
    assert len(employed) == 1
    assert not two.bookie_client.calls
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
        assert two.bookie_client.is_silent == (silent == "c:1")
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
        assert not two.bookie_client.calls
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
            good, calls = (two.target, two.bookie_client.calls)

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
            two.bookie_client.ask_with(two.other, "copying", hang)

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
    assert not two.bookie_client.calls
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
            two.bookie_client.ask_with(two.other, "copying", run)
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
        assert two.bookie_client.silence() is None

    in_a_world(story, lambda asked, _: asked == "read_range")


@in_world(lambda asked, _: asked == "read")
def test_a_copy_from_a_bookie_that_hangs_is_not_begun(bench: Bench) -> None:
    two = Two(bench, lambda *_: False)
    assert not bench.is_refused()
    with pytest.raises(BookieUnavailableError, match="b:1 hangs"):
        two.copy()
    assert not two.disk.files
