"""Registers: named values of this library under compare-and-swap.

Registers hold all metadata that is not BookKeeper's own, for example the lists of ledgers of logs.
A name is a path such as ``logs/orders``; its parents are created when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_bookkeeper.metadata.compare_and_swap import ABSENT, change
from spark_bookkeeper.metadata.store import Registers, Versioned

T = TypeVar("T")


def change_register(
    registers: Registers,
    name: str,
    decode: Callable[[Versioned[bytes] | None], T],
    encode: Callable[[T], bytes],
    step: Callable[[T], T | None],
) -> T:
    """Change a register by a pure step, and return the value stored afterwards.

    Args:
        registers: the store of registers.
        name: the register's name.
        decode: returns the value of its bytes. It is called with ``None`` if the register does not
            exist, and then returns an initial value or raises.
        encode: returns the bytes of a value.
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
