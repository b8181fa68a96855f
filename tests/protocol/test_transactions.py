"""Which numbered writes a log remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol import transactions
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import LogHead
from spark_bookkeeper.protocol.transactions import (
    Committed,
    MicroBatch,
    Transaction,
    Transactions,
    transaction_of,
)

START = LedgerId(0)


def after(*writes: tuple[str, int, int], begins_at: int = 0) -> Transactions:
    done = Transactions()
    for app, version, ledger in writes:
        done = done.with_last(Transaction(app, version), LedgerId(ledger), LedgerId(begins_at))
    return done


def test_a_number_that_is_not_above_the_last_of_its_application_was_done() -> None:
    done = after(("a", 3, 10), ("b", 1, 11))

    assert done.done(Transaction("a", 4)) is None
    assert done.done(Transaction("a", 3)) == Committed("a", 3, LedgerId(10))
    assert done.done(Transaction("a", 0)) == Committed("a", 3, LedgerId(10))
    assert done.done(Transaction("c", 0)) is None


def test_the_last_write_of_an_application_replaces_the_one_before() -> None:
    done = after(("a", 1, 10), ("b", 1, 11), ("a", 2, 12))

    assert [(last.app_id, last.version) for last in done.last] == [("b", 1), ("a", 2)]


def test_with_too_many_the_oldest_is_forgotten_whose_write_was_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "MOST_APPLICATIONS", 3)
    done = after(("a", 1, 10), ("b", 1, 11), ("c", 1, 12))

    made = done.with_last(Transaction("d", 1), LedgerId(13), begins_at=LedgerId(12))

    assert [last.app_id for last in made.last] == ["b", "c", "d"]
    again = done.with_last(Transaction("a", 2), LedgerId(13), begins_at=START)
    assert [last.app_id for last in again.last] == ["b", "c", "a"], "one that is known has room"


def test_with_too_many_whose_writes_are_all_there_another_application_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "MOST_APPLICATIONS", 2)
    done = after(("a", 1, 10), ("b", 1, 11))

    with pytest.raises(InvalidArgumentError, match=r"'c'.*forget_application\('a'\)"):
        done.with_last(Transaction("c", 1), LedgerId(12), begins_at=LedgerId(10))

    assert done.without("a").with_last(Transaction("c", 1), LedgerId(12), START).of("c")


def test_a_head_takes_a_ledger_and_its_number_in_one_step() -> None:
    head = LogHead("n", recent=(LedgerId(4),))

    added = head.with_ledger(LedgerId(9)).with_transaction(Transaction("a", 7))

    assert added.recent == (4, 9)
    assert added.transactions.of("a") == Committed("a", 7, LedgerId(9))
    assert LogHead("n").with_transaction(Transaction("a", 0)).transactions.of("a")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=30))
def test_whatever_is_written_each_number_goes_in_once_and_upwards(
    writes: list[tuple[str, int]],
) -> None:
    done, highest = Transactions(), dict[str, int]()
    for ledger, (app, version) in enumerate(writes):
        transaction = Transaction(app, version)
        is_done = done.done(transaction) is not None
        assert is_done == (version <= highest.get(app, -1))
        if not is_done:
            done = done.with_last(transaction, LedgerId(ledger), START)
            highest[app] = version
    assert {last.app_id: last.version for last in done.last} == highest


@pytest.mark.parametrize(
    ("version", "rows", "rows_then", "said"),
    [
        (7, 3, 3, None),
        (7, 2, 3, "has 3 rows of batch 7 .* and the batch has 2 now"),
        (7, 3, None, None),
        (7, 4, 3, "has 3 rows of batch 7 .* and the batch has 4 now"),
        (6, 0, None, "has batch 7 of application 'query', and this is batch 6"),
    ],
)
def test_a_micro_batch_that_is_not_written_is_the_last_one_with_as_many_rows(
    version: int, rows: int, rows_then: int | None, said: str | None
) -> None:
    batch, last = MicroBatch("query", version, rows), Committed("query", 7, LedgerId(1), rows_then)
    if said is None:
        batch.check_repeats(last, "orders")
        return
    with pytest.raises(InvalidArgumentError, match=rf"log 'orders' {said}.*new checkpoint") as told:
        batch.check_repeats(last, "orders")
    assert (told.value.facts["version"], told.value.facts["last_version"]) == (version, 7)


@pytest.mark.parametrize("app_id", ["", "x" * 201, "new\nline", 7, None])
def test_an_application_has_a_name_that_can_be_printed(app_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="txnAppId"):
        Transaction(app_id, 0)


@pytest.mark.parametrize("version", [-1, 1 << 63, True, "1"])
def test_a_version_is_a_whole_number_of_63_bits(version: int) -> None:
    with pytest.raises(InvalidArgumentError, match="txnVersion"):
        Transaction("a", version)


def test_both_parts_of_a_transaction_are_given_or_neither() -> None:
    assert transaction_of(None, None) is None
    assert transaction_of("a", 1) == Transaction("a", 1)
    with pytest.raises(InvalidArgumentError, match="txnAppId was given without txnVersion"):
        transaction_of("a", None)
    with pytest.raises(InvalidArgumentError, match="txnVersion was given without txnAppId"):
        transaction_of(None, 1)


def test_an_application_stands_there_once() -> None:
    with pytest.raises(InvalidArgumentError, match="two last transactions"):
        Transactions((Committed("a", 1, START), Committed("a", 2, START)))
