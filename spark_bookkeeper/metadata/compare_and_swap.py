"""The only loop that changes a value in the metadata store: read, step, write, repeat.

A change is a pure step "old value -> new value". If another client changed the value first, the
step is called again with the new value. If the answer to a write was lost, the value is read again
and compared with the intended one (SLOT-LOG rule R14); the step is called again only if they
differ.

Hence a step must recognise its own result. If a value already holds its change, or the change of a
faster client, the step returns ``None`` or the value itself, or raises the error that the caller
should see.

A new kind of value needs a ``Cell``, which defines how to read and write it.

Source: BookKeeper 4.17 ``client/MetadataUpdateLoop``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from spark_bookkeeper.errors import MetadataUnavailableError, VersionConflictError
from spark_bookkeeper.metadata.store import Versioned

T = TypeVar("T")

ABSENT: Final = -1
"""The version of a value that does not exist yet; the cell supplies the initial value."""

CONFLICTS_MAX: Final = 100
"""Lost races after which the loop gives up. Another client won each, so more indicate a fault."""

UNKNOWN_MAX: Final = 3
"""Lost answers after which the loop gives up; the store itself has retried each of them."""


class Cell(Protocol[T]):
    """One value in the metadata store, under compare-and-swap."""

    def read(self) -> Versioned[T]:
        """Return the present value; if none exists, the initial one with version ``ABSENT``.

        Raises:
            MetadataUnavailableError: no answer came. Any other error, for example that the value
                was deleted, ends the loop and reaches the caller.
        """

    def write(self, new: T, old: Versioned[T]) -> Versioned[T]:
        """Replace ``old``, as it was read, by ``new``; return ``new`` with its version.

        Raises:
            VersionConflictError: another value is stored by now; nothing was written.
            MetadataUnavailableError: it may or may not have been written.
        """


def change(
    cell: Cell[T], step: Callable[[T], T | None], *, known: Versioned[T] | None = None
) -> Versioned[T]:
    """Change a value by a pure step, and return the value stored afterwards.

    Args:
        cell: the value.
        step: old value to new value; ``None`` or an equal value means that there is nothing to
            write. It may be called several times, each time with the value that it would replace.
            An error that it raises reaches the caller, and nothing is written.
        known: a value that the caller has read. It saves the first read; if it is outdated, nothing
            is lost.

    Raises:
        VersionConflictError: it kept changing (``CONFLICTS_MAX`` times).
        MetadataUnavailableError: the change may or may not have been made.
    """
    current = known if known is not None else cell.read()
    conflicts = unknown = 0
    doubt: str | None = None  # not the error: its frames would keep it alive
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
            if doubt is not None:  # the caller needs the doubt about the change, not about the read
                raise MetadataUnavailableError(doubt) from None
            raise
        # After a lost answer this is our own write, or the same change by another client. After a
        # conflict it can only be the latter. In both cases nothing remains to be done.
        if _holds(current, intended):
            return current


def _holds(found: Versioned[T], value: T) -> bool:
    return found.version != ABSENT and found.value == value
