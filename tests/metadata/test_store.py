"""What a registration says of a bookie's room."""

from __future__ import annotations

import pytest

from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId


@pytest.mark.parametrize(
    ("space", "inodes", "usable"),
    [
        ((500, 1000), (900, 1000), 500),
        ((500, 1000), (100, 1000), 100),
        ((500, 1000), (0, 1000), 0),
        ((0, 1000), (100, 1000), 0),
        ((500, 1000), (None, None), 500),
        ((500, 1000), (None, 1000), 500),
        ((500, None), (100, 1000), 500),
        ((None, None), (100, 1000), None),
    ],
)
def test_bytes_that_no_inode_is_left_for_are_of_no_use(
    space: tuple[int | None, int | None], inodes: tuple[int | None, int | None], usable: int | None
) -> None:
    said = Registration(BookieId("a:1"), "file:///a", "3f2a", False, "/r", *space, *inodes)
    assert said.usable_bytes == usable
