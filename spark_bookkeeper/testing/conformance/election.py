"""Tests of elections that every metadata store must pass: subclass once for each back end.

A back end's test module also provides the fixture ``stores`` of ``metadata.py``.
"""

from __future__ import annotations

import threading
from functools import partial

import pytest

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.election import Election, Vote
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.conformance.metadata import Stores, eventually

RUNTIME = ThreadRuntime()
LONG_MS = 60_000
"""Longer than anything that a test waits for."""


def election(store: MetadataStore, path: str = "orders") -> Election:
    """Return the election as one session sees it."""
    return Election(store.ballots, path, RUNTIME)


class Waiting:
    """A thread that waits until its vote leads."""

    def __init__(self, vote: Vote) -> None:
        self.led: list[bool] = []
        self._thread = threading.Thread(target=self._run, args=(vote,), daemon=True)
        self._thread.start()

    def _run(self, vote: Vote) -> None:
        self.led.append(vote.wait(LONG_MS))

    def leads(self) -> bool:
        """Wait for the end of the thread; return whether its vote led."""
        self._thread.join(LONG_MS / 1000)
        return self.led == [True]


class ElectionConformance:
    """The promises of ``metadata/election.py``."""

    @pytest.fixture
    def store(self, stores: Stores) -> MetadataStore:
        """Return a session with a new cluster."""
        store = stores.session()
        store.initialize_cluster()
        return store

    def test_who_comes_first_leads_and_the_others_follow_in_the_order_they_came(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        assert election(store).leader() is None
        assert election(store).candidates() == []
        other = stores.session()
        first = election(store).join(b"first")
        second = election(other).join(b"second")
        third = election(store).join(b"third")

        assert [first.is_leader, second.is_leader, third.is_leader] == [True, False, False]
        assert first.wait(0)
        assert not second.wait(0)
        assert election(other).candidates() == [b"first", b"second", b"third"]
        assert election(other).leader() == b"first"
        second.leave()
        first.leave()
        first.leave()

        assert third.wait(LONG_MS)
        assert not first.is_leader
        assert not first.wait(0)
        assert election(other).candidates() == [b"third"]

    def test_elections_know_nothing_of_each_other(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        with election(store, "a").join() as a, election(stores.session(), "a/b").join() as b:
            assert a.is_leader
            assert b.is_leader
        assert election(store, "a").candidates() == []

    def test_who_waits_is_woken_when_the_leader_leaves(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        leader = election(store).join()
        waiting = Waiting(election(stores.session()).join())

        leader.leave()

        assert waiting.leads()

    @pytest.mark.parametrize("end", ["close", "expire"])
    def test_who_waits_is_woken_when_the_leaders_session_ends(
        self, stores: Stores, store: MetadataStore, end: str
    ) -> None:
        leading = stores.session()
        leader = election(leading).join(b"leader")
        lost = threading.Event()
        leader.on_lost(lost.set)
        waiting = Waiting(election(store).join(b"next"))

        if end == "close":
            leading.close()
        else:
            stores.expire(leading)

        assert waiting.leads()
        assert election(store).leader() == b"next"
        if end == "expire":
            assert lost.wait(LONG_MS / 1000)
            assert not leader.is_leader

    def test_a_candidate_whose_session_was_lost_waits_behind_all_others(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        losing = stores.session()
        vote = election(losing).join(b"lost")
        lost = threading.Event()
        vote.on_lost(lost.set)
        stores.expire(losing)
        assert lost.wait(LONG_MS / 1000)
        second = election(store).join(b"second")

        assert not vote.wait(0)

        assert election(store).candidates() == [b"second", b"lost"]
        second.leave()
        assert vote.wait(LONG_MS)

    def test_one_who_waits_is_a_candidate_again_as_soon_as_it_lost_its_session(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        leader = election(store).join(b"leader")
        losing = stores.session()
        waiting = Waiting(election(losing).join(b"waiting"))
        eventually(lambda: election(store).candidates() == [b"leader", b"waiting"])

        stores.expire(losing)

        eventually(lambda: election(store).candidates() == [b"leader", b"waiting"])
        leader.leave()
        assert waiting.leads()

    def test_who_leaves_in_another_thread_waits_no_longer(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        election(store).join()
        vote = election(stores.session()).join()
        waiting = Waiting(vote)

        vote.leave()

        assert not waiting.leads()
        assert waiting.led == [False]

    def test_a_vote_whose_answer_was_lost_is_one_vote(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        for losing in (stores.answer_lost, stores.request_lost):
            with losing(store):
                add = partial(store.ballots.add, "orders", "ab12", b"me")
                try:
                    add()
                except MetadataUnavailableError:
                    add()
            assert election(store).candidates() == [b"me"]
            store.ballots.remove("orders", "ab12")
            assert election(store).candidates() == []

    def test_of_many_at_once_one_leads_at_a_time_and_each_comes_to_lead(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        others = stores.session()
        leading: list[int] = []
        orders: list[int] = []

        def lead(number: int) -> None:
            with election((store, others)[number % 2]).join() as vote:
                assert vote.wait(LONG_MS)
                leading.append(number)
                orders.append(len(leading))
                leading.remove(number)

        threads = [threading.Thread(target=lead, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert orders == [1] * 8
