"""``spark-bookkeeper bookie gc | compact | scrub``, and their methods."""

from __future__ import annotations

from pathlib import Path

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from tests.cli.conftest import Call
from tests.support.sessions import connect_without_spark


def files(cluster: LocalCluster, ledger_id: int) -> list[Path]:
    return [p for p in cluster.directory.glob(f"**/ledgers/{ledger_id}-*/*/*") if p.is_file()]


def test_space_comes_back_and_files_become_few(own_cluster: LocalCluster, call_own: Call) -> None:
    uri = own_cluster.metadata_uri
    with connect_without_spark(uri) as bk:
        ledgers = []
        for _ in range(2):
            with bk.create_ledger(digest_type="MAC", password=b"secret") as writer:
                for number in range(20):
                    writer.append(b"%d" % number)
            ledgers.append(writer.ledger_id)
        kept, gone = ledgers
        call = call_own

        planned = call("bookie", "compact", "--ledger", kept, "--dry-run", "--json")
        assert planned.code == 0
        assert {row["status"] for row in planned.json["rows"]} == {"planned"}
        assert len(files(own_cluster, kept)) > 50
        done = call("bookie", "compact", "--ledger", kept, "--json")
        assert (done.code, done.json["complete"]) == (0, True)
        assert len(files(own_cluster, kept)) == 6
        assert len(files(own_cluster, gone)) > 50
        read = bk.open_ledger(kept, password=b"secret").entries()
        assert [entry.payload for entry in read] == [b"%d" % number for number in range(20)]

        bk.delete_ledger(gone)
        planned = call("bookie", "gc", "--dry-run", "--json")
        assert {row["ledger_id"] for row in planned.json["rows"]} == {gone}
        assert bk.collect_garbage().counts == {"planned": 3}
        collected = call("bookie", "gc", "--yes", "--json")
        assert (collected.code, collected.json["complete"]) == (0, True)
        assert files(own_cluster, gone) == []
        assert len(files(own_cluster, kept)) == 6

        (bookie, *_) = bk.ledger(kept).fragments[0].ensemble
        scrubbed = call("bookie", "scrub", bookie)
        assert scrubbed.code == 0
        assert "scrub: nothing was found wrong in 1 ledger   20 entries, 30 bytes" in scrubbed.out
        root = {b["bookie_id"]: b["root_uri"] for b in bk.bookies_arrow().to_pylist()}[bookie]
        (copy,) = Path(root.removeprefix("file://")).glob(f"ledgers/{kept}-*/copies/*")
        copy.write_bytes(copy.read_bytes()[:2000])
        scrubbed = call("bookie", "scrub", bookie, "--json")
        assert [row["status"] for row in scrubbed.json["rows"]] == ["published"]
        assert [row["ledger_id"] for row in bk.underreplicated_arrow().to_pylist()] == [kept]
        assert any(
            "scrubbing found" in finding.detail
            for finding in bk.doctor().findings
            if finding.check == f"bookie {bookie}"
        )
