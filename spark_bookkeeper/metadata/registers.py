"""Registers: named values of ours under compare-and-swap.

What is not BookKeeper's own metadata is kept in such registers, for example the lists of ledgers
that logs are. A name is a path, ``logs/orders``; what is above it is made as it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_bookkeeper.errors import MetadataUnavailableError, VersionConflictError
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.metadata.update import CONFLICTS_MAX, UNKNOWN_MAX

T = TypeVar("T")


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
