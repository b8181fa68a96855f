"""Where a read begins and ends, as people write it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position


@dataclass(frozen=True, slots=True)
class End:
    """One end of what is there when it is looked at: ``EARLIEST`` or ``LATEST``."""

    name: str


EARLIEST: Final = End("earliest")
LATEST: Final = End("latest")

Place = Position | End


def parse_place(text: str) -> Place:
    """``earliest``, ``latest``, ``{"ledger": 7, "entry": 12}`` or ``7:12``.

    Raises:
        ValueError: it is none of them.
    """
    stripped = text.strip()
    for end in (EARLIEST, LATEST):
        if stripped.lower() == end.name:
            return end
    if not stripped.startswith("{"):
        position = Position.parse(stripped)
        if position.row:
            raise ValueError("it is within an entry, and entries are read whole")
        return position
    try:
        value = json.loads(stripped)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return position_of(value)


def position_of(value: object) -> Position:
    """The position in ``{"ledger": 7, "entry": 12}``; ``entry`` is 0 where it is left out.

    Raises:
        ValueError: it has another form.
    """
    if not isinstance(value, dict) or not {"ledger"} <= value.keys() <= {"ledger", "entry"}:
        raise ValueError('it is not of the form {"ledger": 7, "entry": 12}')
    ledger, entry = value["ledger"], value.get("entry", 0)
    for number in (ledger, entry):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
            raise ValueError(f"{number!r} is no ledger or entry id")
    return Position(LedgerId(ledger), EntryId(entry))
