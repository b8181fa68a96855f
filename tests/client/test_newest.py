"""Whether a writer that seems gone may append all the same, by the newest entry of its ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_bookkeeper.client.read.newest import FRESH_MS, may_be_cut_off
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum

NOW = 10 * FRESH_MS
OLD, YOUNG = NOW - FRESH_MS, NOW - FRESH_MS + 1
NONE = -1


@pytest.mark.parametrize(
    ("newest", "created_ms", "may_be"),
    [
        ((7, YOUNG), OLD, True),
        ((7, NOW + FRESH_MS), OLD, True),
        ((7, OLD), OLD, False),
        ((NONE, None), YOUNG, True),
        ((NONE, None), OLD, False),
        ((None, None), OLD, True),
        ((None, OLD), OLD, True),
    ],
    ids=["young", "of a clock ahead", "old", "new and empty", "empty", "silent", "in part"],
)
def test_a_ledger_with_a_young_entry_or_of_silent_bookies_may_have_a_writer(
    newest: tuple[int | None, int | None], created_ms: int, may_be: bool
) -> None:
    fragments = (Fragment(EntryId(0), (BookieId("b:1"),)),)
    found = LedgerMetadata(Quorum(1, 1, 1), LedgerState.OPEN, fragments, ctime_ms=created_ms)

    assert may_be_cut_off(found, *newest, NOW) == may_be
    recovering = replace(found, state=LedgerState.IN_RECOVERY)
    assert not may_be_cut_off(recovering, *newest, NOW), "recovery has fenced it already"
