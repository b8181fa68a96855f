"""What the cluster is told to do about a bookie that is there and takes no new data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.agent.health import Observation, Published
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import GIB
from spark_bookkeeper.doctor.live_bookie import present_bookie
from spark_bookkeeper.errors import BookieUnavailableError, MetadataFormatError
from spark_bookkeeper.metadata.store import READONLY_BELOW
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.memory_store import MemoryStore


@pytest.mark.parametrize(
    ("why", "verdict", "said", "unsaid"),
    [
        ({"order": "drained"}, "warning", ["bookie set-writable"], ["make room", "bookie gc"]),
        ({"is_short": True}, "warning", ["make room", "bookie gc"], ["set-writable"]),
        ({"is_short": True, "is_full": True}, "problem", ["make room", "bookie gc"], []),
        ({"order": "new", "is_short": True}, "warning", ["set-writable", "make room"], []),
        ({"order": "was full; space is short"}, "warning", ["set-writable"], ["make room"]),
        (
            {"write_error": "Read-only file system"},
            "problem",
            ["log of its agent"],
            ["set-writable", "make room"],
        ),
    ],
)
def test_the_remedy_of_a_readonly_bookie_is_that_of_its_reason(
    tmp_path: Path, why: dict[str, Any], verdict: str, said: list[str], unsaid: list[str]
) -> None:
    is_short = why.pop("is_short", False)
    published = Published(is_short, Observation(free_bytes=1, total_bytes=1, **why))
    ground = Ground(tmp_path, bookies=1)
    context = ground.context
    (live,) = context.store.registrations()
    (cookie,) = context.store.cookies()
    told = replace(live, is_readonly=True, properties=published.properties)

    found = present_bookie(context, told, cookie.value, None, metadata_only=True)

    assert found.verdict == verdict
    assert str(published.readonly_reason) in found.detail
    assert [word for word in said if word not in (found.remedy or "")] == []
    assert [word for word in unsaid if word in (found.remedy or "")] == []


@pytest.mark.parametrize(
    ("readonly_below", "free_gib", "verdict"),
    [(None, 1.5, "warning"), (GIB // 2, 1.5, "ok"), (GIB // 2, 0.5, "warning"), (0, 0.5, "ok")],
)
def test_space_is_short_by_the_limit_of_the_bookies_own_agent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    readonly_below: int | None,
    free_gib: float,
    verdict: str,
) -> None:
    ground = Ground(tmp_path, bookies=1)
    (live,) = ground.context.store.registrations()
    (cookie,) = ground.context.store.cookies()
    told = {} if readonly_below is None else {READONLY_BELOW: str(readonly_below)}
    space = int(free_gib * GIB), 3 * GIB
    monkeypatch.setattr(LocalStorage, "space", lambda _: space)

    found = present_bookie(
        ground.context, replace(live, properties=told), cookie.value, None, metadata_only=False
    )

    assert found.verdict == verdict


def test_a_disk_that_became_readonly_is_told_as_its_agent_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, bookies=1)
    (live,) = ground.context.store.registrations()
    (cookie,) = ground.context.store.cookies()
    published = Published(False, Observation(write_error="Read-only file system"))
    told = replace(live, is_readonly=True, properties=published.properties)

    def refuse(*_: object) -> None:
        raise BookieUnavailableError("Read-only file system", bookie_id=live.bookie_id)

    monkeypatch.setattr(Partition, "probe", refuse)
    found = present_bookie(ground.context, told, cookie.value, None, metadata_only=False)

    assert found.verdict == "problem"
    assert "it cannot be written: Read-only file system" in found.detail
    assert "from here" not in found.detail
    assert "--storage-option" not in str(found.remedy)


def test_a_cookie_that_cannot_be_decoded_is_not_told_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, bookies=1)
    (live,) = ground.context.store.registrations()

    def junk(_: object, bookie_id: str) -> None:
        raise MetadataFormatError(f"the cookie of {bookie_id} is junk", path="cookies")

    monkeypatch.setattr(MemoryStore, "read_cookie", junk)
    found = present_bookie(ground.context, live, None, None, metadata_only=True)

    assert (found.verdict, "is junk" in found.detail) == ("problem", True)
    assert "is gone" not in found.detail
    assert "remove that node" in str(found.remedy)


def test_a_bookie_with_few_inodes_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "space", lambda _: (500 * GIB, 1_000 * GIB))
    ground = Ground(tmp_path, bookies=1)
    (live,), (cookie,) = ground.context.store.registrations(), ground.context.store.cookies()

    def verdict(free_inodes: int) -> str:
        monkeypatch.setattr(LocalStorage, "inodes", lambda _: (free_inodes, 60_000_000))
        found = present_bookie(ground.context, live, cookie.value, None, metadata_only=False)
        assert f"and {free_inodes:,} of 60,000,000 inodes" in found.detail
        return found.verdict

    assert (verdict(30_000_000), verdict(100_000)) == ("ok", "warning")
