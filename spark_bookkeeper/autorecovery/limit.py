"""The limit on copying that holds for every worker. It is kept in the cluster, and may change while
they work.
"""

from __future__ import annotations

from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.stored_json import number

_LIMIT: Final = "autorecovery/bytes-per-second"
"""The register that has it."""


def read_limit(registers: Registers) -> int | None:
    """Bytes per second that each worker may copy; ``None`` is no limit."""
    limit = _decoded(registers.read(_LIMIT))
    return limit if limit > 0 else None


def write_limit(registers: Registers, bytes_per_second: int | None) -> None:
    """Set it for all workers; those at work obey within seconds, also in the middle of a ledger."""
    wanted = bytes_per_second or 0
    change_register(
        registers, _LIMIT, _decoded, lambda value: str(value).encode(), lambda _: wanted
    )


def limit_at_first(context: ClientContext) -> int | None:
    """The limit for a batch that begins: it is looked up, and remembered for all that copy here."""
    found = read_limit(context.store.registers)
    context.copy_limit.told(context.runtime.now(), found)
    return found


def share_now(sharing: int, context: ClientContext, before: int | None) -> int | None:
    """The part that one of so many ledgers has, by the limit as this process looked it up last.

    However many ledgers it copies, the process asks once in ``LOOK_SECONDS``.

    Args:
        before: the part it had until now, for as long as nobody here has found the limit.
    """
    found = context.copy_limit.value(
        context.runtime.now(),
        lambda: read_limit(context.store.registers),
        None if before is None else before * sharing,
    )
    return None if found is None else max(1, found // sharing)


def _decoded(found: Versioned[bytes] | None) -> int:
    """Not above 0 where there is no limit, or what is there says nothing."""
    try:
        return -1 if found is None else number(found.value)
    except ValueError:
        return -1
