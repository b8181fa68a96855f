"""Tests for which hypothesis draws few examples in the plain run, and more in the full one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from tests.worlds import first_of

Test = Callable[[int], None]


def drawn(
    *strategies: SearchStrategy, plain: int, full: int
) -> Callable[[Callable[..., None]], Test]:
    """Make a test of a function: so many examples in the plain run, and so many as ``full``."""

    def made(judge: Callable[..., None]) -> Test:
        def test(examples: int) -> None:
            settings(max_examples=examples)(given(*strategies)(judge))()

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(test, name, getattr(judge, name))
        return pytest.mark.parametrize("examples", first_of(plain, full))(test)

    return made
