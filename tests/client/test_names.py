"""Ledgers by their names, and without waiting for them."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.names import ledger_called
from spark_bookkeeper.client.views import ledgers_table
from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLedgerError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime, begin
from spark_bookkeeper.testing.ground import Ground


def named(ground: Ground, name: str | None) -> int:
    labels = lifecycle.labels_of(None, name=name)
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), labels=labels) as writer:
        return writer.ledger_id


def test_a_name_that_one_ledger_has_is_as_good_as_its_id(ground: Ground) -> None:
    orders, _, others = named(ground, "orders"), named(ground, None), named(ground, "7")

    assert ledger_called(ground.context, "orders") == orders
    assert ledger_called(ground.context, "7") == others
    assert ledger_called(ground.context, orders) == orders


def test_the_table_of_ledgers_has_the_labels_that_they_are_found_by(ground: Ground) -> None:
    labels = lifecycle.labels_of({"shop": b"7"}, name="orders", owner="nightly")
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), labels=labels):
        pass
    named(ground, None)

    rows = ledgers_table(ground.context).to_pylist()

    assert [(row["name"], row["owner"]) for row in rows] == [("orders", "nightly"), (None, None)]


def test_a_name_that_several_have_is_refused_with_their_ids(ground: Ground) -> None:
    ids = [named(ground, "orders") for _ in range(2)]

    with pytest.raises(InvalidArgumentError, match=f"2 ledgers .* 'orders'.*: {ids[0]}, {ids[1]}"):
        ledger_called(ground.context, "orders")
    for _ in range(12):
        named(ground, "orders")
    with pytest.raises(InvalidArgumentError, match=r"14 ledgers .*, \.\.\."):
        ledger_called(ground.context, "orders")


def test_a_name_that_none_has_is_said_to_be_none(ground: Ground) -> None:
    with pytest.raises(NoSuchLedgerError, match="no ledger with the name 'orders'"):
        ledger_called(ground.context, "orders")
    with pytest.raises(NoSuchLedgerError, match="asked for by the number 7, without"):
        ledger_called(ground.context, "7")


def test_what_goes_on_beside_gives_its_result_or_its_error() -> None:
    runtime, go_on = ThreadRuntime(), Event()

    def fail() -> None:
        raise NoSuchLedgerError("gone", ledger_id=7)

    future: Future[bool] = begin(runtime, "wait", lambda: go_on.wait(60))
    assert not future.done()
    go_on.set()

    assert future.result(60)
    assert isinstance(begin(runtime, "fail", fail).exception(60), NoSuchLedgerError)
