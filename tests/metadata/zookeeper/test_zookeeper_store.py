"""The metadata store in ZooKeeper keeps every promise, in Apache BookKeeper's own tree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.errors import (
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoClusterError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.testing.conformance.election import ElectionConformance
from spark_bookkeeper.testing.conformance.metadata import (
    A,
    B,
    MetadataStoreConformance,
    open_ledger,
    registration,
)
from spark_bookkeeper.testing.conformance.underreplication import UnderreplicationConformance
from tests.metadata.zookeeper.proxy import Proxy, ZooKeeperStores, token

pytestmark = pytest.mark.integration


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
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    for ledger_id in (7, 8, 1 << 40):
        store.create_ledger(LedgerId(ledger_id), open_ledger())

    store.delete_ledger(LedgerId(7), store.read_ledger(LedgerId(7)))
    store.delete_ledger(LedgerId(1 << 40), store.read_ledger(LedgerId(1 << 40)))
    assert list(store.ledger_ids()) == [8]
    store.delete_ledger(LedgerId(8), store.read_ledger(LedgerId(8)))

    names = raw.get_children(zookeeper.root)
    assert [name for name in names if paths.is_parent_name([name])] == []


def test_foreign_nodes_between_ledgers_are_passed_over(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
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


def test_what_cannot_be_decoded_is_named(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    raw.create(paths.ledger(zookeeper.root, LedgerId(7)), b"garbage", makepath=True)

    with pytest.raises(MetadataFormatError) as caught:
        store.read_ledger(LedgerId(7))

    assert caught.value.path == f"{zookeeper.root}/00/0000/L0007"


def test_one_ledger_that_cannot_be_decoded_does_not_hide_the_others(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
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
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
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
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    assert store.underreplication.disabled_at_ms() is None

    store.underreplication.disable()

    made = raw.get(f"{paths.underreplication(zookeeper.root)}/disable")[1].ctime
    assert store.underreplication.disabled_at_ms() == made
    store.underreplication.enable()
    assert store.underreplication.disabled_at_ms() is None


def test_a_task_goes_also_beside_what_is_not_ours_and_after_one_who_left_its_parent(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
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
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient, readonly: bool
) -> None:
    store.register(registration(A))
    raw.create(paths.registration(zookeeper.root, B, readonly=readonly), b"\xff", ephemeral=True)

    found = {r.bookie_id: r for r in store.registrations()}

    assert found[A].incarnation
    assert (found[B].root_uri, found[B].incarnation) == ("", "")
    assert found[B].is_readonly is readonly


def test_a_cookie_that_cannot_be_decoded_is_left_out_and_never_overwritten(
    zookeeper: ZooKeeperStores,
    store: ZooKeeperStore,
    raw: KazooClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    raw.create(paths.cookie(zookeeper.root, B), b"garbage", makepath=True)

    assert store.cookies() == []

    assert str(B) in caplog.text
    with pytest.raises(MetadataFormatError):
        store.read_cookie(B)


def test_a_task_that_cannot_be_decoded_gives_way_to_a_mark(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    """Else who marks one ledger after the other would never come past it."""
    tree, ledger_id = store.underreplication, LedgerId(7)
    tree.mark(ledger_id, ["a:1"], 1)
    raw.set(paths.task(zookeeper.root, ledger_id), b"\xff{")

    assert tree.mark(ledger_id, ["b:1"], 2)

    there = tree.read(ledger_id)
    assert there is not None
    assert there.value == Task(ledger_id, ("b:1",), 2)


def test_no_cluster_is_an_error_that_says_how_to_make_one(zookeeper: ZooKeeperStores) -> None:
    with pytest.raises(NoClusterError, match="cluster init"):
        zookeeper.session().instance_id()


def test_equal_ledgers_differ_in_their_token(store: ZooKeeperStore) -> None:
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
    ann = ZooKeeperStore(uri, token=token, options=options)
    bob = ZooKeeperStore(uri, token=token, options={"auth_data": "digest:bob:secret"})
    ann.initialize_cluster()

    with pytest.raises(MetadataError, match="refused") as caught:
        bob.instance_id()

    assert not isinstance(caught.value, MetadataUnavailableError)
    assert len(ann.instance_id()) == 36
    ann.close()
    bob.close()


# Writers


def test_whatever_lies_among_the_nodes_of_writers_is_no_writer(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")
    parent = paths.writers(zookeeper.root)
    for name in ("junk", "7", "7-", "-ab12", "7-AB", "٧-ab12", "9" * 40 + "-ab12", "7-ab12-ab12"):
        raw.create(f"{parent}/{name}", b"\xff\x00")
    raw.set(f"{parent}/7-ab12", b"\xff\x00")

    assert store.writers() == {(7, "ab12")}


def test_a_cluster_without_the_parent_of_the_nodes_gets_it_with_the_first_writer(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore, raw: KazooClient
) -> None:
    assert store.writers() == frozenset()
    assert not store.has_writer(LedgerId(7), "ab12")
    assert not raw.exists(paths.writers(zookeeper.root))

    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")

    assert store.writers() == {(7, "ab12")}


def test_a_create_and_a_close_with_a_writer_wait_for_one_request_each(
    zookeeper: ZooKeeperStores, store: ZooKeeperStore
) -> None:
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


def test_who_leaves_after_the_end_of_the_session_raises_nothing(store: ZooKeeperStore) -> None:
    store.create_ledger(LedgerId(7), open_ledger(), writer="ab12")
    store.watch_ledger(LedgerId(7), lambda: None)
    store.close()

    store.leave_ledger(LedgerId(7))
    store.leave_ledger(LedgerId(8))
