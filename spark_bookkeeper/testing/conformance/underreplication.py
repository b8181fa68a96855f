"""Tests of the under-replication tree that every metadata store must pass; see ``metadata.py``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from spark_bookkeeper.errors import MetadataUnavailableError, NoClusterError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metadata.underreplication import Check, Holder, Task
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.testing.conformance.metadata import A, B, C, Stores, eventually

SHORT, MIDDLE, LAST = LedgerId(7), LedgerId(2_147_483_653), LedgerId((1 << 63) - 1)
ONE, TWO = Holder("worker 1"), Holder("worker 2")
PATIENCE_SECONDS = 60.0


class UnderreplicationConformance:
    """Subclass with a fixture ``stores``."""

    @pytest.fixture
    def store(self, stores: Stores) -> MetadataStore:
        store = stores.session()
        store.initialize_cluster()
        return store

    def test_a_task_is_read_as_it_was_published(self, store: MetadataStore) -> None:
        tree = store.underreplication
        assert tree.read(SHORT) is None

        assert tree.mark(SHORT, [B, A], 1_700_000_000_123)

        found = tree.read(SHORT)
        assert found is not None
        assert found.value == Task(SHORT, (B, A), 1_700_000_000_123)

    def test_tasks_are_listed_in_order(self, store: MetadataStore) -> None:
        tree = store.underreplication
        for ledger_id in (LAST, SHORT, MIDDLE):
            tree.mark(ledger_id, [A], 5)

        assert list(tree.ledger_ids()) == [SHORT, MIDDLE, LAST]
        found = dict(tree.read_many([LAST, LedgerId(8), SHORT]))
        assert list(found) == [LAST, LedgerId(8), SHORT]
        assert found[LedgerId(8)] is None

    def test_a_task_is_there_when_it_is_listed(self, stores: Stores, store: MetadataStore) -> None:
        """A publisher may die at any moment; a node without a task must not be listed."""
        tree, other = store.underreplication, stores.session().underreplication
        wanted = [LedgerId(number << 48) for number in range(1, 21)]  # without a common parent

        def publish() -> None:
            for ledger_id in wanted:
                other.mark(ledger_id, [A], 1)

        publisher = threading.Thread(target=publish)
        publisher.start()
        listed: list[LedgerId] = []
        while publisher.is_alive() or listed != wanted:
            was_alive = publisher.is_alive()
            listed = list(tree.ledger_ids())
            found = dict(tree.read_many(listed))
            assert None not in found.values()
            assert was_alive or listed == wanted
        publisher.join()

    def test_a_second_mark_adds_what_is_new_and_nothing_twice(self, store: MetadataStore) -> None:
        tree = store.underreplication
        tree.mark(SHORT, [A], 1)

        assert not tree.mark(SHORT, [A], 2)
        assert tree.mark(SHORT, [A, C, C], 3)

        found = tree.read(SHORT)
        assert found is not None
        assert found.value == Task(SHORT, (A, C), 1), "it lacks replicas since the first mark"

    def test_a_task_that_is_marked_anew_is_not_removed_by_who_read_it_before(
        self, store: MetadataStore
    ) -> None:
        tree = store.underreplication
        assert tree.mark(SHORT, [B, A], 1, anew=True)
        before = tree.read(SHORT)
        assert before is not None

        assert tree.mark(SHORT, [A], 2, anew=True)

        now = tree.read(SHORT)
        assert now is not None
        assert now.value == before.value
        assert not tree.remove(before)
        assert tree.remove(now)

    def test_a_task_that_went_and_came_is_not_removed_by_who_read_it_before(
        self, store: MetadataStore
    ) -> None:
        tree = store.underreplication
        assert tree.mark(SHORT, [A], 1)
        before = tree.read(SHORT)
        assert before is not None
        assert tree.remove(before)
        assert tree.mark(SHORT, [A], 1)

        now = tree.read(SHORT)
        assert now is not None
        assert (now.value, now.version) == (before.value, before.version)
        assert not tree.remove(before)
        assert [now] == [found for _, found in tree.read_many([SHORT])]
        assert tree.remove(now)

    def test_a_task_may_name_no_bookie(self, store: MetadataStore) -> None:
        assert store.underreplication.mark(SHORT, [], 1)

        assert [i for i, _ in store.underreplication.read_many([SHORT])] == [SHORT]
        found = store.underreplication.read(SHORT)
        assert found is not None
        assert found.value.missing == ()

    def test_a_task_that_was_marked_again_is_not_removed(self, store: MetadataStore) -> None:
        tree = store.underreplication
        tree.mark(SHORT, [A], 1)
        before = tree.read(SHORT)
        tree.mark(SHORT, [B], 2)
        now = tree.read(SHORT)
        assert before is not None
        assert now is not None

        assert not tree.remove(before)
        assert tree.read(SHORT) == now
        assert tree.remove(now)
        assert tree.remove(now), "one that is gone counts as removed"
        assert list(tree.ledger_ids()) == []

    def test_a_mark_whose_answer_is_lost_is_made_once(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree = store.underreplication
        tree.mark(MIDDLE, [A], 1)
        with stores.request_lost(store):
            _until_known(lambda: tree.mark(MIDDLE, [B], 2))
        with stores.answer_lost(store):
            _until_known(lambda: tree.mark(MIDDLE, [C], 3))

        found = tree.read(MIDDLE)
        assert found is not None
        assert found.value == Task(MIDDLE, (A, B, C), 1)

    def test_a_watcher_hears_that_tasks_come_and_go(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        heard = threading.Event()
        assert list(tree.ledger_ids(heard.set)) == []

        other.mark(SHORT, [A], 1)
        assert heard.wait(PATIENCE_SECONDS)
        heard.clear()
        assert list(tree.ledger_ids(heard.set)) == [SHORT]

        other.mark(LedgerId(8), [A], 1)
        assert heard.wait(PATIENCE_SECONDS), "of a second one below the same parents"
        heard.clear()
        assert list(tree.ledger_ids(heard.set)) == [SHORT, 8]

        task = other.read(SHORT)
        assert task is not None
        other.remove(task)
        assert heard.wait(PATIENCE_SECONDS)

    def test_a_lock_is_held_by_one_session(self, stores: Stores, store: MetadataStore) -> None:
        tree, other = store.underreplication, stores.session().underreplication

        assert tree.lock(SHORT, ONE)
        assert not other.lock(SHORT, TWO)
        assert not tree.lock(SHORT, ONE)
        other.unlock(TWO)
        assert other.locks() == {SHORT: "worker 1"}
        tree.unlock(ONE)
        tree.unlock(ONE)
        assert other.locks() == {}
        assert other.lock(SHORT, TWO)

    def test_a_lock_whose_answer_is_lost_can_be_released(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        with stores.answer_lost(store), suppress(MetadataUnavailableError):
            tree.lock(SHORT, ONE)

        tree.unlock(ONE)

        assert other.locks() == {}
        assert other.lock(SHORT, TWO)

    def test_who_does_not_know_whether_he_took_a_lock_releases_no_other(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        with stores.request_lost(store), suppress(MetadataUnavailableError):
            tree.lock(SHORT, ONE)
        if not tree.locks():
            assert other.lock(SHORT, TWO)
            tree.unlock(ONE)
            assert other.locks() == {SHORT: "worker 2"}
            other.unlock(TWO)
        else:  # the store repeated the request
            tree.unlock(ONE)

        assert tree.lock(SHORT, ONE), "it can be taken as before"

    def test_a_lock_that_was_passed_on_is_not_released_by_who_does_not_know_that_he_took_it(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        """Two workers of one client may even have the same name."""
        tree, namesake = store.underreplication, Holder(ONE.name)
        with stores.answer_lost(store), suppress(MetadataUnavailableError):
            tree.lock(SHORT, ONE)
        is_passed_on = tree.lock(SHORT, namesake)

        tree.unlock(ONE)

        assert len(tree.locks()) == is_passed_on
        tree.unlock(namesake)
        assert tree.locks() == {}

    def test_what_cannot_be_given_back_now_is_as_soon_as_there_is_an_answer(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        """No caller repeats the release: the holder has stopped, and its session continues."""
        tree, other = store.underreplication, stores.session().underreplication
        assert tree.lock(SHORT, ONE)
        assert tree.lock(MIDDLE, TWO)
        assert tree.stand("one", lambda: None)

        with stores.request_lost(store):
            tree.unlock(ONE)
        with stores.request_lost(store):
            tree.stand_down()
        tree.is_enabled()

        eventually(lambda: list(other.locks()) == [MIDDLE])
        eventually(lambda: not other.candidates())
        tree.unlock(TWO)
        assert other.locks() == {}

    def test_a_lock_goes_with_its_session(self, stores: Stores, store: MetadataStore) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        assert tree.lock(SHORT, ONE)
        heard = threading.Event()
        assert other.locks(heard.set) == {SHORT: "worker 1"}

        stores.expire(store)

        assert heard.wait(PATIENCE_SECONDS)
        eventually(lambda: other.lock(SHORT, TWO))
        tree.unlock(ONE)  # another session has it by now
        assert other.locks() == {SHORT: "worker 2"}

    def test_the_switch_is_seen_by_all(self, stores: Stores, store: MetadataStore) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        heard = threading.Event()
        assert other.is_enabled(heard.set)

        assert tree.disable()
        assert not tree.disable()
        assert heard.wait(PATIENCE_SECONDS)
        heard.clear()
        assert not other.is_enabled(heard.set)
        assert tree.enable()
        assert not tree.enable()
        assert heard.wait(PATIENCE_SECONDS)
        assert other.is_enabled()

    def test_the_delay_that_is_set_again_is_another(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        heard = threading.Event()
        assert other.delay_seconds(heard.set) is None

        tree.set_delay_seconds(60)
        assert heard.wait(PATIENCE_SECONDS)
        heard.clear()
        first = other.delay_seconds(heard.set)
        tree.set_delay_seconds(60)
        assert heard.wait(PATIENCE_SECONDS)
        second = other.delay_seconds()

        assert first is not None
        assert second is not None
        assert second == replace(first, version=first.version + 1)

    def test_when_a_check_was_done_is_remembered(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        heard = threading.Event()
        for number, check in enumerate(Check):
            assert tree.checked_at_ms(check) is None
            first = tree.set_checked_at_ms(check, number, None)
            assert tree.set_checked_at_ms(check, 1_700_000_000_000 + number, first)

        for number, check in enumerate(Check):
            found = other.checked_at_ms(check, heard.set)
            assert found is not None
            assert found.value == 1_700_000_000_000 + number
            tree.forget_checked(check)
            assert heard.wait(PATIENCE_SECONDS), "somebody asked for it"
            heard.clear()
            assert other.checked_at_ms(check, heard.set) is None
            assert tree.set_checked_at_ms(check, number, None)
            assert heard.wait(PATIENCE_SECONDS)
            heard.clear()

    def test_a_check_that_is_asked_for_is_not_remembered_as_done_by_who_began_it_before(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        began = tree.set_checked_at_ms(Check.REPLICAS, 1, None)
        assert began is not None
        assert tree.set_checked_at_ms(Check.REPLICAS, 2, None) is None, "it is begun"
        again = tree.set_checked_at_ms(Check.REPLICAS, 3, began)
        assert again == tree.checked_at_ms(Check.REPLICAS)

        assert tree.set_checked_at_ms(Check.REPLICAS, 4, began) is None
        other.forget_checked(Check.REPLICAS)
        assert tree.set_checked_at_ms(Check.REPLICAS, 5, again) is None

        assert tree.checked_at_ms(Check.REPLICAS) is None

    def test_one_is_auditor_and_the_next_follows(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        trees = [store.underreplication, *(stores.session().underreplication for _ in range(2))]
        rung = [threading.Event() for _ in trees]
        assert trees[0].auditor() is None
        assert trees[0].candidates() == []

        stood = [tree.stand(f"10.0.0.{n}:3181", rung[n].set) for n, tree in enumerate(trees)]

        assert stood == [True, False, False]
        assert trees[2].auditor() == "10.0.0.0:3181"
        assert trees[1].candidates() == [f"10.0.0.{n}:3181" for n in range(3)]
        trees[0].stand_down()
        assert rung[1].wait(PATIENCE_SECONDS)
        rung[1].clear()
        assert not rung[2].is_set(), "everybody watches the one before"
        assert trees[1].stand("10.0.0.1:3181", rung[1].set)
        assert trees[0].auditor() == "10.0.0.1:3181"
        assert trees[1].stand("10.0.0.1:3181", rung[1].set), "a vote is cast once"
        trees[0].stand_down()

    def test_an_auditor_whose_session_ends_is_followed(
        self, stores: Stores, store: MetadataStore
    ) -> None:
        tree, other = store.underreplication, stores.session().underreplication
        first, second = threading.Event(), threading.Event()
        assert tree.stand("one", first.set)
        assert not other.stand("two", second.set)

        stores.expire(store)

        assert second.wait(PATIENCE_SECONDS)
        assert other.stand("two", second.set)
        assert not tree.stand("one", first.set), "at the end of the line"

    def test_without_a_cluster_there_is_no_tree(self, stores: Stores) -> None:
        tree = stores.session().underreplication
        with pytest.raises(NoClusterError):
            tree.mark(SHORT, [A], 1)
        with pytest.raises(NoClusterError):
            tree.is_enabled()
        with pytest.raises(NoClusterError):
            tree.auditor()


def _until_known(change: Callable[[], bool]) -> None:
    """Repeat a change until an answer arrives."""
    for _ in range(5):
        with suppress(MetadataUnavailableError):
            change()
            return
    raise AssertionError("no answer, again and again")
