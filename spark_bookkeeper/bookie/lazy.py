"""A value that is computed at its first use.

Up to Python 3.11, ``functools.cached_property`` holds one lock for all instances of a class while
it computes, so threads with different ledgers would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  (used as a decorator, like ``property``)
    """``functools.cached_property`` without the lock, for values that any thread may compute.

    Two threads that read it at the same time may both compute it; they get equal values.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> T:
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # Python finds it there first from now on
        return value


def given_of(instance: Any) -> dict[str, Any]:
    """Return the fields that a dataclass was made from, without lazy values, to pickle them."""
    return {each.name: getattr(instance, each.name) for each in fields(instance) if each.init}
