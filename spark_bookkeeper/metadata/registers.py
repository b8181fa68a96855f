"""Registers: named values of ours under compare-and-swap.

What is not BookKeeper's own metadata is kept in such registers, for example the lists of ledgers
that logs are. A name is a path, ``logs/orders``; what is above it is made as it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from spark_bookkeeper.errors import MetadataUnavailableError, VersionConflictError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import CONFLICTS_MAX, UNKNOWN_MAX

T = TypeVar("T")


class Registers(Protocol):
    """Every method raises ``MetadataUnavailableError`` when there is no answer; a change may have
    happened then.
    """

    def read(self, name: str) -> Versioned[bytes] | None:
        """The newest value, ``None`` if there is no such register."""

    def create(self, name: str, data: bytes) -> Versioned[bytes]:
        """Make a register. One that has these very bytes counts as made by an earlier attempt.

        Raises:
            VersionConflictError: there is one of that name, with other bytes.
        """

    def write(self, name: str, data: bytes, version: int) -> Versioned[bytes]:
        """Compare-and-swap.

        Raises:
            VersionConflictError: it has another version, or is gone; nothing was written.
        """

    def delete(self, name: str) -> None:
        """Remove a register, whatever it holds; one that is not there counts as removed."""

    def names(self, parent: str) -> Sequence[str]:
        """The last parts of the names of all registers directly below, sorted."""


def change_register(
    registers: Registers,
    name: str,
    decode: Callable[[Versioned[bytes] | None], T],
    encode: Callable[[T], bytes],
    step: Callable[[T], T | None],
) -> T:
    """Change a register by a pure step, and return what is stored afterwards.

    Args:
        registers: where it is.
        name: its name.
        decode: the value in its bytes; is asked with ``None`` where there is no register, and may
            give a value to begin with, or raise.
        encode: the bytes of a value.
        step: old value to new value; ``None``, or an equal one, means that there is nothing to
            write. It may be asked several times, each time with the value that it would
            replace, and must know its own change when it meets it: after a lost answer the value
            is read again and compared with what was meant (SLOT-LOG rule R14).

    Raises:
        VersionConflictError: it kept changing (``CONFLICTS_MAX`` times).
        MetadataUnavailableError: the change may or may not have been made.
    """
    conflicts = unknown = 0
    intended: T | None = None
    while True:
        found = registers.read(name)
        current = decode(found)
        if intended is not None and current == intended:
            return current
        intended = step(current)
        if intended is None or (found is not None and intended == current):
            return current
        try:
            if found is None:
                registers.create(name, encode(intended))
            else:
                registers.write(name, encode(intended), found.version)
        except VersionConflictError:
            conflicts += 1
            if conflicts == CONFLICTS_MAX:
                raise
        except MetadataUnavailableError:
            unknown += 1
            if unknown == UNKNOWN_MAX:
                raise
        else:
            return intended
