"""What ZooKeeper is asked for: how many requests, together or alone, and none too large."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import InvalidArgumentError, LedgerExistsError, MetadataError
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.zookeeper import nodes as nodes_module
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.link import AbsentError
from spark_bookkeeper.metadata.zookeeper.multi import MultiRead, read_together
from spark_bookkeeper.metadata.zookeeper.nodes import Node
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.conformance.metadata import A, open_ledger, registration
from tests.metadata.zookeeper.proxy import Proxy, ZooKeeperStores

pytestmark = pytest.mark.integration


# What an operation costs


def test_who_chooses_bookies_asks_for_them_once(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    store.register(registration(A))
    store.create_ledger(store.generate_ledger_id(), open_ledger(), is_generated=True)
    store.last_registrations()
    before = len(zookeeper.sessions[store].requests)

    for _ in range(3):
        ledger_id = store.generate_ledger_id()
        assert [r.bookie_id for r in store.last_registrations()] == [A]
        ledger = store.create_ledger(ledger_id, open_ledger(), is_generated=True)
        store.write_ledger(ledger_id, ledger.value.in_recovery(), ledger)

    ping, multi = 11, 14
    asked = [kind for kind in zookeeper.sessions[store].requests[before:] if kind != ping]
    assert asked == 3 * 3 * [multi], "an id, a create and a write, and nothing besides"


def test_a_slow_watcher_holds_up_nobody_who_chooses_bookies(zookeeper: ZooKeeperStores) -> None:
    store, agent = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    heard, may_go_on = threading.Event(), threading.Event()

    def watch_slowly() -> None:
        heard.set()
        may_go_on.wait(120)

    stop = store.watch_registrations(watch_slowly)
    agent.register(registration(A))
    assert heard.wait(60)
    assert [r.bookie_id for r in store.last_registrations()] == [A]

    agent.unregister(A)
    store.generate_ledger_id()

    assert store.last_registrations() == []
    may_go_on.set()
    stop()


@pytest.mark.parametrize("change", [True, False])
def test_ctrl_c_while_a_request_is_sent_is_not_taken_for_a_lost_connection(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch, change: bool
) -> None:
    ask = store.generate_ledger_id if change else store.registrations
    ask()
    connection = store._zk._link.client._connection
    waker = connection._write_sock

    class Interrupted:
        def send(self, data: bytes) -> int:
            waker.send(data)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(connection, "_write_sock", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            ask()

    assert store.generate_ledger_id() < 4
    assert store.registrations() == []


def test_a_server_that_lags_is_made_to_catch_up_before_there_is_no_such_ledger(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_ledger(LedgerId(7), open_ledger())

    def not_heard_of_it(path: str) -> Node:
        raise AbsentError

    monkeypatch.setattr(store._zk, "get", not_heard_of_it)

    assert store.read_ledger(LedgerId(7)).value == open_ledger()


def test_nodes_made_for_ids_do_not_pile_up(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    for _ in range(5):
        store.generate_ledger_id()

    assert len(raw.get_children(paths.short_ids(zookeeper.root))) == 1
    store.create_ledger(LedgerId(7), open_ledger())
    assert raw.get_children(paths.short_ids(zookeeper.root)) == []


def test_writes_that_travel_together_succeed_and_fail_each_by_itself(store: ZooKeeperStore) -> None:
    taken = set(range(0, 60, 5))
    for number in taken:
        store.create_ledger(LedgerId(number), open_ledger())

    def create(number: int) -> bool:
        try:
            store.create_ledger(LedgerId(number), open_ledger())
        except LedgerExistsError:
            return False
        return True

    with ThreadPoolExecutor(30) as threads:
        made = list(threads.map(create, range(60)))

    assert made == [number not in taken for number in range(60)]
    assert list(store.ledger_ids()) == list(range(60))


def test_writes_whose_common_answer_was_lost_are_made_once(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    for number in range(40):
        store.create_ledger(LedgerId(number), open_ledger())

    def recover(number: int) -> int:
        found = store.read_ledger(LedgerId(number))
        return store.write_ledger(LedgerId(number), found.value.in_recovery(), found).version

    with zookeeper.answer_lost(store), ThreadPoolExecutor(20) as threads:
        versions = list(threads.map(recover, range(40)))

    assert versions == [1] * 40


def test_a_ledger_too_large_for_zookeeper_drops_no_connection(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    sent = list(zookeeper.sessions[store].requests)
    connected: list[None] = []
    store._zk.on_connected(lambda: connected.append(None))

    with pytest.raises(InvalidArgumentError, match="nothing was sent"):
        store.create_ledger(LedgerId(7), open_ledger(custom_metadata={"x": bytes(3_000_000)}))

    assert [k for k in zookeeper.sessions[store].requests[len(sent) :] if k in Proxy.CHANGES] == []
    store.create_ledger(LedgerId(7), open_ledger())
    assert connected == []


def test_metadata_too_large_for_zookeeper_is_refused_before_it_is_sent(
    store: ZooKeeperStore,
) -> None:
    with pytest.raises(InvalidArgumentError, match="nothing was sent"):
        store.create_ledger(LedgerId(7), open_ledger(custom_metadata={"x": bytes(1_000_000)}))

    store.create_ledger(LedgerId(7), open_ledger(custom_metadata={"x": bytes(900_000)}))
    assert list(store.ledger_ids()) == [7]


# Many reads


def test_no_more_reads_are_under_way_at_once_than_are_allowed(
    host: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ClientConfig(metadata_reads_in_flight=4)
    limited = Connection(f"zk://{host.address}/limited", config).open_store(ThreadRuntime())
    try:
        limited.initialize_cluster()
        asked, most = [0], [0]

        def read(client: KazooClient, group: tuple[str, ...]) -> object:
            asked[0] += len(group)
            most[0] = max(most[0], asked[0])
            request = read_together(client, group)
            request.rawlink(lambda _: asked.__setitem__(0, asked[0] - len(group)))
            return request

        monkeypatch.setattr(nodes_module, "read_together", read)
        found = list(limited.read_ledgers(LedgerId(n) for n in range(50)))
    finally:
        limited.close()

    assert [ledger_id for ledger_id, _ in found] == list(range(50))
    assert 1 < most[0] <= 4


MULTI_READ = 22


def many_ledgers(store: ZooKeeperStore) -> list[LedgerId]:
    """Of every second one there are metadata."""
    ids = [LedgerId(number) for number in range(150)]
    for ledger_id in ids[::2]:
        store.create_ledger(ledger_id, open_ledger())
    return ids


def told(store: ZooKeeperStore, ids: list[LedgerId]) -> list[tuple[LedgerId, bool]]:
    return [(i, isinstance(found, Versioned)) for i, found in store.read_ledgers(ids)]


def test_many_ledgers_are_read_by_a_request_for_each_64(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    ids = many_ledgers(store)
    requests = zookeeper.sessions[store].requests
    requests.clear()

    assert told(store, ids) == [(i, i % 2 == 0) for i in ids]
    assert requests == [MULTI_READ] * 3
    assert list(store.read_ledgers([])) == []


def test_a_server_that_knows_no_such_request_is_asked_for_each_node(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    """What it knows not it says by an error, as any server says it of a number without meaning."""
    ids = many_ledgers(store)
    proxy = zookeeper.sessions[store]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiRead, "type", 99)
        for _ in range(2):  # an answer that is lost, or late, tells nothing about the server
            assert told(store, ids) == [(i, i % 2 == 0) for i in ids]
    proxy.requests.clear()

    assert told(store, ids) == [(i, i % 2 == 0) for i in ids], "and is not asked again"
    assert MULTI_READ not in proxy.requests


def test_a_node_that_may_not_be_read_is_said_to_be_and_only_when_it_is_met(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    ids = many_ledgers(store)
    path = paths.ledger(zookeeper.root, ids[4])
    raw.set_acls(path, [make_digest_acl("somebody", "else", all=True)])
    read = store.read_ledgers(ids)

    before = [next(read) for _ in range(4)]
    with pytest.raises(MetadataError, match=r"refused to read .*NoAuth"):
        next(read)
    assert [i for i, _ in before] == ids[:4]


def test_reading_many_goes_on_when_the_connection_breaks(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    ids = [LedgerId(n) for n in range(1500)]
    for ledger_id in ids[:30]:
        store.create_ledger(ledger_id, open_ledger())

    read = store.read_ledgers(ids)
    first = [next(read) for _ in range(10)]
    zookeeper.sessions[store].cut()
    rest = list(read)

    assert [ledger_id for ledger_id, _ in first + rest] == ids
    assert [i for i, found in first + rest if found is not None] == ids[:30]
