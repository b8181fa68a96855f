"""What is destroyed by a command: shown before with its size, noted afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from tests.cli.conftest import Call
from tests.support.sessions import connect_without_spark


def jobs(cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    with connect_without_spark(cluster.metadata_uri) as bk:
        return {row["job"]: row for row in bk.jobs_arrow().to_pylist()}


def test_a_dry_run_shows_sizes_and_what_is_deleted_is_noted(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    made = call_own("ledger", "append", numbers, "--json").json["ledger_id"]
    call_own("log", "create", "orders")
    listed = call_own("log", "append", "orders", numbers, "--json").json["ledger_id"]
    call_own("log", "append", "orders", numbers)
    before = ("log", "truncate", "orders", f"{listed + 1}:0")
    cut = call_own(*before, "--dry-run", "--json").json
    size = call_own("ledger", "show", made, "--json").json["length_bytes"]
    name = call_own("cluster", "info", "--json").json["instance_id"]
    bookie = own_cluster.add_bookie()
    own_cluster.stop_bookie(bookie)
    root = own_cluster.root_of(bookie)

    one = call_own("ledger", "delete", made, "--dry-run", "--json").json
    assert f"1 ledger with {size} bytes" in call_own("ledger", "delete", made, "--dry-run").out
    log = call_own("log", "delete", "orders", "--dry-run", "--json").json
    of_bookie = call_own("bookie", "format", "--bookie-id", bookie, "--root", root, "--dry-run")
    whole = call_own("cluster", "nuke", "--instance-id", name, "--force", "--dry-run", "--json")
    own_cluster.stop_bookie(forgotten := own_cluster.add_bookie())
    forget = ("bookie", "cookie", "delete", forgotten)
    assert "nothing was changed" in call_own(*forget, "--dry-run").out

    assert [(each["ledger_id"], each["length_bytes"]) for each in one["planned"]] == [(made, size)]
    assert [each["ledger_id"] for each in log["planned"]] == [listed, listed + 1]
    assert [each["length_bytes"] for each in cut["planned"]] == [size]
    assert "0 ledger directories of 0 bytes" in of_bookie.err
    assert (whole.json["ledgers"], whole.json["length_bytes"]) == (3, 3 * size)
    assert (one["deleted"], log["deleted"], whole.json["instance_id"]) == ([], [], None)
    assert call_own("log", "delete", "nothing", "--dry-run").code == 2
    assert call_own("ledger", "show", made).code == call_own("log", "show", "orders").code == 0
    assert jobs(own_cluster) == {}

    call_own("ledger", "delete", made, "--yes")
    call_own(*before, "--yes")
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        bk.open_log("orders").publish("etl", f"{listed + 1}:0")
        bk.open_log("orders").write(PAYLOAD_SCHEMA.empty_table(), txn_app_id="etl", txn_version=1)
        for each in ("etl", "nobody"):
            bk.open_log("orders").forget_consumer(each)
            bk.open_log("orders").forget_application(each)
    call_own("log", "delete", "orders", "--yes")
    call_own(*forget, "--yes")
    call_own("bookie", "format", "--bookie-id", bookie, "--root", root, "--yes")
    noted = jobs(own_cluster)

    assert noted["delete_ledger"]["about"] == f"ledger {made}"
    assert noted["delete_log"]["about"] == noted["truncate_log"]["about"] == "log orders"
    with_ledgers = ("delete_ledger", "delete_log", "truncate_log")
    assert [noted[job]["bytes"] for job in with_ledgers] == [size] * 3
    assert noted["delete_cookie"]["about"] == f"bookie {forgotten}"
    assert noted["forget_consumer"]["about"] == "consumer etl of log orders"
    assert noted["forget_application"]["about"] == "application etl of log orders"
    assert f"bookie {bookie}: " in noted["format_bookie"]["about"]
    call_own("cluster", "format", "--instance-id", name, "--force", "--yes")
    assert jobs(own_cluster)["format_cluster"]["about"] == f"cluster {name}: 0 ledgers"


def test_a_partition_is_formatted_also_where_its_size_cannot_be_told(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    bookie = own_cluster.add_bookie()
    own_cluster.stop_bookie(bookie)
    root = own_cluster.root_of(bookie)
    command = ("bookie", "format", "--bookie-id", bookie, "--root", root)
    slots = Path(root, "ledgers", "7-a", "slots")
    slots.mkdir(parents=True)
    (slots / "0").write_bytes(b"12345")
    assert "1 ledger directories of 5 bytes" in call_own(*command, "--dry-run").err

    Path(root, "ledgers", "8-b").touch()

    assert "2 ledger directories of unknown size" in call_own(*command, "--dry-run").err
    assert slots.exists()
    assert call_own(*command, "--yes").code == 0
    assert list(Path(root, "ledgers").iterdir()) == []


def test_deletions_of_many_threads_are_one_row(own_cluster: LocalCluster) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        made = [bk.create_ledger() for _ in range(8)]
        for writer in made:
            writer.close()
        for begun in [bk.delete_ledger_async(writer.ledger_id) for writer in made]:
            begun.result()

        (row,) = bk.jobs_arrow().to_pylist()

    assert (row["ledgers"], dict(row["outcomes"])) == (8, {"deleted": 8})
    assert {f"ledger {writer.ledger_id}" for writer in made} == set(row["about"].split(", "))


def test_who_closes_the_connection_meanwhile_makes_a_deletion_no_error(
    own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = lifecycle.delete_ledger

    def delete_and_close(*args: Any, **named: Any) -> Deletion:
        gone = delete(*args, **named)
        bk.close()
        return gone

    bk = connect_without_spark(own_cluster.metadata_uri)
    with bk.create_ledger() as writer:
        pass
    monkeypatch.setattr(lifecycle, "delete_ledger", delete_and_close)

    assert bk.delete_ledger(writer.ledger_id).state == "CLOSED"
    with pytest.raises(InvalidArgumentError, match="was closed"):
        bk.jobs_arrow()


def test_whatever_reads_all_metadata_shows_that_it_is_at_work(
    own_cluster: LocalCluster, call_own: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    show = Output.progress

    def progress(self: Output, *args: Any, **named: Any) -> Any:
        shown.append("shown")
        return show(self, *args, **named)

    monkeypatch.setattr(Output, "progress", progress)
    bookie = own_cluster.add_bookie()
    place = ("--bookie-id", bookie, "--root", own_cluster.root_of(bookie))
    own_cluster.stop_bookie(bookie)
    commands: list[tuple[object, ...]] = [
        ("bookie", "show", bookie),
        ("bookie", "format", *place, "--dry-run"),
        ("bookie", "format", *place, "--yes"),
        ("bookie", "cookie", "delete", bookie, "--yes"),
        ("ledger", "recover"),
        ("log", "truncate", "orders", "--older-than", "1s", "--dry-run"),
        ("log", "consumers", "orders"),
        ("log", "delete", "orders", "--yes"),
    ]
    call_own("log", "create", "orders")
    for command in commands:
        shown.clear()
        assert call_own(*command).code == 0
        assert len(shown) > (command == ("ledger", "recover")), command  # and the recovery itself
