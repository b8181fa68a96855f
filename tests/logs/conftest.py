"""A log on a ground, and how to look at one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Final

import pytest

from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

USUAL: Final = LogOptions(Quorum(3, 3, 2))


@pytest.fixture
def log(ground: Ground) -> Log:
    return create_log(ground.context, "orders", USUAL)


def payloads(log: Log, start: str | None = None, end: str | None = None) -> list[bytes]:
    return [entry.payload for entry in log.entries(start, end)]


def states(ground: Ground, log: Log) -> list[str]:
    """Of its ledgers, in their order."""
    return [ground.context.store.read_ledger(i).value.state.name for i in log.ledgers()]


def remove_files(
    ground: Ground, ledger_id: LedgerId, bookies: Iterable[BookieId] | None = None
) -> None:
    """Of a ledger, on these bookies or on all."""
    for bookie in ground.bookie_ids if bookies is None else bookies:
        for files in ground.root(bookie).glob(f"ledgers/{ledger_id}-*"):
            shutil.rmtree(files)
