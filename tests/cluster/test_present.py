"""What the cluster is told to do about a bookie that is there and takes no new data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.cluster.health import Published
from spark_bookkeeper.cluster.present import present_bookie
from spark_bookkeeper.config import GIB
from spark_bookkeeper.testing.ground import Ground


@pytest.mark.parametrize(
    ("why", "said", "unsaid"),
    [
        ({"order": "it is drained"}, ["bookie set-writable"], ["make room", "bookie gc"]),
        ({"is_short": True}, ["make room", "bookie gc"], ["set-writable"]),
        ({"order": "new disk", "is_short": True}, ["set-writable", "make room"], []),
        ({"order": "was full; space is short"}, ["set-writable"], ["make room"]),
        ({"write_error": "EROFS"}, ["log of its agent"], ["set-writable", "make room"]),
    ],
)
def test_the_remedy_of_a_readonly_bookie_is_that_of_its_reason(
    tmp_path: Path, why: dict[str, Any], said: list[str], unsaid: list[str]
) -> None:
    published = replace(Published(is_short=False, free_bytes=1, total_bytes=1), **why)
    ground = Ground(tmp_path, bookies=1)
    context = ground.context
    (live,) = context.store.registrations()
    (cookie,) = context.store.cookies()
    told = replace(live, is_readonly=True, properties=published.properties)

    found = present_bookie(context, told, cookie.value, None, metadata_only=True)

    assert found.verdict == "warning"
    assert str(published.readonly_reason) in found.detail
    assert [word for word in said if word not in (found.remedy or "")] == []
    assert [word for word in unsaid if word in (found.remedy or "")] == []


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
