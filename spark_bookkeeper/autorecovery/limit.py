"""The limit on copying that holds for every worker. It is kept in the cluster, and may change while
they work.
"""

from __future__ import annotations

from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers

_LIMIT: Final = "autorecovery/bytes-per-second"
"""The register that has it."""


def read_limit(registers: Registers) -> int | None:
    """Bytes per second that each worker may copy; ``None`` is no limit."""
    found = registers.read(_LIMIT)
    try:
        return None if found is None else int(found.value) or None
    except ValueError:
        return None


def write_limit(registers: Registers, bytes_per_second: int | None) -> None:
    """Set it for all workers; those at work obey within seconds, also in the middle of a ledger."""
    wanted = bytes_per_second or 0
    change_register(
        registers,
        _LIMIT,
        lambda found: -1 if found is None else _number(found.value),
        lambda value: str(value).encode(),
        lambda _: wanted,
    )


def share_now(sharing: int, context: ClientContext) -> int | None:
    """The part that one of so many ledgers has, as the limit is now."""
    found = read_limit(context.store.registers)
    return None if found is None else max(1, found // sharing)


def _number(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        return -1
