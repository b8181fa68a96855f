"""``BookKeeper`` opens, creates and deletes ledgers by name, and without waiting."""

from __future__ import annotations

import pyarrow as pa
import pytest
from prometheus_client import generate_latest
from typing_extensions import override

from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.errors import InvalidArgumentError, LedgerFencedError, NoSuchLedgerError
from spark_bookkeeper.session import BookKeeper
from tests.support.rows import wait_for_every_copy

pytestmark = pytest.mark.integration


def test_a_ledger_is_opened_by_its_name_and_beside_its_caller(bk: BookKeeper) -> None:
    writer = bk.create_ledger_async(name="by name").result(60)
    writer.append(b"a")
    writer.append(b"b")
    wait_for_every_copy(writer)

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


class WithDefaults(BookKeeper):
    """Somebody's own: it knows the password of their ledgers, and hides those of others."""

    @override
    def open_ledger(self, ledger_id: int | str, password: bytes = b"") -> LedgerReader:
        return super().open_ledger(ledger_id, password or b"ours")

    @override
    def ledgers_arrow(self, *, ask_bookies: bool = False) -> pa.Table:
        return super().ledgers_arrow(ask_bookies=ask_bookies).slice(0, 0)


def test_what_a_subclass_does_otherwise_is_so_in_every_call(
    bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bk.create_ledger(password=b"ours") as writer:
        writer.append(b"a")
    shown: list[pa.Table] = []
    with WithDefaults(bk.connection, runs_jobs_here=True) as mine:
        monkeypatch.setattr(mine.frames, "from_arrow", shown.append)
        opened = mine.open_ledger_async(writer.ledger_id).result(60)
        assert [entry.payload for entry in opened.entries()] == [b"a"]
        mine.ledgers()
    assert [table.num_rows for table in shown] == [0]


def test_what_it_counted_can_be_served_with_the_numbers_of_a_program(bk: BookKeeper) -> None:
    assert all(name.encode() in generate_latest(bk.metrics_registry) for name in bk.metrics())
