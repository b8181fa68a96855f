"""Locks, votes and calls that are given up while the connection is away, or when it comes back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Exists

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.client import Awaited, Client, Handler
from spark_bookkeeper.metadata.zookeeper.link import AbsentError
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.testing.conformance.metadata import eventually, open_ledger
from tests.metadata.zookeeper.proxy import (
    LONG_SESSION_MS,
    Proxy,
    ZooKeeperStores,
    cut_off,
    let_come_back,
)
from tests.support.interrupts import functions_of

pytestmark = pytest.mark.integration


ONE, ANOTHER = Holder("one"), Holder("another thread")


def in_the_next_session(zookeeper: ZooKeeperStores, store: ZooKeeperStore) -> Callable[..., None]:
    """Creates a node, but first the session of the store ends and it has another."""
    create, before = store._zk.create, store._zk.session_id

    def late(path: str, data: bytes, *, ephemeral: bool = False) -> None:
        zookeeper.expire(store)
        eventually(lambda: bool(store.instance_id()) and store._zk.session_id != before)
        create(path, data, ephemeral=ephemeral)

    return late


def test_a_lock_that_is_made_by_the_next_session_is_one_callers_alone_and_is_released(
    zookeeper: ZooKeeperStores,
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that was frozen between its look at the session and the request goes on."""
    tree, ledger_id = store.underreplication, LedgerId(7)
    tree.set_delay_seconds(0)
    with monkeypatch.context() as patch:
        patch.setattr(store._zk, "create", in_the_next_session(zookeeper, store))
        assert tree.lock(ledger_id, ONE)
    assert not tree.lock(ledger_id, ANOTHER), "who asks meanwhile does not get it too"

    tree.unlock(ONE)

    assert dict(other.underreplication.locks()) == {}


def test_locks_are_taken_and_released_although_the_connection_was_away(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    tree = store.underreplication
    assert tree.lock(LedgerId(6), ONE)
    cut_off(zookeeper, store)

    assert [tree.lock(LedgerId(7), holder) for holder in (ONE, ANOTHER)] == [True, False]

    tree.unlock(ONE)
    assert dict(other.underreplication.locks()) == {}


def test_what_could_not_be_given_back_goes_when_the_connection_is_there_again(
    zookeeper: ZooKeeperStores,
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody asks for it any more, as it was stopped in the meantime; the session goes on."""
    tree = store.underreplication
    ledger_ids = [LedgerId(number) for number in range(3)]
    assert all(tree.lock(ledger_id, ONE) for ledger_id in ledger_ids)
    assert tree.stand("one", lambda: None)
    asked: list[str] = []

    def away(path: str, **_: object) -> None:
        asked.append(path)
        raise MetadataUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store._zk, "delete", away)
        tree.unlock(ONE)
        assert len(asked) == 1, "each of the others would wait as long"
        assert not tree.lock(ledger_ids[0], ANOTHER), "it is to be deleted"
        tree.stand_down()
    assert list(other.underreplication.locks()) == ledger_ids
    assert list(other.underreplication.candidates()) == ["one"]

    zookeeper.sessions[store].cut()

    eventually(lambda: not other.underreplication.locks())
    eventually(lambda: not other.underreplication.candidates())
    assert tree.lock(ledger_ids[0], ANOTHER)


def test_an_auditor_steps_down_although_the_connection_was_away(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, other: ZooKeeperStore
) -> None:
    tree = store.underreplication
    assert tree.stand("one", lambda: None)
    cut_off(zookeeper, store)

    tree.stand_down()

    assert list(other.underreplication.candidates()) == []


def test_who_stands_again_as_the_connection_breaks_has_one_vote(
    zookeeper: ZooKeeperStores,
    store: ZooKeeperStore,
    other: ZooKeeperStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = store.underreplication
    assert tree.stand("one", lambda: None)
    ensure = store._zk.ensure

    def then_cut(path: str) -> None:
        ensure(path)
        cut_off(zookeeper, store)

    monkeypatch.setattr(store._zk, "ensure", then_cut)

    assert tree.stand("one", lambda: None)

    assert list(other.underreplication.candidates()) == ["one"]


# What nobody waits for any more


Call = Callable[[], object]


def lock(store: ZooKeeperStore) -> Call:
    tree = store.underreplication
    tree.set_delay_seconds(0)
    return lambda: tree.lock(LedgerId(7), ONE)


def vote(store: ZooKeeperStore) -> Call:
    store.ballots.add("somewhere", "a0", b"before")
    return lambda: store.ballots.add("somewhere", "b1", b"me")


def auditor(store: ZooKeeperStore) -> Call:
    tree = store.underreplication
    assert tree.stand("one", lambda: None)
    tree.stand_down()
    return lambda: tree.stand("one", lambda: None)


def task(store: ZooKeeperStore) -> Call:
    store.underreplication.mark(LedgerId(6), ["a:1"], 1)
    return lambda: store.underreplication.mark(LedgerId(7), ["a:1"], 1)


def end_of_a_task(store: ZooKeeperStore) -> Call:
    tree = store.underreplication
    tree.mark(LedgerId(7), ["a:1"], 1)
    published = tree.read(LedgerId(7))
    assert published is not None
    return lambda: tree.remove(published)


def ledger(store: ZooKeeperStore) -> Call:
    store.create_ledger(LedgerId(6), open_ledger())
    return lambda: store.create_ledger(LedgerId(7), open_ledger(), writer="a0")


def end_of_a_ledger(store: ZooKeeperStore) -> Call:
    made = store.create_ledger(LedgerId(7), open_ledger())
    return lambda: store.delete_ledger(LedgerId(7), made)


def register(store: ZooKeeperStore) -> Call:
    made = store.registers.create("somewhere/one", b"1")
    return lambda: store.registers.write("somewhere/one", b"2", made.version)


def parents(store: ZooKeeperStore) -> Call:
    return lambda: store._zk.ensure(f"{store._root}/one/below/the/other")


def many_deletions(store: ZooKeeperStore) -> Call:
    some = [f"{store._root}/one/{number}" for number in range(3)]
    for path in some:
        store._zk.ensure(path)
    return lambda: store._zk.delete_many(some)


def cluster(store: ZooKeeperStore) -> Call:
    another = {f"{store._root}/one": b"", f"{store._root}/two": b"a random name"}
    return lambda: store._zk.create_all(another)


WRITES = (
    lock,
    vote,
    auditor,
    task,
    end_of_a_task,
    ledger,
    end_of_a_ledger,
    register,
    parents,
    many_deletions,
    cluster,
)


def changes(raw: KazooClient, path: str) -> dict[str, tuple[int, int, int]]:
    """For each node: when it came, changed last, and had children that came or went."""
    _, stat = raw.get(path)
    found = {path: (stat.czxid, stat.mzxid, stat.pzxid)}
    for name in raw.get_children(path):
        found |= changes(raw, f"{path}/{name}")
    return found


def cut_before(
    zookeeper: ZooKeeperStores,
    store: ZooKeeperStore,
    monkeypatch: pytest.MonkeyPatch,
    kinds: frozenset[int] = Proxy.CHANGES,
) -> None:
    """The connection breaks just before the next such request is to be sent, and stays away."""
    client, proxy = store._zk._link.client, zookeeper.sessions[store]
    call = client._call

    def late(request: Any, answer: object) -> object:
        if request.type in kinds:
            monkeypatch.setattr(client, "_call", call)
            proxy.never_greeted = 1_000_000
            proxy.cut()
            eventually(lambda: store._zk.session_id == 0)
        return call(request, answer)

    monkeypatch.setattr(client, "_call", late)


def patient_until_cut(store: ZooKeeperStore) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """What is asked before the connection breaks has an answer, however late that comes."""
    wait = store._zk._wait

    def patiently(request: Any, convert: Callable[[Any], Any]) -> Any:
        if store._zk.session_id != 0:
            with suppress(Exception):  # told by the other
                request.get(timeout=60)
        return wait(request, convert)

    return patiently


def interrupted(call: Call, holds: Callable[[], bool]) -> None:
    """Ctrl-C while a call waits, and something holds."""
    main = threading.current_thread()
    seen = 0

    def is_waiting() -> bool:
        """Seen twice, so that it has not just gone there."""
        nonlocal seen
        waits = functions_of(main)[-1] in ("get", "wait") and holds()
        seen = seen + 1 if waits else 0
        return seen > 1

    def press() -> None:
        eventually(is_waiting)
        signal.pthread_kill(main.ident or 0, signal.SIGINT)

    person = threading.Thread(target=press)
    person.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    person.join()


@pytest.mark.parametrize("ends", ["patience", "Ctrl-C"])
def test_what_nobody_waits_for_any_more_is_not_sent_when_the_connection_is_back(
    host: EmbeddedZooKeeper, raw: KazooClient, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Else a lock, a task or a ledger came, or went, behind everybody's back."""
    each_alone = [(ZooKeeperStores(host.address), write) for write in WRITES]
    stores: dict[str, tuple[ZooKeeperStores, ZooKeeperStore]] = {}
    before: dict[str, object] = {}
    sessions: dict[str, int] = {}
    for zookeeper, write in each_alone:
        name, store = write.__name__, zookeeper.session(LONG_SESSION_MS)
        store.initialize_cluster()
        stores[name] = zookeeper, store
        call, link = write(store), store._zk._link
        before[name], sessions[name] = changes(raw, zookeeper.root), store._zk.session_id
        cut_before(zookeeper, store, monkeypatch)
        if ends == "Ctrl-C":
            interrupted(call, lambda store=store: store._zk.session_id == 0)  # type: ignore[misc]
        else:
            with monkeypatch.context() as patch:
                patch.setattr(store._zk, "_wait", patient_until_cut(store))
                patch.setattr(link, "patience", 0.2)
                with pytest.raises(MetadataUnavailableError):
                    call()
        assert store._zk.session_id == 0, "it came to the change"
        let_come_back(zookeeper, store)  # its session ends if that takes long

    for _, store in stores.values():
        eventually(lambda store=store: store._zk.session_id != 0)  # type: ignore[misc]
        with pytest.raises(AbsentError):  # whatever was asked for before is done now
            store._zk.delete(f"{store._root}/nothing")
    assert {name: store._zk.session_id for name, (_, store) in stores.items()} == sessions
    for name, (zookeeper, _) in stores.items():
        assert changes(raw, zookeeper.root) == before[name], name
    for zookeeper, _ in stores.values():
        zookeeper.close()


def freeze(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing goes through any more, and nobody has patience, but until the next change is sent."""
    proxy, wait = zookeeper.sessions[store], store._zk._wait
    before = len(proxy.requests)

    def once_sent(request: Any, convert: Callable[[Any], Any]) -> Any:
        eventually(lambda: not proxy.CHANGES.isdisjoint(proxy.requests[before:]))
        return wait(request, convert)

    proxy.flows.clear()
    monkeypatch.setattr(store._zk, "_wait", once_sent)
    monkeypatch.setattr(store._zk._link, "patience", 0.2)


def test_what_was_taken_without_an_answer_goes_when_there_are_answers_again(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same connection: a server that was slow for longer than anybody had patience."""
    store, other = zookeeper.session(LONG_SESSION_MS), zookeeper.session()
    store.initialize_cluster()
    tree = store.underreplication
    tree.set_delay_seconds(0)
    tree.stand("one", lambda: None)
    store.ballots.add("somewhere", "a0", b"me")
    session = store._zk.session_id

    with monkeypatch.context() as patch:
        freeze(zookeeper, store, patch)
        with pytest.raises(MetadataUnavailableError):
            tree.lock(LedgerId(7), ONE)
        tree.unlock(ONE)
        tree.stand_down()
        store.ballots.remove("somewhere", "a0")
    zookeeper.sessions[store].flows.set()

    locks = paths.locks(zookeeper.root)
    eventually(lambda: other._zk.get(locks).children_made == 1)
    eventually(lambda: not other.underreplication.locks())
    eventually(lambda: not other.underreplication.candidates())
    eventually(lambda: not other.ballots.votes("somewhere"))
    assert store._zk.session_id == session


def test_a_vote_is_given_back_although_it_must_be_asked_where_it_is(
    zookeeper: ZooKeeperStores,
) -> None:
    """Whether the cluster is still the same is asked anew after each loss of the connection."""
    store, other = zookeeper.session(LONG_SESSION_MS), zookeeper.session()
    store.initialize_cluster()
    store.ballots.add("somewhere", "a0", b"me")
    cut_off(zookeeper, store, never_greeted=1_000_000)
    patience, link = store._zk._link.patience, store._zk._link

    link.patience = 0.2
    store.ballots.remove("somewhere", "a0")
    link.patience = patience
    assert len(other.ballots.votes("somewhere")) == 1

    let_come_back(zookeeper, store)

    eventually(lambda: not other.ballots.votes("somewhere"))


@pytest.fixture
def client() -> Client:
    return Client(handler=Handler())


def asked(client: Client) -> Awaited:
    """The same request each time."""
    answer: Awaited = client.handler.async_result()
    client._queue.append((Exists("/one", None), answer))
    return answer


def test_a_request_is_given_up_until_it_is_looked_at_to_be_sent(client: Client) -> None:
    first, second, third = [asked(client) for _ in range(3)]

    assert client._queue[0][1] is first
    assert not first.give_up()
    assert second.give_up()
    assert client._queue.popleft()[1] is first
    assert not first.give_up()
    assert client._queue[0][1] is third
    assert not third.give_up()
    client._queue.popleft()
    with pytest.raises(IndexError):
        client._queue[0]


def test_requests_of_the_next_session_can_be_given_up_too(client: Client) -> None:
    client._reset()

    assert asked(client).give_up()
    assert not client._queue
