"""The end of a cluster's metadata: who is refused, what goes, and that bookies' data stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.agent.clearing import clear_cluster, contents_of
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.errors import InvalidArgumentError, NoClusterError
from spark_bookkeeper.metadata.store import Cookie, MetadataStore
from spark_bookkeeper.metadata.zookeeper.clearing import Clearing
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground
from tests.support.rows import wait_for_every_copy

BOOKIE = BookieId("10.0.0.3:3181")


def filled(tmp_path: Path, *, alive: bool = False) -> tuple[Ground, MetadataStore]:
    ground = Ground(tmp_path, bookies=3)
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)) as writer:
        writer.append(b"x")
    ground.context.store.underreplication.mark(LedgerId(writer.ledger_id), ["a:1"], 1)
    if not alive:
        for bookie in ground.bookie_ids:
            ground.stop(bookie)
    return ground, ground.client().store


def test_what_goes_is_counted_and_what_stays_is_named(tmp_path: Path) -> None:
    ground, store = filled(tmp_path)

    contents = contents_of(store)

    assert (contents.ledgers, contents.tasks, contents.alive) == (1, 1, ())
    roots = {cookie.bookie_id: cookie.root_uri for cookie in contents.cookies}
    assert set(roots) == set(ground.bookie_ids)


@pytest.mark.parametrize("begins_again", [True, False])
def test_another_id_or_somebody_at_work_is_refused_and_changes_nothing(
    tmp_path: Path, begins_again: bool
) -> None:
    ground, store = filled(tmp_path, alive=True)
    name = store.instance_id()

    with pytest.raises(InvalidArgumentError, match=f"this is cluster {name}"):
        clear_cluster(store, "another", begins_again=begins_again, is_forced=True)
    with pytest.raises(InvalidArgumentError, match="bookies are alive"):
        clear_cluster(store, name, begins_again=begins_again)
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    writer.append(b"x")
    wait_for_every_copy(writer)
    for bookie in ground.bookie_ids:
        ground.stop(bookie)
    with pytest.raises(InvalidArgumentError, match="1 ledgers are being written"):
        clear_cluster(store, name, begins_again=begins_again)

    assert store.instance_id() == name
    assert len(list(store.ledger_ids())) == 2
    for bookie in ground.bookie_ids:
        ground.start(bookie)
    writer.close()


def test_formatting_begins_again_and_touches_no_partition(tmp_path: Path) -> None:
    ground, store = filled(tmp_path)
    before = {b: ground.files(b) for b in ground.bookie_ids}

    made = clear_cluster(store, store.instance_id(), begins_again=True)

    assert made == store.instance_id()
    assert list(store.ledger_ids()) == []
    assert store.cookies() == []
    assert {b: ground.files(b) for b in ground.bookie_ids} == before
    assert all(before.values())


def test_nothing_is_left_of_a_nuked_cluster_but_the_partitions(tmp_path: Path) -> None:
    ground, store = filled(tmp_path)

    assert clear_cluster(store, store.instance_id(), begins_again=False) is None

    with pytest.raises(NoClusterError):
        store.instance_id()
    assert all(ground.files(b) for b in ground.bookie_ids)


def test_doctor_names_what_is_left_of_a_former_cluster(tmp_path: Path) -> None:
    ground, store = filled(tmp_path, alive=True)
    stale, lost, _ = ground.bookie_ids
    registered = {r.bookie_id: r for r in store.registrations()}
    former = store.instance_id()

    clear_cluster(store, former, begins_again=True, is_forced=True)
    live = registered[stale]
    store.write_cookie(Cookie(stale, live.root_uri, live.incarnation, former), None)

    found = {each.check: each for each in cluster_diagnoses(ground.context, metadata_only=True)}
    assert f"left over from cluster {former}" in found[f"bookie {stale}"].detail
    assert "its cookie is gone" in found[f"bookie {lost}"].detail


# In a real ZooKeeper


@pytest.fixture
def filled_store(store: ZooKeeperStore) -> ZooKeeperStore:
    """A cluster with three ledgers and a bookie."""
    fragments = (Fragment(EntryId(0), (BOOKIE,)),)
    for ledger_id in (LedgerId(3), LedgerId(70_000), LedgerId(1 << 40)):
        made = LedgerMetadata(Quorum(1, 1, 1), LedgerState.OPEN, fragments)
        store.create_ledger(ledger_id, made)
    store.write_cookie(Cookie(BOOKIE, "file:///gone", "i", store.instance_id()), None)
    return store


@pytest.mark.integration
def test_ended_in_the_middle_it_is_repeated(filled_store: ZooKeeperStore) -> None:
    name = filled_store.instance_id()
    Clearing(filled_store._zk, filled_store._root)._delete_ledgers()

    assert filled_store.instance_id() == name, "so that the same call is right again"
    made = clear_cluster(filled_store, name, begins_again=True)
    assert made is not None
    Clearing(filled_store._zk, filled_store._root)._delete_ledgers()
    clear_cluster(filled_store, made, begins_again=False)

    assert not filled_store._zk.exists(filled_store._root)


@pytest.mark.integration
def test_what_is_no_part_of_a_cluster_is_nobodys_to_remove(filled_store: ZooKeeperStore) -> None:
    filled_store._zk.create(f"{filled_store._root}/kafka", b"")

    with pytest.raises(InvalidArgumentError, match="kafka"):
        clear_cluster(filled_store, filled_store.instance_id(), begins_again=False)

    assert list(filled_store.ledger_ids()) == [3, 70_000, 1 << 40]


@pytest.mark.integration
def test_the_commands_ask_show_what_goes_and_want_the_name_typed(
    filled_store: ZooKeeperStore, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--metadata-uri", str(filled_store.uri), "cluster"]
    name = filled_store.instance_id()

    assert run([*call, "format", "--yes"]) == 2
    assert run([*call, "format", "--yes", "--instance-id", "another"]) == 2
    capsys.readouterr()
    assert run([*call, "format", "--instance-id", name]) == 1  # nobody says yes
    said = capsys.readouterr().err
    assert f"cluster {name}" in said
    assert "3 ledgers" in said
    assert f"bookie {BOOKIE}: its data stays at file:///gone" in said
    assert run([*call, "format", "--instance-id", name, "--yes"]) == 0
    other = ZooKeeperStore(str(filled_store.uri), token=ThreadRuntime().token)
    after = other.instance_id()
    other.close()
    assert after != name
    assert run([*call, "nuke", "--instance-id", after, "--yes"]) == 0
    assert run([*call, "info"]) == 2
