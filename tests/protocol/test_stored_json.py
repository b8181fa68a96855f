"""What was stored as JSON is read back, and everything else is one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_bookkeeper.protocol.stored_json import decoded, number, text


def size(value: Any) -> int:
    return int(value["size"]) + 1


def test_what_was_stored_is_given_to_whoever_builds_a_value_of_it() -> None:
    assert decoded('{"size": 7, "name": "é"}'.encode(), size) == 8
    assert decoded(b"[1.5, null, true]", lambda value: value) == [1.5, None, True]


JUNK = {
    "nothing": b"",
    "no text": b"\xff\xfe",
    "no JSON": b"{",
    "another form": b"[]",
    "null": b"null",
    "a field less": b"{}",
    "a field of another form": b'{"size": []}',
    "infinite": b'{"size": 1e999}',
    "below that": b'{"size": -1e999}',
    "called infinite": b'{"size": 1, "other": Infinity}',
    "no number": b'{"size": 1, "other": NaN}',
    "of 5,000 digits": b'{"size": %s}' % (b"9" * 5_000),
    "too deep": b"[" * 100_000,
    "too deep within": b'{"size": 1, "other": %s}' % (b"[" * 100_000),
}


@pytest.mark.parametrize("data", JUNK.values(), ids=JUNK)
def test_whatever_else_is_there_is_an_error_of_one_kind(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded(data, size)


def test_a_mistake_of_ours_is_not_called_junk() -> None:
    def broken(value: Any) -> int:
        raise AssertionError("mistake")

    with pytest.raises(AssertionError):
        decoded(b"1", broken)


@pytest.mark.parametrize("least", [0, -1, -(1 << 63)])
def test_numbers_are_those_that_tables_take(least: int) -> None:
    for value in (least, 0, 7, (1 << 63) - 1):
        assert number(value, least) == value
    junk: Any
    for junk in (least - 1, 1 << 63, 10**400, float("inf"), float("nan"), "x", None, []):
        with pytest.raises(ValueError, match=r"."):
            number(junk, least)


@pytest.mark.parametrize("read", [number, text])
def test_an_error_shows_little_of_what_is_there(read: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read(["x" * 10_000])

    assert len(str(caught.value)) < 100


def test_a_text_is_one() -> None:
    assert text("é") == "é"
    junk: Any
    for junk in (None, 7, [], {}):
        with pytest.raises(ValueError, match="is no text"):
            text(junk)
