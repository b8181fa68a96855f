"""The result for one item of a batch."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

from spark_bookkeeper.errors import BookKeeperError

T = TypeVar("T")

Answer: TypeAlias = T | BookKeeperError
"""The result for one item, or the error that it failed with."""


def value_of(answer: Answer[T]) -> T:
    """Return the result, or raise the error if there is one."""
    if isinstance(answer, BookKeeperError):
        raise answer
    return answer
