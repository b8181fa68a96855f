"""Apache BookKeeper's own classes read the tree that we wrote, and find in it what we meant."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.errors import LedgerExistsError
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.metadata.cookie_text import decode_cookie
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from tests.peer import peer
from tests.peer.shell import Shell

pytestmark = [pytest.mark.peer, pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = "/lab/ledgers"
A, B, C, D = (BookieId(f"10.0.0.{n}:3181") for n in (1, 2, 3, 4))
ALL_BYTES = bytes(range(256))
OPEN = LedgerMetadata(
    quorum=Quorum(3, 3, 2),
    state=LedgerState.OPEN,
    fragments=(Fragment(EntryId(0), (A, B, C)),),
    digest_type=DigestType.CRC32C,
    password=b"secret",
    ctime_ms=1_700_000_000_123,
)


@pytest.fixture(scope="module")
def store(host: EmbeddedZooKeeper) -> Iterator[ZooKeeperStore]:
    """A cluster with everything in it that we write today."""
    store = ZooKeeperStore(f"zk://{host.address}{ROOT}", token=lambda: secrets.token_hex(16))
    instance_id = store.initialize_cluster()
    for number, bookie_id in enumerate((A, B, C)):
        root, incarnation = f"s3://bucket/{bookie_id}", f"{number:032x}"
        store.write_cookie(Cookie(bookie_id, root, incarnation, instance_id), None)
        store.register(
            Registration(
                bookie_id,
                root,
                incarnation,
                is_readonly=bookie_id == C,
                rack=f"/eu/{number}",
                free_bytes=number << 40,
                total_bytes=20 << 40,
                free_inodes=number,
                total_inodes=20 << 20,
                properties={"zone": "é"},
            )
        )
    ledgers: list[LedgerMetadata] = [replace(OPEN, digest_type=each) for each in DigestType]
    ledgers += [
        replace(OPEN, password=b""),
        replace(OPEN, password=ALL_BYTES, custom_metadata={"é '\"\\": ALL_BYTES, "empty": b""}),
        replace(OPEN, password=ALL_BYTES, custom_metadata={"all": ALL_BYTES}, format_version=2),
        replace(OPEN, ctime_ms=None),
        LedgerMetadata(Quorum(3, 2, 2), LedgerState.OPEN, OPEN.fragments, format_version=1),
    ]
    for metadata in ledgers:
        ledger_id = store.generate_ledger_id()
        store.create_ledger(ledger_id, metadata, is_generated=True)
        for change in (
            lambda old: old.with_new_ensemble(EntryId(10), (A, D, C)),
            LedgerMetadata.in_recovery,
            lambda old: old.closed(EntryId(5_000_000_010), 9_000_000_000),
        ):
            ledger_id = store.generate_ledger_id()
            store.create_ledger(ledger_id, metadata, is_generated=True)
            update_ledger(store, ledger_id, change)
    for number in ((1 << 31) - 2, (1 << 31) - 1, 1 << 33, (1 << 63) - 1):
        store.create_ledger(LedgerId(number), OPEN.closed(NO_ENTRY, 0))
    yield store
    store.close()


@pytest.fixture(scope="module")
def seen(host: EmbeddedZooKeeper, store: ZooKeeperStore) -> list[dict[str, Any]]:
    lines, complaints = peer.judge(host.address, ROOT)
    assert complaints == ""
    return list(lines)


def _of_kind(seen: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in seen if line["kind"] == kind]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def test_bookkeeper_knows_the_cluster(store: ZooKeeperStore, seen: list[dict[str, Any]]) -> None:
    assert _of_kind(seen, "layout") == [
        {
            "kind": "layout",
            "factory": "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
            "version": 1,
            "canonical": True,
        }
    ]
    assert _of_kind(seen, "instance") == [{"kind": "instance", "id": store.instance_id()}]


def test_bookkeeper_finds_the_same_ledgers(
    store: ZooKeeperStore, seen: list[dict[str, Any]]
) -> None:
    found = [line["id"] for line in _of_kind(seen, "ledger")]

    assert found == list(store.ledger_ids())
    assert len(found) == 4 * 9 + 4


def test_bookkeeper_reads_every_field_of_every_ledger(
    store: ZooKeeperStore, seen: list[dict[str, Any]]
) -> None:
    for line in _of_kind(seen, "ledger"):
        stored = store.read_ledger(LedgerId(line["id"]))
        ours = stored.value
        expected = {
            "kind": "ledger",
            "id": line["id"],
            "path": line["path"],
            "version": str(stored.version),
            "format": ours.format_version,
            "state": ours.state.name,
            "ensemble_size": ours.quorum.ensemble_size,
            "write_quorum_size": ours.quorum.write_quorum_size,
            "ack_quorum_size": ours.quorum.ack_quorum_size,
            "last_entry_id": -1 if ours.last_entry_id is None else ours.last_entry_id,
            "length_bytes": ours.length_bytes or 0,
            "digest_type": ours.digest_type.name if ours.digest_type else None,
            "password": _text(ours.password),
            # Where the metadata does not say, BookKeeper takes the time of the node.
            "ctime_ms": line["ctime_ms"] if ours.ctime_ms is None else ours.ctime_ms,
            "fragments": {str(f.first_entry_id): list(f.ensemble) for f in ours.fragments},
            "custom_metadata": {k: _text(v) for k, v in ours.custom_metadata.items()},
            "canonical": line["canonical"],
        }
        assert line == expected


def test_bookkeeper_would_write_the_same_bytes(seen: list[dict[str, Any]]) -> None:
    lines = [*_of_kind(seen, "ledger"), *_of_kind(seen, "cookie")]

    assert [line for line in lines if not line["canonical"]] == []


def test_bookkeeper_reads_our_cookies(store: ZooKeeperStore, seen: list[dict[str, Any]]) -> None:
    cookies = {line["bookie"]: line for line in _of_kind(seen, "cookie")}

    assert set(cookies) == {A, B, C}
    for stored in store.cookies():
        line = cookies[stored.value.bookie_id]
        assert decode_cookie(line["text"].encode(), "judge") == stored.value
        assert line["version"] == str(stored.version)


def test_bookkeeper_sees_our_bookies(store: ZooKeeperStore, seen: list[dict[str, Any]]) -> None:
    bookies = {line["id"]: line for line in _of_kind(seen, "bookie")}

    assert {b: line["readonly"] for b, line in bookies.items()} == {A: False, B: False, C: True}
    for ours in store.registrations():
        line = bookies[ours.bookie_id]
        host, _, port = ours.bookie_id.partition(":")
        assert line["ephemeral"]
        assert line["unknown_fields"] == 0
        assert line["endpoints"] == [
            {"id": "bookie", "host": host, "port": int(port), "protocol": "bookie-rpc"}
        ]
        assert line["properties"]["spark-bookkeeper.root_uri"] == ours.root_uri
        assert line["properties"]["spark-bookkeeper.incarnation"] == ours.incarnation
        assert line["properties"]["rack"] == ours.rack
        assert line["properties"]["spark-bookkeeper.free_inodes"] == str(ours.free_inodes)
        assert line["properties"]["zone"] == "é"


def test_the_judge_names_what_bookkeeper_cannot_read(host: EmbeddedZooKeeper) -> None:
    root = "/broken/ledgers"
    store = ZooKeeperStore(f"zk://{host.address}{root}", token=lambda: secrets.token_hex(16))
    store.initialize_cluster()
    store.create_ledger(LedgerId(1), OPEN)
    store._zk.create(f"{root}/00/0000/L0002", b"garbage")
    store._zk.create(f"{root}/cookies/{A}", b"garbage")
    store._zk.create(f"{root}/stray", b"garbage")

    lines, complaints = peer.judge(host.address, root)

    store.close()
    assert [line["id"] for line in lines if line["kind"] == "ledger"] == [1]
    for path in ("00/0000/L0002", f"cookies/{A}", "stray"):
        assert f"{root}/{path}: " in complaints


# BookKeeper's own tools, and ids that were used


@pytest.fixture
def cluster(host: EmbeddedZooKeeper) -> Iterator[ZooKeeperStore]:
    root = f"/shell-{secrets.token_hex(4)}"
    store = ZooKeeperStore(f"zk://{host.address}{root}", token=lambda: secrets.token_hex(16))
    store.initialize_cluster()
    yield store
    store.close()


@pytest.fixture
def shell(cluster: ZooKeeperStore, tmp_path: Path) -> Shell:
    return Shell(cluster.uri, tmp_path)


def test_an_id_whose_ledger_bookkeeper_deleted_stays_used(
    cluster: ZooKeeperStore, shell: Shell
) -> None:
    chosen = LedgerId(50)
    cluster.create_ledger(chosen, OPEN)

    shell.says("deleteledger", "-ledgerid", str(chosen), "-force")

    assert list(cluster.ledger_ids()) == []
    with pytest.raises(LedgerExistsError):
        cluster.create_ledger(chosen, OPEN)
    lines, complaints = peer.judge(cluster.uri.hosts, cluster.uri.root)
    assert complaints == ""
    assert [line for line in lines if line["kind"] == "ledger"] == []


def test_a_cluster_that_bookkeeper_formatted_begins_again_with_its_ids(
    cluster: ZooKeeperStore, shell: Shell
) -> None:
    instance_id = cluster.instance_id()
    cluster.create_ledger(LedgerId(50), OPEN)
    cluster.create_ledger(cluster.generate_ledger_id(), OPEN, is_generated=True)

    shell.says("metaformat", "-nonInteractive", "-force")

    assert cluster.instance_id() != instance_id
    assert list(cluster.ledger_ids()) == []
    assert cluster.generate_ledger_id() == 0, "BookKeeper begins again too"
    created = cluster.create_ledger(LedgerId(50), OPEN)
    cluster.delete_ledger(LedgerId(50), created)
    with pytest.raises(LedgerExistsError):
        cluster.create_ledger(LedgerId(50), OPEN)


def test_a_cluster_that_was_nuked_forbids_the_next_one_no_ids(
    host: EmbeddedZooKeeper, cluster: ZooKeeperStore, shell: Shell
) -> None:
    cluster.create_ledger(LedgerId(50), OPEN)
    cluster.create_ledger(cluster.generate_ledger_id(), OPEN, is_generated=True)

    shell.says("nukeexistingcluster", "-zkledgersrootpath", cluster.uri.root, "-force")

    assert not cluster._zk.exists(cluster.uri.root), "nothing of it is left beside it either"
    with closing(ZooKeeperStore(cluster.uri, token=lambda: secrets.token_hex(16))) as again:
        again.initialize_cluster()
        assert again.generate_ledger_id() == 0
        again.create_ledger(LedgerId(50), OPEN)


def _ended(store: ZooKeeperStore, verb: str) -> int:
    """End a cluster by our own command, with ledgers, cookies, and a task in it."""
    instance_id = store.instance_id()
    store.create_ledger(LedgerId(50), OPEN)
    store.create_ledger(store.generate_ledger_id(), OPEN, is_generated=True)
    store.write_cookie(Cookie(A, "s3://bucket/a", "0" * 32, instance_id), None)
    store.underreplication.mark(LedgerId(50), [B], 1_700_000_000_000)
    ended = ["cluster", verb, "--instance-id", instance_id, "--yes"]
    return run(["--metadata-uri", str(store.uri), *ended])


def test_bookkeepers_shell_reads_the_cluster_that_we_formatted(
    cluster: ZooKeeperStore, shell: Shell
) -> None:
    before = cluster.instance_id()

    assert _ended(cluster, "format") == 0

    assert cluster.instance_id() != before
    assert cluster.instance_id() in shell.says("whatisinstanceid")
    assert "ledgerID: 50" not in shell.says("listledgers")
    assert "50" not in shell.says("listunderreplicated").splitlines()
    lines, complaints = peer.judge(cluster.uri.hosts, cluster.uri.root)
    assert complaints == ""
    assert [line for line in lines if line["kind"] in ("ledger", "cookie")] == []
    shell.refuses("cookie_get", A)
    shell.refuses("initnewcluster")
    created = cluster.create_ledger(LedgerId(50), OPEN)
    cluster.underreplication.mark(LedgerId(50), [B], 1_700_000_000_000)
    assert "ledgerID: 50" in shell.says("listledgers")
    assert "50" in shell.says("listunderreplicated").splitlines()
    cluster.delete_ledger(LedgerId(50), created)


def test_bookkeepers_shell_finds_no_cluster_where_we_nuked_it_and_begins_one(
    cluster: ZooKeeperStore, shell: Shell
) -> None:
    before = cluster.instance_id()

    assert _ended(cluster, "nuke") == 0

    assert not cluster._zk.exists(cluster.uri.root)
    said = shell.refuses("whatisinstanceid")
    assert before not in said
    assert "InstanceId" in said, "it says that it finds none"
    shell.says("initnewcluster")
    with closing(ZooKeeperStore(cluster.uri, token=lambda: secrets.token_hex(16))) as again:
        assert again.instance_id() != before
        assert again.instance_id() in shell.says("whatisinstanceid")
        assert list(again.ledger_ids()) == []
        assert again.generate_ledger_id() == 0
