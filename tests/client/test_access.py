"""A client that no bookie's storage lets in is told what it lacks, and not to repair bookies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import (
    NO_ACCESS,
    AppendFailedError,
    BookieUnavailableError,
    BookKeeperError,
    EntryUnreadableError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from tests.worlds import USUAL, written


def refuse(place: str, operation: str, path: str) -> None:
    if place != METADATA:
        raise BookieUnavailableError(f"{path} ({NO_ACCESS})", bookie_id=place)


def read(client: ClientContext, ledger_id: LedgerId) -> object:
    return list(lifecycle.open_ledger(client, ledger_id).entries())


def append(client: ClientContext, _: LedgerId) -> object:
    return lifecycle.create_ledger(client, USUAL).append(b"x")


@pytest.mark.parametrize(
    ("call", "is_closed", "error"),
    [
        (read, True, EntryUnreadableError),
        (read, False, RecoveryUndecidedError),
        (append, True, AppendFailedError),
    ],
)
def test_who_is_refused_everywhere_is_told_to_give_storage_options(
    inline_ground: Ground,
    call: Callable[[ClientContext, LedgerId], object],
    is_closed: bool,
    error: type[BookKeeperError],
) -> None:
    ledger_id = written(inline_ground, 2, close=is_closed).ledger_id

    with pytest.raises(error) as caught:
        call(inline_ground.client(InlineRuntime(), refuse), ledger_id)

    said = str(caught.value)
    assert "give this program the storage_options of that storage" in said
    assert "bring" not in said
    assert "bookie start" not in said
