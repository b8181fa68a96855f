"""Names that stand in a path."""

from __future__ import annotations

from typing import Any

import pytest

from spark_bookkeeper.protocol.plain_names import has_names_only, plain_name


@pytest.mark.parametrize(
    "name", ["a-0-0.arrow", "a.0123456789abcdef-1.arrow", "A_b", "7", "a" * 200]
)
def test_a_plain_name_is_what_it_was(name: str) -> None:
    assert plain_name("a part", name, "._-") == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../a", "a/b", "/a", "a/", "a\\b", ".a", "-a", "_a", "a b", "a\nb", "a\0"),
        *("a*", "a?", "a%2fb", "a::b", "ä", "٣", "a\u202e", "a" * 201, None, 7, b"a", ["a"]),
    ],
)
def test_what_is_no_plain_name_is_refused_with_its_rule(name: Any) -> None:
    with pytest.raises(ValueError, match=r"a part is .*part of a path.*letters and digits"):
        plain_name("a part", name, "._-")


def test_signs_are_refused_where_none_belong() -> None:
    assert plain_name("the nonce", "a1") == "a1"
    with pytest.raises(ValueError, match=r"the nonce is 'a.1'"):
        plain_name("the nonce", "a.1")


def test_a_path_of_names_goes_down_only() -> None:
    assert all(map(has_names_only, ("a", "a/b", "a/.b/c..d", "...", "a b/*", "%2e%2e")))
    assert not any(
        map(has_names_only, ("", "/a", "a/", "a//b", ".", "a/./b", "../a", "a/..", "\0"))
    )
