"""Which ids ZooKeeper gives to ledgers: each has one life, and its parents come and go."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from spark_bookkeeper.errors import (
    LedgerExistsError,
    MetadataUnavailableError,
)
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper import zookeeper_store as zookeeper_module
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes, _node
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.testing.conformance.metadata import (
    eventually,
    open_ledger,
)
from tests.metadata.zookeeper.proxy import (
    ZooKeeperStores,
    token,
)

pytestmark = pytest.mark.integration


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
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Nodes.next_number

    def nearly_out(self: Nodes, parent: str, prefix: str) -> int:
        number = real(self, parent, prefix)
        return (1 << 31) - 2 + number if parent.endswith("/idgen") else number

    monkeypatch.setattr(Nodes, "next_number", nearly_out)

    assert store.generate_ledger_id() == (1 << 31) - 2
    assert store.generate_ledger_id() == 1 << 32
    assert zookeeper.session().generate_ledger_id() == (1 << 32) + 1


def test_whether_a_counter_gave_an_id_is_known_exactly(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, other: ZooKeeperStore, raw: KazooClient
) -> None:
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
    store: ZooKeeperStore, other: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
    store.create_ledger(LedgerId(1000), open_ledger())  # and the parents
    lost, made = store.generate_ledger_id(), store.generate_ledger_id()

    with zookeeper.request_lost(store), pytest.raises(LedgerExistsError):
        store.create_ledger(lost, open_ledger(), is_generated=True)
    with zookeeper.answer_lost(store):
        store.create_ledger(made, open_ledger(), is_generated=True)

    assert list(store.ledger_ids()) == [made, 1000]


# One ledger and another with its id


def test_a_version_alone_proves_nothing_about_which_ledger_is_written(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.create_ledger(LedgerId(7), open_ledger())
    zookeeper.recreate(LedgerId(7), open_ledger(password=b"another"))

    with monkeypatch.context() as patch:
        patch.setattr(zookeeper_module, "_counted_write", lambda path, before: [])
        store.write_ledger(LedgerId(7), first.value.in_recovery(), first)

    assert store.read_ledger(LedgerId(7)).value.password == first.value.password


@pytest.mark.full  # what ZooKeeper keeps of a node; no code of the library has a part in it
def test_the_count_of_own_writes_survives_a_restart_of_zookeeper(tmp_path: Path) -> None:
    counts: list[int] = []

    def with_number(number: int, old: LedgerMetadata) -> LedgerMetadata:
        return old.with_custom(n=b"%d" % number)

    for _ in range(2):
        with EmbeddedZooKeeper(tmp_path) as server:
            store = ZooKeeperStore(f"{server.address}/ledgers", token=token)
            if not counts:
                store.initialize_cluster()
                store.create_ledger(LedgerId(7), open_ledger())
            for number in range(20):
                update_ledger(store, LedgerId(7), partial(with_number, number))
            counts.append(store.read_ledger(LedgerId(7)).own_writes)
            store.close()

    assert counts == [21, 41]


def test_a_write_leaves_no_node_behind(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
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
    store: ZooKeeperStore,
    raw: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    is_generated: bool,
) -> None:
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
        for number in range(5):
            chosen = LedgerId(10_000 * number + thread)  # all threads use one parent at a time
            store.delete_ledger(chosen, store.create_ledger(chosen, open_ledger()))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(create_and_delete, range(6)))

    assert list(zookeeper.session().ledger_ids()) == []


def test_parents_that_always_go_are_an_error_that_says_so(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._zk, "ensure", lambda path: None)

    with pytest.raises(MetadataUnavailableError, match="others deleted its parents"):
        store.create_ledger(LedgerId(7), open_ledger())


def test_sessions_that_make_ledgers_side_by_side_take_each_id_once(
    zookeeper: ZooKeeperStores,
) -> None:
    first = zookeeper.session()
    first.initialize_cluster()
    stores = [first, zookeeper.session()]

    def make(number: int) -> LedgerId:
        store = stores[number % 2]
        ledger_id = store.generate_ledger_id()
        store.create_ledger(ledger_id, open_ledger(), is_generated=True, writer=f"{number:x}")
        return ledger_id

    with ThreadPoolExecutor(12) as threads:
        made = list(threads.map(make, range(100)))

    assert sorted(made) == list(first.ledger_ids())
    assert len(set(made)) == 100
    assert first.writers() == {(ledger_id, f"{n:x}") for n, ledger_id in enumerate(made)}
