"""Values of another type than a call asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.arguments import LABEL_CHARACTERS, check_name, whole_number


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_any_make_are_ints_afterwards(value: Any) -> None:
    assert type(whole_number("first", value)) is int


@pytest.mark.parametrize("value", [True, 3.0, "3", None, [3]])
def test_anything_else_is_refused_by_name_and_value(value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        whole_number("first", value)
    assert caught.value.message.startswith(f"first={value!r} ")


def test_the_least_there_can_be_is_named() -> None:
    assert whole_number("size", 1, 1) == 1
    with pytest.raises(InvalidArgumentError, match="size=0 is below 1"):
        whole_number("size", 0, 1)


@pytest.mark.parametrize(
    "name",
    [
        *("flights", "Zürich 2026 ☃", "x" * LABEL_CHARACTERS),
        *("東京\u3000支店", "کتاب\u200cها", "👨\u200d👩\u200d👧", "10\u00a0km"),
    ],
)
def test_a_name_is_what_lists_can_show(name: str) -> None:
    check_name("name", name)


@pytest.mark.parametrize(
    "name",
    [
        "x" * (LABEL_CHARACTERS + 1),
        "a\u202efdp",
        "a\u2067b",
        "a\nb",
        "a\u2028b",
        "a\x1b[2J",
        "\ud800",
        " ",
        "",
        7,
    ],
    ids=[
        "long",
        "turned round",
        "isolated",
        "two lines",
        "a separator of lines",
        "an escape",
        "half a character",
        "blank",
        "",
        "no text",
    ],
)
def test_a_name_that_a_line_cannot_show_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="name=") as caught:
        check_name("name", name)
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()
