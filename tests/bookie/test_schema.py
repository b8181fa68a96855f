"""Names in a bookie's storage."""

from __future__ import annotations

import pytest

from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.schema import ledger_of


def test_the_name_of_a_directory_tells_the_ledger() -> None:
    assert ledger_of("7-n1") == LedgerKey(7, "n1")
    assert ledger_of("7-" + "n" * 200) == LedgerKey(7, "n" * 200)


@pytest.mark.parametrize("name", ["", "7", "7-", "-n1", "x-n1", "7-n-1", "7-n.", "7-" + "n" * 201])
def test_no_other_name_does_and_none_stops_who_lists_them(name: str) -> None:
    assert ledger_of(name) is None
