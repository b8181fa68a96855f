"""Logs into a backup: the list of each, and the registers that make it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import NoSuchLogError
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.consumers import CONSUMERS_PARENT
from spark_bookkeeper.protocol.ids import LedgerId


@dataclass(frozen=True, slots=True)
class SavedList:
    """The list of a log, and the registers that make it up."""

    ledgers: tuple[LedgerId, ...]
    registers: Mapping[str, bytes]


def listed(lists: Mapping[str, SavedList]) -> set[LedgerId]:
    """The ledgers of all of them."""
    return {ledger_id for each in lists.values() for ledger_id in each.ledgers}


def lists_of(context: ClientContext, names: Sequence[str] | None) -> dict[str, SavedList]:
    """The lists of logs; those that were deleted are left out, unless they were asked for."""
    found = {}
    for name in logs.log_names(context.store.registers) if names is None else names:
        try:
            found[name] = _list_of(context, name)
        except NoSuchLogError:
            if names is not None:
                raise
    return found


def _list_of(context: ClientContext, name: str) -> SavedList:
    """Read until nothing changed meanwhile."""
    registers = context.store.registers
    while True:
        nonce = logs.read_log(registers, name).nonce
        path = f"{logs.LOGS_PARENT}/{name}"
        before = registers.read(path)
        head, ledgers = list_ledgers(context, name, nonce)
        found = {path: before.value if before is not None else b""}
        consumers = f"{CONSUMERS_PARENT}/{name}"
        wanted = [f"{path}/{chunk.name}" for chunk in head.chunks]
        wanted += [f"{consumers}/{each}" for each in registers.names(consumers)]
        for each in wanted:
            value = registers.read(each)
            if value is not None:
                found[each] = value.value
        after = registers.read(path)
        if before is not None and after is not None and before.value == after.value:
            return SavedList(tuple(ledgers), found)
