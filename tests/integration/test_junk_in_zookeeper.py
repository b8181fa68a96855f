"""Junk in the nodes of a real ZooKeeper; ``test_junk.py`` has much more of it in a stand-in."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.uri import parse_metadata_uri
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.report import Report
from tests.support import junk
from tests.support.sessions import connect_without_spark


@pytest.mark.integration
@pytest.mark.full
def test_junk_in_a_real_zookeeper_stops_nothing_but_itself(tmp_path: Path) -> None:
    dice = random.Random("real")
    with (
        LocalCluster(tmp_path / "cluster", bookies=4) as cluster,
        connect_without_spark(cluster.metadata_uri) as bk,
    ):
        healthy = []
        for count in (3, 40):
            with bk.create_ledger() as writer:
                for number in range(count):
                    writer.append(b"%d" % number)
            healthy.append(writer.ledger_id)
        lost, *alive = sorted(map(BookieId, cluster.bookie_ids))
        uri = parse_metadata_uri(cluster.metadata_uri)
        assert uri.root == junk.ROOT
        client = KazooClient(uri.hosts)
        client.start()
        try:
            known = [
                *(paths.ledger(junk.ROOT, i) for i in healthy),
                *(paths.cookie(junk.ROOT, b) for b in alive),
                *(paths.registration(junk.ROOT, b, readonly=False) for b in alive),
            ]
            node = {path: client.get(path)[0] for path in known}
            # Without its cookie a bookie that no ledger names any more would be unknown.
            kept = {*known, paths.cookie(junk.ROOT, lost)}
            cluster.stop_bookie(lost, destroy=True)
            for _ in range(3):
                planted = junk.nodes(dice, node, healthy, alive, lost)
                print(planted)  # shown when it fails
                for path, data in planted.items():
                    if client.exists(path):
                        client.set(path, data)
                    else:
                        is_of_bookie = path.startswith(paths.available(junk.ROOT))
                        client.create(path, data, makepath=True, ephemeral=is_of_bookie)
                with bk.create_ledger() as writer:
                    writer.append(b"new")
                assert bk.open_ledger(writer.ledger_id).read_arrow().num_rows == 1
                assert [bk.open_ledger(i).read_arrow().num_rows for i in healthy] == [3, 40]
                listed = {r["ledger_id"]: r["state"] for r in bk.ledgers_arrow().to_pylist()}
                assert {*junk.LEDGERS, *healthy} <= listed.keys()
                assert {listed[i] for i in healthy} == {"CLOSED"}
                states = {r["bookie_id"]: r["state"] for r in bk.bookies_arrow().to_pylist()}
                assert {states[b] for b in alive} == {"writable"}
                assert list(cluster_diagnoses(bk.context))
                reports: list[Report] = [
                    bk.check_ledgers(),
                    bk.recover_ledgers(),
                    bk.recover_bookie(lost, dry_run=True),
                    bk.recover_bookie(lost),
                    bk.repair_ledgers(),
                ]
                for report in reports:
                    ours = [row for row in report.rows if row.ledger_id in healthy]
                    good = {"healthy", "planned", "replicated", "unavailable"}
                    assert {row.status for row in ours} <= good, report
                named = {b for i in healthy for f in bk.ledger(i).fragments for b in f.ensemble}
                assert lost not in named
                for ledger_id in junk.LEDGERS:
                    bk.delete_ledger(ledger_id, even_if_alive=True)
                for path in planted:
                    if path not in kept and client.exists(path) and path.count("/") > 2:
                        client.delete(path, recursive=True)
        finally:
            client.stop()
            client.close()
