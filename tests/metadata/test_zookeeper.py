"""The metadata store in ZooKeeper keeps every promise, also when answers get lost on the way."""

from __future__ import annotations

import itertools
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.security import make_digest_acl

from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoClusterError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.codec import encode_ledger
from spark_bookkeeper.metadata.store import MetadataStore, Versioned
from spark_bookkeeper.metadata.underreplication import Holder, Task
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.metadata.zookeeper import nodes as nodes_module
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper import zookeeper_store as zookeeper_module
from spark_bookkeeper.metadata.zookeeper.counting import Count
from spark_bookkeeper.metadata.zookeeper.link import AbsentError
from spark_bookkeeper.metadata.zookeeper.multi_read import MultiRead, read_together
from spark_bookkeeper.metadata.zookeeper.nodes import Node, Nodes, _node
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.conformance.election import ElectionConformance
from spark_bookkeeper.testing.conformance.metadata import (
    A,
    B,
    MetadataStoreConformance,
    Stores,
    eventually,
    open_ledger,
    registration,
)
from spark_bookkeeper.testing.conformance.underreplication import UnderreplicationConformance
from spark_bookkeeper.testing.interrupts import functions_of
from spark_bookkeeper.testing.sessions import wait_no_longer_for_another

pytestmark = pytest.mark.integration

SESSION_TIMEOUT_MS = 8_000
"""A session outlives a moment in which the machine does something else."""

LONG_SESSION_MS = 60_000
"""It outlives whatever a test does meanwhile."""

_numbers = itertools.count()


def _token() -> str:
    return secrets.token_hex(16)


class Proxy:
    """Between one session and its ZooKeeper: it understands frames, and loses what it is told.

    A request is a length, a number and an operation; its answer bears the same number. The
    kinds that change something are create (1), delete (2), set (5), multi (14).
    """

    CHANGES = frozenset({1, 2, 5, 14})

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose: str | None = None
        """What happens to the next change: "answer", "request", or nothing."""
        self.requests: list[int] = []
        """The kinds of all requests so far."""
        self.swallow_answers = False
        """Requests go through; no answer comes back, and the connection stays."""
        self.flows = threading.Event()
        """Whether anything goes through, both ways; what comes meanwhile goes through later."""
        self.flows.set()
        self.never_greeted = 0
        """How many of the next connections are taken and never answered."""
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept() that waits
        self._listener.close()
        self.cut()
        for each in list(self._open):  # also those that were never greeted
            each.close()

    def cut(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.add(client)
                if self.never_greeted:
                    self.never_greeted -= 1
                    continue
                server = socket.create_connection(self._upstream)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(server)
                lost: set[int] = set()
                for source, target, wanted in (
                    (client, server, "_requests"),
                    (server, client, "_answers"),
                ):
                    threading.Thread(
                        target=self._pump, args=(source, target, wanted, lost), daemon=True
                    ).start()

    def _pump(
        self, source: socket.socket, target: socket.socket, wanted: str, lost: set[int]
    ) -> None:
        stream = source.makefile("rb")
        is_first = True
        with suppress(OSError, struct.error):
            while True:
                head = stream.read(4)
                body = stream.read(struct.unpack(">i", head)[0])
                if not is_first and not getattr(self, wanted)(body, lost):
                    break
                is_first = False
                self.flows.wait()
                target.sendall(head + body)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
            self._open.discard(each)

    def _requests(self, body: bytes, lost: set[int]) -> bool:
        number, kind = struct.unpack(">ii", body[:8])
        self.requests.append(kind)
        if self.lose is None or kind not in self.CHANGES:
            return True
        what, self.lose = self.lose, None
        if what == "answer":
            lost.add(number)
        return what == "answer"

    def _answers(self, body: bytes, lost: set[int]) -> bool:
        number = struct.unpack(">i", body[:4])[0]
        return number not in lost and not self.swallow_answers


class ZooKeeperStores:
    """Sessions with one cluster, each through a proxy of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.root = f"/test-{next(_numbers)}/ledgers"
        self.sessions: dict[ZooKeeperStore, Proxy] = {}

    def session(self, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> ZooKeeperStore:
        proxy = Proxy(self.address)
        store = ZooKeeperStore(
            f"zk+hierarchical://{proxy.address}{self.root}",
            token=_token,
            session_timeout_ms=session_timeout_ms,
        )
        self.sessions[store] = proxy
        return store

    def hurry(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        wait_no_longer_for_another(store)

    def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        # A second client that takes the session over and ends it properly.
        twin = KazooClient(self.address, client_id=store._zk._link.client.client_id)
        twin.start(timeout=60)
        twin.stop()
        twin.close()

    def recreate(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        other = KazooClient(self.address)
        other.start(timeout=60)
        path = paths.ledger(self.root, ledger_id)
        if other.exists(path):
            other.delete(path)
        other.create(path, encode_ledger(metadata), makepath=True)
        other.stop()
        other.close()

    @contextmanager
    def answer_lost(self, store: MetadataStore) -> Iterator[None]:
        with self._losing(store, "answer"):
            yield

    @contextmanager
    def request_lost(self, store: MetadataStore) -> Iterator[None]:
        with self._losing(store, "request"):
            yield

    @contextmanager
    def _losing(self, store: MetadataStore, what: str) -> Iterator[None]:
        assert isinstance(store, ZooKeeperStore)
        proxy = self.sessions[store]
        proxy.lose = what
        yield
        assert proxy.lose is None, "nothing was changed in the block"

    def close(self) -> None:
        for store, proxy in self.sessions.items():
            store.close()
            proxy.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with EmbeddedZooKeeper(directory) as running:
        yield running


@pytest.fixture
def zookeeper(server: EmbeddedZooKeeper) -> Iterator[ZooKeeperStores]:
    stores = ZooKeeperStores(server.address)
    yield stores
    stores.close()


@pytest.fixture
def stores(zookeeper: ZooKeeperStores) -> Stores:
    return zookeeper


@pytest.fixture
def raw(server: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(server.address)
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


class TestZooKeeperStore(MetadataStoreConformance):
    """All promises."""


class TestZooKeeperElection(ElectionConformance):
    """All promises."""


class TestZooKeeperUnderreplication(UnderreplicationConformance):
    """All promises."""


# The tree


def test_the_tree_of_a_new_cluster_is_bookkeepers(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    instance_id = store.initialize_cluster()

    assert raw.get(f"{zookeeper.root}/LAYOUT")[0] == (
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    )
    assert raw.get(f"{zookeeper.root}/INSTANCEID")[0] == instance_id.encode()
    assert {"available", "cookies", "idgen"} < set(raw.get_children(zookeeper.root))


def test_deleting_the_last_ledger_takes_its_parents_away(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    for ledger_id in (7, 8, 1 << 40):
        store.create_ledger(LedgerId(ledger_id), open_ledger())

    store.delete_ledger(LedgerId(7), store.read_ledger(LedgerId(7)))
    store.delete_ledger(LedgerId(1 << 40), store.read_ledger(LedgerId(1 << 40)))
    assert list(store.ledger_ids()) == [8]
    store.delete_ledger(LedgerId(8), store.read_ledger(LedgerId(8)))

    names = raw.get_children(zookeeper.root)
    assert [name for name in names if paths.is_parent_name([name])] == []


def test_foreign_nodes_between_ledgers_are_passed_over(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    store.create_ledger(LedgerId(7), open_ledger())
    for name in ("underreplication/ledgers/0000", "00/0000/urL1", "00/000x/L0001", "x/0000/L0001"):
        raw.create(f"{zookeeper.root}/{name}", b"", makepath=True)

    assert list(store.ledger_ids()) == [7]


def test_another_layout_is_refused(zookeeper: ZooKeeperStores, raw: KazooClient) -> None:
    store = zookeeper.session()
    raw.create(
        f"{zookeeper.root}/LAYOUT",
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1",
        makepath=True,
    )

    with pytest.raises(MetadataFormatError, match="Flat"):
        store.ledger_ids().__next__()


def test_what_cannot_be_decoded_is_named(zookeeper: ZooKeeperStores, raw: KazooClient) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    raw.create(paths.ledger(zookeeper.root, LedgerId(7)), b"garbage", makepath=True)

    with pytest.raises(MetadataFormatError) as caught:
        store.read_ledger(LedgerId(7))

    assert caught.value.path == f"{zookeeper.root}/00/0000/L0007"


def test_one_ledger_that_cannot_be_decoded_does_not_hide_the_others(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    store.create_ledger(LedgerId(6), open_ledger())
    raw.create(paths.ledger(zookeeper.root, LedgerId(7)), b"garbage", makepath=True)
    store.create_ledger(LedgerId(8), open_ledger())

    found = dict(store.read_ledgers(store.ledger_ids()))

    assert [type(found[LedgerId(i)]) for i in (6, 7, 8)] == [
        Versioned,
        MetadataFormatError,
        Versioned,
    ]
    sought = list(store.read_ledgers(store.ledger_ids(), naming={BookieId("nobody:3181")}))
    assert [(i, type(each)) for i, each in sought] == [(7, MetadataFormatError)]


def test_the_time_is_zookeepers_and_asking_for_it_leaves_nothing(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    assert store.clock_ms() is None, "nothing was ever written here, and nothing is for this"
    raw.ensure_path(paths.writers(zookeeper.root))
    before = raw.create(f"{zookeeper.root}/before", include_data=True)[1].mtime
    tree = raw.get_children(paths.underreplication(zookeeper.root))

    asked = store.clock_ms()

    after = raw.create(f"{zookeeper.root}/after", include_data=True)[1].mtime
    assert asked is not None
    assert before <= asked <= after
    assert sorted(store._zk.children(paths.underreplication(zookeeper.root))) == sorted(tree)


def test_since_when_autorecovery_is_disabled_is_when_the_node_was_made(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    assert store.underreplication.disabled_at_ms() is None

    store.underreplication.disable()

    made = raw.get(f"{paths.underreplication(zookeeper.root)}/disable")[1].ctime
    assert store.underreplication.disabled_at_ms() == made
    store.underreplication.enable()
    assert store.underreplication.disabled_at_ms() is None


def test_who_dies_after_it_removed_a_task_leaves_no_node_that_is_taken_for_one(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    tree = store.underreplication
    tree.mark(LedgerId(20), ["a:1"], 1)
    task = tree.read(LedgerId(20))
    assert task is not None
    delete, deleted = Nodes.delete, 0

    def die_after_one(self: Nodes, *args: object, **options: object) -> None:
        nonlocal deleted
        if deleted:
            raise KeyboardInterrupt
        delete(self, *args, **options)  # type: ignore[arg-type]  # what it was called with
        deleted += 1

    monkeypatch.setattr(Nodes, "delete", die_after_one)
    with pytest.raises(KeyboardInterrupt):
        tree.remove(task)
    monkeypatch.undo()

    assert list(tree.ledger_ids()) == []
    assert tree.mark(LedgerId(20), ["a:1"], 2)
    assert list(tree.ledger_ids()) == [20]


def test_a_task_goes_also_beside_what_is_not_ours_and_after_one_who_left_its_parent(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    tree = store.underreplication
    root = zookeeper.root
    for ledger_id in (1, 2):
        tree.mark(LedgerId(ledger_id), ["a:1"], 1)
    foreign, left = (tree.read(LedgerId(ledger_id)) for ledger_id in (1, 2))
    assert foreign is not None
    assert left is not None
    raw.create(f"{paths.task_parents(root, LedgerId(1))[0]}/foreign")
    raw.delete(paths.task(root, LedgerId(2)))

    assert tree.remove(foreign)
    assert tree.read(LedgerId(1)) is None
    assert tree.remove(left)
    assert list(tree.ledger_ids()) == [1], "what is not ours stays where it is"


@pytest.mark.parametrize("readonly", [False, True])
def test_a_registration_that_cannot_be_decoded_is_a_bookie_without_storage(
    zookeeper: ZooKeeperStores, raw: KazooClient, readonly: bool
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    store.register(registration(A))
    raw.create(paths.registration(zookeeper.root, B, readonly=readonly), b"\xff", ephemeral=True)

    found = {r.bookie_id: r for r in store.registrations()}

    assert found[A].incarnation
    assert (found[B].root_uri, found[B].incarnation) == ("", "")
    assert found[B].is_readonly is readonly


def test_a_cookie_that_cannot_be_decoded_is_left_out_and_never_overwritten(
    zookeeper: ZooKeeperStores, raw: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    raw.create(paths.cookie(zookeeper.root, B), b"garbage", makepath=True)

    assert store.cookies() == []

    assert str(B) in caplog.text
    with pytest.raises(MetadataFormatError):
        store.read_cookie(B)


# Ledger ids


def test_a_cluster_with_long_ids_goes_on_with_them(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    zookeeper.session().initialize_cluster()
    raw.ensure_path(f"{zookeeper.root}/idgen-long")
    store, other = zookeeper.session(), zookeeper.session()

    ids = [store.generate_ledger_id(), other.generate_ledger_id(), store.generate_ledger_id()]

    assert ids == [(1 << 32) + n for n in range(3)]
    store.create_ledger(ids[0], open_ledger(), is_generated=True)
    assert list(store.ledger_ids()) == [ids[0]]


def test_the_long_generator_takes_the_highest_counter(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    zookeeper.session().initialize_cluster()
    for number in range(2, 8):
        raw.ensure_path(f"{zookeeper.root}/idgen-long/HOB-{number:010d}")
    store = zookeeper.session()

    assert store.generate_ledger_id() == 7 << 32
    eventually(lambda: len(raw.get_children(f"{zookeeper.root}/idgen-long")) == 3)


def test_a_short_generator_that_ran_out_gives_way_to_the_long_one(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    real = Nodes.next_number

    def nearly_out(self: Nodes, name: str, count: Count) -> int:
        number = real(self, name, count)
        return (1 << 31) - 2 + number if name.endswith("/idgen/ID-") else number

    monkeypatch.setattr(Nodes, "next_number", nearly_out)

    assert store.generate_ledger_id() == (1 << 31) - 2
    assert store.generate_ledger_id() == 1 << 32
    assert zookeeper.session().generate_ledger_id() == (1 << 32) + 1


def test_whether_a_counter_gave_an_id_is_known_exactly(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    counter = paths.short_ids(zookeeper.root)
    for number in range(12):
        asker = (store, other)[number % 2]
        assert asker.generate_ledger_id() == number
        if number % 3 == 0:  # BookKeeper's own client, which may also be slow to delete its node
            kept = raw.create(f"{counter}/ID-", ephemeral=number % 2 == 0, sequence=True)
            raw.delete(kept)
            raw.create(f"{counter}/stray-{number}")
            break

    given = int(raw.create(f"{counter}/ID-", sequence=True)[-10:]) + 1

    assert store._ids.has_given(LedgerId(given - 1))
    assert not store._ids.has_given(LedgerId(given))
    assert store.generate_ledger_id() == given
    assert store._ids.has_given(LedgerId(given))


def test_a_count_above_half_of_32_bits_is_read_as_it_is() -> None:
    for made in (0, 1, (1 << 30) - 1, 1 << 30, (1 << 31) - 1):
        for there in (0, 1, 5):
            if there <= made:
                changes = (2 * made - there + (1 << 31)) % (1 << 32) - (1 << 31)
                stat = SimpleNamespace(
                    version=0,
                    ephemeralOwner=0,
                    cversion=changes,
                    numChildren=there,
                    mtime=0,
                    czxid=1,
                )
                assert _node((b"", stat)).children_made == made


def test_a_long_id_that_a_counter_gave_cannot_be_chosen(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    zookeeper.session().initialize_cluster()
    for number in (5, 6, 7):
        raw.ensure_path(f"{zookeeper.root}/idgen-long/HOB-{number:010d}")
    store = zookeeper.session()
    given = [store.generate_ledger_id() for _ in range(3)]
    assert given == [(7 << 32) + n for n in range(3)]
    used = [*given, 7 << 32, 6 << 32, 4 << 32, (3 << 32) + 17, 17]
    free = [(7 << 32) + 3, 8 << 32, paths.LONG_ID_FIRST, (7 << 32) + paths.LONG_ID_FIRST]

    for number in used:
        with pytest.raises(LedgerExistsError, match="given out"):
            store.create_ledger(LedgerId(number), open_ledger())
    for number in free:
        store.create_ledger(LedgerId(number), open_ledger())

    assert list(store.ledger_ids()) == sorted(free)


def test_a_chosen_id_that_the_counter_reaches_meanwhile_is_given_up(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    real = store._ids.has_given
    lives: list[Versioned[LedgerMetadata]] = []

    def and_then_it_is_given_used_and_deleted(ledger_id: LedgerId) -> bool:
        answer = real(ledger_id)
        if not lives:
            assert other.generate_ledger_id() == ledger_id
            lives.append(other.create_ledger(ledger_id, open_ledger(), is_generated=True))
            other.delete_ledger(ledger_id, lives[0])
        return answer

    monkeypatch.setattr(store._ids, "has_given", and_then_it_is_given_used_and_deleted)

    with pytest.raises(LedgerExistsError, match="given out"):
        store.create_ledger(LedgerId(0), open_ledger())

    assert list(store.ledger_ids()) == []


def test_a_generated_id_is_not_tried_again_when_its_answer_was_lost_and_it_is_not_there(
    zookeeper: ZooKeeperStores,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    store.create_ledger(LedgerId(1000), open_ledger())  # and the parents
    lost, made = store.generate_ledger_id(), store.generate_ledger_id()

    with zookeeper.request_lost(store), pytest.raises(LedgerExistsError):
        store.create_ledger(lost, open_ledger(), is_generated=True)
    with zookeeper.answer_lost(store):
        store.create_ledger(made, open_ledger(), is_generated=True)

    assert list(store.ledger_ids()) == [made, 1000]


# One ledger and another with its id


def test_a_version_alone_proves_nothing_about_which_ledger_is_written(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    first = store.create_ledger(LedgerId(7), open_ledger())
    zookeeper.recreate(LedgerId(7), open_ledger(password=b"another"))

    with monkeypatch.context() as patch:
        patch.setattr(zookeeper_module, "_counted_write", lambda path, before: [])
        store.write_ledger(LedgerId(7), first.value.in_recovery(), first)

    assert store.read_ledger(LedgerId(7)).value.password == first.value.password


def test_the_count_of_own_writes_survives_a_restart_of_zookeeper(tmp_path: Path) -> None:
    counts: list[int] = []

    def with_number(number: int, old: LedgerMetadata) -> LedgerMetadata:
        return old.with_custom(n=b"%d" % number)

    for _ in range(3):
        with EmbeddedZooKeeper(tmp_path) as server:
            store = ZooKeeperStore(f"{server.address}/ledgers", token=_token)
            if not counts:
                store.initialize_cluster()
                store.create_ledger(LedgerId(7), open_ledger())
            for number in range(20):
                update_ledger(store, LedgerId(7), partial(with_number, number))
            counts.append(store.read_ledger(LedgerId(7)).own_writes)
            store.close()

    assert counts == [21, 41, 61]


def test_a_write_leaves_no_node_behind(zookeeper: ZooKeeperStores, raw: KazooClient) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    created = store.create_ledger(LedgerId(7), open_ledger())
    store.write_ledger(LedgerId(7), created.value.in_recovery(), created)

    assert raw.get_children(paths.ledger(zookeeper.root, LedgerId(7))) == []
    assert raw.get(paths.used_id(store._instance.folder(), LedgerId(7)))[0] == b""


def test_a_cluster_with_another_instanceid_has_no_used_ids(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    before, after = zookeeper.session(), zookeeper.session()
    before.initialize_cluster()
    chosen = LedgerId(50)
    before.delete_ledger(chosen, before.create_ledger(chosen, open_ledger()))

    raw.delete(paths.instance_id(zookeeper.root))  # as BookKeeper's metaformat does
    raw.create(paths.instance_id(zookeeper.root), b"another")

    after.delete_ledger(chosen, after.create_ledger(chosen, open_ledger()))
    for session in (before, after):
        with pytest.raises(LedgerExistsError) as caught:
            session.create_ledger(chosen, open_ledger())
        assert caught.value.facts.get("was_used")


# Parents that come and go


@pytest.mark.parametrize("is_generated", [False, True])
def test_a_parent_may_go_at_every_step_of_a_create(
    zookeeper: ZooKeeperStores,
    raw: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    is_generated: bool,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    client = store._zk._link.client
    for step in range(1, 9):
        ledger_id = LedgerId(10_000 * step)
        parents = paths.ledger_parents(zookeeper.root, ledger_id)
        asked: list[str] = []

        def delete_the_parents(
            what: str, step: int = step, parents: list[str] = parents, asked: list[str] = asked
        ) -> None:
            asked.append(what)
            if len(asked) == step:
                for parent in parents:
                    with suppress(NoNodeError, NotEmptyError):
                        raw.delete(parent)

        with monkeypatch.context() as patch:
            for name in ("create_async", "exists_async", "transaction"):
                real = getattr(client, name)

                def before(
                    *args: object,
                    _real: Callable[..., object] = real,
                    _name: str = name,
                    _do: Callable[[str], None] = delete_the_parents,
                    **options: object,
                ) -> object:
                    _do(_name)
                    return _real(*args, **options)

                patch.setattr(client, name, before)
            store.create_ledger(ledger_id, open_ledger(), is_generated=is_generated)

        assert store.read_ledger(ledger_id).version == 0


def test_creating_while_others_delete_the_last_ledgers_beside_it_always_succeeds(
    zookeeper: ZooKeeperStores,
) -> None:
    zookeeper.session().initialize_cluster()

    def create_and_delete(thread: int) -> None:
        store = zookeeper.session()
        for number in range(10):
            chosen = LedgerId(10_000 * number + thread)  # all threads use one parent at a time
            store.delete_ledger(chosen, store.create_ledger(chosen, open_ledger()))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(create_and_delete, range(6)))

    assert list(zookeeper.session().ledger_ids()) == []


def test_parents_that_always_go_are_an_error_that_says_so(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()

    monkeypatch.setattr(store._zk, "ensure", lambda path: None)

    with pytest.raises(MetadataUnavailableError, match="others deleted its parents"):
        store.create_ledger(LedgerId(7), open_ledger())


def test_a_next_id_is_taken_once_also_when_the_answer_is_lost(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()

    def until_known() -> LedgerId:
        while True:
            made = store.generate_ledger_id()
            store.create_ledger(made, open_ledger(), is_generated=True, writer="b0")
            if store.knows_next_ledger_id():
                return LedgerId(made + 1)

    taken = until_known()
    with zookeeper.answer_lost(store):
        made = store.create_next_ledger(open_ledger(), writer="a0")
    assert made is not None
    assert made[0] == taken
    assert store.read_ledger(taken).value == open_ledger()
    assert (taken, "a0") in other.writers()
    assert not store.knows_next_ledger_id()
    assert other.generate_ledger_id() == taken + 1

    lost = until_known()
    with zookeeper.request_lost(store):
        assert store.create_next_ledger(open_ledger(), writer="a1") is None
    assert other.generate_ledger_id() == lost

    used = other.generate_ledger_id()
    until_known()
    other.generate_ledger_id()
    assert store.create_next_ledger(open_ledger(), writer="a2") is None
    assert used not in store.ledger_ids()
    assert {writer for _, writer in other.writers()} == {"b0", "a0"}
    assert not any(n.startswith("taken") for n in raw.get_children(paths.short_ids(zookeeper.root)))


def test_sessions_that_make_ledgers_side_by_side_take_each_id_once(
    zookeeper: ZooKeeperStores,
) -> None:
    first = zookeeper.session()
    first.initialize_cluster()
    stores = [first, zookeeper.session()]

    def make(number: int) -> LedgerId:
        store = stores[number % 2]
        made = store.create_next_ledger(open_ledger(), writer=f"{number:x}")
        if made is not None:
            return made[0]
        ledger_id = store.generate_ledger_id()
        store.create_ledger(ledger_id, open_ledger(), is_generated=True, writer=f"{number:x}")
        return ledger_id

    with ThreadPoolExecutor(12) as threads:
        made = list(threads.map(make, range(300)))

    assert sorted(made) == list(first.ledger_ids())
    assert len(set(made)) == 300
    assert first.writers() == {(ledger_id, f"{n:x}") for n, ledger_id in enumerate(made)}


# What an operation costs


def test_ledgers_that_are_made_in_a_row_cost_a_request_each_and_one_to_be_closed(
    zookeeper: ZooKeeperStores,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    for _ in range(2):
        ledger_id = store.generate_ledger_id()
        store.create_ledger(ledger_id, open_ledger(), is_generated=True, writer="a0")
    before = len(zookeeper.sessions[store].requests)

    for number in range(2, 5):
        made = store.create_next_ledger(open_ledger(), writer="a1")
        assert made is not None
        assert made[0] == number
        store.write_ledger(LedgerId(number), made[1].value.closed(EntryId(-1), 0), made[1])

    ping, multi = 11, 14
    asked = [kind for kind in zookeeper.sessions[store].requests[before:] if kind != ping]
    assert asked == 3 * 2 * [multi]


def test_who_chooses_bookies_asks_for_them_once(zookeeper: ZooKeeperStores) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
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
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch, change: bool
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
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
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    store.create_ledger(LedgerId(7), open_ledger())

    def not_heard_of_it(path: str) -> Node:
        raise AbsentError

    monkeypatch.setattr(store._zk, "get", not_heard_of_it)

    assert store.read_ledger(LedgerId(7)).value == open_ledger()


def test_nodes_made_for_ids_do_not_pile_up(zookeeper: ZooKeeperStores, raw: KazooClient) -> None:
    store = zookeeper.session()
    store.initialize_cluster()

    for _ in range(5):
        store.generate_ledger_id()

    assert len(raw.get_children(paths.short_ids(zookeeper.root))) == 1
    store.create_ledger(LedgerId(7), open_ledger())
    assert raw.get_children(paths.short_ids(zookeeper.root)) == []


def test_writes_that_travel_together_succeed_and_fail_each_by_itself(
    zookeeper: ZooKeeperStores,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
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


def test_writes_whose_common_answer_was_lost_are_made_once(zookeeper: ZooKeeperStores) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    for number in range(40):
        store.create_ledger(LedgerId(number), open_ledger())

    def recover(number: int) -> int:
        found = store.read_ledger(LedgerId(number))
        return store.write_ledger(LedgerId(number), found.value.in_recovery(), found).version

    with zookeeper.answer_lost(store), ThreadPoolExecutor(20) as threads:
        versions = list(threads.map(recover, range(40)))

    assert versions == [1] * 40


# Answers that never come


def test_a_write_whose_answer_was_lost_is_made_once(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    created = store.create_ledger(LedgerId(7), open_ledger())

    with zookeeper.answer_lost(store):
        written = store.write_ledger(LedgerId(7), created.value.in_recovery(), created)

    assert written.version == 1
    assert raw.get(paths.ledger(zookeeper.root, LedgerId(7)))[1].version == 1


def test_a_write_that_was_lost_and_overtaken_is_not_claimed(zookeeper: ZooKeeperStores) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
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
    zookeeper: ZooKeeperStores,
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
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
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    created = store.create_ledger(LedgerId(7), open_ledger())

    with zookeeper.answer_lost(store):
        store.delete_ledger(LedgerId(7), created)

    # It went on to the parents, so it knew that the ledger was its own to delete.
    assert not raw.exists(f"{zookeeper.root}/00")


def test_a_registration_survives_a_lost_answer(zookeeper: ZooKeeperStores) -> None:
    store = zookeeper.session()
    store.initialize_cluster()

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


def test_a_frozen_zookeeper_is_given_up_in_bounded_time(zookeeper: ZooKeeperStores) -> None:
    zookeeper.session().initialize_cluster()
    proxy = Proxy(zookeeper.address)
    store = ZooKeeperStore(
        f"{proxy.address}{zookeeper.root}",
        token=_token,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        patience_ms=3_000,
    )
    created = store.create_ledger(LedgerId(7), open_ledger())
    start = time.monotonic()

    proxy.swallow_answers = True
    with pytest.raises(MetadataUnavailableError, match="may or may not"):
        store.write_ledger(LedgerId(7), created.value.in_recovery(), created)
    with pytest.raises(MetadataUnavailableError, match="Nothing was changed"):
        store.read_ledger(LedgerId(7))

    assert time.monotonic() - start < 20
    store.close()
    proxy.close()


def test_a_server_that_takes_a_connection_and_never_greets_is_asked_again(
    zookeeper: ZooKeeperStores,
) -> None:
    """As one that starts does with who comes between its port and the server behind it."""
    proxy = Proxy(zookeeper.address)
    proxy.never_greeted = 1

    store = ZooKeeperStore(
        f"zk+hierarchical://{proxy.address}{zookeeper.root}",
        token=_token,
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
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    start = time.monotonic()

    with pytest.raises(MetadataUnavailableError, match=f"127.0.0.1:{port}") as caught:
        ZooKeeperStore(f"127.0.0.1:{port}", token=_token, patience_ms=500)

    assert "Check the host and port" in str(caught.value)
    assert time.monotonic() - start < 10


def test_nobody_waits_for_the_end_of_a_connection_that_never_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go, ended = threading.Event(), threading.Event()
    stop = KazooClient.stop

    def hang(client: KazooClient) -> None:
        let_go.wait(20)  # so that this test ends where it fails
        stop(client)
        ended.set()

    monkeypatch.setattr(KazooClient, "stop", hang)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(MetadataUnavailableError, match="no ZooKeeper answers"):
            ZooKeeperStore(address, token=_token, patience_ms=200)
        was_waited_for = ended.is_set()
        let_go.set()
        assert ended.wait(60), "it is ended all the same"

    assert not was_waited_for


def test_no_cluster_is_an_error_that_says_how_to_make_one(zookeeper: ZooKeeperStores) -> None:
    with pytest.raises(NoClusterError, match="cluster init"):
        zookeeper.session().instance_id()


def test_a_ledger_too_large_for_zookeeper_drops_no_connection_and_uses_no_id(
    zookeeper: ZooKeeperStores,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    for number in range(2):
        store.create_ledger(store.generate_ledger_id(), open_ledger(), is_generated=True)
        assert store.knows_next_ledger_id() == (number == 1)
    sent = list(zookeeper.sessions[store].requests)
    connected: list[None] = []
    store._zk.on_connected(lambda: connected.append(None))

    with pytest.raises(InvalidArgumentError, match="nothing was sent"):
        store.create_next_ledger(open_ledger(custom_metadata={"x": bytes(3_000_000)}), writer="a0")

    assert [k for k in zookeeper.sessions[store].requests[len(sent) :] if k in Proxy.CHANGES] == []
    made = store.create_next_ledger(open_ledger())
    assert made is not None
    assert made[0] == 2
    assert connected == []


def test_metadata_too_large_for_zookeeper_is_refused_before_it_is_sent(
    zookeeper: ZooKeeperStores,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()

    with pytest.raises(InvalidArgumentError, match="nothing was sent"):
        store.create_ledger(LedgerId(7), open_ledger(custom_metadata={"x": bytes(1_000_000)}))

    store.create_ledger(LedgerId(7), open_ledger(custom_metadata={"x": bytes(900_000)}))
    assert list(store.ledger_ids()) == [7]


def test_reading_many_goes_on_when_the_connection_breaks(zookeeper: ZooKeeperStores) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    ids = [LedgerId(n) for n in range(1500)]
    for ledger_id in ids[:30]:
        store.create_ledger(ledger_id, open_ledger())

    read = store.read_ledgers(ids)
    first = [next(read) for _ in range(10)]
    zookeeper.sessions[store].cut()
    rest = list(read)

    assert [ledger_id for ledger_id, _ in first + rest] == ids
    assert [i for i, found in first + rest if found is not None] == ids[:30]


def test_equal_ledgers_differ_in_their_token(zookeeper: ZooKeeperStores) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    tokens = set()
    for _ in range(3):
        ledger_id = store.generate_ledger_id()
        stored = store.create_ledger(ledger_id, open_ledger(), is_generated=True)
        tokens.add(stored.value.ctoken)
        tokens.add(store.write_ledger(ledger_id, stored.value, stored).value.ctoken)

    assert len(tokens) == 6
    assert replace(open_ledger(), ctoken=5) == open_ledger()


def test_a_cluster_can_be_closed_to_all_but_its_creator(zookeeper: ZooKeeperStores) -> None:
    options = {"acl": "creator", "auth_data": "digest:ann:secret"}
    uri = f"{zookeeper.address}{zookeeper.root}"
    ann = ZooKeeperStore(uri, token=_token, options=options)
    bob = ZooKeeperStore(uri, token=_token, options={"auth_data": "digest:bob:secret"})
    ann.initialize_cluster()

    with pytest.raises(MetadataError, match="refused") as caught:
        bob.instance_id()

    assert not isinstance(caught.value, MetadataUnavailableError)
    assert len(ann.instance_id()) == 36
    ann.close()
    bob.close()


# Writers


def test_whatever_lies_among_the_nodes_of_writers_is_no_writer(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")
    parent = paths.writers(zookeeper.root)
    for name in ("junk", "7", "7-", "-ab12", "7-AB", "٧-ab12", "9" * 40 + "-ab12", "7-ab12-ab12"):
        raw.create(f"{parent}/{name}", b"\xff\x00")
    raw.set(f"{parent}/7-ab12", b"\xff\x00")

    assert store.writers() == {(7, "ab12")}


def test_a_cluster_without_the_parent_of_the_nodes_gets_it_with_the_first_writer(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    assert store.writers() == frozenset()
    assert not store.has_writer(LedgerId(7), "ab12")
    assert not raw.exists(paths.writers(zookeeper.root))

    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")

    assert store.writers() == {(7, "ab12")}


def test_a_create_and_a_close_with_a_writer_wait_for_one_request_each(
    zookeeper: ZooKeeperStores,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    first = store.generate_ledger_id()
    store.create_ledger(first, open_ledger(), is_generated=True, writer="ab12")
    ledger_id = store.generate_ledger_id()
    requests = zookeeper.sessions[store].requests
    requests.clear()

    created = store.create_ledger(ledger_id, open_ledger(), is_generated=True, writer="ab12")
    store.write_ledger(ledger_id, created.value.closed(EntryId(-1), 0), created)

    assert [kind for kind in requests if kind in Proxy.CHANGES] == [14, 14]
    assert set(requests) <= {14, 11}, "besides pings"
    assert store.writers() == {(first, "ab12")}


def test_who_leaves_after_the_end_of_the_session_raises_nothing(
    zookeeper: ZooKeeperStores,
) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")
    store.watch_ledger(LedgerId(7), lambda: None)
    store.close()

    store.leave_ledger(LedgerId(7))
    store.leave_ledger(LedgerId(8))


@pytest.mark.parametrize("what", ["request", "answer"])
def test_a_node_that_was_to_go_when_the_connection_broke_goes_on_the_next_one(
    zookeeper: ZooKeeperStores, what: str
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")
    store.create_ledger(LedgerId(8), open_ledger(), writer="cd34")

    zookeeper.sessions[store].lose = what
    store.leave_ledger(LedgerId(7))

    eventually(lambda: not other.has_writer(LedgerId(7), "ab12"))
    eventually(lambda: not store._presences._leaving)
    assert other.has_writer(LedgerId(8), "cd34")


def test_what_is_lost_on_the_way_is_counted(zookeeper: ZooKeeperStores) -> None:
    store = zookeeper.session()
    store.initialize_cluster()
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


def test_no_more_reads_are_under_way_at_once_than_are_allowed(
    server: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ClientConfig(metadata_reads_in_flight=4)
    limited = Connection(f"zk://{server.address}/limited", config).open_store(ThreadRuntime())
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


def many_ledgers(zookeeper: ZooKeeperStores) -> tuple[ZooKeeperStore, list[LedgerId]]:
    store = zookeeper.session()
    store.initialize_cluster()
    ids = [LedgerId(number) for number in range(150)]
    for ledger_id in ids[::2]:
        store.create_ledger(ledger_id, open_ledger())
    return store, ids


def told(store: ZooKeeperStore, ids: list[LedgerId]) -> list[tuple[LedgerId, bool]]:
    return [(i, isinstance(found, Versioned)) for i, found in store.read_ledgers(ids)]


def test_many_ledgers_are_read_by_a_request_for_each_64(zookeeper: ZooKeeperStores) -> None:
    store, ids = many_ledgers(zookeeper)
    requests = zookeeper.sessions[store].requests
    requests.clear()

    assert told(store, ids) == [(i, i % 2 == 0) for i in ids]
    assert requests == [MULTI_READ] * 3
    assert list(store.read_ledgers([])) == []


def test_a_server_that_knows_no_such_request_is_asked_for_each_node(
    zookeeper: ZooKeeperStores,
) -> None:
    """What it knows not it says by an error, as any server says it of a number without meaning."""
    store, ids = many_ledgers(zookeeper)
    proxy = zookeeper.sessions[store]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiRead, "type", 99)
        for _ in range(2):  # an answer that is lost, or late, tells nothing about the server
            assert told(store, ids) == [(i, i % 2 == 0) for i in ids]
    proxy.requests.clear()

    assert told(store, ids) == [(i, i % 2 == 0) for i in ids], "and is not asked again"
    assert MULTI_READ not in proxy.requests


def test_a_node_that_may_not_be_read_is_said_to_be_and_only_when_it_is_met(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    store, ids = many_ledgers(zookeeper)
    path = paths.ledger(zookeeper.root, ids[4])
    raw.set_acls(path, [make_digest_acl("somebody", "else", all=True)])
    read = store.read_ledgers(ids)

    before = [next(read) for _ in range(4)]
    with pytest.raises(MetadataError, match=r"refused to read .*NoAuth"):
        next(read)
    assert [i for i, _ in before] == ids[:4]


ONE, ANOTHER = Holder("one"), Holder("another thread")


def in_the_next_session(zookeeper: ZooKeeperStores, store: ZooKeeperStore) -> Callable[..., None]:
    """Creates a node, but first the session of the store ends and it has another."""
    create, before = store._zk.create, store._zk.session_id

    def late(path: str, data: bytes, *, ephemeral: bool = False) -> None:
        zookeeper.expire(store)
        eventually(lambda: bool(store.instance_id()) and store._zk.session_id != before)
        create(path, data, ephemeral=ephemeral)

    return late


def test_a_lock_that_is_taken_by_the_next_session_is_released(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was frozen between its look at the session and the request goes on."""
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    tree, ledger_id = store.underreplication, LedgerId(7)
    tree.set_delay_seconds(0)
    monkeypatch.setattr(store._zk, "create", in_the_next_session(zookeeper, store))
    assert tree.lock(ledger_id, ONE)

    tree.unlock(ONE)

    assert dict(other.underreplication.locks()) == {}


def cut_off(zookeeper: ZooKeeperStores, store: ZooKeeperStore, *, never_greeted: int = 1) -> None:
    """The connection breaks, and so many next ones are taken and never answered; the session lives
    on.
    """
    proxy, is_away = zookeeper.sessions[store], threading.Event()

    def hear(state: str) -> bool:
        if state == KazooState.SUSPENDED:
            is_away.set()
        return is_away.is_set()  # then it hears no more

    store._zk._link.client.add_listener(hear)
    proxy.never_greeted = never_greeted
    proxy.cut()
    assert is_away.wait(60)  # whoever looks now and then may miss it


def test_a_lock_is_released_although_the_connection_was_away(zookeeper: ZooKeeperStores) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    tree, ledger_id = store.underreplication, LedgerId(7)
    assert tree.lock(ledger_id, ONE)
    cut_off(zookeeper, store)

    tree.unlock(ONE)

    assert dict(other.underreplication.locks()) == {}


def test_what_could_not_be_given_back_goes_when_the_connection_is_there_again(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for it any more, as it was stopped in the meantime; the session goes on."""
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
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


def test_a_lock_taken_while_the_connection_was_away_is_one_callers_alone(
    zookeeper: ZooKeeperStores,
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    tree, ledger_id = store.underreplication, LedgerId(7)
    assert not tree.locks()
    cut_off(zookeeper, store)

    assert [tree.lock(ledger_id, holder) for holder in (ONE, ANOTHER)] == [True, False]

    tree.unlock(ONE)
    assert dict(other.underreplication.locks()) == {}


def test_a_lock_made_by_the_next_session_is_one_callers_alone(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends before the lock is made, and who asks meanwhile does not get it too."""
    store = zookeeper.session()
    store.initialize_cluster()
    tree, ledger_id = store.underreplication, LedgerId(7)
    tree.set_delay_seconds(0)
    with monkeypatch.context() as patch:
        patch.setattr(store._zk, "create", in_the_next_session(zookeeper, store))
        assert tree.lock(ledger_id, ONE)

    assert not tree.lock(ledger_id, ANOTHER)


def test_an_auditor_steps_down_although_the_connection_was_away(
    zookeeper: ZooKeeperStores,
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
    tree = store.underreplication
    assert tree.stand("one", lambda: None)
    cut_off(zookeeper, store)

    tree.stand_down()

    assert list(other.underreplication.candidates()) == []


def test_who_stands_again_as_the_connection_breaks_has_one_vote(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = zookeeper.session(), zookeeper.session()
    store.initialize_cluster()
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


def next_ledger(store: ZooKeeperStore) -> Call:
    while not store.knows_next_ledger_id():
        generated = store.generate_ledger_id()
        store.create_ledger(generated, open_ledger(), is_generated=True, writer="b1")
    return lambda: store.create_next_ledger(open_ledger(), writer="a0")


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
    next_ledger,
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


def let_come_back(zookeeper: ZooKeeperStores, store: ZooKeeperStore) -> None:
    """The next connection is answered."""
    proxy = zookeeper.sessions[store]
    proxy.never_greeted = 0
    proxy.cut()


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
    server: EmbeddedZooKeeper, raw: KazooClient, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Else a lock, a task or a ledger came, or went, behind everybody's back."""
    each_alone = [(ZooKeeperStores(server.address), write) for write in WRITES]
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


@pytest.mark.parametrize("ends", ["patience", "Ctrl-C"])
def test_a_next_ledger_that_is_made_after_it_was_given_up_has_no_writer_and_its_id_for_itself(
    zookeeper: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Whoever asked for it is told which it may be; else it is listed as nobody's."""
    store, other = zookeeper.session(LONG_SESSION_MS), zookeeper.session()
    store.initialize_cluster()
    call = next_ledger(store)
    before, proxy = list(other.ledger_ids()), zookeeper.sessions[store]
    requests, expected = len(proxy.requests), LedgerId(len(before))

    if ends == "Ctrl-C":
        proxy.flows.clear()
        interrupted(call, lambda: 14 in proxy.requests[requests:])
    else:
        with monkeypatch.context() as patch:
            freeze(zookeeper, store, patch)
            with pytest.raises(MetadataUnavailableError, match=f"ledger {expected}") as caught:
                call()
        assert caught.value.facts["ledger_id"] == expected
    proxy.flows.set()

    eventually(lambda: list(other.ledger_ids()) == [*before, expected])
    eventually(lambda: not store._presences._leaving)
    assert not other.has_writer(expected, "a0")
    assert store.generate_ledger_id() == expected + 1
    assert list(other.ledger_ids()) == [*before, expected]


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


def test_a_task_that_cannot_be_decoded_gives_way_to_a_mark(
    zookeeper: ZooKeeperStores, raw: KazooClient
) -> None:
    """Else who marks one ledger after the other would never come past it."""
    store = zookeeper.session()
    store.initialize_cluster()
    tree, ledger_id = store.underreplication, LedgerId(7)
    tree.mark(ledger_id, ["a:1"], 1)
    raw.set(paths.task(zookeeper.root, ledger_id), b"\xff{")

    assert tree.mark(ledger_id, ["b:1"], 2)

    there = tree.read(ledger_id)
    assert there is not None
    assert there.value == Task(ledger_id, ("b:1",), 2)
