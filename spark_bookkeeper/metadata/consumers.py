"""The positions of named followers of logs: one register for each follower.

The position of consumer ``etl`` of log ``orders`` is the register ``consumers/orders/etl``, a JSON
object. It serves people and retention; a follower keeps its own record of what it reads next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from spark_bookkeeper.errors import InvalidArgumentError, VersionConflictError
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position, parse_log_name
from spark_bookkeeper.protocol.stored_json import decoded, number

CONSUMERS_PARENT: Final = "consumers"
"""The parent of the registers of consumers."""

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Consumer:
    """A named follower, and the position of the entry that it reads next."""

    name: str
    nonce: str
    """The life of the log that it follows."""
    position: Position
    published_at_ms: int
    """The time on the follower's clock, in milliseconds since 1970, for people."""


def publish(registers: Registers, log: str, consumer: Consumer) -> None:
    """Publish the position of a follower; it replaces the earlier one.

    Raises:
        InvalidArgumentError: the name is not valid for a follower.
        MetadataUnavailableError: it may or may not be published.
    """
    change_register(
        registers,
        _register(log, consumer.name),
        lambda found: _decoded(consumer.name, found),
        lambda _: _encoded(consumer),
        lambda _: consumer,
    )


def consumers(registers: Registers, log: str, nonce: str) -> list[Consumer]:
    """Return the named followers of this life of a log, by name.

    A register that cannot be decoded is left out: its follower will publish again.
    """
    return [each.value for each in _of_life(registers, log, nonce)]


def unreadable_consumers(registers: Registers) -> list[str]:
    """Return the registers of consumers, of all logs, that cannot be decoded; by name."""
    logs = [f"{CONSUMERS_PARENT}/{log}" for log in registers.names(CONSUMERS_PARENT)]
    every = [f"{log}/{name}" for log in logs for name in registers.names(log)]
    told = registers.read_many(every)
    return [name for name, found in told if found and _decoded(name, found) is None]


def forget(registers: Registers, log: str, name: str) -> bool:
    """Remove a follower, so retention ignores it; return whether it existed. Idempotent."""
    found = registers.read(_register(log, name))
    registers.delete(_register(log, name))
    return found is not None


def forget_life(registers: Registers, log: str, nonce: str) -> None:
    """Remove the followers of a deleted log. Idempotent.

    A follower that publishes meanwhile stays. If a stream of the deleted log publishes later, its
    position stays but counts for no other log of that name, until a follower publishes under the
    same name or it is removed. If a follower of the next log has the same name, its position is
    replaced, so it counts as having published nothing until it publishes again.
    """
    for each in _of_life(registers, log, nonce):
        with suppress(VersionConflictError):
            registers.delete(_register(log, each.value.name), each.version)


def parse_consumer_name(name: object) -> str:
    """Return ``name`` if it is valid for a follower. Raises ``InvalidArgumentError`` otherwise."""
    try:
        return parse_log_name(name)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"consumer name {name!r} is not one: 1 to 200 letters, digits, '.', '_' and '-', of "
            "which the first is a letter, a digit or '_', for example 'etl'"
        ) from None


def _of_life(registers: Registers, log: str, nonce: str) -> Iterator[Versioned[Consumer]]:
    parent = f"{CONSUMERS_PARENT}/{parse_log_name(log)}"
    for name in registers.names(parent):
        found = registers.read(f"{parent}/{name}")
        consumer = _decoded(name, found)
        if found is not None and consumer is not None and consumer.nonce == nonce:
            yield Versioned(consumer, found.version)


def _register(log: str, name: str) -> str:
    return f"{CONSUMERS_PARENT}/{parse_log_name(log)}/{parse_consumer_name(name)}"


def _encoded(consumer: Consumer) -> bytes:
    value = {
        "version": _VERSION,
        "nonce": consumer.nonce,
        "ledger": consumer.position.ledger_id,
        "entry": consumer.position.entry_id,
        "published_at_ms": consumer.published_at_ms,
    }
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _decoded(name: str, found: Versioned[bytes] | None) -> Consumer | None:
    if found is None:
        return None

    def consumer(value: Any) -> Consumer:
        ledger_id, entry_id = number(value["ledger"]), number(value["entry"], NO_ENTRY)
        position = Position(LedgerId(ledger_id), EntryId(entry_id))
        return Consumer(name, str(value["nonce"]), position, number(value["published_at_ms"]))

    try:
        return decoded(found.value, consumer)
    except ValueError:
        return None
