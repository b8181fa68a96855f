"""Locks and votes that are given back go, whatever comes in between."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import GetChildren, Sync

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.election import Election
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.metadata.zookeeper.link import Link
from spark_bookkeeper.metadata.zookeeper.multi import MultiWrite
from spark_bookkeeper.metadata.zookeeper.nodes import Node
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.conformance.metadata import eventually
from tests.metadata.conftest import begin_session
from tests.support.znodes import ZNodes

ONE, ANOTHER = Holder("one"), Holder("another thread")


@pytest.fixture
def store(store: ZooKeeperStore) -> ZooKeeperStore:
    store.underreplication.set_delay_seconds(0)
    return store


@dataclass
class Kept:
    """What somebody has, and others see."""

    take: Callable[[], object]
    give_back: Callable[[], None]
    seen: Callable[[], object]


def a_lock(store: ZooKeeperStore) -> Kept:
    tree = store.underreplication
    return Kept(lambda: tree.lock(LedgerId(7), ONE), lambda: tree.unlock(ONE), tree.locks)


def a_vote(store: ZooKeeperStore) -> Kept:
    store.ballots.add("somewhere", "b1", b"another")
    store.ballots.remove("somewhere", "b1")
    votes = itertools.count()

    def add() -> None:
        store.ballots.add("somewhere", f"a{next(votes)}", b"me")

    def remove() -> None:
        store.ballots.remove("somewhere", f"a{next(votes) - 1}")

    return Kept(add, remove, lambda: store.ballots.votes("somewhere"))


def an_auditor(store: ZooKeeperStore) -> Kept:
    tree = store.underreplication
    tree.stand("one", lambda: None)
    tree.stand_down()
    return Kept(lambda: tree.stand("one", lambda: None), tree.stand_down, tree.candidates)


@pytest.fixture(params=[a_lock, a_vote, an_auditor])
def kept(request: pytest.FixtureRequest, store: ZooKeeperStore) -> Kept:
    made: Kept = request.param(store)
    return made


VOTES = pytest.mark.parametrize("kept", [a_vote, an_auditor], indirect=True)


_COUNTED = ("spark_bookkeeper", "kazoo")


def interrupted_at(step: int, call: Callable[[], None]) -> bool:
    """Ctrl-C at that step of giving something back; whether it came to it.

    A step is where Python looks for it: where a function begins, and where one in C has ended. They
    are counted from the beginning of ``surely``, those of this library and of kazoo: within its own
    Python drops some.
    """
    steps = -1

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        if steps >= 0:
            is_step = event in ("call", "c_return")
            steps += is_step and any(name in frame.f_code.co_filename for name in _COUNTED)
        elif frame.f_code is Link.surely.__code__:
            steps = 0
        if steps == step:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_ctrl_c_in_the_middle_leaves_it_to_another_thread(kept: Kept) -> None:
    step = 1
    while True:
        assert kept.take() is not False
        assert kept.seen()
        if not interrupted_at(step, kept.give_back):
            break
        eventually(lambda: not kept.seen())
        step += 1
    assert not kept.seen()
    assert step > 5


def test_at_the_end_of_the_interpreter_it_is_done_without_another_thread(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch, kept: Kept
) -> None:
    assert kept.take() is not False

    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(store._zk._link.client.handler, "spawn", refuse)
    kept.give_back()

    assert not kept.seen()


def test_what_could_not_be_given_back_is_tried_again_when_there_are_answers(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, kept: Kept
) -> None:
    """On the connection that was there all the time: nobody hears of another one."""
    assert kept.take() is not False
    carry_out = znodes.carry_out

    def away(request: Any, session: int) -> Any:
        raise ConnectionLoss

    store._zk._link.patience = 0.1
    with monkeypatch.context() as patch:
        patch.setattr(znodes, "carry_out", away)
        kept.give_back()
    store._zk._link._listen()
    eventually(lambda: not kept.seen())
    assert znodes.carry_out == carry_out


def test_a_connection_that_comes_back_while_a_lock_is_being_released_is_not_missed(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hears of it leaves the lock to the call that is at it, and has no answer yet."""
    tree = store.underreplication
    assert tree.lock(LedgerId(7), ONE)
    delete, link = store._zk.delete, store._zk._link
    spawn, threads = link.client.handler.spawn, list[threading.Thread]()

    def lost(*_: object, **__: object) -> None:
        monkeypatch.setattr(store._zk, "delete", delete)
        with monkeypatch.context() as patch:
            patch.setattr(link.client.handler, "spawn", lambda f: threads.append(spawn(f)))
            link._is_connected()
        for thread in threads:
            thread.join()
        assert tree.locks(), "it was left to this call"
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(store._zk, "delete", lost)
    tree.unlock(ONE)

    assert not tree.locks()


@pytest.mark.parametrize("is_first", [True, False])
def test_who_stands_again_is_told_when_the_vote_goes_that_was_given_back_before(
    store: ZooKeeperStore, other: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Its end was asked for, and takes effect when it has been found and counts again."""
    tree, others = store.underreplication, other.underreplication
    told = threading.Event()
    if not is_first:
        assert others.stand("first", lambda: None)
    assert tree.stand("one", lambda: None) is is_first
    delete = store._zk.delete

    def late(path: str, *arguments: Any) -> None:
        monkeypatch.setattr(store._zk, "delete", delete)
        assert tree.stand("one", told.set) is is_first
        delete(path, *arguments)

    monkeypatch.setattr(store._zk, "delete", late)
    tree.stand_down()

    assert told.wait(60), "else it would be without a vote until it looks by itself"
    assert tree.stand("one", lambda: None) is is_first


def test_a_lock_that_comes_late_goes_although_another_thread_is_releasing_that_ledger(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ended while it was asked for, and somebody else had the ledger in the next."""
    tree = store.underreplication
    create, delete = store._zk.create, store._zk.delete
    is_deleted, is_settled = threading.Event(), threading.Event()
    others = threading.Thread(target=tree.unlock, args=(ANOTHER,))

    def then_wait(*arguments: Any, **options: Any) -> None:
        delete(*arguments, **options)
        is_deleted.set()
        is_settled.wait()

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(store._zk, "create", create)
        monkeypatch.setattr(store._zk, "delete", then_wait)
        begin_session(znodes, store)
        assert tree.lock(LedgerId(7), ANOTHER)
        others.start()
        is_deleted.wait()
        create(*arguments, **options)

    monkeypatch.setattr(store._zk, "create", late)
    assert not tree.lock(LedgerId(7), ONE), "it was another's meanwhile"
    tree.unlock(ONE)
    is_settled.set()
    others.join()

    assert not tree.locks()


def test_a_lock_that_comes_late_goes_with_the_one_that_another_caller_had_in_a_session_before(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, create = store.underreplication, store._zk.create

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(store._zk, "create", create)
        begin_session(znodes, store)
        assert tree.lock(LedgerId(7), ANOTHER)
        begin_session(znodes, store)
        create(*arguments, **options)

    monkeypatch.setattr(store._zk, "create", late)
    assert not tree.lock(LedgerId(7), ONE), "it is another's, as far as he knows"
    tree.unlock(ONE)
    tree.unlock(ANOTHER)

    assert not tree.locks()


def test_a_lock_that_comes_too_late_for_two_callers_goes(
    store: ZooKeeperStore, other: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has seen that another process has it, which gives it back before it comes."""
    tree, others, third = store.underreplication, other.underreplication, Holder("far away")
    create, get_settled = store._zk.create, store._zk.get_settled
    is_seen, is_settled = threading.Event(), threading.Event()
    had: list[bool] = []
    second = threading.Thread(target=lambda: had.append(tree.lock(LedgerId(7), ANOTHER)))

    def then_wait(path: str) -> Node | None:
        there = get_settled(path)
        is_seen.set()
        is_settled.wait()
        return there

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(store._zk, "create", create)
        begin_session(znodes, store)
        assert others.lock(LedgerId(7), third)
        with monkeypatch.context() as patch:
            patch.setattr(store._zk, "get_settled", then_wait)
            second.start()
            is_seen.wait()
        others.unlock(third)
        create(*arguments, **options)

    monkeypatch.setattr(store._zk, "create", late)
    had.append(tree.lock(LedgerId(7), ONE))
    is_settled.set()
    second.join()

    assert had == [False, False]
    assert not tree.locks()


def test_who_looks_whether_a_lock_is_his_keeps_that_of_who_took_it_after_his_session_had_ended(
    store: ZooKeeperStore, other: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, others = store.underreplication, other.underreplication
    create, get_settled = store._zk.create, store._zk.get_settled

    def lost(*arguments: Any, **options: Any) -> None:
        create(*arguments, **options)
        raise MetadataUnavailableError("no answer")

    def then_ended(path: str) -> Node | None:
        monkeypatch.setattr(store._zk, "get_settled", get_settled)
        there = get_settled(path)
        begin_session(znodes, store)
        assert others.lock(LedgerId(7), ANOTHER)
        return there

    with monkeypatch.context() as patch:
        patch.setattr(store._zk, "create", lost)
        with pytest.raises(MetadataUnavailableError):
            tree.lock(LedgerId(7), ONE)
    monkeypatch.setattr(store._zk, "get_settled", then_ended)
    tree.unlock(ONE)

    assert store._zk.get_settled == get_settled, "it was looked at"
    assert list(tree.locks().values()) == [ANOTHER.name]


@VOTES
def test_a_vote_that_was_made_without_an_answer_is_found_behind_a_server_that_lags(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, kept: Kept
) -> None:
    carry_out = znodes.carry_out
    server = SimpleNamespace(answers_writes=False, lags=False)
    old: dict[str, Any] = {}

    def lagging(request: Any, session: int) -> Any:
        if isinstance(request, MultiWrite) and not server.answers_writes:
            if not server.lags:
                carry_out(request, session)
            server.lags = True
            raise ConnectionLoss
        if isinstance(request, Sync):
            server.lags = False
        if not isinstance(request, GetChildren):
            return carry_out(request, session)
        if not server.lags:
            old[request.path] = carry_out(request, session)
        return old[request.path]

    monkeypatch.setattr(znodes, "carry_out", lagging)
    assert not kept.seen()
    store._zk._link.patience = 0.1
    with pytest.raises(MetadataUnavailableError):
        kept.take()
    assert server.lags
    assert not kept.seen()
    server.answers_writes = True

    kept.give_back()

    assert not server.lags, "it was made to catch up"
    assert not kept.seen()


@VOTES
def test_a_vote_whose_answer_was_lost_is_there_once(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, kept: Kept
) -> None:
    carry_out = znodes.carry_out

    def lost(request: Any, session: int) -> Any:
        answer = carry_out(request, session)
        if isinstance(request, MultiWrite):
            monkeypatch.setattr(znodes, "carry_out", carry_out)
            raise ConnectionLoss
        return answer

    monkeypatch.setattr(znodes, "carry_out", lost)
    kept.take()

    assert znodes.carry_out == carry_out, "the answer was lost"
    seen = kept.seen()
    assert isinstance(seen, list)
    assert len(seen) == 1


def test_a_candidate_that_is_interrupted_as_it_leaves_has_left(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = Election(store.ballots, "somewhere", ThreadRuntime())
    vote = election.join(b"me")

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(vote._wake_up, "set", interrupted)
    with pytest.raises(KeyboardInterrupt):
        vote.leave()

    assert election.leader() is None


def test_a_vote_that_is_made_again_without_an_answer_as_its_candidate_leaves_goes(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread waits to lead. What it asked for comes when all that was there has gone."""
    election = Election(store.ballots, "somewhere", ThreadRuntime())
    vote = election.join(b"me")
    begin_session(znodes, store)
    create = store._zk.create_sequential

    def late(*arguments: Any) -> None:
        vote.leave()
        create(*arguments)
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(store._zk, "create_sequential", late)
    with pytest.raises(MetadataUnavailableError):
        vote.wait(0)

    assert election.leader() is None
