"""What the cluster is to be told, from what is seen of a bookie's storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from spark_bookkeeper.agent.health import (
    Observation,
    Published,
    Register,
    Stay,
    Unregister,
    decide,
    observe,
)
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.storage.storage import Content
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.worlds import there

CONFIG = BookieConfig(readonly_below_free_bytes=100, writable_above_free_bytes=200)
TOTAL = 1_000


def seen(free_bytes: int | None, total_bytes: int | None = TOTAL, **more: Any) -> Observation:
    return Observation(None, free_bytes=free_bytes, total_bytes=total_bytes, **more)


def registers(
    is_short: bool, free_bytes: int | None, total_bytes: int | None = TOTAL, **more: Any
) -> Register:
    return Register(Published(is_short, seen(free_bytes, total_bytes, **more)))


WELL = seen(500)
WRITABLE = Published(False, seen(500))
READONLY = Published(True, seen(50))
UNNAMED = Published(False, seen(150, lacks_cookie=True))
NAMELESS: Any = {"lacks_cookie": True}
UNWRITABLE: Any = {"write_error": "I/O error"}
FEW_INODES = seen(500, inodes=(99, TOTAL))
MANY_FREE = Published(False, seen(500, inodes=(800, TOTAL)))


@pytest.mark.parametrize(
    ("published", "observation", "action"),
    [
        (None, WELL, Register(WRITABLE)),
        (WRITABLE, WELL, Stay()),
        (WRITABLE, Observation("no answer"), Unregister("no answer")),
        (READONLY, Observation("no answer"), Unregister("no answer")),
        (None, Observation("no answer"), Stay()),
        # Space: two marks, and between them a bookie stays what it is.
        (WRITABLE, seen(100), registers(False, 100)),
        (WRITABLE, seen(99), registers(True, 99)),
        (READONLY, seen(199), registers(True, 199)),
        (READONLY, seen(200), registers(False, 200)),
        (None, seen(150), registers(False, 150)),
        (None, seen(50), registers(True, 50)),
        # A write that was refused says more than a number.
        (WRITABLE, seen(500, is_full=True), registers(True, 500, is_full=True)),
        (READONLY, seen(50, is_full=True), registers(True, 50, is_full=True)),
        (Published(True, seen(50, is_full=True)), seen(50, is_full=True), Stay()),
        # A clock that is set is news, and no second of it.
        (WRITABLE, seen(500, clock_ahead_s=61), registers(False, 500, clock_ahead_s=61)),
        (Published(False, seen(500, clock_ahead_s=61)), seen(500, clock_ahead_s=62), Stay()),
        (Published(False, seen(500, clock_ahead_s=61)), seen(500), registers(False, 500)),
        # Without its cookie it takes nothing new; what is said of its space stays as it is.
        (WRITABLE, seen(150, **NAMELESS), Register(UNNAMED)),
        (UNNAMED, seen(150), registers(False, 150)),
        (UNNAMED, seen(99), registers(True, 99)),
        (READONLY, seen(150, **NAMELESS), registers(True, 150, **NAMELESS)),
        (Published(True, seen(150, **NAMELESS)), seen(150), registers(True, 150)),
        (UNNAMED, seen(99, **NAMELESS), registers(True, 99, **NAMELESS)),
        # What cannot be written can be read, and is not lost.
        (WRITABLE, seen(500, **UNWRITABLE), registers(False, 500, **UNWRITABLE)),
        (Published(False, seen(500, **UNWRITABLE)), WELL, Register(WRITABLE)),
        # Inodes: each stands for its share of the space.
        (WRITABLE, seen(500, inodes=(100, TOTAL)), registers(False, 500, inodes=(100, TOTAL))),
        (WRITABLE, FEW_INODES, Register(Published(True, FEW_INODES, lacks_inodes=True))),
        (WRITABLE, seen(50, inodes=(99, TOTAL)), registers(True, 50, inodes=(99, TOTAL))),
        (Published(True, FEW_INODES, lacks_inodes=True), seen(500, inodes=(149, TOTAL)), Stay()),
        (None, seen(500, inodes=(200, TOTAL)), registers(False, 500, inodes=(200, TOTAL))),
        # Small changes of free space are no news, large ones are.
        (WRITABLE, seen(460), Stay()),
        (WRITABLE, seen(440), registers(False, 440)),
        (MANY_FREE, seen(500, inodes=(760, TOTAL)), Stay()),
        (MANY_FREE, seen(500, inodes=(740, TOTAL)), registers(False, 500, inodes=(740, TOTAL))),
        # Buckets have no end.
        (None, Observation(), registers(False, None, None)),
        (Published(False, Observation()), Observation(), Stay()),
    ],
)
def test_the_decision_follows_from_what_is_seen_now(
    published: Published | None, observation: Observation, action: Stay | Register | Unregister
) -> None:
    assert decide(published, observation, CONFIG) == action


def test_what_is_short_is_named() -> None:
    assert Published(True, WELL).readonly_reason == "space is short"
    assert Published(True, WELL, lacks_inodes=True).readonly_reason == "inodes are short"


def formatted(*, has_directories: bool) -> tuple[MemoryDisk, Marker]:
    disk = MemoryDisk()
    disk.has_directories = has_directories
    marker = Partition(MemoryStorage(disk)).format(
        "b:1", "cluster", token=lambda: "t", is_probe_required=False
    )
    return disk, marker


@pytest.mark.parametrize("has_directories", [True, False])
def test_a_partition_that_lost_its_ledgers_and_not_its_marker_is_not_well(
    has_directories: bool,
) -> None:
    disk, marker = formatted(has_directories=has_directories)
    storage = MemoryStorage(disk)
    assert observe(Partition(storage), marker, lambda: "x").problem is None
    storage.delete_directory("ledgers")

    problem = there(observe(Partition(storage), marker, lambda: "x").problem)

    assert "what it held was removed" in problem
    assert decide(WRITABLE, Observation(problem), CONFIG) == Unregister(problem)


class RepeatsPuts(MemoryStorage):
    """The client of a bucket that has lost the answer to a put, and repeats it by itself."""

    @override
    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        super().put_if_absent(path, data)
        return super().put_if_absent(path, data)


def test_storage_is_well_where_the_answer_to_a_put_was_lost() -> None:
    disk, marker = formatted(has_directories=False)

    seen = observe(Partition(RepeatsPuts(disk)), marker, lambda: "x")

    assert seen == observe(Partition(MemoryStorage(disk)), marker, lambda: "y")
    assert seen.problem is None


def test_a_bucket_that_an_older_version_formatted_is_well() -> None:
    disk, marker = formatted(has_directories=False)
    old = replace(marker, has_witness=False)
    disk.files = {MARKER_PATH: old.encode()}

    assert observe(Partition(MemoryStorage(disk)), old, lambda: "x").problem is None


@pytest.mark.parametrize(
    "change", [{"bookie_id": "c:1"}, {"incarnation": "other"}, {"instance_id": "elsewhere"}]
)
def test_a_marker_that_says_anything_else_than_before_is_noticed(change: dict[str, str]) -> None:
    disk, marker = formatted(has_directories=True)
    disk.files[MARKER_PATH] = replace(marker, **change).encode()  # type: ignore[arg-type]

    problem = there(observe(Partition(MemoryStorage(disk)), marker, lambda: "x").problem)

    assert next(iter(change.values())) in problem
