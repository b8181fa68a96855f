"""Many who ask at once share an answer, and nobody gets one older than the question."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.zookeeper.registrations import SharedRead

SECONDS_MAX = 60


class Reads:
    """Reads that are numbered, and end when they are told to."""

    def __init__(self) -> None:
        self.count = 0
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.error: BaseException | None = None

    def __call__(self) -> int:
        self.count += 1
        number = self.count
        self.begun.release()
        assert self.may_end.acquire(timeout=SECONDS_MAX)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return number


def test_each_who_asks_alone_reads_anew() -> None:
    reads = Reads()
    shared = SharedRead(reads)
    reads.may_end.release(2)

    assert [shared.get(), shared.get()] == [1, 2]


def test_who_asks_during_a_read_waits_for_the_next_one_together_with_the_others() -> None:
    reads = Reads()
    shared = SharedRead(reads)
    with ThreadPoolExecutor(6) as threads:
        first = threads.submit(shared.get)
        assert reads.begun.acquire(timeout=SECONDS_MAX)

        others = [threads.submit(shared.get) for _ in range(5)]
        reads.may_end.release()  # the first; it must not be theirs
        assert first.result(SECONDS_MAX) == 1
        reads.may_end.release(5)  # more than are needed, when they share

        answers = [other.result(SECONDS_MAX) for other in others]
        assert min(answers) > 1
        assert reads.count == max(answers)


def test_an_error_is_for_all_who_shared_the_read_and_for_nobody_after() -> None:
    reads = Reads()
    shared = SharedRead(reads)
    reads.error = MetadataUnavailableError("no answer")
    reads.may_end.release(2)

    with pytest.raises(MetadataUnavailableError):
        shared.get()

    assert shared.get() == 2


def test_a_read_that_is_interrupted_holds_up_nobody() -> None:
    reads = Reads()
    shared = SharedRead(reads)
    reads.error = KeyboardInterrupt()
    reads.may_end.release(2)

    with pytest.raises(KeyboardInterrupt):
        shared.get()

    assert shared.get() == 2


def test_ctrl_c_behind_a_read_leaves_nobody_waiting_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = SharedRead(lambda: 1)

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(shared, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shared.get()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(shared.get).result(SECONDS_MAX) == 1
