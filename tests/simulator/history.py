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


Rows: TypeAlias = "tuple[bytes, ...]"
"""Payloads in order: of one entry, or of what one append was given."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A writer was told that what it appended is stored, in these entries."""

    actor: str
    first_entry_id: int
    """Follows the entries acknowledged before: nobody is told where an append begins."""
    entry_id: int
    """The last one; the first one as well where the append was one payload."""
    rows: Rows


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
    rows: Rows


@dataclass
class History:
    """Events in order; appended to, never changed. Those of several ledgers may be in one list."""

    events: list[Event] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    appended: list[bytes] = field(default_factory=list)
    """Rows in the order in which the writer was asked to append them."""

    def note(self, actor: str, what: str, *facts: Fact) -> None:
        """Something happened."""
        self.events.append((actor, what, *facts))

    def note_appended(self, actor: str, *rows: bytes) -> None:
        """A writer was asked to append rows; called before the append begins."""
        self.appended.extend(rows)
        self.note(actor, "append", *rows)

    def note_acknowledged(self, actor: str, entry_id: int, *rows: bytes) -> None:
        first = self.acknowledged[-1].entry_id + 1 if self.acknowledged else 0
        self.acknowledged.append(Acknowledged(actor, first, entry_id, rows))
        self.note(actor, "acknowledged", entry_id, *rows)

    def note_closed(self, actor: str, last_entry_id: int, length_bytes: int) -> None:
        self.closed.append(Closed(actor, last_entry_id, length_bytes))
        self.note(actor, "closed", last_entry_id, length_bytes)

    def note_returned(self, actor: str, entry_id: int, *rows: bytes) -> None:
        self.returned.append(Returned(actor, entry_id, rows))
        self.note(actor, "returned", entry_id, *rows)

    def digest(self) -> str:
        """SHA-256 over all events."""
        return hashlib.sha256(repr(self.events).encode()).hexdigest()

    def __str__(self) -> str:
        return "\n".join(
            f"{index:5}  {event[0]!s:12} {event[1]!s:14} {' '.join(map(repr, event[2:]))}"
            for index, event in enumerate(self.events)
        )
