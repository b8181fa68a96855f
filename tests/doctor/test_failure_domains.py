"""Bookies that would be lost together are noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import open_root
from spark_bookkeeper.doctor import failure_domains as sharing
from spark_bookkeeper.doctor.failure_domains import Place, Shared, place_of, shared, shared_with
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage

A, B, C = (BookieId(f"10.0.0.{n}:3181") for n in (1, 2, 3))
A_TOO = BookieId("10.0.0.1:3182")


def test_bookies_on_their_own_share_nothing() -> None:
    places = {
        A: Place("file:///srv/bookie", "sda"),
        B: Place("file:///srv/bookie"),
        C: Place("s3://one/bookies/3"),
    }

    assert shared(places) == []


def test_two_directories_of_one_disk_are_told_once() -> None:
    places = {A: Place("file:///srv/1", "sda"), A_TOO: Place("file:///srv/2", "sda")}

    assert shared(places) == [Shared("disk", "sda", (A, A_TOO))]


def test_two_disks_of_one_machine_share_the_machine() -> None:
    places = {A: Place("file:///srv/1", "sda"), A_TOO: Place("file:///srv/2", "sdb")}

    assert shared(places) == [Shared("machine", "10.0.0.1", (A, A_TOO))]


def test_two_prefixes_of_one_bucket_share_it_whoever_serves_them() -> None:
    places = {A: Place("s3://one/1"), B: Place("s3://one/2"), C: Place("gs://one/3")}

    assert shared(places) == [Shared("bucket", "s3://one", (A, B))]
    assert shared_with(C, places) == []
    assert str(shared(places)[0]) == f"{A} and {B} share the bucket s3://one"


def test_only_a_cluster_on_the_loopback_address_is_for_trying() -> None:
    first, second = BookieId("127.0.0.1:3181"), BookieId("127.0.0.1:3182")

    assert Shared("disk", "sda", (first, second)).is_for_trying
    assert not Shared("disk", "sda", (first, A)).is_for_trying


def test_a_disk_is_told_only_where_the_marker_says_whose_it_is(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    disk = sharing._disk(str(tmp_path))

    assert place_of(Partition(storage), A) == Place(storage.uri)
    assert place_of(Partition(storage), A, is_new=True) == Place(storage.uri, disk)
    Partition(storage).format(A, "cluster", token=ThreadRuntime().token)
    assert place_of(Partition(storage), A) == Place(storage.uri, disk)
    assert place_of(Partition(storage), B) == Place(storage.uri)
    assert place_of(Partition(MemoryStorage(MemoryDisk())), A).disk is None


def test_a_storage_that_hangs_is_not_seen_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MARKER_PATH)  # nobody ever writes to it
    storage = open_root(str(tmp_path), ThreadRuntime(), ClientConfig(bookie_timeout_ms=300))

    assert place_of(storage, A) == Place(storage.uri)


@pytest.mark.parametrize("is_partition", [True, False])
def test_partitions_of_one_disk_have_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_partition: bool
) -> None:
    number = os.stat(tmp_path).st_dev
    disk = tmp_path / "devices" / "sda"
    place = disk / "sda1"
    place.mkdir(parents=True)
    if is_partition:
        (place / "partition").write_text("1\n")
    links = tmp_path / "block"
    links.mkdir()
    (links / f"{os.major(number)}:{os.minor(number)}").symlink_to(place)
    monkeypatch.setattr(sharing, "_DEVICES", links)

    assert sharing._disk(str(tmp_path)) == ("sda" if is_partition else "sda1")


def test_a_root_that_is_no_uri_says_nothing_and_stops_nobody() -> None:
    places = {BookieId("a:1"): Place("x://[junk"), BookieId("b:1"): Place("x://[junk")}

    assert list(shared(places)) == []
