"""What the cluster is told to do about a bookie that is there and takes no new data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.cluster.health import Published
from spark_bookkeeper.cluster.present import present_bookie
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
