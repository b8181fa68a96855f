"""Bookies in buckets, and the backup in one too: what a person types, over S3's protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.session import BookKeeper
from tests.cli.conftest import Called, caller
from tests.support.lake import save_in_table
from tests.support.mixed_cluster import MixedCluster
from tests.support.s3 import S3Server
from tests.support.sessions import connect_without_spark

pytestmark = [pytest.mark.integration, pytest.mark.s3, pytest.mark.full]

Type = Callable[..., Called]


@pytest.fixture
def clusters(
    tmp_path: Path, server: S3Server, host: EmbeddedZooKeeper
) -> Iterator[tuple[MixedCluster, MixedCluster]]:
    """One on a disk and two buckets, and an empty one in three buckets."""
    kinds = ("disk", "bucket", "bucket"), ("bucket", "bucket", "bucket")
    made = []
    for name, wanted in zip(("old", "new"), kinds, strict=True):
        (tmp_path / name).mkdir()
        made.append(MixedCluster(tmp_path / name, server, host))
        for kind in wanted:
            made[-1].start(kind)
    yield made[0], made[1]
    for cluster in made:
        cluster.close()


def at(cluster: MixedCluster, capsys: pytest.CaptureFixture[str]) -> Type:
    """Commands of the noun ``cluster`` to a cluster, with the options that reach the buckets."""
    options = cluster.server.storage_options
    endpoint = options["client_kwargs"]["endpoint_url"]
    given = (f"key={options['key']}", f"secret={options['secret']}", f"endpoint_url={endpoint}")
    call = caller(cluster.uri, capsys)

    def typed(*arguments: object) -> Called:
        extra = [word for each in given for word in ("--storage-option", each)]
        return call("--json", "cluster", *arguments, "--no-spark", *extra)

    return typed


def connect(cluster: MixedCluster) -> BookKeeper:
    return connect_without_spark(cluster.uri, storage_options=cluster.server.storage_options)


def test_buckets_are_backed_up_to_a_bucket_and_restored_to_buckets(
    clusters: tuple[MixedCluster, MixedCluster],
    server: S3Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = clusters
    on_old, on_new = at(old, capsys), at(new, capsys)
    bucket = server.make_bucket()
    uri = f"s3://{bucket}/backups/main"
    with connect(old) as bk:
        log = bk.create_log("orders")
        with log.become_writer() as writer:
            for number in range(6):
                writer.append(b"%d" % number)
                if number == 2:
                    writer.roll()
        expected = [(e.ledger_id, e.entry_id, e.payload) for e in log.entries()]

    # There is no such bucket; it is full; and then it is not.
    wrong = on_old("backup", "s3://no-such-bucket/main")
    assert (wrong.code, "s3://no-such-bucket/main" in wrong.err) == (2, True)
    server.fill(bucket)
    full = on_old("backup", uri)
    assert (full.code, f"no room for it in {uri}" in full.err) == (1, True)
    assert "make room there" in full.err
    server.make_room(bucket)
    saved = on_old("backup", uri)
    assert (saved.code, saved.json["complete"]) == (0, True)
    assert on_old("backup", uri, "--verify").json["entries"] == 0

    # So is a bucket of the empty cluster.
    narrow = next(iter(new.roots))
    server.fill(new.bucket(narrow))
    assert on_new("restore", uri, "--dry-run").code == 0
    left = on_new("restore", uri)
    assert left.code == 1
    assert narrow in left.json["rows"][0]["reason"]
    server.make_room(new.bucket(narrow))
    assert on_new("restore", uri).code == 0

    with connect(new) as bk:
        restored = bk.open_log("orders")
        assert [(e.ledger_id, e.entry_id, e.payload) for e in restored.entries()] == expected
        assert bk.check_ledgers(percentage=100).is_complete


def test_a_table_in_a_bucket_takes_a_backup_and_gives_it_back(
    clusters: tuple[MixedCluster, MixedCluster],
    server: S3Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """delta-rs writes the table; Spark would need the jars of a file system for S3."""
    old, new = clusters
    options = server.storage_options
    delta_rs = {
        "aws_access_key_id": options["key"],
        "aws_secret_access_key": options["secret"],
        "aws_endpoint_url": options["client_kwargs"]["endpoint_url"],
        "aws_region": options["client_kwargs"]["region_name"],
        "aws_allow_http": "true",
        "aws_conditional_put": "etag",
    }
    uri = f"s3://{server.make_bucket()}/lakes/main"
    with connect(old) as bk:
        log = bk.create_log("orders")
        with log.become_writer() as writer:
            for number in range(6):
                writer.append(b"%d" % number)
                if number == 2:
                    writer.roll()
            expected = [(e.ledger_id, e.entry_id, e.payload) for e in log.entries()]
            first = save_in_table(bk.context, uri, storage_options=delta_rs)
            again = save_in_table(bk.context, uri, storage_options=delta_rs)
        with pytest.raises(InvalidArgumentError, match="s3://no-such-bucket/lake"):
            save_in_table(bk.context, "s3://no-such-bucket/lake", storage_options=delta_rs)

    assert first.is_complete, first.unfinished
    assert [row.target for row in first.rows] == [uri, None]
    assert [row.entries for row in again.rows] == [0, 0]
    assert "cluster backup --table" in at(old, capsys)("backup", uri).err
    assert at(new, capsys)("restore", uri).code == 0
    with connect(new) as bk:
        restored = [(e.ledger_id, e.entry_id, e.payload) for e in bk.open_log("orders").entries()]
        assert restored == expected
