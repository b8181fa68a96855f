"""The order that makes a bookie read-only by hand: a register that its agent reads at every probe.

The order is in the metadata store and not in the partition. So it can be given while the storage
cannot be reached, it holds while the agent is down, and it outlives a restart. It ends by
``set_writable``, when the bookie's cookie is deleted, or when the bookie is formatted.

Source: BookKeeper ``bookie/BookieStateManager`` (a mode that was set by hand stays, whatever the
monitors of the disks see).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import MetadataStore, Versioned
from spark_bookkeeper.protocol.arguments import check_text
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.stored_json import decoded, number

REASON_CHARACTERS: Final = 500
"""The longest reason; a sentence is enough."""

NO_REASON: Final = "no reason given"


@dataclass(frozen=True, slots=True)
class ReadOnlyOrder:
    """The order that a bookie takes no new data until ``set_writable``."""

    reason: str
    since_ms: int
    """When it was given, in milliseconds since 1970; for people."""


def read_order(store: MetadataStore, bookie_id: BookieId) -> ReadOnlyOrder | None:
    """Return the order for a bookie; ``None`` without one. One read of the metadata store.

    An order that cannot be decoded holds all the same: an operator wanted the bookie read-only.
    """
    return _decode(store.registers.read(_name(bookie_id)))


def set_readonly(
    store: MetadataStore, bookie_id: BookieId, reason: str | None, now_ms: int
) -> ReadOnlyOrder:
    """Order that the bookie takes no new data from its agent's next probe on; idempotent.

    Its data can be read, fenced and recovered as before.

    Args:
        reason: ``None`` keeps the previous reason, if any.

    Returns:
        the order that holds now.

    Raises:
        InvalidArgumentError: the bookie is unknown, or the reason is empty or too long. Nothing
            was changed.
        MetadataUnavailableError: the order may or may not have been given; repeat.
    """
    order = ReadOnlyOrder(NO_REASON if reason is None else reason, now_ms)
    check_text("reason", order.reason)
    if not order.reason.strip():
        raise InvalidArgumentError("the reason is empty; say for the others why it is read-only")
    if len(order.reason) > REASON_CHARACTERS:  # every client reads it with the registration
        raise InvalidArgumentError(
            f"the reason has {len(order.reason):,} characters, more than {REASON_CHARACTERS:,}; "
            "nothing was changed. Say it in a sentence, and where there is more to read"
        )
    _check_known(store, bookie_id)

    def step(old: ReadOnlyOrder | None) -> ReadOnlyOrder:
        return order if old is None or reason not in (None, old.reason) else old

    held = change_register(store.registers, _name(bookie_id), _decode, _encode, step)
    assert held is not None
    return held


def set_writable(store: MetadataStore, bookie_id: BookieId) -> bool:
    """Remove the order, and return whether it existed. The agent obeys at its next probe.

    The bookie stays read-only while its agent has another reason, for example that space is short.

    Raises:
        InvalidArgumentError: the bookie is unknown. Nothing was changed.
        MetadataUnavailableError: the order may or may not have been removed; repeat.
    """
    _check_known(store, bookie_id)
    was_there = read_order(store, bookie_id) is not None
    forget_order(store, bookie_id)
    return was_there


def forget_order(store: MetadataStore, bookie_id: BookieId) -> None:
    """Remove the order for a bookie that is removed or formatted again; idempotent."""
    store.registers.delete(_name(bookie_id))


def _check_known(store: MetadataStore, bookie_id: BookieId) -> None:
    if store.cookie_version(bookie_id) is None and all(
        registration.bookie_id != bookie_id for registration in store.registrations()
    ):
        raise InvalidArgumentError(
            f"bookie {bookie_id} is unknown: it has neither a cookie nor a registration; nothing "
            "was changed. `spark-bookkeeper bookie list` shows the bookies"
        )


def _name(bookie_id: BookieId) -> str:
    return f"readonly/{bookie_id}"


def _encode(order: ReadOnlyOrder | None) -> bytes:
    assert order is not None
    return json.dumps({"reason": order.reason, "since_ms": order.since_ms}).encode()


def _decode(found: Versioned[bytes] | None) -> ReadOnlyOrder | None:
    if found is None:
        return None
    try:
        return decoded(
            found.value,
            lambda values: ReadOnlyOrder(str(values["reason"]), number(values["since_ms"])),
        )
    except ValueError:
        return ReadOnlyOrder("by an order that cannot be decoded", 0)
