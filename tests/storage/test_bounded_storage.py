"""Storage with a bound on silence keeps the promises of the storage that it passes on to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typing_extensions import Buffer, override

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage, _BoundedSink
from spark_bookkeeper.storage.retry_policy import Patience
from spark_bookkeeper.storage.storage import FileSink, Request, Storage
from spark_bookkeeper.testing.conformance.storage import StorageConformance, Storages, ThreadRace
from spark_bookkeeper.testing.hanging import Hang
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage, Moment
from tests.simulator.runtime import SimRuntime
from tests.simulator.scheduler import World


class BoundedStorages(ThreadRace):
    """Handles on one disk, each behind a door of its own."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._is_down = False

    def open(self) -> Storage:
        bookie_client = BookieClient("b:1", "memory://b", ThreadRuntime(), Patience(60.0, 1.0, 1.0))
        return BoundedStorage(MemoryStorage(self._disk, self._faults), bookie_client)

    def vanish(self) -> None:
        self._is_down = True

    def _faults(self, operation: str, path: str, moment: Moment) -> None:
        if self._is_down:
            raise BookieUnavailableError("down", bookie_id="b:1")


class TestBoundedStorage(StorageConformance):
    @pytest.fixture
    def storages(self) -> Storages:
        return BoundedStorages()


PATIENCE = Patience(give_up=10.0, hedge=0.5, retry=5.0)


class Bucket:
    """A bookie in a bucket, in simulated time; an operation takes so many seconds."""

    def __init__(self, world: World, seconds: dict[str, float]) -> None:
        self.world = world
        self.runtime = SimRuntime(world, world.actor("client"))
        self.disk = MemoryDisk("b", has_directories=False)
        self.bookie_client = BookieClient("b:1", "memory://b", self.runtime, PATIENCE)

        def slow(operation: str, path: str, moment: Moment) -> None:
            if moment == "before" and operation in seconds:
                self.runtime.sleep(seconds[operation])

        self.storage = BoundedStorage(MemoryStorage(self.disk, slow), self.bookie_client)


def in_a_bucket(**seconds: float) -> Callable[[Callable[[Bucket], None]], Callable[[], None]]:
    """Runs a test in simulated time; an operation takes so many seconds."""

    def given(story: Callable[[Bucket], None]) -> Callable[[], None]:
        def run() -> None:
            with World(1) as world:
                bucket = Bucket(world, seconds)
                world.start(world.actor("client"), lambda: story(bucket))
                world.run_all()

        return run

    return given


@in_a_bucket(sync=1.0)
def test_looking_for_many_files_in_a_bucket_is_progress_with_each(bucket: Bucket) -> None:
    paths = [f"ledgers/x/slots/{n}" for n in range(200)]
    bucket.disk.files |= dict.fromkeys(paths, b"x")
    bucket.storage.sync(*paths)
    bucket.bookie_client.ask("looking after a share", lambda: bucket.storage.sync(*paths))

    assert bucket.runtime.now() == pytest.approx(400.0)
    assert set(paths) <= bucket.disk.durable


@in_a_bucket(sync=1_000.0)
def test_one_file_of_many_that_gives_no_answer_is_named(bucket: Bucket) -> None:
    bucket.disk.files |= {"a": b"x", "b": b"x"}
    with pytest.raises(BookieUnavailableError, match="sync a"):
        bucket.storage.sync("a", "b")
    assert bucket.runtime.now() == pytest.approx(PATIENCE.give_up, abs=0.1)


@in_a_bucket(read=1_000.0)
def test_what_is_asked_together_and_has_no_answer_is_named_and_counted(bucket: Bucket) -> None:
    for others, what in ([], r"\(read f\)"), (["g", "h"], r"\(read f and 2 more\)"):
        with pytest.raises(BookieUnavailableError, match=what):
            bucket.storage.ask_all([Request("read", path) for path in ("f", *others)])
        bucket.runtime.sleep(PATIENCE.retry)


def list_among_others(storage: Storage) -> None:
    """As the requests of one round."""
    answers = storage.ask_all([Request("read", "f"), Request("list", "ledgers/x/slots")])
    assert answers == [None, []]


PAGED: dict[str, tuple[str, Callable[[Storage], Any]]] = {
    "list": ("list", lambda storage: storage.list("ledgers/x/slots")),
    "list among others": ("list", list_among_others),
    "delete": ("delete_directory", lambda storage: storage.delete_directory("ledgers/x/slots")),
}


@pytest.mark.parametrize(("operation", "ask"), PAGED.values(), ids=PAGED)
def test_a_directory_of_a_bucket_may_have_many_pages(
    operation: str, ask: Callable[[Storage], Any]
) -> None:
    def story(bucket: Bucket) -> None:
        asked = bucket.world.spawn("user", lambda: ask(bucket.storage))
        bucket.runtime.sleep(30.0)

        assert bucket.bookie_client.is_silent  # others are better
        bucket.storage.size("f")  # it is not refused
        asked.join()
        assert bucket.runtime.now() == pytest.approx(60.0)

    in_a_bucket(**{operation: 60.0})(story)()


@pytest.mark.parametrize(("operation", "ask"), PAGED.values(), ids=PAGED)
def test_a_directory_of_a_bucket_is_not_waited_for_for_ever(
    operation: str, ask: Callable[[Storage], Any]
) -> None:
    def story(bucket: Bucket) -> None:
        with pytest.raises(BookieUnavailableError, match="no answer"):
            ask(bucket.storage)
        limit = PATIENCE.give_up + PATIENCE.pages
        assert bucket.runtime.now() == pytest.approx(limit, abs=0.1)

    in_a_bucket(**{operation: 100_000.0})(story)()


class CountedSink(FileSink):
    """Says how often it was abandoned, which may hang."""

    def __init__(self, hang: Hang | None = None) -> None:
        self.abandoned = 0
        self._hang = hang

    @override
    def write(self, data: Buffer) -> None:
        pass

    @override
    def finish(self) -> None:
        pass

    @override
    def abandon(self) -> None:
        if self._hang is not None:
            self._hang.meet("abandon", "")
        self.abandoned += 1


class GivenUpAtTheEnd(_BoundedSink):
    """Given up by another at the moment when the task that was stuck in it comes out."""

    @override
    def __setattr__(self, name: str, value: object) -> None:
        was_busy = getattr(self, "_is_busy", False)
        super().__setattr__(name, value)
        if name == "_is_busy" and was_busy and not value:
            self.abandon()


@in_a_bucket()
def test_a_sink_is_abandoned_once_whoever_comes_first(bucket: Bucket) -> None:
    inner = CountedSink()
    sink = GivenUpAtTheEnd(bucket.storage, "part", inner)
    sink.write(b"x")
    sink.abandon()
    bucket.runtime.sleep(1.0)

    assert inner.abandoned == 1  # the number of its descriptor may be another file's by now
    with pytest.raises(BookieUnavailableError, match="given up"):
        sink.write(b"y")


@in_a_bucket()
def test_a_finished_sink_has_nothing_to_be_abandoned(bucket: Bucket) -> None:
    inner = CountedSink()
    sink = _BoundedSink(bucket.storage, "part", inner)
    sink.write(b"x")
    sink.finish()
    sink.abandon()
    bucket.runtime.sleep(1.0)

    assert inner.abandoned == 0


@in_a_bucket()
def test_nobody_waits_for_a_sink_that_hangs_while_it_is_abandoned(bucket: Bucket) -> None:
    hang = Hang(bucket.runtime)
    inner = CountedSink(hang)
    _BoundedSink(bucket.storage, "part", inner).abandon()
    assert bucket.runtime.now() == 0.0
    bucket.runtime.sleep(1.0)
    assert hang.stuck == 1
    hang.release()
    bucket.runtime.sleep(1.0)

    assert inner.abandoned == 1


@in_a_bucket()
def test_within_a_call_a_sink_that_hangs_while_it_is_abandoned_is_given_up(bucket: Bucket) -> None:
    hang = Hang(bucket.runtime)
    inner = CountedSink(hang)
    sink = _BoundedSink(bucket.storage, "part", inner)
    with pytest.raises(BookieUnavailableError, match="abandon part"):
        bucket.bookie_client.ask("copying a part", sink.abandon)
    hang.release()
    bucket.runtime.sleep(1.0)

    assert inner.abandoned == 1


@in_a_bucket(size=50.0)
def test_who_was_given_up_and_comes_back_still_abandons_what_it_has(bucket: Bucket) -> None:
    inner = CountedSink()
    sink = _BoundedSink(bucket.storage, "part", inner)

    def stuck() -> None:
        try:
            bucket.storage.size("f")
        finally:
            sink.abandon()

    with pytest.raises(BookieUnavailableError):
        bucket.bookie_client.ask("copying a part", stuck)
    bucket.runtime.sleep(100.0)

    assert inner.abandoned == 1
