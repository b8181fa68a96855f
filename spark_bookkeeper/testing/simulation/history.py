"""What happened in a run, in order, and its digest.

Events are tuples of plain values, so that two runs are the same if and only if their digests
are. What clients were told is kept by kind as well, because the invariants speak about it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeAlias

Fact: TypeAlias = "str | int | float | bytes | bool | None"
Event: TypeAlias = "tuple[Fact, ...]"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A writer was told that an entry is stored."""

    actor: str
    entry_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """Somebody was told, or wrote, where the ledger ends."""

    actor: str
    last_entry_id: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A reader was given an entry."""

    actor: str
    entry_id: int
    payload: bytes


@dataclass
class History:
    """Events in order; appended to, never changed."""

    events: list[Event] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    appended: list[bytes] = field(default_factory=list)
    """Payloads in the order in which the writer was asked to append them: entry i is the i-th."""

    def note(self, actor: str, what: str, *facts: Fact) -> None:
        """Something happened."""
        self.events.append((actor, what, *facts))

    def note_appended(self, actor: str, payload: bytes) -> None:
        """A writer was asked to append an entry; called before the append begins."""
        self.appended.append(payload)
        self.note(actor, "append", payload)

    def note_acknowledged(self, actor: str, entry_id: int, payload: bytes) -> None:
        self.acknowledged.append(Acknowledged(actor, entry_id, payload))
        self.note(actor, "acknowledged", entry_id, payload)

    def note_closed(self, actor: str, last_entry_id: int, length_bytes: int) -> None:
        self.closed.append(Closed(actor, last_entry_id, length_bytes))
        self.note(actor, "closed", last_entry_id, length_bytes)

    def note_returned(self, actor: str, entry_id: int, payload: bytes) -> None:
        self.returned.append(Returned(actor, entry_id, payload))
        self.note(actor, "returned", entry_id, payload)

    def digest(self) -> str:
        """SHA-256 over all events."""
        return hashlib.sha256(repr(self.events).encode()).hexdigest()

    def __str__(self) -> str:
        return "\n".join(
            f"{index:5}  {event[0]!s:12} {event[1]!s:14} {' '.join(map(repr, event[2:]))}"
            for index, event in enumerate(self.events)
        )
