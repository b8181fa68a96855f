"""A bookie's registration goes with its session, and with no other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.service_info import encode_registration
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.registrations import SingleFlight
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId
from tests.support.sessions import wait_no_longer_for_another
from tests.support.znodes import ZNodes

BOOKIE = BookieId("10.0.0.3:3181")


@pytest.mark.parametrize("ends", [True, False])
def test_who_unregisters_twice_as_the_answer_was_lost_leaves_its_successor(
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    znodes: ZNodes,
    monkeypatch: pytest.MonkeyPatch,
    ends: bool,
) -> None:
    """The session has ended before the first request got there; or its answer was lost."""
    store.register(Registration(BOOKIE, "file:///a", "3f2a"))
    path = paths.registration("/ledgers", BOOKIE, readonly=False)
    carry_out = znodes.carry_out

    def lose(request: Any, of: int) -> Any:
        before = path in znodes.nodes
        answer = carry_out(request, of)
        if path in znodes.nodes or not before:
            return answer
        monkeypatch.setattr(znodes, "carry_out", carry_out)
        if ends:
            store._zk._link.client._session = next(znodes.sessions)
        other.register(Registration(BOOKIE, "file:///b", "3f2a"))
        raise SessionExpiredError if ends else ConnectionLoss

    monkeypatch.setattr(znodes, "carry_out", lose)
    store.unregister(BOOKIE)

    assert znodes.carry_out is carry_out, "the answer was lost"
    assert [each.root_uri for each in other.registrations()] == ["file:///b"]


@pytest.mark.parametrize("is_readonly", [False, True])
@pytest.mark.parametrize("was_readonly", [False, True])
def test_a_registration_that_goes_with_no_session_is_nobodys(
    store: ZooKeeperStore, znodes: ZNodes, was_readonly: bool, is_readonly: bool
) -> None:
    wait_no_longer_for_another(store)
    copied = Registration(BOOKIE, "file:///a", "3f2a", is_readonly=was_readonly)
    path = paths.registration("/ledgers", BOOKIE, readonly=was_readonly)
    znodes.put(path, encode_registration(copied))

    assert store.registrations() == []
    store.register(Registration(BOOKIE, "file:///b", "3f2a", is_readonly=is_readonly))

    (found,) = store.registrations()
    assert (found.root_uri, found.is_readonly) == ("file:///b", is_readonly)
    store.unregister(BOOKIE)
    assert store.registrations() == []


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
    shared = SingleFlight(reads)
    reads.may_end.release(2)

    assert [shared.get(), shared.get()] == [1, 2]


def test_who_asks_during_a_read_waits_for_the_next_one_together_with_the_others() -> None:
    reads = Reads()
    shared = SingleFlight(reads)
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
    shared = SingleFlight(reads)
    reads.error = MetadataUnavailableError("no answer")
    reads.may_end.release(2)

    with pytest.raises(MetadataUnavailableError):
        shared.get()

    assert shared.get() == 2


def test_a_read_that_is_interrupted_holds_up_nobody() -> None:
    reads = Reads()
    shared = SingleFlight(reads)
    reads.error = KeyboardInterrupt()
    reads.may_end.release(2)

    with pytest.raises(KeyboardInterrupt):
        shared.get()

    assert shared.get() == 2


def test_ctrl_c_behind_a_read_leaves_nobody_waiting_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = SingleFlight(lambda: 1)

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(shared, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shared.get()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(shared.get).result(SECONDS_MAX) == 1
