"""The limit on copying for every worker. The cluster stores it, and it may change while workers
copy.
"""

from __future__ import annotations

from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.stored_json import number

_LIMIT: Final = "autorecovery/bytes-per-second"
"""The register that holds the limit."""


def read_limit(registers: Registers) -> int | None:
    """Return the bytes per second that each worker may copy; ``None`` is no limit."""
    limit = _decoded(registers.read(_LIMIT))
    return limit if limit > 0 else None


def write_limit(registers: Registers, bytes_per_second: int | None) -> None:
    """Set the limit for all workers; those at work obey within seconds, also within a ledger."""
    wanted = bytes_per_second or 0
    change_register(
        registers, _LIMIT, _decoded, lambda value: str(value).encode(), lambda _: wanted
    )


def limit_at_first(context: ClientContext) -> int | None:
    """Read the limit for a batch that begins, and remember it for all copying in this process."""
    found = read_limit(context.store.registers)
    context.copy_limit.told(context.runtime.now(), found)
    return found


def share_now(sharing: int, context: ClientContext, before: int | None) -> int | None:
    """Return the part of one of ``sharing`` ledgers in the limit that this process read last.

    The process reads the limit once in ``LOOK_SECONDS``, however many ledgers it copies.

    Args:
        before: the ledger's part until now, which is kept until this process has read the limit.
    """
    found = context.copy_limit.value(
        context.runtime.now(),
        lambda: read_limit(context.store.registers),
        None if before is None else before * sharing,
    )
    return None if found is None else max(1, found // sharing)


def _decoded(found: Versioned[bytes] | None) -> int:
    """Return the stored number; -1, which means no limit, if it is missing or unreadable."""
    try:
        return -1 if found is None else number(found.value)
    except ValueError:
        return -1
