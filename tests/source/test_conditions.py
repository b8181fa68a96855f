"""What Spark is told of an error, which it shows with all of its traceback."""

from __future__ import annotations

import traceback

import pytest

from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLedgerError
from spark_bookkeeper.source.conditions import told


def test_an_error_has_its_condition_and_two_frames_and_no_cause() -> None:
    def work() -> None:
        with told():
            try:
                raise KeyError("foreign")
            except KeyError as error:
                raise NoSuchLedgerError("there is no ledger 7", ledger_id=7) from error

    with pytest.raises(NoSuchLedgerError) as caught:
        work()

    assert str(caught.value) == "[BOOKKEEPER_NO_SUCH_LEDGER] there is no ledger 7"
    assert caught.value.ledger_id == 7
    shown = "".join(traceback.format_exception(caught.value))
    assert "KeyError" not in shown
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)[1:]] == [
        "work",
        "__exit__",
    ]


def test_an_error_that_was_told_is_not_told_again() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^\[BOOKKEEPER_INVALID_ARGUMENT\] wrong$"):
        with told(), told():
            raise InvalidArgumentError("wrong")
    with pytest.raises(KeyError), told():
        raise KeyError
