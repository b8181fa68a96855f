"""Ids that ledgers get from the counter as they are created, and the store's clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import GetData

from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.lifecycle import make_ledger
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.multi import MultiWrite
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from tests.metadata.conftest import begin_session
from tests.support.znodes import ZNodes

ROOT = "/ledgers"
BOOKIES = [BookieId(f"10.0.0.{n}:3181") for n in range(1, 6)]


@pytest.fixture
def store(store: ZooKeeperStore) -> ZooKeeperStore:
    """With four bookies."""
    for bookie in BOOKIES[:4]:
        store.register(registration(bookie))
    return store


def registration(bookie: BookieId, incarnation: str = "3f2a") -> Registration:
    return Registration(bookie, "file:///somewhere", incarnation)


def context(store: ZooKeeperStore, writer: WriterInfo | None = None) -> ClientContext:
    runtime = ThreadRuntime()

    def opener(*_: object) -> Any:
        raise AssertionError("no bookie is asked")

    return ClientContext(
        store, Bookies(store, opener, runtime), runtime, ClientConfig(), writer=writer
    )


def test_threads_that_make_ledgers_side_by_side_take_one_id_each(store: ZooKeeperStore) -> None:
    makes = context(store, WriterInfo("here", 1, "me", "test"))

    def make(_: int) -> LedgerId:
        return make_ledger(makes, Quorum(3, 3, 2))[0].ledger_id

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, range(40)))

    assert sorted(made) == list(range(40)), "and none is left out"
    assert sorted(ledger_id for ledger_id, _ in store.writers()) == sorted(made)


def test_parents_that_nobody_has_made_yet_are_made(store: ZooKeeperStore, znodes: ZNodes) -> None:
    znodes.nodes[paths.short_ids(ROOT)].made_below = 9_998
    made = [make_ledger(context(store), Quorum(3, 3, 2))[0].ledger_id for _ in range(5)]

    assert made == [9_998, 9_999, 10_000, 10_001, 10_002]


def test_access_rules_that_keep_a_number_from_being_taken_keep_nobody_from_creating(
    store: ZooKeeperStore, znodes: ZNodes
) -> None:
    znodes.kept_below.add(paths.short_ids(ROOT))
    makes = context(store, WriterInfo("here", 1, "me", "test"))

    made = [make_ledger(makes, Quorum(3, 3, 2))[0].ledger_id for _ in range(6)]

    assert made == [0, 1, 2, 3, 4, 5]
    assert sorted(ledger_id for ledger_id, _ in store.writers()) == made


@pytest.mark.parametrize("ends", ["at the request", "before it is read"])
def test_the_time_is_told_though_the_session_ends_while_it_is_asked_for(
    store: ZooKeeperStore, znodes: ZNodes, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Its node may still be there for a while, as another session's, or be gone already."""
    makes = context(store, WriterInfo("here", 1, "me", "test"))
    make_ledger(makes, Quorum(3, 3, 2))
    make_ledger(makes, Quorum(3, 3, 2))
    carry_out = znodes.carry_out
    clock = paths.clock(ROOT, "")
    ended: list[object] = []

    def lost(request: Any, session: int) -> Any:
        client = store._zk._client
        is_read = isinstance(request, GetData) and request.path.startswith(clock)
        if is_read and ends == "before it is read" and not ended:
            ended.append(request)
            begin_session(znodes, store)
        is_asked = isinstance(request, MultiWrite) and clock.encode() in request.serialize()
        if is_asked and ends == "at the request" and not ended:
            ended.append(request)
            carry_out(request, session)
            client._session = next(znodes.sessions)
            raise ConnectionLoss
        return carry_out(request, session)

    monkeypatch.setattr(znodes, "carry_out", lost)

    assert store.clock_ms() is not None
    assert ended
    left = [path for path in znodes.nodes if path.startswith(clock)]
    assert len(left) == (ends == "at the request"), "it goes with the session that has ended"
