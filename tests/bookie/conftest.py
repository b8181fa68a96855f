"""What the tests of the slot log share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import pytest

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.support.slotlog import BOOKIE_ID, Bookie, Log

_NUMBERS: Final = itertools.count()


def new_token() -> str:
    """A name never used before."""
    return f"token{next(_NUMBERS)}"


@pytest.fixture
def token() -> Callable[[], str]:
    return new_token


def formatted(
    storage: Storage | None = None,
    *,
    has_directories: bool = True,
    encoding: LedgerEncoding | None = None,
) -> Bookie:
    """A bookie that has just been formatted, in memory or in another storage."""
    disk = MemoryDisk(BOOKIE_ID, has_directories=has_directories)
    marker = Partition(storage or MemoryStorage(disk)).format(
        BOOKIE_ID,
        "cluster",
        token=new_token,
        is_probe_required=False,
    )
    return Bookie(disk, marker, encoding=encoding or LedgerEncoding())


def written_slots(bookie: Bookie, count: int, *, width: int = 1) -> Log:
    """The writer of some slots with an entry in each, or with several from 0, 10, 20 ... on."""
    writer = bookie.writer()
    for slot in range(count):
        first = slot if width == 1 else slot * 10
        writer.add(slot, bookie.record(slot, first, first + width - 1))
    return writer


def format_anew(bookie: Bookie) -> None:
    """Its partition is wiped, and has another incarnation."""
    storage = MemoryStorage(bookie.disk)
    Partition(storage).wipe()
    formatted(storage)


@pytest.fixture
def bookie() -> Bookie:
    return formatted()
