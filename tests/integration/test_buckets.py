"""A ledger whose ensemble mixes local disk and two buckets, and loses any of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.delta.release import release_ledgers
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.session import BookKeeper
from tests.support.lake import archive, entries_of
from tests.support.mixed_cluster import MixedCluster
from tests.support.rows import (
    check_numbered_ledger,
    numbered,
    numbered_table,
    wait_for_every_copy,
)
from tests.support.s3 import S3Server
from tests.support.sessions import connect_without_spark
from tests.worlds import first_of

pytestmark = [pytest.mark.integration, pytest.mark.s3]


@pytest.fixture
def mixed(tmp_path: Path, server: S3Server, host: EmbeddedZooKeeper) -> Iterator[MixedCluster]:
    """Three bookies, one on a disk and two in buckets."""
    cluster = MixedCluster(tmp_path, server, host)
    for kind in ("disk", "bucket", "bucket"):
        cluster.start(kind)
    yield cluster
    cluster.close()


@pytest.fixture
def bk(mixed: MixedCluster) -> Iterator[BookKeeper]:
    options = mixed.server.storage_options
    with connect_without_spark(mixed.uri, storage_options=options) as connected:
        yield connected


def write_300_rows(bk: BookKeeper, quorum: tuple[int, int, int] = (3, 3, 2)) -> int:
    ensemble_size, write_quorum_size, ack_quorum_size = quorum
    with bk.create_ledger(
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
        entry_target_bytes=512,
    ) as writer:
        for number in range(20):
            writer.append_async(numbered(number))
        writer.append(numbered_table(20, 280))
    return writer.ledger_id


@pytest.mark.full
@pytest.mark.parametrize("quorum", [(3, 3, 2), (3, 2, 2)])
def test_a_ledger_on_a_disk_and_two_buckets_is_written_read_and_recovered(
    mixed: MixedCluster, bk: BookKeeper, quorum: tuple[int, int, int]
) -> None:
    closed = write_300_rows(bk, quorum)
    writer = bk.create_ledger(entry_target_bytes=512)
    writer.append(numbered_table(0, 150))
    writer.abandon()

    bk.open_ledger(writer.ledger_id)

    kinds = sorted(map(mixed.kind, bk.ledger(closed).fragments[0].ensemble))
    assert kinds == ["bucket", "bucket", "disk"]
    assert check_numbered_ledger(bk, closed, -1, 300) == 300
    assert check_numbered_ledger(bk, writer.ledger_id, -1, 150) == 150
    report = bk.check_ledgers([closed, writer.ledger_id], percentage=100)
    assert report.is_complete, report.unfinished


@pytest.mark.full
def test_with_the_object_store_away_a_disk_is_enough_to_read(
    mixed: MixedCluster, bk: BookKeeper
) -> None:
    ledger_id = write_300_rows(bk)

    options = {
        **mixed.server.storage_options,
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"},
    }
    with connect_without_spark(mixed.uri, storage_options=options) as cut_off:
        assert cut_off.open_ledger(ledger_id).read_arrow().equals(numbered_table(0, 300))
        report = cut_off.check_ledgers([ledger_id], percentage=100)

    assert sorted(row.status for row in report.rows) == ["healthy", "unavailable", "unavailable"]


@pytest.mark.full
def test_a_bucket_wiped_under_a_writer_is_replaced_and_nothing_is_lost(
    mixed: MixedCluster, bk: BookKeeper
) -> None:
    spare = mixed.start("bucket")
    writer = bk.create_ledger(entry_target_bytes=512)
    writer.append(numbered(0))
    ensemble = writer.metadata.last_fragment.ensemble
    wiped = next(b for b in ensemble if mixed.kind(b) == "bucket" and b != spare)

    mixed.wipe(wiped)
    number = 0
    while wiped in writer.metadata.last_fragment.ensemble:
        number += 1
        assert writer.append(numbered(number)) == number
    writer.append(numbered_table(number + 1, 100))
    writer.close()

    assert len(writer.metadata.fragments) == 2
    assert check_numbered_ledger(bk, writer.ledger_id, -1, number + 101, copies=1) == number + 101
    mixed.stop(wiped)
    report = bk.recover_bookie(wiped)
    assert report.is_complete, report.unfinished
    assert check_numbered_ledger(bk, writer.ledger_id, -1, number + 101) == number + 101


@pytest.mark.full
def test_a_bucket_that_is_full_is_replaced_and_goes_on_serving_what_it_has(
    mixed: MixedCluster, bk: BookKeeper
) -> None:
    spare = mixed.start("disk")
    writer = bk.create_ledger(entry_target_bytes=512)
    writer.append(numbered(0))
    wait_for_every_copy(writer)
    full = next(
        bookie
        for bookie in writer.metadata.last_fragment.ensemble
        if mixed.kind(bookie) == "bucket" and bookie != spare
    )
    mixed.server.fill(mixed.bucket(full))

    number = 0
    while full in writer.metadata.last_fragment.ensemble:
        number += 1
        assert writer.append(numbered(number)) == number
    writer.close()
    mixed.agents[full].step()

    published = mixed.agents[full].status.published
    assert published is not None
    assert published.is_readonly
    assert check_numbered_ledger(bk, writer.ledger_id, -1, number + 1) == number + 1
    first = bk.diff_replicas_arrow(writer.ledger_id).slice(0, 3).to_pylist()
    assert {row["bookie_id"]: row["status"] for row in first}[full] == "verified"
    mixed.server.make_room(mixed.bucket(full))
    mixed.agents[full].step()
    published = mixed.agents[full].status.published
    assert published is not None
    assert not published.is_readonly


@pytest.mark.full
@pytest.mark.parametrize("lost", first_of("bucket", "disk"))
def test_a_disk_or_a_bucket_that_is_lost_is_made_again_on_another_bookie(
    mixed: MixedCluster, bk: BookKeeper, lost: str
) -> None:
    ledger_id = write_300_rows(bk, (3, 2, 2))
    ensemble = bk.ledger(ledger_id).fragments[0].ensemble
    bookie = next(b for b in ensemble if mixed.kind(b) == lost)
    mixed.stop(bookie)
    mixed.wipe(bookie)

    assert bk.open_ledger(ledger_id).read_arrow().equals(numbered_table(0, 300))
    spare = mixed.start("disk" if lost == "bucket" else "bucket")
    report = bk.recover_bookie(bookie)

    assert report.is_complete, report.unfinished
    assert {row.target for row in report.rows if row.ledger_id == ledger_id} == {spare}
    assert bookie not in bk.ledger(ledger_id).fragments[0].ensemble
    assert check_numbered_ledger(bk, ledger_id, -1, 300) == 300
    assert bk.check_ledgers([ledger_id], percentage=100).is_complete
    assert bk.recover_bookie(bookie).rows == ()


@pytest.mark.full
def test_copies_in_buckets_are_released_to_a_table_in_a_bucket(
    tmp_path: Path, server: S3Server, host: EmbeddedZooKeeper
) -> None:
    cluster = MixedCluster(tmp_path, server, host)
    try:
        for _ in range(3):
            cluster.start("bucket")
        with connect_without_spark(cluster.uri, storage_options=server.storage_options) as bk:
            ledger_id = LedgerId(write_300_rows(bk))
            other = write_300_rows(bk)
            before = entries_of(bk.context, ledger_id)
            archive(bk.context, tmp_path / "lake", [ledger_id])
            table = f"s3://{server.make_bucket()}/lake"
            server.upload(tmp_path / "lake", table)
            assert {name for b in cluster.roots for name in files(cluster, b, ledger_id)}

            runner = LocalRunner(bk.context)
            (row,) = release_ledgers(bk.context, runner, table, [ledger_id], keep=0)

            assert row.status is Outcome.RELEASED, row.reason
            for bookie in cluster.roots:
                held = files(cluster, bookie, ledger_id)
                assert all("/slots/" in name for name in held), "at most the fence stays"
                assert len(held) <= 1
                assert len(files(cluster, bookie, other)) > 1
        with connect_without_spark(cluster.uri, storage_options=server.storage_options) as fresh:
            assert entries_of(fresh.context, ledger_id) == before
            assert fresh.open_ledger(ledger_id).read_arrow().equals(numbered_table(0, 300))
            assert fresh.check_ledgers([ledger_id], percentage=100).is_complete
            assert fresh.open_ledger(other).read_arrow().equals(numbered_table(0, 300))

            fresh.delete_ledger(ledger_id)
            fresh.delete_ledger(other)
            assert fresh.collect_garbage(dry_run=False).is_complete
            left = [
                name
                for b in cluster.roots
                for i in (ledger_id, other)
                for name in files(cluster, b, i)
            ]
            assert left == []
    finally:
        cluster.close()


def files(cluster: MixedCluster, bookie: str, ledger_id: int) -> list[str]:
    """Objects of a ledger in a bookie's bucket, as the server has them."""
    names = cluster.server.objects(cluster.bucket(bookie))
    return [name for name in names if f"/ledgers/{ledger_id}-" in name]


@pytest.mark.full
def test_format_and_doctor_say_which_bookies_share_a_bucket(
    tmp_path: Path, server: S3Server, host: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = MixedCluster(tmp_path, server, host)
    bucket = server.make_bucket()
    conf = tmp_path / "conf.toml"
    conf.write_text(f"[storage]\n{as_toml(server.storage_options)}")
    call = ["--metadata-uri", cluster.uri, "bookie", "format", "--yes", "--conf", str(conf)]

    def made(bookie: str) -> str:
        root = f"s3://{bucket}/{bookie}"
        assert run([*call, "--bookie-id", bookie, "--root", root]) == 0
        return capsys.readouterr().err

    first, second = made("10.0.0.1:3181"), made("10.0.0.2:3181")
    run(["--metadata-uri", cluster.uri, "--json", "doctor", "--conf", str(conf)])
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    cluster.close()

    shared = f"10.0.0.1:3181 and 10.0.0.2:3181 share the bucket s3://{bucket}: what loses one"
    assert "share the" not in first
    assert shared in second
    told = found["bookies on one bucket"]
    assert (told["verdict"], shared in told["detail"]) == ("warning", True)
    assert "give each of them its own bucket" in told["remedy"]


def as_toml(values: dict[str, Any]) -> str:
    """As a table of TOML has it, dictionaries in it as inline ones."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key} = {text(each)}' for key, each in value.items())}}}"
        return json.dumps(value)

    return "\n".join(f"{key} = {text(value)}" for key, value in values.items())
