"""The one loop that changes a value in the metadata store: read, step, write, repeat.

A change is a pure step "old value -> new value". What if somebody else changed the value
first? Then the step is asked again, with what is there now. What if the answer to a write was
lost? Then the value is read again and compared with what was meant (SLOT-LOG rule R14); only
when it is something else is the step asked again.

Hence a step must know its own result when it meets it: given a value that already holds its
change, or the change of somebody who was faster, it returns ``None`` or the value itself, or
raises the error that the caller should see.

A new kind of value needs a ``Cell``: how it is read, and how it is written.

Source: BookKeeper 4.17 ``client/MetadataUpdateLoop``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from spark_bookkeeper.errors import MetadataUnavailableError, VersionConflictError
from spark_bookkeeper.metadata.store import Versioned

T = TypeVar("T")

ABSENT: Final = -1
"""The version of what is not there yet; its value is what the cell gives to begin with."""

CONFLICTS_MAX: Final = 100
"""Lost races after which the loop gives up: each was won by somebody, so more are a fault."""

UNKNOWN_MAX: Final = 3
"""Lost answers after which the loop gives up; the store has retried each of them itself."""


class Cell(Protocol[T]):
    """One value in the metadata store, under compare-and-swap."""

    def read(self) -> Versioned[T]:
        """What is there now, with version ``ABSENT`` where nothing is.

        Raises:
            MetadataUnavailableError: no answer. Whatever else it raises ends the loop, and goes
                to the caller: for one, that what was meant is gone.
        """

    def write(self, new: T, old: Versioned[T]) -> Versioned[T]:
        """Put ``new`` where ``old`` was read, and return it with its version.

        Raises:
            VersionConflictError: something else is there by now; nothing was written.
            MetadataUnavailableError: it may or may not have been written.
        """


def change(
    cell: Cell[T], step: Callable[[T], T | None], *, known: Versioned[T] | None = None
) -> Versioned[T]:
    """Change a value by a pure step, and return what is stored afterwards.

    Args:
        cell: the value.
        step: old value to new value; ``None``, or an equal one, means that there is nothing to
            write. It may be asked several times, each time with the value that it would replace.
            Whatever it raises goes to the caller, and nothing is written.
        known: a value that the caller has read; saves the first read, and costs nothing when
            it turns out to be old.

    Raises:
        VersionConflictError: it kept changing (``CONFLICTS_MAX`` times).
        MetadataUnavailableError: the change may or may not have been made.
    """
    current = known if known is not None else cell.read()
    conflicts = unknown = 0
    doubt: str | None = None  # not the error: with its frames it would keep itself alive
    while True:
        intended = step(current.value)
        if intended is None or _holds(current, intended):
            return current
        try:
            return cell.write(intended, current)
        except VersionConflictError:
            conflicts += 1
            if conflicts == CONFLICTS_MAX:
                raise
        except MetadataUnavailableError as error:
            doubt = error.message
            unknown += 1
            if unknown == UNKNOWN_MAX:
                raise
        try:
            current = cell.read()
        except MetadataUnavailableError:
            if doubt is not None:  # then the caller is told of the change, and not of the read
                raise MetadataUnavailableError(doubt) from None
            raise
        # After a lost answer this is our own write, or the same change by somebody else. After
        # a conflict it can only be the latter; either way nothing is left to be done.
        if _holds(current, intended):
            return current


def _holds(found: Versioned[T], value: T) -> bool:
    return found.version != ABSENT and found.value == value
