"""Apache BookKeeper's own classes read the tree of a cluster that has had all its bad days."""

from __future__ import annotations

import base64
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_bookkeeper.errors import RecoveryUndecidedError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.session import BookKeeper
from tests.support.actors import Actor
from tests.support.rows import check_numbered_ledger, numbered, numbered_table
from tests.support.sessions import connect_without_spark

pytestmark = [pytest.mark.peer, pytest.mark.integration, pytest.mark.timeout(900)]


def _load_peer() -> ModuleType:
    path = Path(__file__).parent.parent / "peer" / "peer.py"
    spec = importlib.util.spec_from_file_location("peer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = module
    spec.loader.exec_module(module)
    return module


peer = _load_peer()


def have_bad_days(cluster: LocalCluster, bk: BookKeeper) -> None:
    """Every state and every change of metadata that this library makes."""
    uri = cluster.metadata_uri
    for digest in ("CRC32C", "CRC32", "MAC", "DUMMY"):
        with bk.create_ledger(
            digest_type=digest, password=digest.encode(), name="days", compression="zstd"
        ) as writer:
            writer.append(numbered_table(0, 100))
    bk.create_ledger().close()  # empty
    bk.create_ledger(ledger_id=5_000_000_000, custom_metadata={"é": bytes(range(256))}).close()
    bk.delete_ledger(bk.create_ledger().ledger_id, even_if_alive=True)

    with Actor("write", uri, "--quorum", "5/3/2", "--kind", "both") as frozen:
        frozen.wait_for("rows", at_least=200)
        frozen.freeze()
        bk.open_ledger(frozen.ledger_id)
        frozen.thaw()
        assert frozen.error()[0] == "LedgerFencedError"
    with Actor("write", uri, "--quorum", "4/3/2") as killed:
        killed.wait_for("rows", at_least=300)
        cluster.stop_bookie(bk.ledger(killed.ledger_id).fragments[0].ensemble[0], destroy=True)
        _, rows = killed.acknowledged
        killed.wait_for("rows", at_least=rows + 2000)
        killed.kill()
    lost = next(b for b in bk.bookies_arrow().to_pylist() if b["state"] == "lost")["bookie_id"]
    assert bk.recover_bookie(lost).is_complete
    bk.open_ledger(killed.ledger_id)
    check_numbered_ledger(bk, killed.ledger_id, *killed.acknowledged)
    cluster.start_bookie(lost)  # empty, with another cookie

    waiting = bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=1)
    waiting.append(numbered(0))
    waiting.abandon()
    blocker = waiting.metadata.fragments[0].ensemble[0]
    cluster.stop_bookie(blocker)
    cluster.root_of(blocker).rename(cluster.root_of(blocker).with_name("away"))
    with pytest.raises(RecoveryUndecidedError, match="must wait"):
        bk.open_ledger(waiting.ledger_id)
    bk.create_ledger(ensemble_size=3).append(numbered(0))  # and one that stays open

    cluster.zookeeper.stop()
    cluster.zookeeper.start()


def test_bookkeepers_own_classes_read_our_whole_tree_after_all_of_this(tmp_path: Path) -> None:
    reason = peer.missing()
    if reason is not None:
        pytest.skip(reason)
    with (
        LocalCluster(tmp_path / "c", bookies=7) as cluster,
        connect_without_spark(cluster.metadata_uri) as bk,
    ):
        have_bad_days(cluster, bk)

        lines, complaints = peer.judge(cluster.zookeeper.address, "/ledgers")

        assert complaints == ""
        ours = bk.context.store
        ledgers = {line["id"]: line for line in lines if line["kind"] == "ledger"}
        assert sorted(ledgers) == sorted(ours.ledger_ids())
        assert len(ledgers) == 10
        assert {line["state"] for line in ledgers.values()} == {"OPEN", "IN_RECOVERY", "CLOSED"}
        for ledger_id, line in ledgers.items():
            assert_same(line, bk, LedgerId(ledger_id))
        cookies = {line["bookie"] for line in lines if line["kind"] == "cookie"}
        assert cookies == set(cluster.bookie_ids)
        bookies = {line["id"] for line in lines if line["kind"] == "bookie"}
        assert bookies == {r.bookie_id for r in ours.registrations()}
        # Byte for byte only what has no custom metadata: BookKeeper's hash map has an order of its
        # own, which nobody relies on.
        assert [c for c in lines if c["kind"] == "cookie" and not c["canonical"]] == []


def assert_same(line: dict[str, Any], bk: BookKeeper, ledger_id: LedgerId) -> None:
    """What BookKeeper read of a ledger is what we meant."""
    ours = bk.context.store.read_ledger(ledger_id).value
    assert line["state"] == ours.state.name
    assert line["last_entry_id"] == (-1 if ours.last_entry_id is None else ours.last_entry_id)
    assert line["length_bytes"] == (ours.length_bytes or 0)
    assert line["digest_type"] == (ours.digest_type.name if ours.digest_type else None)
    assert line["fragments"] == {str(f.first_entry_id): list(f.ensemble) for f in ours.fragments}
    assert line["custom_metadata"] == {
        key: base64.b64encode(value).decode() for key, value in ours.custom_metadata.items()
    }
