"""Registers: named values of ours under compare-and-swap.

What is not BookKeeper's own metadata is kept in such registers, for example the lists of ledgers
that logs are. A name is a path, ``logs/orders``; what is above it is made as it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from spark_bookkeeper.metadata.compare_and_swap import ABSENT, change
from spark_bookkeeper.metadata.store import Versioned

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
        step: old value to new value, see ``compare_and_swap.change``.

    Raises:
        VersionConflictError: it kept changing (``CONFLICTS_MAX`` times).
        MetadataUnavailableError: the change may or may not have been made.
    """
    return change(_Register(registers, name, decode, encode), step).value


@dataclass(frozen=True, slots=True)
class _Register(Generic[T]):
    """The decoded value of one register."""

    registers: Registers
    name: str
    decode: Callable[[Versioned[bytes] | None], T]
    encode: Callable[[T], bytes]

    def read(self) -> Versioned[T]:
        found = self.registers.read(self.name)
        return Versioned(self.decode(found), ABSENT if found is None else found.version)

    def write(self, new: T, old: Versioned[T]) -> Versioned[T]:
        data = self.encode(new)
        if old.version == ABSENT:
            written = self.registers.create(self.name, data)
        else:
            written = self.registers.write(self.name, data, old.version)
        return Versioned(new, written.version)
