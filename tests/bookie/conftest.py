"""What the tests of the slot log share."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from spark_bookkeeper.bookie.format import format_partition
from spark_bookkeeper.bookie.memory import MemoryDisk, MemoryStorage
from spark_bookkeeper.testing.slotlog import BOOKIE_ID, Bookie


@pytest.fixture
def token() -> Callable[[], str]:
    """Names never used before."""
    numbers = itertools.count()
    return lambda: f"token{next(numbers)}"


@pytest.fixture
def bookie(token: Callable[[], str]) -> Bookie:
    """A bookie that has just been formatted."""
    disk = MemoryDisk("b1")
    marker = format_partition(
        MemoryStorage(disk), BOOKIE_ID, "cluster", token=token, is_probe_required=False
    )
    return Bookie(disk, marker)
