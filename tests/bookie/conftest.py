"""What the tests of the slot log share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from spark_bookkeeper.bookie.partition import format_partition
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from spark_bookkeeper.testing.s3 import S3Server
from spark_bookkeeper.testing.slotlog import BOOKIE_ID, Bookie


@pytest.fixture
def token() -> Callable[[], str]:
    """Names never used before."""
    numbers = itertools.count()
    return lambda: f"token{next(numbers)}"


@pytest.fixture
def bookie(token: Callable[[], str]) -> Bookie:
    """A bookie that has just been formatted."""
    disk = MemoryDisk(BOOKIE_ID)
    marker = format_partition(
        MemoryStorage(disk), BOOKIE_ID, "cluster", token=token, is_probe_required=False
    )
    return Bookie(disk, marker)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests that leave it running."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with S3Server() as server:
        yield server
