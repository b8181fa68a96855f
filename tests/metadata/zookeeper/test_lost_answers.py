"""Answers of ZooKeeper that get lost or never come: nothing is made twice, or claimed."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.errors import MetadataUnavailableError, VersionConflictError
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.metadata.zookeeper import client, paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.testing.conformance.metadata import A, eventually, open_ledger, registration
from tests.metadata.zookeeper.proxy import LONG_SESSION_MS, Proxy, ZooKeeperStores, token

pytestmark = pytest.mark.integration


# Answers that never come


def test_a_write_whose_answer_was_lost_is_made_once(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    created = store.create_ledger(LedgerId(7), open_ledger())

    with zookeeper.answer_lost(store):
        written = store.write_ledger(LedgerId(7), created.value.in_recovery(), created)

    assert written.version == 1
    assert raw.get(paths.ledger(zookeeper.root, LedgerId(7)))[1].version == 1


def test_a_write_that_was_lost_and_overtaken_is_not_claimed(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    created = store.create_ledger(LedgerId(7), open_ledger())
    mine, theirs = created.value.with_custom(a=b"1"), created.value.with_custom(b=b"2")
    proxy = zookeeper.sessions[store]
    overtaken = threading.Event()
    real = proxy._requests

    def overtake(body: bytes, lost: set[int]) -> bool:
        passed = real(body, lost)
        if not passed and not overtaken.is_set():
            overtaken.set()
            other.write_ledger(LedgerId(7), theirs, created)
        return passed

    proxy._requests = overtake  # type: ignore[method-assign]  # it loses, and lets another write
    with zookeeper.request_lost(store), pytest.raises(VersionConflictError):
        store.write_ledger(LedgerId(7), mine, created)

    assert overtaken.is_set()
    assert store.read_ledger(LedgerId(7)).value == theirs


def test_a_write_that_was_made_and_overwritten_is_said_to_be_uncertain(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    created = store.create_ledger(LedgerId(7), open_ledger())
    proxy = zookeeper.sessions[store]
    real = proxy._answers

    def overwrite(body: bytes, lost: set[int]) -> bool:
        passed = real(body, lost)
        if not passed:
            update_ledger(other, LedgerId(7), LedgerMetadata.in_recovery)
        return passed

    proxy._answers = overwrite  # type: ignore[method-assign]  # it loses, and lets another write
    with zookeeper.answer_lost(store), pytest.raises(MetadataUnavailableError, match="may or may"):
        store.write_ledger(LedgerId(7), created.value.with_custom(a=b"1"), created)

    stored = store.read_ledger(LedgerId(7))
    assert stored.version == 2
    assert stored.value.custom_metadata["a"] == b"1"
    assert stored.value.state is LedgerState.IN_RECOVERY


def test_a_cluster_whose_answer_was_lost_is_made_once(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    raw.ensure_path(zookeeper.root.rpartition("/")[0])
    store = zookeeper.session()

    with zookeeper.answer_lost(store):
        instance_id = store.initialize_cluster()

    assert store.instance_id() == instance_id


def test_a_delete_whose_answer_was_lost_is_not_called_absent(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    created = store.create_ledger(LedgerId(7), open_ledger())

    with zookeeper.answer_lost(store):
        store.delete_ledger(LedgerId(7), created)

    # It went on to the parents, so it knew that the ledger was its own to delete.
    assert not raw.exists(f"{zookeeper.root}/00")


def test_a_registration_survives_a_lost_answer(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    with zookeeper.answer_lost(store):
        store.register(registration(A))

    assert store.registrations() == [registration(A)]


def test_a_bookie_waits_for_the_session_of_its_predecessor_to_end_and_says_so(
    zookeeper: ZooKeeperStores, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="spark_bookkeeper")
    before, after = zookeeper.session(), zookeeper.session()
    before.initialize_cluster()
    before.register(registration(A))
    done = threading.Event()

    def take_over() -> None:
        after.register(registration(A, incarnation="new"))
        done.set()

    threading.Thread(target=take_over, daemon=True).start()
    said = f"bookie {A} is registered by another session; waiting up to"
    eventually(lambda: said in caplog.text)
    assert not done.is_set()
    before.close()

    assert done.wait(60)
    assert after.registrations() == [registration(A, incarnation="new")]


@pytest.mark.parametrize("is_readonly", [False, True])
def test_a_bookie_waits_for_its_predecessor_although_the_connection_breaks_meanwhile(
    zookeeper: ZooKeeperStores, caplog: pytest.LogCaptureFixture, is_readonly: bool
) -> None:
    caplog.set_level("INFO", logger="spark_bookkeeper")
    before, after = zookeeper.session(LONG_SESSION_MS), zookeeper.session(LONG_SESSION_MS)
    before.initialize_cluster()
    before.register(registration(A))
    wanted = registration(A, incarnation="new", is_readonly=is_readonly)

    with ThreadPoolExecutor() as threads:
        done = threads.submit(after.register, wanted)
        eventually(lambda: "waiting up to" in caplog.text)
        was_there = threading.Event()
        after._zk.on_connected(was_there.set)
        zookeeper.sessions[after].cut()
        assert was_there.wait(60)
        before.register(registration(A, free_bytes=1))
        assert not done.done()
        before.close()
        done.result(60)

    assert after.registrations() == [wanted]


def test_a_frozen_zookeeper_is_given_up_in_bounded_time(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    created = store.create_ledger(LedgerId(7), open_ledger())
    proxy, start = zookeeper.sessions[store], time.monotonic()

    store._zk._link.patience = 0.2
    proxy.swallow_answers = True
    with pytest.raises(MetadataUnavailableError, match="may or may not"):
        store.write_ledger(LedgerId(7), created.value.in_recovery(), created)
    with pytest.raises(MetadataUnavailableError, match="Nothing was changed"):
        store.read_ledger(LedgerId(7))

    assert time.monotonic() - start < 20
    proxy.swallow_answers = False


def test_a_server_that_takes_a_connection_and_never_greets_is_asked_again(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that starts does with who comes between its port and the server behind it."""
    monkeypatch.setattr(client, "_GREETING_SECONDS", 0.1)
    proxy = Proxy(zookeeper.address)
    proxy.never_greeted = 1

    store = ZooKeeperStore(
        f"zk+hierarchical://{proxy.address}{zookeeper.root}",
        token=token,
        session_timeout_ms=60_000,
        patience_ms=50_000,
    )  # without a bound of its own the greeting would take the whole session's timeout
    store.initialize_cluster()
    proxy.never_greeted = 1
    proxy.cut()

    assert list(store.ledger_ids()) == []
    assert proxy.never_greeted == 0
    store.close()
    proxy.close()


def test_no_zookeeper_there_is_an_error_that_names_the_address() -> None:
    start = time.monotonic()

    with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:1") as caught:
        ZooKeeperStore("127.0.0.1:1", token=token, patience_ms=500)

    assert "Check the host and port" in str(caught.value)
    assert time.monotonic() - start < 10


def test_nobody_waits_for_the_end_of_a_connection_that_never_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_GREETING_SECONDS", 0.1)
    let_go, ended = threading.Event(), threading.Event()
    stop = KazooClient.stop

    def hang(kazoo: KazooClient) -> None:
        let_go.wait(20)  # so that this test ends where it fails
        stop(kazoo)
        ended.set()

    monkeypatch.setattr(KazooClient, "stop", hang)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MetadataUnavailableError, match="no ZooKeeper answers"):
            ZooKeeperStore(address, token=token, patience_ms=200)
        was_waited_for = ended.is_set()
        let_go.set()
        assert ended.wait(60), "it is ended all the same"

    assert not was_waited_for


@pytest.mark.parametrize("what", ["request", "answer"])
def test_a_node_that_was_to_go_when_the_connection_broke_goes_on_the_next_one(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, other: ZooKeeperStore, what: str
) -> None:
    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")
    store.create_ledger(LedgerId(8), open_ledger(), writer="cd34")

    zookeeper.sessions[store].lose = what
    store.leave_ledger(LedgerId(7))

    eventually(lambda: not other.has_writer(LedgerId(7), "ab12"))
    eventually(lambda: not store._presences._leaving)
    assert other.has_writer(LedgerId(8), "cd34")


def test_what_is_lost_on_the_way_is_counted(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    metrics = store._zk._link._metrics
    assert set(metrics.as_dict().values()) == {0}

    with zookeeper.answer_lost(store):
        store.create_ledger(LedgerId(7), open_ledger())

    counted = metrics.as_dict()
    assert counted["zookeeper_client_retries_total"] >= 1
    assert counted["zookeeper_client_connections_lost_total"] >= 1
    assert counted["zookeeper_client_sessions_lost_total"] == 0
    zookeeper.expire(store)
    eventually(lambda: metrics.as_dict()["zookeeper_client_sessions_lost_total"] == 1)
