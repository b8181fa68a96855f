"""Hooks of a ground that do something at operations of one kind."""

from __future__ import annotations

from collections.abc import Callable, Container
from copy import copy
from itertools import count

from spark_bookkeeper.errors import BookieUnavailableError, MetadataUnavailableError

NO_ANSWER = MetadataUnavailableError("no answer")


class At:
    """A hook that raises an error, or calls a function, at operations of one name, or of any.

    ``met`` has the paths of all of them, also of those at which nothing was to happen.

    Args:
        on: the bookie, or ``METADATA``; otherwise it does not matter where.
        path: the path, if not any.
        within: a part of the path.
        only: at which of them it happens, counted from 0; otherwise at each.
    """

    def __init__(
        self,
        operation: str | None,
        what: BaseException | Callable[[], object],
        *,
        on: str | None = None,
        path: str | None = None,
        within: str = "",
        only: Container[int] | None = None,
    ) -> None:
        self.met: list[str] = []
        self._wanted = operation, on, path
        self._within = within
        self._what = what
        self._only = only
        self._numbers = count()

    def __call__(self, place: str, operation: str, path: str) -> None:
        met = zip(self._wanted, (operation, place, path), strict=True)
        if self._within not in path or not all(wanted in (None, it) for wanted, it in met):
            return
        self.met.append(path)
        if self._only is not None and next(self._numbers) not in self._only:
            return
        if isinstance(self._what, BaseException):
            raise copy(self._what)  # one that was raised knows by whom
        self._what()


def silent(bookie: str, operation: str | None = None, *, within: str = "") -> At:
    """No such operation of this bookie has an answer."""
    error = BookieUnavailableError("it does not answer", bookie_id=bookie)
    return At(operation, error, on=bookie, within=within)
