"""The metadata store in memory keeps every promise, and its faults do what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spark_bookkeeper.errors import MetadataUnavailableError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.testing.conformance.election import ElectionConformance
from spark_bookkeeper.testing.conformance.metadata import (
    MetadataStoreConformance,
    Stores,
    open_ledger,
)
from spark_bookkeeper.testing.conformance.underreplication import UnderreplicationConformance
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore, Postponed

_CHANGES = {
    "create_ledger",
    "write_ledger",
    "delete_ledger",
    "write_cookie",
    "delete_cookie",
    "initialize_cluster",
    "create_register",
    "write_register",
    "add_vote",
    "mark",
    "lock",
    "unlock",
    "stand_down",
}


class MemoryStores:
    """Sessions with one ``MemoryCluster``."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()

    def session(self) -> MetadataStore:
        return self.cluster.session()

    def hurry(self, store: MetadataStore) -> None:
        pass

    def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.expire()

    def recreate(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        self.cluster.recreate_by_another_tool(ledger_id, metadata)

    @contextmanager
    def answer_lost(self, store: MetadataStore) -> Iterator[None]:
        with _failing_once(store, "after"):
            yield

    @contextmanager
    def request_lost(self, store: MetadataStore) -> Iterator[None]:
        with _failing_once(store, "before"):
            yield


@contextmanager
def _failing_once(store: MetadataStore, when: str) -> Iterator[None]:
    assert isinstance(store, MemoryStore)
    done = False

    def faults(phase: str, operation: str, subject: str) -> None:
        nonlocal done
        if phase == when and operation in _CHANGES and not done:
            done = True
            raise MetadataUnavailableError(f"no answer to {operation} {subject}")

    store.faults = faults
    yield
    store.faults = None
    assert done, "nothing was changed in the block"


@pytest.fixture
def stores() -> Stores:
    return MemoryStores()


class TestMemoryStore(MetadataStoreConformance):
    """All promises."""


class TestMemoryElection(ElectionConformance):
    """All promises."""


class TestMemoryUnderreplication(UnderreplicationConformance):
    """All promises."""


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.session().initialize_cluster()
    return cluster


def test_faults_are_asked_before_and_after_every_operation(cluster: MemoryCluster) -> None:
    asked: list[tuple[str, str, str]] = []
    store = cluster.session(lambda *what: asked.append(what))

    store.create_ledger(LedgerId(7), open_ledger())
    with pytest.raises(NoSuchLedgerError):
        store.read_ledger(LedgerId(8))

    assert asked == [
        ("before", "create_ledger", "7"),
        ("after", "create_ledger", "7"),
        ("before", "read_ledger", "8"),
        ("after", "read_ledger", "8"),
    ]


def _postpone_writes(phase: str, operation: str, subject: str) -> None:
    if (phase, operation) == ("before", "write_ledger"):
        raise Postponed


def test_a_postponed_write_lands_late(cluster: MemoryCluster) -> None:
    store = cluster.session(_postpone_writes)
    created = store.create_ledger(LedgerId(7), open_ledger())

    with pytest.raises(MetadataUnavailableError):
        store.write_ledger(LedgerId(7), created.value.in_recovery(), created)
    assert store.read_ledger(LedgerId(7)).value.state is LedgerState.OPEN
    cluster.pending.pop()()

    assert store.read_ledger(LedgerId(7)).value.state is LedgerState.IN_RECOVERY


def test_a_late_write_loses_against_one_that_was_quicker(cluster: MemoryCluster) -> None:
    store, other = cluster.session(_postpone_writes), cluster.session()
    created = store.create_ledger(LedgerId(7), open_ledger())
    with pytest.raises(MetadataUnavailableError):
        store.write_ledger(LedgerId(7), created.value.in_recovery(), created)
    written = other.write_ledger(LedgerId(7), created.value.with_custom(name=b"x"), created)

    cluster.pending.pop()()

    assert store.read_ledger(LedgerId(7)) == written


def test_two_runs_of_the_same_steps_store_the_same(cluster: MemoryCluster) -> None:
    def run() -> dict[LedgerId, tuple[int, int | None]]:
        cluster = MemoryCluster()
        store = cluster.session()
        store.initialize_cluster()
        for _ in range(3):
            store.create_ledger(store.generate_ledger_id(), open_ledger(), is_generated=True)
        store.write_ledger(LedgerId(1), open_ledger().in_recovery(), store.read_ledger(LedgerId(1)))
        return {i: (v.version, v.value.ctoken) for i, v in cluster.ledgers.items()}

    steps: list[Callable[[], object]] = [run, run]
    assert steps[0]() == steps[1]()
