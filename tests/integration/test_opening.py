"""``BookKeeper`` opens, creates and deletes ledgers by name, and without waiting."""

from __future__ import annotations

import pytest

from spark_bookkeeper.errors import InvalidArgumentError, LedgerFencedError, NoSuchLedgerError
from spark_bookkeeper.session import BookKeeper

pytestmark = pytest.mark.integration


def test_a_ledger_is_opened_by_its_name_and_beside_its_caller(bk: BookKeeper) -> None:
    writer = bk.create_ledger_async(name="by name").result(60)
    writer.append(b"a")
    writer.append(b"b")

    follower = bk.open_ledger_no_recovery_async("by name").result(60)
    assert follower.ledger_id == writer.ledger_id
    assert follower.last_add_confirmed >= 0
    reader = bk.open_ledger_async("by name").result(60)
    assert [entry.payload for entry in reader.entries()] == [b"a", b"b"]
    with pytest.raises(LedgerFencedError):
        writer.append(b"c")
    assert bk.delete_ledger_async(writer.ledger_id).result(60).state == "CLOSED"
    assert isinstance(bk.open_ledger_async("by name").exception(60), NoSuchLedgerError)


def test_a_name_that_several_have_opens_none(bk: BookKeeper) -> None:
    ids = []
    for _ in range(2):
        with bk.create_ledger(name="twice") as writer:
            ids.append(writer.ledger_id)

    for opened in (bk.open_ledger, bk.open_ledger_no_recovery):
        with pytest.raises(InvalidArgumentError, match=f"{ids[0]}, {ids[1]}"):
            opened("twice")
